"""`fastchangelog migrate`: what people and machines read about a checkpoint of Spark's own.

Owns: the command's output and exit codes, and which formats a version of Spark cannot read.
Does not own: the import itself (`test_import_state`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog import InvalidArgumentError, cli
from fastchangelog.checkpoints import handles
from fastchangelog.spark import grouped, internals
from fastchangelog.spark.checkpoint.spark_states import Checkpoint
from fastchangelog.spark.reading.migration import describe
from fastchangelog.spark.settings import REQUIRED
from support.spark.processor_harness import NO_DATA_BATCHES, by_value, finish, start
from support.spark.processors import BASE, SCRIPT_OUTPUT, SCRIPT_SCHEMA, STATES, Script, script
from support.spark.stream_harness import FORMAT, needs_readable_checkpoints

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), needs_readable_checkpoints]
by_value("support.spark.processors")


def test_aggregates(feed: Any, spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tmp_path / "sparks"
    source = feed("k int, s string, v int", [(1, "a", 1), (2, None, 2)], [(1, "a", 3)])
    finish(start(source.stream().groupBy("k", "s").agg(F.avg("v"), F.max("s")), checkpoint, {}))
    assert cli.main(["migrate", str(checkpoint), "--json"]) == cli.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["checkpoint"], said["batch"], said["watermark_ms"]) == (str(checkpoint), 1, 0)
    (operator,) = said["operators"]
    assert (operator["operator"], operator["kind"], operator["imported"], operator["rows"]) == (0, "aggregate", True, 2)
    assert operator["key"] == "k int, s string"
    assert operator["value"] == "sum double, count bigint, max string"
    assert [(s["source"], s["offset"]) for s in said["sources"]] == [("files", '{"logOffset":1}')]
    assert cli.main(["migrate", str(checkpoint)]) == cli.OK
    shown = capsys.readouterr().out
    assert "operator 0: stateStoreSave, 2 keys" in shown
    assert f'initial_state=fc.spark.import_state("{checkpoint}", operator=0)' in shown
    assert cli.main(["migrate", str(checkpoint), "--batch", "9"]) == cli.COULD_NOT_RUN
    assert "has no committed batch 9; Spark keeps the batches 0 to 1" in capsys.readouterr().err


def test_processors(
    feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    conf(NO_DATA_BATCHES, "false")
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    rows = script(1, 1, 60, (*STATES, "some day"), BASE)[0]
    source, checkpoint = feed(SCRIPT_SCHEMA, rows), tmp_path / "sparks"
    processed = (
        source.stream().groupBy("k").transformWithState(Script(86_400_000), SCRIPT_OUTPUT, "Update", "ProcessingTime")
    )
    finish(start(processed, checkpoint, {}))
    assert cli.main(["migrate", str(checkpoint), "--json"]) == cli.OK
    (operator,) = json.loads(capsys.readouterr().out)["operators"]
    assert (operator["kind"], operator["time_mode"], operator["key"]) == ("processor", "processingtime", "k string")
    assert [(v["name"], v["kind"], v["ttl"]) for v in operator["variables"]] == [
        ("list", "list", True),
        ("map", "map", True),
        ("value", "value", True),
    ]
    assert all(v["rows"] > 0 for v in operator["variables"])
    assert operator["timers"] > 0
    assert operator["variables"][2]["schema"] == "value struct<value:struct<x:bigint,s:string>,ttlExpirationMs:bigint>"
    assert cli.main(["migrate", str(checkpoint)]) == cli.OK
    shown = capsys.readouterr().out
    assert "map with TTL" in shown
    assert "initialState=fc.spark.import_state(" in shown


def test_nothing_to_import(feed: Any, spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = feed("k int", [(1,)])
    joined = source.stream().join(source.stream().withColumnRenamed("k", "other"), F.expr("k = other"))
    finish(start(joined, tmp_path / "joined", {}, "append"))
    assert cli.main(["migrate", str(tmp_path / "joined")]) == cli.FOUND
    assert "cannot be imported" in capsys.readouterr().out
    finish(start(grouped(source.stream(), "k", state=str(tmp_path / "state")).count(), tmp_path / "ours", {}))
    assert cli.main(["migrate", str(tmp_path / "ours")]) == cli.FOUND
    assert "of fastchangelog already" in capsys.readouterr().out
    assert cli.main(["migrate", str(tmp_path / "nothing")]) == cli.COULD_NOT_RUN
    error = capsys.readouterr().err
    assert "has no committed batch" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("within", [False, True])
def test_distinct_rows_are_imported(
    feed: Any, spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], within: bool
) -> None:
    source = feed("k int, ts timestamp", [(1, dt.datetime(2024, 1, 1)), (2, dt.datetime(2024, 1, 1))])
    marked = source.stream().withWatermark("ts", "1 hour")
    plan = marked.dropDuplicatesWithinWatermark(["k"]) if within else marked.dropDuplicates(["k"])
    finish(start(plan, tmp_path / "distinct", {}))
    assert cli.main(["migrate", str(tmp_path / "distinct")]) == cli.OK
    shown = capsys.readouterr().out
    assert "2 keys" in shown
    assert f"+ fc.spark.drop_duplicates{'_within_watermark' if within else ''}(df, COLUMNS" in shown


#: Queries of Spark's own that `grouped` refuses, and what is said of their states.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no key": (lambda df: df.groupBy().count(), "it groups by no key"),
    "a rollup": (lambda df: df.rollup("k").count(), "it is a rollup, a cube or has grouping sets"),
    "a type": (
        lambda df: df.groupBy("k").agg(F.first(F.expr("parse_json(k)"))),
        "the accumulator `first` has the type variant, which fastchangelog cannot keep",
    ),
    "other accumulators": (
        lambda df: df.groupBy("k").agg(F.count("*"), F.bitmap_construct_agg(F.col("v").cast("bigint"))),
        "as an aggregate does that cannot be imported, such as one with a state of its own; supported are count,",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_grouped_refuses(
    feed: Any, spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    query, says = REFUSED[name]
    source = feed("k string, ts timestamp, v int", [("1", dt.datetime(2024, 1, 1), 1)])
    finish(start(query(source.stream()), tmp_path / "sparks", {}))
    assert cli.main(["migrate", str(tmp_path / "sparks")]) == cli.FOUND
    shown = capsys.readouterr().out
    assert "operator 0: stateStoreSave, cannot be imported" in shown
    assert says in shown
    assert "initial_state=" not in shown
    assert "nothing of this query can be imported" in shown


@pytest.mark.parametrize(
    ("version", "format_", "connect", "says"),
    [
        ("4.0.1", "2", False, "whose checkpoint format is 2: .* Spark 4.1 or newer reads it"),
        ("4.0.1", "1", False, None),
        ("4.1.4", "1", True, "whose checkpoint format is 1, over Spark Connect; use a classic session, or Spark 4.2"),
        ("4.1.4", "2", True, None),
        ("4.2.1", "1", True, None),
    ],
)
def test_formats_that_a_version_cannot_read(
    feed: Any,
    spark: Any,
    tmp_path: pathlib.Path,
    conf: Any,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    format_: str,
    connect: bool,
    says: str | None,
) -> None:
    for name, value in {**REQUIRED, FORMAT: format_}.items():
        conf(name, value)
    finish(start(feed("k int", [(1,)]).stream().groupBy("k").count(), tmp_path / "sparks", {}))
    monkeypatch.setattr(type(spark), "version", property(lambda _: version))  # also where it was read before
    assert Checkpoint(spark, str(tmp_path / "sparks")).batch == 0, "the core reads them all"
    monkeypatch.setattr(internals, "is_connect", lambda _: connect)
    monkeypatch.setattr(handles, "core_uri", lambda *_, **__: None)
    with contextlib.nullcontext() if says is None else pytest.raises(InvalidArgumentError, match=says):
        assert Checkpoint(spark, str(tmp_path / "sparks")).batch == 0


@pytest.mark.parametrize(
    ("offset", "source", "go_on"),
    [
        ('{"topic":{"0":123,"1":7}}', "Kafka", """.option("startingOffsets", '{"topic":{"0":123,"1":7}}')"""),
        ('{"sourceVersion":1,"reservoirVersion":12,"index":-1}', "Delta", '.option("startingVersion", "12")'),
        ('{"logOffset":4}', "files", "read a folder without the files"),
        ("17", "other", "set the option of this source"),
    ],
)
def test_sources(feed: Any, spark: Any, tmp_path: pathlib.Path, offset: str, source: str, go_on: str) -> None:
    checkpoint = tmp_path / "sparks"
    finish(start(feed("k int", [(1,)]).stream().groupBy("k").count(), checkpoint, {}))
    written = checkpoint / "offsets" / "0"
    written.write_text("\n".join([*written.read_text().splitlines()[:2], offset]))
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    said = describe(spark, str(checkpoint))
    (found,) = said["sources"]
    assert (found["source"], found["offset"]) == (source, offset)
    assert found["go_on"].startswith(go_on)
    assert any(go_on in line for line in said["lines"]) == go_on.startswith(".option")
