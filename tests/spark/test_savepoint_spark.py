"""Savepoints of real queries: taken while they run, started from with other partitions, refused with reasons."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import functions as F

from fastchangelog import cli
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError, StateNotFoundError
from fastchangelog.spark import grouped
from support.spark.stream_harness import end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
PARTITIONS = "spark.sql.shuffle.partitions"
KEYS = 40


def rows(batch: int, keys: int = KEYS) -> list[tuple[str, int]]:
    return [(f"k{i}", batch * 100 + i) for i in range(keys)]


def build(source: Any, state: pathlib.Path, **options: str) -> Any:
    frame = grouped(source.stream(), "k", state=str(state), options=options)
    return frame.agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))


def expected(batches: int) -> list[Any]:
    def of(i: int) -> tuple[str, int, int, int]:
        values = [batch * 100 + i for batch in range(batches)]
        return (f"k{i}", len(values), sum(values), max(values))

    return rows_of([of(i) for i in range(KEYS)])


def last(ran: Any) -> list[Any]:
    return rows_of(ran.batches[max(ran.batches)])


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(a) for a in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def old(spark: Any, feed: Any, conf: Any, tmp_path: pathlib.Path) -> dict[str, Any]:
    """A query of two partitions that has run three batches."""
    conf(PARTITIONS, "2")
    source = feed(SCHEMA, rows(0))
    state, checkpoint = tmp_path / "state", tmp_path / "checkpoint"
    for batch in range(3):
        if batch:
            source.add(rows(batch))
        run(build(source, state), checkpoint)
    return {"source": source, "state": state, "checkpoint": checkpoint}


@pytest.mark.case("E-05", "E-09")
@pytest.mark.parametrize("format", ["canonical", "native"])
def test_a_query_goes_on_from_a_savepoint_with_other_partitions(
    spark: Any, feed: Any, conf: Any, old: Any, tmp_path: pathlib.Path, capsys: Any, format: str
) -> None:
    taken = tmp_path / "savepoint"
    base = ["savepoint", old["checkpoint"], "--state", old["state"], "--format", format, "--json"]
    seen: list[int] = []

    def save(batch: Any, number: int) -> None:
        # Within a batch of the running query: the newest committed one is the one before.
        batch.count()
        code, out, err = command(capsys, *base, "--to", taken)
        assert code == cli.OK, err
        seen.append(json.loads(out)["batch"])

    old["source"].add(rows(3))
    query = build(old["source"], old["state"]).writeStream.foreachBatch(save).outputMode("update")
    running = query.option("checkpointLocation", str(old["checkpoint"])).trigger(availableNow=True).start()
    running.awaitTermination()
    assert seen == [2]
    end_state_server(spark)
    # Nothing of the old query is needed any more.
    shutil.rmtree(old["state"])
    moved = tmp_path / "moved"
    taken.rename(moved)
    assert command(capsys, "verify", moved)[0] == cli.OK
    for partitions in (3, 1):
        conf(PARTITIONS, str(partitions))
        source = feed(SCHEMA, rows(3), name=f"in-{partitions}")
        state, checkpoint = tmp_path / f"state-{partitions}", tmp_path / f"checkpoint-{partitions}"
        assert last(run(build(source, state, start_from=str(moved)), checkpoint)) == expected(4)
        end_state_server(spark)
        # It continues without the option, and without the savepoint.
        away = tmp_path / "away"
        moved.rename(away)
        source.add(rows(4))
        assert last(run(build(source, state), checkpoint)) == expected(5)
        away.rename(moved)
        end_state_server(spark)


def test_a_switched_ansi_mode_needs_a_savepoint(
    spark: Any, feed: Any, conf: Any, tmp_path: pathlib.Path, capsys: Any
) -> None:
    conf(PARTITIONS, "1")
    conf("spark.sql.ansi.enabled", "true")
    source = feed(SCHEMA, [("a", 1)])
    state, checkpoint, taken = tmp_path / "state", tmp_path / "checkpoint", tmp_path / "savepoint"
    run(build(source, state), checkpoint)
    source.add([("a", 2**63 - 1)])
    with pytest.raises(Exception, match=r"ARITHMETIC_OVERFLOW.*keeps the mode that it began with.*start_from"):
        run(build(source, state), checkpoint)
    conf("spark.sql.ansi.enabled", "false")
    with pytest.raises(
        Exception, match=r"ANSI mode on and now runs with it off.*spark\.sql\.ansi\.enabled.*start_from"
    ):
        run(build(source, state), checkpoint)
    code, _, err = command(capsys, "savepoint", checkpoint, "--state", state, "--to", taken)
    assert code == cli.OK, err
    again = feed(SCHEMA, [("a", 2**63 - 1)], name="again")
    answered = last(run(build(again, tmp_path / "wraps", start_from=str(taken)), tmp_path / "checkpoint-2"))
    assert answered == rows_of([("a", 2, -(2**63), 2**63 - 1)]), "the sum wraps, the state is the old one"


def test_shards_without_rows_take_their_part_in_the_first_batch(
    spark: Any, feed: Any, conf: Any, old: Any, tmp_path: pathlib.Path, capsys: Any
) -> None:
    taken = tmp_path / "savepoint"
    assert command(capsys, "savepoint", old["checkpoint"], "--state", old["state"], "--to", taken)[0] == cli.OK
    conf(PARTITIONS, "4")
    source = feed(SCHEMA, rows(3, keys=1), name="few")
    state, checkpoint = tmp_path / "state-4", tmp_path / "checkpoint-4"
    run(build(source, state, start_from=str(taken)), checkpoint)
    end_state_server(spark)
    shutil.rmtree(taken)
    source.add([(f"k{i}", 300 + i) for i in range(1, KEYS)])
    assert last(run(build(source, state), checkpoint)) == [row for row in expected(4) if row[0] != "k0"]
    end_state_server(spark)


def test_a_savepoint_for_other_partitions_says_what_to_type(
    spark: Any, feed: Any, conf: Any, old: Any, tmp_path: pathlib.Path, capsys: Any
) -> None:
    end_state_server(spark)
    base = ["savepoint", old["checkpoint"], "--state", old["state"], "--to", tmp_path / "savepoint"]
    for partitions in (0, 129):
        code, _, err = command(capsys, *base, "--partitions", partitions)
        assert code == cli.COULD_NOT_RUN
        assert "1 to 128" in err
        assert "max_parallelism" in err
        assert not (tmp_path / "savepoint").exists()
    code, out, err = command(capsys, *base, "--partitions", 5)
    assert code == cli.OK, err
    assert 'spark.conf.set("spark.sql.shuffle.partitions", 5)' in out
    assert "start_from" in out
    assert "checkpointLocation" in out
    assert "native" in command(capsys, "inspect", tmp_path / "savepoint")[1]
    conf(PARTITIONS, "5")
    source = feed(SCHEMA, rows(3), name="next")
    frame = build(source, tmp_path / "state-5", start_from=str(tmp_path / "savepoint"))
    assert last(run(frame, tmp_path / "checkpoint-5")) == expected(4)
    end_state_server(spark)
    # The driver refuses, before anything runs.
    start = {"start_from": str(tmp_path / "savepoint")}
    conf(PARTITIONS, "129")
    with pytest.raises(InvalidArgumentError, match="128 key groups"):
        build(source, tmp_path / "no", **start)
    conf(PARTITIONS, "2")
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        build(source, tmp_path / "no", max_parallelism="64", **start)
    with pytest.raises(SchemaMismatchError, match="key types changed"):
        grouped(source.stream().select("v"), "v", state=str(tmp_path / "no"), options=start).agg(F.count("*"))
    with pytest.raises(StateNotFoundError, match="no folder"):
        build(source, tmp_path / "no", start_from=str(tmp_path / "nowhere"))
    (tmp_path / "savepoint" / "_fastchangelog-savepoint").unlink()
    with pytest.raises(StateNotFoundError, match="not finished or not copied whole"):
        build(source, tmp_path / "no", **start)


def test_export_verify_and_inspect(spark: Any, feed: Any, old: Any, tmp_path: pathlib.Path, capsys: Any) -> None:
    end_state_server(spark)
    for format in ("canonical", "native"):
        taken = tmp_path / format
        base = ["savepoint", old["checkpoint"], "--state", old["state"], "--to", taken, "--format", format]
        assert command(capsys, *base)[0] == cli.OK
        written = tmp_path / f"{format}.parquet"
        code, out, err = command(capsys, "export", taken, "--to", written)
        assert code == cli.OK, err
        table = parquet.read_table(written)
        assert [f.name for f in table.schema] == ["key", "count(*)", "max(v)", "sum(v)"]
        found = rows_of([(r["key"], r["count(*)"], r["sum(v)"], r["max(v)"]) for r in table.to_pylist()])
        assert found == expected(3)
        assert command(capsys, "export", taken, "--to", written)[0] == cli.COULD_NOT_RUN
        code, out, _ = command(capsys, "inspect", taken)
        assert code == cli.OK
        assert f"format           {format}" in out
        assert "keys" in out
        assert command(capsys, "verify", taken)[0] == cli.OK
        victim = max(
            (p for p in taken.rglob("*") if p.is_file() and "_fast" not in p.name), key=lambda p: p.stat().st_size
        )
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
        code, out, _ = command(capsys, "verify", taken)
        assert code == cli.FOUND
        assert victim.name in out
        victim.unlink()
        code, out, _ = command(capsys, "verify", taken, "--json")
        assert code == cli.FOUND
        assert len(json.loads(out)["damaged"]) == 1
    code, out, _ = command(capsys, "inspect", tmp_path, "--json")
    kinds = {item["folder"].split("/")[0]: item["kind"] for item in json.loads(out)}
    assert (kinds["canonical"], kinds["native"], kinds["state"]) == ("savepoint", "savepoint", "query")
    code, out, _ = command(capsys, "inspect", old["state"], "--checkpoint", old["checkpoint"], "--count", "--json")
    assert code == cli.OK
    assert json.loads(out)["keys"] == len(expected(3))
    # What a batch of a running query needs, and one of its objects deleted by hand.
    check = ["verify", old["state"], "--checkpoint", old["checkpoint"]]
    assert command(capsys, *check)[0] == cli.OK
    log = next(p for p in old["state"].rglob("log/*") if p.is_file())
    log.unlink()
    code, out, err = command(capsys, *check)
    assert code == cli.FOUND, err
    assert log.name in out
    code, _, err = command(capsys, "savepoint", old["checkpoint"], "--state", old["state"], "--to", tmp_path / "lost")
    assert code == cli.COULD_NOT_RUN
    assert log.name in err
    code, _, err = command(
        capsys, "savepoint", old["checkpoint"], "--state", old["state"], "--to", tmp_path / "b", "--batch", 77
    )
    assert code == cli.COULD_NOT_RUN
    assert "no committed batch 77" in err
