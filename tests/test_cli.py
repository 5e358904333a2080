"""The command line: exit codes and what people and machines read."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastchangelog import cli
from fastchangelog.cli import command_line, doctor
from fastchangelog.cli.sweep import SweepRequest, SweepResult
from fastchangelog.gc.plan import Entry
from fastchangelog.gc.report import FolderReport


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.COULD_NOT_RUN
    assert "demo" in capsys.readouterr().out


def test_every_module_with_a_command_is_listed() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cli.__path__)}
    commands = {name for name in modules if hasattr(importlib.import_module(f"fastchangelog.cli.{name}"), "add_parser")}
    assert commands == set(command_line.COMMANDS)


def test_the_command_starts_without_the_native_module() -> None:
    """`doctor` has to run where it cannot be loaded."""
    program = "import sys; from fastchangelog.cli import command_line; command_line._parser()"
    program += "; print('fastchangelog._internal' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == cli.OK
    assert capsys.readouterr().out.split() == ["fastchangelog", importlib.metadata.version("fastchangelog")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["demo", "--input", "."], "--key"),
        (["demo", "--key", "a"], "--input"),
        (["demo", "--batches", "1"], "--batches"),
        (["inspect", "./does-not-exist"], "does-not-exist; check the address"),
        (["verify", "./does-not-exist"], "does-not-exist; check the address"),
        (["verify", "."], "there is no savepoint in"),
        (["export", ".", "--to", "./does-not-exist.parquet"], "there is no savepoint in"),
        (["savepoint", "c", "--state", "./does-not-exist", "--to", "t"], "does-not-exist; check the address"),
        (["inspect", ".", "--storage-option", "aws_region"], "NAME=VALUE"),
        (["sweep", "./does-not-exist"], "not a folder"),
        (["sweep", ".", "--grace", "10"], "--grace"),
        (["sweep", ".", "--conf", "=1"], "NAME=VALUE"),
        (["sweep", ".", "--storage-option", "aws_region"], "NAME=VALUE"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == cli.COULD_NOT_RUN
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1


def test_inspect_lists_a_root_and_counts_objects_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "query" / "default" / "log"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    (tmp_path / "readme").touch()
    assert cli.main(["inspect", str(tmp_path), "--json"]) == cli.OK
    listed = json.loads(capsys.readouterr().out)
    uri = f"file://{tmp_path}/query/default"
    assert listed == [{"kind": "query", "folder": "query/default", "uri": uri, "objects": 1, "bytes": 5}]
    assert cli.main(["inspect", str(tmp_path)]) == cli.OK
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["kind", "folder", "objects", "bytes"]
    assert line.split() == ["query", "query/default", "1", "objects", "5", "B"]
    for given, name in ((tmp_path / "query", "default"), (folder.parent, "")):
        assert cli.main(["inspect", str(given), "--json"]) == cli.OK
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["kind"], row["folder"], row["uri"]) == ("query", name, uri)
        counted = {"log": (1, 5), "sst": (0, 0), "base": (0, 0), "index": (0, 0)}
        assert {kind: (row[f"{kind}_objects"], row[f"{kind}_bytes"]) for kind in counted} == counted
        assert cli.main(["inspect", f"file://{given}"]) == cli.OK
        assert "1 (5 B)" in capsys.readouterr().out


def test_inspect_of_an_empty_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(tmp_path)]) == cli.FOUND
    assert "holds no state" in capsys.readouterr().out


def test_a_sweep_says_of_each_folder_what_is_kept_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    folder = tmp_path / "query" / "default"
    (folder / "log").mkdir(parents=True)
    (folder / "_fastchangelog.json").write_text('{"format": 1}')
    (folder / "log" / f"{1:032x}").write_bytes(b"12345")
    (tmp_path / "readme").touch()
    assert cli.main(["sweep", str(tmp_path), "--delete"]) == cli.FOUND
    said = capsys.readouterr().out
    assert "query/default  (no checkpoint known)" in said
    assert "nothing deleted: this query's checkpoint is unknown" in said
    assert "not in a folder of a state, left alone: readme" in said
    assert cli.main(["sweep", str(tmp_path), "--json"]) == cli.FOUND
    found = json.loads(capsys.readouterr().out)
    assert (found["deleting"], found["unknown"]) == (False, ["readme"])
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 3, "nothing was written"
    (tmp_path / "empty").mkdir()
    assert cli.main(["sweep", str(tmp_path / "empty")]) == cli.OK
    assert "holds no state" in capsys.readouterr().out


def test_a_sweeps_report_has_a_row_for_each_reason(tmp_path: Path) -> None:
    entries = [Entry(f"log/{i:032x}", 10**6, 0.0, "log") for i in range(12)]
    report = FolderReport("query/default", ("/ckpt",), False, None, tuple(entries), tuple(entries[:1]), batches=(3, 9))
    report.unknown, report.notes = tuple(entries), ("batch 2 is gone",)
    outcome = SweepResult(SweepRequest("/state"), (report,), ())
    said = [block if isinstance(block, str) else [" ".join(row) for row in block] for block in outcome.blocks()]
    assert said[0] == "query/default  (/ckpt)"
    assert said[1] == "  read batches 3 to 9 of its checkpoint"
    assert said[2] == [
        "   waiting 1 objects 1.000 MB unreachable, but no sweep has said so for 1d",
        "   to delete 12 objects 12.000 MB unreachable for at least 1d",
    ]
    assert said[3] == "  note: batch 2 is gone"
    assert str(said[4]).endswith(f"log/{9:032x} and 2 more")
    assert "a dry run" in str(said[-1])
    assert outcome.found
    report.unknown = ()
    assert not SweepResult(SweepRequest("/state", delete=True), (report,), ()).found
    report.orphan = True
    assert SweepResult(SweepRequest("/state", delete=True), (report,), ()).found
    assert not SweepResult(SweepRequest("/state", delete=True, orphans=True), (report,), ()).found


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


def test_doctor_names_what_a_checkpoint_in_s3_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)

    def found(*conf: str, checkpoint: str = "s3a://bucket/checkpoint") -> list[doctor.Finding]:
        arguments = [word for setting in conf for word in ("--conf", setting)]
        args = command_line._parser().parse_args(["doctor", "--checkpoint", checkpoint, *arguments])
        return doctor.check_checkpoint(args)

    assert [finding.ok for finding in found(checkpoint="/data/checkpoint")] == [True]
    missing = found()
    assert not any(finding.ok for finding in missing)
    fixes = [finding.fix for finding in missing]
    assert "AbortableStreamBasedCheckpointFileManager" in fixes[0]
    assert fixes[1] == "set spark.hadoop.fs.s3a.performance.flags=create,mkdir"
    assert "org.apache.spark:spark-hadoop-cloud_2.13" in fixes[2]
    (tmp_path / "spark-defaults.conf").write_text(
        f"# settings\n\nspark.sql.streaming.checkpointFileManagerClass  {fixes[0].partition('=')[2]}\n"
        "spark.jars.packages=org.apache.spark:spark-hadoop-cloud_2.13:4.3.0\n"
    )
    assert [finding.fix for finding in found()] == fixes[1:2]
    assert [finding.ok for finding in found("spark.hadoop.fs.s3a.create.performance=true")] == [True]
    checksums = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
    assert f"set {checksums}=false" in [finding.fix for finding in found(f"{checksums}=true")]


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastchangelog", "inspect", "./nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == cli.COULD_NOT_RUN
    assert done.stderr.startswith("fastchangelog inspect: ")
