"""The licenses and the parts list of what is linked into the wheel.

Owns: LICENSE-THIRD-PARTY.txt, which every wheel carries, written from what cargo-about reads (about.toml) and from the
licenses of zig's C++ runtime; the CycloneDX list of the C and C++ libraries, which maturin's own list of crates does
not name.
Does not own: which licenses are allowed (deny.toml), when the file is written and checked (distribution.py).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import cache
import prerequisites

FILE = cache.ROOT / "LICENSE-THIRD-PARTY.txt"
#: The version of cargo-about. Its program needs a feature.
ABOUT = "0.9.3"
#: Parts of zig that are linked into the wheel, and their licenses below zig's folder.
RUNTIME = {
    "libc++ and libc++abi of LLVM": "lib/libcxx/LICENSE.TXT",
    "compiler-rt of Zig": "LICENSE",
}
#: Libraries of C and C++ inside crates: crate, what precedes their version in the crate's, package URL, license.
LIBRARIES = {
    "RocksDB": ("librocksdb-sys", "+", "pkg:github/facebook/rocksdb@v{}", "Apache-2.0"),
    "LZ4": ("lz4-sys", "+lz4-", "pkg:github/lz4/lz4@v{}", "BSD-2-Clause"),
    "Zstandard": ("zstd-sys", "+zstd.", "pkg:github/facebook/zstd@v{}", "BSD-3-Clause"),
}
HEAD = """\
Software of others in the wheels of fastchangelog
=================================================

fastchangelog/_internal.abi3.so contains the packages below, each under the license that follows the name.
The Rust standard library is in it as well, under Apache-2.0.
scripts/notice.py writes this file.
"""


class Text(NamedTuple):
    """The text of a license, and the packages that it came with."""

    licenses: str
    packages: list[str]
    text: str


def about() -> dict[str, Any]:
    """What cargo-about finds out about the crates of the wheel."""
    folder = cache.CACHE / "cargo-tools" / f"about-{ABOUT}"
    program = folder / "bin" / "cargo-about"
    cargo = str(prerequisites.cargo())
    if not program.exists():
        cache.say(f"cargo-about {ABOUT} (compiled once: some minutes)")
        # Not in cargo's folder of this project: nothing is shared with it.
        build = {"CARGO_TARGET_DIR": str(folder / "target")}
        install = [cargo, "install", "--quiet", "--locked", "--root", str(folder), "--features", "cli"]
        cache.run(*install, f"cargo-about@{ABOUT}", env=build)
        shutil.rmtree(folder / "target", ignore_errors=True)
    manifest, config = cache.ROOT / "rust" / "pyext" / "Cargo.toml", cache.ROOT / "scripts" / "about.toml"
    command = [program, "generate", "--locked", "--fail", "--format", "json", "--config", config, "-m", manifest]
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    # A text that about.toml names is another one in a new version of the crate: cargo-about warns, and goes on.
    if done.returncode != 0 or "failed to validate" in done.stderr:
        cache.fail("cargo-about cannot read the licenses of all crates:", done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def crates(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The crates of others by name and version."""
    packages = [entry["package"] for entry in found["crates"]]
    return {f"{p['name']} {p['version']}": p for p in packages if p["source"] is not None}


def texts(found: dict[str, Any], zig: Path) -> list[Text]:
    """The texts of all licenses, each once."""
    licenses: dict[str, set[str]] = defaultdict(set)
    packages: dict[str, set[str]] = defaultdict(set)
    known = crates(found)
    for entry in found["licenses"]:
        text = normal(entry["text"])
        users = {f"{use['crate']['name']} {use['crate']['version']}" for use in entry["used_by"]} & known.keys()
        if users:
            licenses[text].add(entry["id"])
            packages[text] |= users
    for name, file in RUNTIME.items():
        text = normal((zig / file).read_text())
        licenses[text].add("MIT" if "Zig" in name else "Apache-2.0 WITH LLVM-exception")
        packages[text].add(name)
    made = [Text(", ".join(sorted(licenses[t])), sorted(packages[t], key=str.lower), t) for t in licenses]
    return sorted(made, key=lambda t: (t.licenses, t.packages))


def notices(found: dict[str, Any]) -> list[Text]:
    """The NOTICE files of crates, which Apache-2.0 wants to be passed on."""
    packages: dict[str, set[str]] = defaultdict(set)
    for name, package in crates(found).items():
        for file in sorted(Path(package["manifest_path"]).parent.glob("NOTICE*")):
            packages[normal(file.read_text())].add(name)
    return sorted(Text("NOTICE", sorted(names), text) for text, names in packages.items())


def normal(text: str) -> str:
    """A text as it is compared: without the end of lines, empty lines around it, and a common indentation."""
    return textwrap.dedent("\n".join(line.rstrip() for line in text.splitlines())).strip("\n")


def rendered(parts: list[Text]) -> str:
    """The contents of the file."""
    lines = [HEAD]
    for part in parts:
        names = textwrap.fill(", ".join(part.packages), width=110, break_long_words=False, break_on_hyphens=False)
        lines += ["", "=" * 110, f"{part.licenses}:", names, "-" * 110, "", part.text, ""]
    return "\n".join(lines)


def libraries(found: dict[str, Any], clang: str) -> dict[str, Any]:
    """The CycloneDX list of the libraries that are not Rust."""
    versions = {package["name"]: package["version"] for package in crates(found).values()}
    parts = []
    for name, (crate, before, url, license_) in LIBRARIES.items():
        version = versions[crate].partition(before)[2]
        parts.append((name, version, url.format(version), license_))
    llvm = f"pkg:github/llvm/llvm-project@llvmorg-{clang}"
    parts += [(name, clang, llvm, "Apache-2.0 WITH LLVM-exception") for name in ("libc++", "libc++abi")]
    components = [
        {
            "type": "library",
            "bom-ref": name,
            "name": name,
            "version": version,
            "purl": url,
            "licenses": [{"expression": license_}],
        }
        for name, version, url, license_ in parts
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def check(found: dict[str, Any], zig: Path) -> None:
    """Writes the file anew and ends with one line when it was not up to date."""
    text = rendered([*texts(found, zig), *notices(found)])
    if not FILE.exists() or FILE.read_text() != text:
        FILE.write_text(text)
        cache.fail(f"{FILE.name} was not up to date and has been written anew: look at it, commit it, start again")
