"""The compiler that compiles RocksDB's sources in groups: the objects are those of the files.

Owns: groups, empty objects, the fall-back to single files, calls that are passed on. Does not own: RocksDB itself,
which every other test runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRAPPER = Path(__file__).resolve().parent.parent / "scripts" / "unity_cxx.py"


def compile_all(folder: Path, sources: dict[str, str]) -> list[Path]:
    """Compiles the sources as the crate's build script does: one call each."""
    (folder / "rocksdb").mkdir()
    (folder / "rocksdb_lib_sources.txt").write_text("\n".join([*sources, "generated/version.cc"]) + "\n")
    for name, text in sources.items():
        (folder / "rocksdb" / name).write_text(text)
    objects = []
    for name in sources:
        objects.append(folder / f"{name}.o")
        call(folder, "-O1", "-I", "rocksdb/", "-o", str(objects[-1]), "-c", f"rocksdb/{name}")
    return objects


def call(folder: Path, *args: str) -> None:
    subprocess.run([sys.executable, WRAPPER, *args], cwd=folder, check=True, stdin=subprocess.DEVNULL)


def result(folder: Path, objects: list[Path]) -> int:
    """Links the objects with a main function and runs it."""
    (folder / "main.cc").write_text("int one(); int two(); int main() { return 10 * one() + two(); }\n")
    call(folder, "-o", str(folder / "program"), "main.cc", *map(str, objects))
    return subprocess.run([folder / "program"], stdin=subprocess.DEVNULL).returncode


def symbols(file: Path) -> bool:
    return b"_Z3onev" in file.read_bytes() or b"_Z3twov" in file.read_bytes()


def test_the_first_file_of_a_group_holds_the_group(tmp_path: Path) -> None:
    objects = compile_all(tmp_path, {"a.cc": "int one() { return 1; }\n", "b.cc": "int two() { return 2; }\n"})
    assert [symbols(file) for file in objects] == [True, False]
    assert result(tmp_path, objects) == 12


def test_files_that_do_not_go_together_are_compiled_one_by_one(tmp_path: Path) -> None:
    same = "namespace { int value = %d; }\nint %s() { return value; }\n"
    objects = compile_all(tmp_path, {"a.cc": same % (3, "one"), "b.cc": same % (4, "two")})
    assert result(tmp_path, objects) == 34
    assert sorted(path.name for path in tmp_path.glob("*.o")) == ["a.cc.o", "b.cc.o"]


def test_a_file_that_does_not_compile_fails_the_call(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        compile_all(tmp_path, {"a.cc": "int one() { return 1; }\n", "b.cc": "int two( {\n"})


def test_a_large_file_is_a_group_of_its_own(tmp_path: Path) -> None:
    sources = {"a.cc": "int one() { return 5; }\n" + "//\n" * 100_000, "b.cc": "int two() { return 6; }\n"}
    objects = compile_all(tmp_path, sources)
    assert [symbols(file) for file in objects] == [True, True]
    assert result(tmp_path, objects) == 56
