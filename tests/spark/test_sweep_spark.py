"""`fastchangelog sweep` beside a real query: what Spark retains restores, what cannot be read deletes nothing."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog import _internal, cli
from fastchangelog.errors import StateNotFoundError, StoreError
from fastchangelog.gc.collector import Collector
from fastchangelog.gc.report import FolderReport
from fastchangelog.spark import grouped, versions
from fastchangelog.spark.checkpoint.files import query_checkpoints
from support.notes import changed
from support.spark.stream_harness import end_state_server, rows_of, run
from support.swept import World, closure
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
LONG_AGO = 1_600_000_000


def rows(batch: int) -> list[tuple[str, int]]:
    # Key "once" comes in the first batch only: its shard may stay idle for longer than any retention.
    return [(f"k{i}", batch) for i in range(3)] + ([("once", 1)] if batch == 0 else [])


def expected(batches: int) -> list[Any]:
    """What the last batch answers."""
    return rows_of([(f"k{i}", batches, sum(range(batches))) for i in range(3)])


def build(source: Any, state: pathlib.Path, **more: str) -> Any:
    options = {"max_handle_segments": "4", "materialization_interval": "1h", "sweep": "off", **more}
    frame = grouped(source.stream(), "k", state=str(state), options=options)
    return frame.agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def age(state: pathlib.Path) -> None:
    for path in state.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def without_grace(state: pathlib.Path) -> None:
    """The notes say that no server counts on anything: two sweeps in a row may delete."""
    for note in state.rglob("_fastchangelog.json"):
        said = json.loads(note.read_text())
        assert said["sweep_grace_seconds"] in (0, 86_400)
        note.write_bytes(changed(note.read_bytes(), sweep_grace_seconds=0))


def sweep(spark: Any, state: pathlib.Path, *locations: pathlib.Path, **given: Any) -> list[FolderReport]:
    without_grace(state)
    folder = _internal.ObjectFolder(str(state), {}, {})
    settings = {"grace": 0.0, "clock": lambda: 4e9, "delete": True, **given}
    return Collector(folder, query_checkpoints(spark), locations=map(str, locations), **settings).run()


def files(state: pathlib.Path) -> set[str]:
    return {str(p.relative_to(state)) for p in state.rglob("*") if p.is_file()}


def objects(state: pathlib.Path) -> set[str]:
    return {name for name in files(state) if "_fastchangelog" not in name}


def texts(spark: Any, checkpoint: pathlib.Path, batch: int) -> list[str]:
    """The handles of a batch, asked of Spark, where it can tell, beside the code under test."""
    if not versions.READS_OWN_CHECKPOINTS(versions.PYSPARK):
        _, _, found = query_checkpoints(spark).handles(str(checkpoint), batch)
        return [text for handles in found.values() for text in handles.values()]
    source = spark.read.format("statestore").option("batchId", batch).option("stateVarName", "handle")
    return [row[0] for row in source.load(str(checkpoint)).select("value.handle").collect()]


def handles(spark: Any, checkpoint: pathlib.Path, batch: int) -> list[dict[str, Any]]:
    return [json.loads(_internal.handle_json(text)) for text in texts(spark, checkpoint, batch)]


def run_with_a_failure(frame: Any, checkpoint: pathlib.Path, failing: int) -> Any:
    """Runs to the end; one batch fails after the operator's work was done, so no handle names its objects."""
    failed: list[int] = []

    def sink(batch: Any, number: int) -> Any:
        got = batch.collect()
        if number == failing and not failed:
            failed.append(number)
            raise RuntimeError("sink down")
        return rows_of(got)

    with pytest.raises(Exception, match="sink down"):
        run(frame, checkpoint, sink)
    return run(frame, checkpoint, sink)


@pytest.fixture
def finished(feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path) -> Any:
    """The feed of a query of nine batches of which Spark retains four."""
    conf(RETAINED, "3")
    source = feed(SCHEMA, *[rows(batch) for batch in range(9)])
    ran = run_with_a_failure(build(source, tmp_path / "state"), tmp_path / "ckpt", 5)
    assert ran.batches[8] == expected(9)
    return source


@pytest.mark.case("P6")
def test_a_query_sweeps_its_own_folder(feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    """No command, no location: the server learns of the checkpoint from the query."""
    conf(RETAINED, "3")
    state, checkpoint = tmp_path / "state", tmp_path / "ckpt"
    source = feed(SCHEMA, *[rows(batch) for batch in range(9)])
    frame = build(source, state, sweep="auto", sweep_interval="1s")
    run_with_a_failure(frame, checkpoint, 5)
    until("the server's first sweep", lambda: list(state.rglob("_fastchangelog-sweep.json")))
    (mark,) = state.rglob("_fastchangelog-sweep.json")
    assert json.loads(mark.read_text())["checkpoints"] == [f"file:{checkpoint}"]
    retained = {text for batch in range(5, 9) for text in texts(spark, checkpoint, batch)}
    needed = closure(World.of(state), str(mark.parent.relative_to(state)), sorted(retained))
    assert left(state) > needed
    # Days pass for all that is there: the next sweeps find garbage, let it wait, and delete it.
    age(state)

    def is_clean() -> bool:
        said = json.loads(mark.read_text())
        if any(since > LONG_AGO for since in said["unreachable_since"].values()):
            said["unreachable_since"] = dict.fromkeys(said["unreachable_since"], LONG_AGO)
            mark.write_text(json.dumps(said))
        return left(state) == needed

    until("the sweeps that delete", is_clean)
    source.add(rows(9))
    assert run(frame, checkpoint).batches[9] == expected(10)


def left(state: pathlib.Path) -> set[str]:
    """The objects, without those by which a sweep under way learns the time."""
    return {name for name in objects(state) if "/probe/" not in name}


@pytest.mark.case("P6")
def test_after_a_sweep_the_query_and_an_old_batch_go_on(finished: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    state, checkpoint = tmp_path / "state", tmp_path / "ckpt"
    age(state)
    before = objects(state)
    (first,) = sweep(spark, state, checkpoint)
    assert first.kept_because is None
    assert first.batches == (5, 6, 7, 8)
    assert objects(state) == before
    (second,) = sweep(spark, state)
    assert set(second.checkpoints) == {f"file:{checkpoint}", str(checkpoint)}, "registered, and named once"
    named = set()
    for batch in second.batches:
        for handle in handles(spark, checkpoint, batch):
            named |= {s["object"]["name"] for s in handle["segments"]}
            named |= {handle["indexed"]["name"]} if handle["indexed"] else set()
    folder = second.folder
    assert {f"{folder}/{name}" for name in named} <= objects(state) < before
    assert objects(state) == {f"{folder}/{e.name}" for e in second.reachable}

    # A copy of the checkpoint as of batch 5, and of the state, continue from there …
    old = tmp_path / "old"
    shutil.copytree(checkpoint, old)
    for log, last in (("commits", 5), ("offsets", 6), ("sources/0", 6)):  # batch 6 was planned when it crashed
        for path in (old / log).iterdir():
            number = path.name.strip(".").removesuffix(".crc")
            if number.isdigit() and int(number) > last:
                path.unlink()
    end_state_server(spark)
    again = run(build(finished, state), old, lambda d, _: rows_of(d.collect())).batches
    assert min(again) == 6
    assert again[8] == expected(9)
    # … and so does the query itself.
    end_state_server(spark)
    finished.add(rows(9))
    assert run(build(finished, state), checkpoint, lambda d, _: rows_of(d.collect())).batches == {9: expected(10)}


def test_a_query_is_swept_while_its_batches_run(feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    conf(RETAINED, "2")
    state, checkpoint = tmp_path / "state", tmp_path / "ckpt"
    source = feed(SCHEMA, *[rows(batch) for batch in range(8)])
    swept: list[int] = []

    def sink(batch: Any, number: int) -> Any:
        got = rows_of(batch.collect())
        if number >= 2:  # a batch under way: what it wrote has no commit yet
            for _ in range(2):
                (report,) = sweep(spark, state, checkpoint)
                assert report.kept_because is None
                assert report.young
            swept.append(number)
        return got

    ran = run(build(source, state), checkpoint, sink)
    assert ran.batches[7] == expected(8)
    assert swept == [2, 3, 4, 5, 6, 7]
    end_state_server(spark)
    source.add(rows(8))
    assert run(build(source, state), checkpoint, lambda d, _: rows_of(d.collect())).batches == {8: expected(9)}


def test_what_cannot_be_read_deletes_nothing(finished: Any, spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    state, checkpoint, away = tmp_path / "state", tmp_path / "ckpt", tmp_path / "away"
    conf(RETAINED, None)
    age(state)
    sweep(spark, state, checkpoint)
    before = objects(state)

    def kept(**given: Any) -> str:
        (report,) = sweep(spark, state, **given)
        assert objects(state) == before
        assert not report.deleted
        return str(report.kept_because)

    shutil.copytree(checkpoint, away)
    lost = list((checkpoint / "state").rglob("7_*.changelog"))
    assert lost
    for path in lost:
        path.unlink()
    assert re.search("batch [678]: .*7_.*changelog", kept()), "the state after batch 6, and what builds on it"
    shutil.rmtree(checkpoint / "commits")
    assert "no commits" in kept()
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    assert "no metadata" in kept(orphans=True)
    (checkpoint / "metadata").write_text("{")
    assert "Spark did not write" in kept(orphans=True)
    shutil.rmtree(checkpoint)
    (report,) = sweep(spark, state)
    assert report.orphan, "its folder is there, and it is not"
    assert objects(state) == before
    shutil.copytree(away, checkpoint)
    (report,) = sweep(spark, state)
    assert report.kept_because is None
    assert objects(state) < before


def run_with_snapshots(feed: Any, conf: Any, tmp_path: pathlib.Path) -> pathlib.Path:
    """A query of six batches that keeps all of them, each with a snapshot; its checkpoint."""
    conf("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "false")
    source = feed(SCHEMA, *[rows(batch) for batch in range(6)])
    run(build(source, tmp_path / "state"), tmp_path / "ckpt", lambda d, _: rows_of(d.collect()))
    return tmp_path / "ckpt"


def remove_versions(checkpoint: pathlib.Path, *versions: int) -> None:
    for version in versions:
        removed = list((checkpoint / "state" / "0").glob(f"*/{version}_*.zip"))
        assert removed
        for path in removed:
            path.unlink()


@pytest.mark.case("P6")
def test_batches_that_the_sweeping_session_retains_do_not_count(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path
) -> None:
    """Neither setting is in a checkpoint; the query retains more, and a file of an old batch cannot be read today."""
    checkpoint = run_with_snapshots(feed, conf, tmp_path)
    conf(RETAINED, "1")
    age(tmp_path / "state")
    remove_versions(checkpoint, 3)
    before = objects(tmp_path / "state")
    for _ in range(2):
        (report,) = sweep(spark, tmp_path / "state", checkpoint)
        assert "batch 2" in str(report.kept_because)
    assert objects(tmp_path / "state") == before


def test_batches_whose_state_spark_has_removed_are_not_counted(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path
) -> None:
    """Spark removes all versions below a snapshot, and their commits a little later."""
    checkpoint = run_with_snapshots(feed, conf, tmp_path)
    remove_versions(checkpoint, 1, 2, 3)
    (report,) = sweep(spark, tmp_path / "state", checkpoint)
    assert (report.kept_because, report.batches) == (None, (3, 4, 5))
    said = [note for note in report.notes if "Spark has removed its state" in note]
    assert len(said) == 3
    assert "oldest version in" in said[0]
    # Nothing of the newest batch: it is the one that a query continues from.
    remove_versions(checkpoint, 4, 5, 6)
    (report,) = sweep(spark, tmp_path / "state", checkpoint)
    assert "batch 5" in str(report.kept_because)


def test_an_unmounted_folder_is_no_proof_of_a_lost_checkpoint(spark: Any, tmp_path: pathlib.Path) -> None:
    checkpoints = query_checkpoints(spark)
    (tmp_path / "other").write_text("a file beside it")
    assert checkpoints.query_id(str(tmp_path / "ckpt")) is None
    with pytest.raises(StateNotFoundError, match="check that this machine can see it"):
        checkpoints.query_id(str(tmp_path / "mount" / "ckpt"))
    (tmp_path / "mount" / "lost+found").mkdir(parents=True)
    with pytest.raises(StateNotFoundError, match="check that its disk is mounted"):
        checkpoints.query_id(str(tmp_path / "mount" / "ckpt"))
    with pytest.raises(StoreError):
        checkpoints.query_id("s3a://bucket-without-hadoop-aws/ckpt")


def test_the_command_says_what_it_finds(
    feed: Any, spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, checkpoint = tmp_path / "state", tmp_path / "ckpt"
    run_with_a_failure(build(feed(SCHEMA, rows(0), rows(1)), state), checkpoint, 1)
    age(state)
    line = [sys.executable, "-m", "fastchangelog", "sweep", str(state), "--json", "--checkpoint", str(checkpoint)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # it starts a session of its own
    assert done.returncode == cli.FOUND, done.stderr
    assert done.stderr == "", "what Spark says while it starts is not the command's"
    (folder,) = json.loads(done.stdout)["folders"]
    assert (folder["name"], folder["batches"], folder["kept_because"]) == ("default", [0, 1], None)
    assert folder["to_delete"] == []
    assert folder["waiting"]
    assert not any("sweep" in name for name in files(state)), "a dry run writes nothing"
    without_grace(state)
    for location, deleted in ((["--checkpoint", str(checkpoint)], []), ([], folder["waiting"])):
        capsys.readouterr()
        assert cli.main(["sweep", str(state), "--json", "--delete", "--grace", "0s", *location]) == cli.OK
        assert json.loads(capsys.readouterr().out)["folders"][0]["deleted"] == deleted
    assert spark.range(1).count() == 1, "the caller's session still works"
