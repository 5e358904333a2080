"""RocksDB without compiling it: the library that the RocksDB project publishes for the JVM, for development and tests.

Owns: which library a platform takes, its checksum, and the folder $FASTCHANGELOG_CACHE/rocksdb-VERSION with it as
`librocksdb.so`. Does not own: released wheels, which compile RocksDB from the sources of its crate (setup.py), nor Java
and PySpark, whose Ivy resolves the library (environment.py).

The library exports RocksDB's whole C interface, which the crate links against. It has every codec that the crate's
features name (LZ4, zstd) and needs glibc 2.17. Where it cannot be had, RocksDB is compiled; a line says so, and the
decision is kept until its stamp is removed. FASTCHANGELOG_ROCKSDB=source asks for that, =library for the library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import cache
import environment
import prerequisites

#: The version of the crate, from Cargo.lock: `librocksdb-sys 0.19.0+11.8.1`.
VERSION = "11.8.1"
MODULE = ("org.rocksdb", "rocksdbjni")
FOLDER = cache.CACHE / f"rocksdb-{VERSION}"
LIBRARY = FOLDER / "librocksdb.so"
DECIDED = "rocksdb-from-source"
#: Ivy gives up after this many seconds.
PATIENCE = 180


class Published(NamedTuple):
    """A published library: its name in the jar, and its SHA-256."""

    member: str
    sha256: str


#: By machine and C library.
PUBLISHED = {
    ("x86_64", "glibc"): Published(
        "librocksdbjni-linux64.so", "265c656af5c6502cb8d71db1a74858509f706cc47f1a5b6f603c736d11ce677d"
    ),
    ("x86_64", "musl"): Published(
        "librocksdbjni-linux64-musl.so", "da7bf4bfbc321c95cfbc36294211ef825241132a0f1f53f027c507a59cbb0010"
    ),
    ("aarch64", "glibc"): Published(
        "librocksdbjni-linux-aarch64.so", "7b2d0808c6afae32db39f11cb61cbefffcf460895b1c64ee6193ba02d6bdd23a"
    ),
    ("aarch64", "musl"): Published(
        "librocksdbjni-linux-aarch64-musl.so", "7cb5d084db08dc68fd1208d2c9c9a2547402d5b718cb9b7a5d0e49199f1b702e"
    ),
}


class Unavailable(Exception):
    """The library cannot be had; the text says why."""


def published() -> Published:
    """The library for this machine."""
    libc = "glibc" if platform.libc_ver()[0] == "glibc" else "musl"
    machine = (platform.machine(), libc)
    if platform.system() != "Linux" or machine not in PUBLISHED:
        raise Unavailable(f"none is published for {platform.system()} on {machine[0]} with {libc}")
    if f'version = "0.19.0+{VERSION}"' not in (cache.ROOT / "Cargo.lock").read_text():
        raise Unavailable(f"Cargo.lock has another version of RocksDB than {VERSION}")
    return PUBLISHED[machine]


def is_wanted() -> bool:
    """True when the library is there or should be fetched, and RocksDB need not be compiled."""
    asked = os.environ.get("FASTCHANGELOG_ROCKSDB", "")
    if asked not in ("", "library", "source"):
        cache.fail(f"FASTCHANGELOG_ROCKSDB is '{asked}'; it takes 'library' or 'source'")
    return asked == "library" or (asked != "source" and not cache.is_fresh(DECIDED, VERSION))


def make() -> None:
    """Fetches the library when it is wanted and not there. Called once PySpark is installed."""
    if not is_wanted() or LIBRARY.exists():
        return
    try:
        with cache.step(f"RocksDB {VERSION}, as published for the JVM"):
            fetch(published())
    except Unavailable as error:
        if os.environ.get("FASTCHANGELOG_ROCKSDB") == "library":
            cache.fail(f"set-up failed: no published RocksDB: {error}; without FASTCHANGELOG_ROCKSDB it is compiled")
        cache.say(
            f"no published RocksDB: {error}. It is compiled from source instead, 15 minutes more on two cores; "
            "FASTCHANGELOG_ROCKSDB=library asks for it again"
        )
        cache.set_stamp(DECIDED, VERSION)


def fetch(wanted: Published) -> None:
    """Resolves the jar with Ivy, checks the library in it, and puts it into `FOLDER`."""
    with tempfile.TemporaryDirectory() as scratch:
        jar = resolve(Path(scratch))
        with zipfile.ZipFile(jar) as file:
            content = file.read(wanted.member)
    found = hashlib.sha256(content).hexdigest()
    if found != wanted.sha256:
        raise Unavailable(f"the checksum of {wanted.member} is {found}, expected {wanted.sha256}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    temporary = LIBRARY.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(LIBRARY)


def resolve(scratch: Path) -> Path:
    """The jar, from the registry that Ivy asks by default."""
    jars, java = environment.spark_jars(), prerequisites.java()
    ivy = next(jars.glob("ivy-*.jar"), None) if jars else None
    if ivy is None or java is None:
        raise Unavailable("it takes Java and the Ivy of PySpark to fetch it")
    command = [java, "-jar", ivy, "-cache", scratch, "-notransitive", "-dependency", *MODULE, VERSION]
    try:
        done = subprocess.run(
            [str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the registry did not answer within {PATIENCE} s") from None
    jar = next(scratch.rglob(f"{MODULE[1]}-{VERSION}.jar"), None)
    if jar is None:
        reasons = re.findall(
            r"\S*(?:Exception|not found|refused|timed out|SSL|unknown host)[^\n]*", done.stdout + done.stderr
        )
        raise Unavailable(f"the registry did not give it ({reasons[-1][:120] if reasons else 'without a reason'})")
    return jar


def variables() -> dict[str, str]:
    """The variables with which cargo links against the library, and tests find it; none when RocksDB is compiled."""
    if not is_wanted():
        return {}
    search = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("LD_LIBRARY_PATH", "")]))
    return {"ROCKSDB_LIB_DIR": str(FOLDER), "LD_LIBRARY_PATH": search}


def put_beside(package: Path) -> None:
    """Puts the library beside the extension module, which looks there first; removes it when RocksDB is compiled in."""
    beside = package / LIBRARY.name
    if not is_wanted():
        beside.unlink(missing_ok=True)
    elif not beside.exists() or beside.stat().st_size != LIBRARY.stat().st_size:
        temporary = beside.with_suffix(".new")
        shutil.copyfile(LIBRARY, temporary)
        temporary.replace(beside)
