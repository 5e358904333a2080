"""The set-up: which changes rebuild a part, and the sentence for each missing prerequisite."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py with a root and a cache of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("FASTCHANGELOG_CACHE", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("setup_under_test", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path / "root")
    return module


def test_a_fingerprint_depends_on_contents_and_names_and_not_on_time(setup: ModuleType) -> None:
    folder = setup.ROOT / "src"
    folder.mkdir()
    source = folder / "a.rs"
    source.write_text("one")
    first = setup.fingerprint(folder, "key")
    os.utime(source, (1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.py").write_text("no source")
    assert setup.fingerprint(folder, "key") == first
    source.write_text("two")
    assert setup.fingerprint(folder, "key") != first
    source.write_text("one")
    assert setup.fingerprint(folder, "key") == first
    source.rename(folder / "b.rs")
    assert setup.fingerprint(folder, "key") != first
    assert setup.fingerprint(folder, "other") != setup.fingerprint(folder, "key")


def test_a_stamp_holds_until_its_key_changes(setup: ModuleType) -> None:
    assert not setup.is_fresh("wheel", "a")
    setup.set_stamp("wheel", "a")
    assert setup.is_fresh("wheel", "a")
    assert not setup.is_fresh("wheel", "b")


def test_a_source_that_changed_under_an_old_time_stamp_is_touched(setup: ModuleType) -> None:
    source = setup.ROOT / "rust" / "a.rs"
    source.parent.mkdir()
    (setup.ROOT / "Cargo.toml").touch()
    source.write_text("one")
    setup.touch_changed()
    source.write_text("two")
    os.utime(source, (1_000_000_000, 1_000_000_000))
    setup.touch_changed()
    assert source.stat().st_mtime > 1_000_000_000
    before = source.stat().st_mtime_ns
    setup.touch_changed()
    assert source.stat().st_mtime_ns == before


def test_the_extras_are_read_from_pyproject(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "ROOT", ROOT)
    names = [r.split(">")[0].split("<")[0] for r in setup.requirements()]
    assert {"pyarrow", "pyspark", "pandas", "protobuf", "pytest", "maturin"} <= set(names)
    assert "maturin>=1.8,<2" in setup.requirements()


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ('version "21" x', 21), ("", 0)],
)
def test_java_versions(setup: ModuleType, text: str, version: int) -> None:
    assert setup.prerequisites.java_version(text) == version


def test_what_is_missing_is_named_one_line_each(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("JAVA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    lines = setup.prerequisites.missing(ROOT, need_java=True)
    assert [line.split(":")[0] for line in lines] == ["missing"] * len(lines)
    text = "\n".join(lines)
    assert "cargo" in text
    assert "C++ compiler" in text
    assert "Java 17" in text


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    script = str(ROOT / "scripts" / "find_python.sh")
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(old)}
    done = subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [f"missing: PYTHON={old} is not a Python of 3.10 or newer"]
    env["PYTHON"] = sys.executable
    assert subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_develop_names_the_environment_that_it_needs(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with pytest.raises(SystemExit):
        setup.develop([])
    assert "make develop installs into a virtual environment, and none is active" in capsys.readouterr().err


@pytest.mark.parametrize("ends", ["with an archive", "without", "with a failure"])
def test_spark_classes_are_archived_once_for_these_jars(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: str
) -> None:
    jars, calls, java = setup.VENV / "lib/python3.10/site-packages/pyspark/jars", tmp_path / "calls", tmp_path / "java"
    jars.mkdir(parents=True)
    java.touch()
    (setup.VENV / "bin").mkdir()
    (setup.ROOT / "constraints.txt").touch()
    monkeypatch.setattr(setup, "VENV_PARTS", (setup.ROOT / "constraints.txt",))
    monkeypatch.setattr(setup.prerequisites, "java", lambda: java)
    writes = "" if ends == "without" else f": >{setup.CLASSES};"
    code = 1 if ends == "with a failure" else 0
    setup.VENV_PYTHON.write_text(f'#!/bin/sh\necho "$SPARK_SUBMIT_OPTS" >>{calls}; {writes} exit {code}\n')
    setup.VENV_PYTHON.chmod(0o755)
    setup.make_classes()
    setup.make_classes()
    (line,) = calls.read_text().splitlines()
    assert f"-XX:ArchiveClassesAtExit={setup.CLASSES}" in line
    assert setup.CLASSES.exists() == (ends == "with an archive")
    assert ("no archive" in capsys.readouterr().err) == (ends != "with an archive")
    os.utime(jars, (1, 1))
    setup.make_classes()
    assert len(calls.read_text().splitlines()) == 2, "PySpark was installed again"


def test_a_tool_of_cargo_is_compiled_once_with_its_version(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cargo, calls = tmp_path / "cargo", tmp_path / "calls"
    made = f'echo "$@" >>{calls}; mkdir -p "$5/bin" "$CARGO_TARGET_DIR"; : >"$5/bin/cargo-machete"'
    cargo.write_text(f"#!/bin/sh\n{made}\n")
    cargo.chmod(0o755)
    monkeypatch.setattr(setup.prerequisites, "cargo", lambda: cargo)
    program = Path(setup.make_cargo_tool("machete"))
    assert program == Path(setup.make_cargo_tool("machete"))
    assert program.is_file()
    (line,) = calls.read_text().splitlines()
    assert line.endswith(f"cargo-machete@{setup.CARGO_TOOLS['machete']}")
    assert not list(program.parents[1].glob("target")), "its build is removed"


def test_a_tool_that_the_table_does_not_name_is_refused(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        setup.main(["cargo-tool", "udeps"])
    assert "takes one of deny, fuzz, machete, mutants" in capsys.readouterr().err
