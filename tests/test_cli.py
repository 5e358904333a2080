"""The command line: exit codes and what people and machines read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastchangelog import cli, doctor


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.COULD_NOT_RUN
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["demo", "--input", "."], "--key"),
        (["demo", "--key", "a"], "--input"),
        (["demo", "--batches", "1"], "--batches"),
        (["inspect", "s3://bucket/state"], "local folders only"),
        (["inspect", "./does-not-exist"], "not a folder"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == cli.COULD_NOT_RUN
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1


def test_inspect_counts_objects_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "query" / "default" / "log"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    assert cli.main(["inspect", str(tmp_path), "--json"]) == cli.OK
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["query"], row["name"], row["log_objects"], row["log_bytes"]) == ("query", "default", 1, 5)
    assert cli.main(["inspect", f"file://{tmp_path}"]) == cli.OK
    assert "1 (5 B)" in capsys.readouterr().out


def test_inspect_of_an_empty_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(tmp_path)]) == cli.FOUND
    assert "holds no state" in capsys.readouterr().out


def test_doctor_finds_what_must_be_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert cli.main(["doctor", "--json"]) == cli.FOUND
    (java,) = [f for f in json.loads(capsys.readouterr().out) if f["what"] == "java"]
    assert not java["ok"]
    assert "JAVA_HOME" in java["fix"]


def test_doctor_writes_to_the_state_folder_and_leaves_nothing(tmp_path: Path) -> None:
    (found,) = [f for f in doctor.check(str(tmp_path / "state")) if f.what == "state"]
    assert found.ok
    assert list((tmp_path / "state").iterdir()) == []
    (tmp_path / "file").touch()
    (found,) = [f for f in doctor.check(str(tmp_path / "file")) if f.what == "state"]
    assert not found.ok


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastchangelog", "inspect", "./nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == cli.COULD_NOT_RUN
    assert done.stderr.startswith("fastchangelog inspect: ")
