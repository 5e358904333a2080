"""The set-up: which changes make a part again, and one clear line for all that a machine may lack or refuse.

Owns: fingerprints, stamps, time stamps of sources, the published RocksDB that cannot be had, the lines of errors.
Does not own: the commands themselves, which every run of the tests runs.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
MODULES = ("cache", "environment", "prerequisites", "rocksdb", "setup")


class Scripts(NamedTuple):
    """The modules of scripts/, with a cache of their own."""

    cache: ModuleType
    environment: ModuleType
    prerequisites: ModuleType
    rocksdb: ModuleType
    setup: ModuleType


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("FASTCHANGELOG_CACHE", str(tmp_path / "cache"))
    for name in ("FASTCHANGELOG_ROCKSDB", "FASTCHANGELOG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = Scripts(*map(importlib.import_module, MODULES))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name)
    return found


def test_a_fingerprint_depends_on_contents_and_names_alone(scripts: Scripts, tmp_path: Path) -> None:
    fingerprint, folder = scripts.cache.fingerprint, tmp_path / "src"
    folder.mkdir()
    source = folder / "a.rs"
    source.write_text("one")
    first = fingerprint(folder, "key")
    os.utime(source, (1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.py").write_text("no source")
    assert fingerprint(folder, "key") == first
    source.write_text("two")
    assert fingerprint(folder, "key") != first
    source.write_text("one")
    assert fingerprint(folder, "key") == first
    source.rename(folder / "b.rs")
    assert fingerprint(folder, "key") != first
    assert fingerprint(folder, "other") != fingerprint(folder, "key")


def test_a_stamp_holds_until_its_key_changes(scripts: Scripts) -> None:
    assert not scripts.cache.is_fresh("wheel", "a")
    scripts.cache.set_stamp("wheel", "a")
    assert scripts.cache.is_fresh("wheel", "a")
    assert not scripts.cache.is_fresh("wheel", "b")


def test_a_source_changed_under_an_old_time_is_touched(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.setup, "ROOT", tmp_path)
    source = tmp_path / "rust" / "a.rs"
    source.parent.mkdir()
    (tmp_path / "Cargo.toml").touch()
    source.write_text("one")
    scripts.setup.touch_changed()
    source.write_text("two")
    os.utime(source, (1_000_000_000, 1_000_000_000))
    scripts.setup.touch_changed()
    assert source.stat().st_mtime > 1_000_000_000
    before = source.stat().st_mtime_ns
    scripts.setup.touch_changed()
    assert source.stat().st_mtime_ns == before


def test_the_pinned_rocksdb_is_that_of_the_crate(scripts: Scripts) -> None:
    assert f"+{scripts.rocksdb.VERSION}" in (ROOT / "Cargo.lock").read_text()


class Registry:
    """In the place of Ivy: puts a jar with this library where Ivy would, or nothing."""

    def __init__(self, scripts: Scripts, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
        self.asked = 0
        rocksdb = scripts.rocksdb
        wanted = rocksdb.Published("lib.so", hashlib.sha256(b"the library").hexdigest())
        monkeypatch.setattr(rocksdb, "published", lambda: wanted)

        def resolve(scratch: Path) -> Path:
            self.asked += 1
            if content is None:
                raise rocksdb.Unavailable("the registry did not give it")
            with zipfile.ZipFile(scratch / "x.jar", "w") as jar:
                jar.writestr("lib.so", content)
            return scratch / "x.jar"

        monkeypatch.setattr(rocksdb, "resolve", resolve)


def test_the_published_rocksdb_is_fetched_once(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(scripts, monkeypatch, b"the library")
    scripts.rocksdb.make()
    scripts.rocksdb.make()
    assert registry.asked == 1
    assert scripts.rocksdb.LIBRARY.read_bytes() == b"the library"
    assert scripts.rocksdb.variables()["ROCKSDB_LIB_DIR"] == str(scripts.rocksdb.FOLDER)
    package = scripts.cache.CACHE / "package"
    package.mkdir()
    scripts.rocksdb.put_beside(package)
    assert (package / "librocksdb.so").read_bytes() == b"the library"


@pytest.mark.parametrize(("content", "reason"), [(None, "did not give it"), (b"another", "the checksum of lib.so is")])
def test_without_a_published_rocksdb_it_is_compiled(
    scripts: Scripts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    reason: str,
) -> None:
    registry = Registry(scripts, monkeypatch, content)
    scripts.rocksdb.make()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "compiled from source" in line]
    assert reason in line
    assert not scripts.rocksdb.LIBRARY.exists()
    assert scripts.rocksdb.variables() == {}
    scripts.rocksdb.make()
    assert registry.asked == 1, "the decision is kept"
    monkeypatch.setenv("FASTCHANGELOG_ROCKSDB", "library")
    with pytest.raises(SystemExit):
        scripts.rocksdb.make()
    assert registry.asked == 2, "unless the user asks for it"


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ('version "21" x', 21), ("", 0)],
)
def test_java_versions(scripts: Scripts, text: str, version: int) -> None:
    assert scripts.prerequisites.java_version(text) == version


def test_each_missing_prerequisite_has_one_line(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("JAVA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(scripts.prerequisites, "room", lambda folder: 1 << 30)
    lines = scripts.prerequisites.missing(ROOT, tmp_path / "cache", need_java=True)
    assert [line.split(":")[0] for line in lines] == ["missing"] * 4
    for line, word in zip(lines, ("Rust", "C++ compiler", "Java 17", "GB of disk"), strict=True):
        assert word in line


def test_an_old_rust_is_named(scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "cargo"
    old.write_text("#!/bin/sh\necho 'cargo 1.63.0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (line,) = scripts.prerequisites.missing(ROOT, tmp_path, need_java=False)
    assert f"{old} is 1.63" in line
    assert "rustup update stable" in line


@pytest.mark.parametrize("status", [1, 0])
def test_what_is_no_python_or_too_old_is_named(tmp_path: Path, status: int) -> None:
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\nexit {status}\n")
    old.chmod(0o755)
    script = str(SCRIPTS / "find_python.sh")
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(old)}
    done = subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [f"missing: PYTHON={old} is not a Python of 3.10 or newer"]
    env["PYTHON"] = sys.executable
    assert subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "the disk is full (/x)"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "Permission denied (/x)"),
    ],
)
def test_an_end_from_outside_is_one_line(
    scripts: Scripts, capsys: pytest.CaptureFixture[str], error: BaseException, line: str
) -> None:
    def main(_: list[str]) -> int:
        raise error

    with pytest.raises(SystemExit) as ended:
        scripts.cache.guarded(main)
    assert ended.value.code == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert line in printed


def test_a_set_up_that_fails_leaves_no_command_behind(scripts: Scripts) -> None:
    command = scripts.cache.start(sys.executable, "-c", "import time; time.sleep(600)")
    with pytest.raises(SystemExit), scripts.cache.stopping(command):
        scripts.cache.fail("another command failed")
    assert command.returncode == -signal.SIGTERM


def test_develop_names_the_environment_that_it_needs(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with pytest.raises(SystemExit):
        scripts.setup.run_develop([])
    assert "make develop installs into a virtual environment, and none is active" in capsys.readouterr().err


def test_a_tool_that_the_table_does_not_name_is_refused(scripts: Scripts, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scripts.setup.run_cargo_tool(["udeps"])
    assert "takes one of deny, fuzz, machete, mutants" in capsys.readouterr().err


def test_rust_tests_run_again_when_anything_differs(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, ran, code = tmp_path / "a.rs", tmp_path / "ran", tmp_path / "code"
    source.write_text("one")
    code.write_text("1")
    program = ["/bin/sh", "-c", f'echo "$1" >>{ran}; exit $(cat {code})']
    monkeypatch.setattr(scripts.setup, "SOURCES", (source,))
    monkeypatch.setattr(scripts.setup, "rustc", lambda: "rustc 1")
    monkeypatch.setattr(scripts.setup, "cargo_call", lambda args: ([*program, *args], {}))
    monkeypatch.delenv("FASTCHANGELOG_SEED", raising=False)

    def runs(*args: str) -> int:
        scripts.setup.run_rust_tests(list(args))
        return len(ran.read_text().splitlines())

    with pytest.raises(SystemExit):
        runs("--workspace")
    code.write_text("0")
    assert runs("--workspace") == 2, "the failed run does not count"
    assert runs("--workspace") == 2
    assert runs("--workspace", "--all-features") == 3
    source.write_text("two")
    assert [runs("--workspace"), runs("--workspace")] == [4, 4]
    monkeypatch.setenv("FASTCHANGELOG_SEED", "7")
    assert runs("--workspace") == 5, "a seed is to be replayed"


def test_rust_tests_write_into_memory_where_there_is_room(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    folder = str(tmp_path / f"fastchangelog-{os.getuid()}")
    room = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize >= 2 << 30
    for _ in range(2):  # the second run finds it there
        assert scripts.setup.scratch(tmp_path) == ({"TMPDIR": folder} if room else {})
    assert scripts.setup.scratch(tmp_path / "nowhere") == {}
    monkeypatch.setattr(scripts.setup.os, "getuid", lambda: os.geteuid() + 1)
    (tmp_path / f"fastchangelog-{os.geteuid() + 1}").mkdir()
    assert scripts.setup.scratch(tmp_path) == {}, "another user's folder"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert scripts.setup.scratch(tmp_path) == {}
