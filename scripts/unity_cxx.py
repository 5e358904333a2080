#!/usr/bin/env python3
"""A C++ compiler for the RocksDB crate that compiles its sources in groups: `unity_cxx.py ARG...` runs `c++ ARG...`.

Nearly all the time of a RocksDB file goes into headers that the other files include as well: twelve small files take
14 s in one translation unit and 80 s in twelve. RocksDB supports such a unity build itself (`make unity`).

The crate's build script calls the compiler once per file. The first file of a group compiles the whole group, with the
flags of the call. Each other file of the group becomes an empty object. All other calls are passed on unchanged. If a
group does not compile as one translation unit, its files are compiled one by one, and their objects are linked.

Owns: the groups. Does not own: flags and the list of sources (the crate), where this file is installed (setup.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: The crate's list of RocksDB's sources, in the folder in which its build script runs.
LIST = Path("rocksdb_lib_sources.txt")
FOLDER = "rocksdb/"
#: Bytes of sources in a group: about thirty groups, each with less than 2 GB of memory.
GROUP = 256 << 10


def compiler() -> str:
    """The compiler behind this one, which setup.py looks for."""
    return os.environ.get("FASTCHANGELOG_CXX") or "c++"


def groups(sources: list[str]) -> list[list[str]]:
    """The sources in groups of at most `GROUP` bytes, in their order. A larger file is a group of its own."""
    made: list[list[str]] = []
    room = 0
    for source in sources:
        size = (Path(FOLDER) / source).stat().st_size
        if not made or size > room:
            made.append([])
            room = GROUP
        made[-1].append(source)
        room -= size
    return made


def group_of(source: str) -> list[str]:
    """The group that holds the source; empty when the list has no such file."""
    listed = [line.strip() for line in LIST.read_text().splitlines()]
    # A generated file is listed and compiled from elsewhere.
    there = [name for name in listed if name and (Path(FOLDER) / name).is_file()]
    return next((group for group in groups(there) if source in group), [])


def call(args: list[str]) -> int:
    """Runs the compiler."""
    return subprocess.run([compiler(), *args]).returncode


def one_by_one(args: list[str], at: int, output: Path, group: list[str]) -> int:
    """Compiles each file of the group and links the objects into one."""
    objects = []
    for number, source in enumerate(group):
        single = output.with_suffix(f".{number}.o")
        replaced = {at: FOLDER + source, args.index(str(output)): str(single)}
        if code := call([replaced.get(index, arg) for index, arg in enumerate(args)]):
            return code
        objects.append(single)
    code = call(["-r", "-nostdlib", "-o", str(output), *map(str, objects)])
    for single in objects:
        single.unlink()
    return code


def main(args: list[str]) -> int:
    """One call of the compiler."""
    at = args.index("-c") + 1 if "-c" in args and "-o" in args else 0
    if not 0 < at < len(args) or not args[at].startswith(FOLDER) or not LIST.is_file():
        os.execvp(compiler(), [compiler(), *args])
    source, output = args[at].removeprefix(FOLDER), Path(args[args.index("-o") + 1])
    group = group_of(source)
    if len(group) < 2:
        os.execvp(compiler(), [compiler(), *args])
    text = ""
    if source == group[0]:
        text = "".join(f'#include "{name}"\n' for name in group)
    unit = output.with_suffix(".unity.cc")
    unit.write_text(text)
    grouped = [*args[:at], str(unit), *args[at + 1 :]]
    return call(grouped) and one_by_one(args, at, output, group)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
