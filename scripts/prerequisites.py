"""What must be on the machine before set-up can begin, each named in one line.

Owns: finding cargo, Java, a C++ compiler and Python's venv, and the sentence for each that is missing.
Does not own: installing anything (setup.py), nor finding Python itself (find_python.sh).

The order is that of the lines: all that is missing is named before anything else is done.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MIN_JAVA = 17
#: Bytes that the first run takes.
ROOM = 5 << 30


def _output(command: list[str]) -> str:
    """Standard output and error of a command, or nothing when it cannot run."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def cargo() -> str | None:
    """The cargo on the PATH, or where rustup puts it (a non-login shell often lacks it)."""
    return shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))


def java() -> str | None:
    """The Java that Spark would start: $JAVA_HOME first, then the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (found := shutil.which("java", path=str(Path(home) / "bin"))):
        return found
    return shutil.which("java")


def cxx() -> str | None:
    """A C++ compiler: $CXX, or the usual names."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def java_version(text: str) -> int:
    """The feature release out of `java -version`: 8 for 1.8, 17 for 17.0.2; 0 when there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def min_rust(root: Path) -> tuple[int, int]:
    """The oldest Rust that the workspace declares."""
    found = re.search(r'^rust-version = "(\d+)\.(\d+)', (root / "Cargo.toml").read_text(), re.MULTILINE)
    return (int(found.group(1)), int(found.group(2))) if found else (1, 0)


def room(folder: Path) -> int:
    """The free bytes of the disk that holds a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def missing(root: Path, cache: Path, *, need_java: bool) -> list[str]:
    """One line for each thing that is missing or too old, with its remedy."""
    lines = []
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        lines.append(f"missing: the venv module of {sys.executable} (on Debian: apt install python3-venv)")
    want = min_rust(root)
    rust = re.search(r"cargo (\d+)\.(\d+)", _output([cargo() or "cargo", "--version"]))
    if rust is None:
        lines.append(
            f"missing: Rust {want[0]}.{want[1]} or newer, with cargo (install it with rustup: https://rustup.rs)"
        )
    elif (int(rust.group(1)), int(rust.group(2))) < want:
        have = f"{cargo()} is {rust.group(1)}.{rust.group(2)}"
        remedy = "run: rustup update stable; a distribution's own Rust is often too old"
        lines.append(f"missing: Rust {want[0]}.{want[1]} or newer ({have}; {remedy})")
    if cxx() is None:
        lines.append("missing: a C++ compiler for RocksDB and zstd (on Debian: apt install g++)")
    if need_java:
        found = java()
        version = java_version(_output([found, "-version"])) if found else 0
        if version < MIN_JAVA:
            have = f"this one is {version}" if version else "none was found in JAVA_HOME or on the PATH"
            lines.append(f"missing: Java {MIN_JAVA} or newer, which Spark runs on ({have})")
    if not (cache / "stamps").exists() and room(cache) < ROOM:
        free = f"{room(cache) / 1e9:.1f} GB are free for {cache}"
        lines.append(f"missing: {ROOM / 1e9:.0f} GB of disk ({free}; choose another folder with FASTCHANGELOG_CACHE)")
    return lines


def clang_include(compiler: str | None) -> str | None:
    """The folder of the compiler's own headers (stddef.h …), which the libclang package does not bring."""
    for candidate in filter(None, (shutil.which("gcc"), shutil.which("clang"), compiler)):
        folder = _output([candidate, "-print-file-name=include"]).strip()
        if (Path(folder) / "stddef.h").is_file():
            return folder
        folder = _output([candidate, "-print-resource-dir"]).strip()
        if folder and (Path(folder) / "include" / "stddef.h").is_file():
            return str(Path(folder) / "include")
    return None
