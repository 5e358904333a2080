"""Distinct rows beside Spark's own: the same rows in the same batches, with restarts between them.

Owns: `drop_duplicates`, `drop_duplicates_within_watermark`, the time to live of both distinct rows and aggregates.
Does not own: the histories of sessions (tests of the Rust crates).
"""

from __future__ import annotations

import datetime as dt
import math
import pathlib
import random
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from fastchangelog.cli.command_line import main
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, UnsupportedError
from fastchangelog.spark import (
    drop_duplicates,
    drop_duplicates_within_watermark,
    grouped,
    import_state,
    read_state,
)
from support.spark.lacks import needs
from support.spark.stream_harness import batches_of_runs, end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, ts timestamp, v long, d double"
NOON = dt.datetime(2024, 3, 10, 6, 59, 30, tzinfo=dt.timezone.utc)


def row(key: str | None, seconds: float | None, value: int, number: float = 0.5) -> tuple[Any, ...]:
    time = None if seconds is None else NOON + dt.timedelta(seconds=seconds)
    return key, time, value, number


#: Runs of the query, each with its batches.
RUNS: list[list[list[tuple[Any, ...]]]] = [
    [
        [row("a", 1, 1), row("b", 3, 2), row("a", 1, 3), row("a", 12, 4), row(None, 4, 5), row("a", None, 6)],
        [row("a", 31, 7), row("a", 29.9, 8), row("b", 3, 9), row("c", 2, 10), row("a", None, 11)],
        [row("a", 30, 12, -0.0), row("b", 40, 13, 0.0), row("b", 9, 14), row("c", 20, 15, math.nan)],
    ],
    [
        [row("b", 41, 16, -0.0), row("a", 30, 17, 0.0), row("c", 75, 18), row("c", 75, 19)],
        [row("a", 60, 20), row("a", 70, 21, math.nan), row("a", None, 22), row("b", 5, 23)],
    ],
    [[row("a", 200, 24), row("c", 140, 25)], [row("d", 201, 26), row("b", 200, 27)], [row("a", 199, 28)]],
]

#: Columns of each case, and whether the stream has a watermark.
CASES: dict[str, tuple[list[str] | None, bool]] = {
    "a key": (["k"], False),
    "all columns": (None, True),
    "a key of a stream with a watermark": (["k"], True),
    "the event time": (["ts"], True),
    "the event time and a key": (["K", "ts"], True),
    "a number": (["d"], True),
}


def both(feed: Any, folder: pathlib.Path, mode: str, sparks: Callable[[Any], Any], ours: Callable[[Any], Any]) -> Any:
    """The batches of Spark's query and of ours."""
    plans = {"sparks": sparks, "ours": ours}
    return [batches_of_runs(feed, folder, name, mode, plan, RUNS, SCHEMA) for name, plan in plans.items()]


def marked(df: Any, watermark: bool = True) -> Any:
    return df.withWatermark("ts", "10 seconds") if watermark else df


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[needs("zeros")] if case == "a number" else []) for case in CASES]
)
def test_distinct_rows_are_sparks(feed: Any, tmp_path: pathlib.Path, case: str) -> None:
    cols, watermark = CASES[case]
    sparks, ours = both(
        feed,
        tmp_path,
        "append",
        lambda df: marked(df, watermark).dropDuplicates(cols),
        lambda df: drop_duplicates(marked(df, watermark), cols, state=tmp_path / "state"),
    )
    assert ours == sparks
    assert sum(map(len, ours.values())) > 2


@pytest.mark.parametrize("cols", [["k"], ["k", "ts"], None])
def test_distinct_rows_within_the_watermark_are_sparks(feed: Any, tmp_path: pathlib.Path, cols: Any) -> None:
    sparks, ours = both(
        feed,
        tmp_path,
        "update",
        lambda df: marked(df).dropDuplicatesWithinWatermark(cols),
        lambda df: drop_duplicates_within_watermark(marked(df), cols, state=tmp_path / "state"),
    )
    assert ours == sparks
    assert len(ours) > 5


@pytest.mark.parametrize("within", [False, True])
def test_batches_larger_than_memory_are_sparks(feed: Any, tmp_path: pathlib.Path, within: bool) -> None:
    rng = random.Random(7)

    def rows_until(second: int) -> list[tuple[Any, ...]]:
        keys = [f"{rng.randrange(1_500)}" + "k" * 40 for _ in range(2_000)]
        return [row(key, second - rng.randrange(30), i) for i, key in enumerate(keys)]

    runs = [[rows_until(60), rows_until(75)], [rows_until(150), rows_until(155)]]
    state, options = tmp_path / "state", {"session_memory": "8KiB"}

    def sparks(df: Any) -> Any:
        return marked(df).dropDuplicatesWithinWatermark(["k"]) if within else marked(df).dropDuplicates(["k", "ts"])

    def ours(df: Any) -> Any:
        if within:
            return drop_duplicates_within_watermark(marked(df), ["k"], state=state, options=options)
        return drop_duplicates(marked(df), ["k", "ts"], state=state, options=options)

    wanted = batches_of_runs(feed, tmp_path, "sparks", "append", sparks, runs, SCHEMA)
    source, found, spilled = feed(SCHEMA, name="ours"), {}, []
    for batches in runs:
        for rows in batches:
            source.add(rows)
        ran = run(ours(source.stream()), tmp_path / "checkpoint", mode="append")
        found.update({number: rows_of(rows) for number, rows in ran.batches.items() if rows})
        spilled += [progress.observedMetrics["fastchangelog.default"]["spilled_bytes"] for progress in ran.progress]
    assert found == wanted
    assert min(map(len, found.values())) > 200
    assert len([size for size in spilled if size > 0]) == len(found)


@pytest.mark.parametrize("columns", ["window k", "session_window", "k session_window"])
def test_windows_and_equal_names_may_be_columns(feed: Any, tmp_path: pathlib.Path, columns: str) -> None:
    window = F.window("ts", "10 seconds") if "window" in columns.split() else F.session_window("ts", "10 seconds")

    def plan(df: Any) -> Any:
        frame = marked(df).select(window, "k", F.col("v").alias("K"), F.col("v").alias("a.b"))
        assert frame.columns[1:] == ["k", "K", "a.b"]
        return frame

    sparks, ours = both(
        feed,
        tmp_path,
        "append",
        lambda df: plan(df).dropDuplicates(columns.split()),
        lambda df: drop_duplicates(plan(df), columns.split(), state=tmp_path / "state"),
    )
    assert ours == sparks
    assert len(ours) > 5


def test_names_types_and_metadata_of_rows_stay(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, RUNS[0][0])
    frame = marked(source.stream()).select("k", "ts", "v", F.window("ts", "1 minute"), F.array("v").alias("vs"))
    for ours in (
        drop_duplicates(frame.drop("window"), ["k"], state=tmp_path / "state"),
        drop_duplicates_within_watermark(frame.drop("window"), state=tmp_path / "state"),
        drop_duplicates(frame.drop("ts"), ["window", "vs"], state=tmp_path / "state"),
    ):
        native = frame.drop("window") if "ts" in ours.columns else frame.drop("ts")
        assert ours.schema.names == native.schema.names
        for field, wanted in zip(ours.schema, native.schema, strict=True):
            assert (field.dataType, field.metadata) == (wanted.dataType, wanted.metadata), field.name


def test_windows_behind_distinct_rows_are_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    def counted(df: Any, group: Callable[..., Any]) -> Any:
        return group(df, F.window("ts", "20 seconds"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))

    def sparks(df: Any) -> Any:
        return counted(marked(df).dropDuplicatesWithinWatermark(["k", "v"]), lambda df, *keys: df.groupBy(*keys))

    def ours(df: Any) -> Any:
        once = drop_duplicates_within_watermark(marked(df), ["k", "v"], state=tmp_path / "state", name="once")
        return counted(once, lambda df, *keys: grouped(df, *keys, state=tmp_path / "state", output_mode="append"))

    wanted, found = both(feed, tmp_path, "append", sparks, ours)
    assert found == wanted
    assert len(found) > 2


@pytest.fixture
def arrival(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of arrival of the next plan's rows, in seconds."""
    seconds = [1_000]
    monkeypatch.setattr(F, "current_timestamp", lambda: F.timestamp_seconds(F.lit(seconds[0])))
    return seconds


def test_distinct_rows_come_again_after_the_ttl(
    feed: Any, spark: Any, tmp_path: pathlib.Path, arrival: list[int]
) -> None:
    source, found = feed("k string, v long"), []
    for seconds, rows in [
        (1_000, [("a", 1), ("b", 2), ("a", 3)]),
        (1_059, [("a", 4), ("c", 5)]),
        (1_060, [("a", 6), ("c", 7)]),
        (1_119, [("a", 8), ("c", 9), ("b", 10)]),
        (9_000, [("d", 11)]),
    ]:
        arrival[0] = seconds
        source.add(rows)
        ours = drop_duplicates(source.stream(), ["k"], state=tmp_path / "state", ttl="1 minute")
        ran = run(ours, tmp_path / "checkpoint", mode="append")
        found += [rows_of(rows) for rows in ran.batches.values()]
        if seconds == 1_060:
            end_state_server(spark)
    assert found == [[("a", 1), ("b", 2)], [("c", 5)], [("a", 6)], [("b", 10), ("c", 9)], [("d", 11)]]
    assert ran.progress[-1].observedMetrics["fastchangelog.default"]["state_keys"] == 1, "all others have left"


def test_aggregates_begin_anew_after_the_ttl(feed: Any, tmp_path: pathlib.Path, arrival: list[int]) -> None:
    source, found = feed("k string, v long"), []
    for seconds, rows in [
        (1_000, [("a", 1), ("b", 2)]),
        (1_059, [("a", 4)]),
        (1_118, [("a", 6), ("b", 7)]),
        (1_178, [("a", 8)]),
    ]:
        arrival[0] = seconds
        source.add(rows)
        stream = grouped(source.stream(), "k", state=tmp_path / "state", ttl="60s")
        ours = stream.agg(F.count("*"), F.sum("v"))
        assert ours.columns == ["k", "count(1)", "sum(v)"]
        found += [rows_of(rows) for rows in run(ours, tmp_path / "checkpoint").batches.values()]
    assert found == [[("a", 1, 1), ("b", 1, 2)], [("a", 2, 5)], [("a", 3, 11), ("b", 1, 7)], [("a", 1, 8)]]


def test_a_batch_frame_is_sparks(spark: Any, tmp_path: pathlib.Path) -> None:
    df = spark.createDataFrame([("a", 1), ("a", 1), ("b", 2)], "k string, v long")
    assert rows_of(drop_duplicates(df, state=tmp_path / "state").collect()) == [("a", 1), ("b", 2)]
    assert rows_of(grouped(df, "k", state=tmp_path / "state", ttl="1 day").count().collect()) == [("a", 2), ("b", 1)]


def test_what_cannot_work_is_refused(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    stream, state = feed(SCHEMA, RUNS[0][0]).stream(), tmp_path / "state"
    with pytest.raises(UnsupportedError, match="the stream has none"):
        drop_duplicates_within_watermark(stream, ["k"], state=state)
    with pytest.raises(UnsupportedError, match="MULTIPLE_EVENT_TIME_COLUMNS"):
        drop_duplicates(marked(stream).withColumn("too", F.col("ts")), ["k"], state=state)
    with pytest.raises(UnsupportedError, match="window_time"):
        drop_duplicates_within_watermark(marked(stream).select(F.window("ts", "1 minute"), "k"), state=state)
    with pytest.raises(InvalidArgumentError, match="too short"):
        drop_duplicates(stream, ["k"], state=state, ttl="0s")
    with pytest.raises(Exception, match="nothing"):
        drop_duplicates(stream, ["nothing"], state=state)
    with pytest.raises(InvalidArgumentError, match="without event time"):
        grouped(marked(stream), "ts", state=state, ttl="1 day").count()
    with pytest.raises(UnsupportedError, match="all groups in each batch"):
        grouped(stream, "k", state=state, ttl="1 day", output_mode="complete").count()
    with pytest.raises(UnsupportedError, match="initial state does not say"):
        grouped(stream, "k", state=state, ttl="1 day").agg(F.count("*"), initial_state=spark.range(1))
    with pytest.raises(FastChangelogError, match="ttlDurationMs"):
        grouped(stream, "k", state=state, ttl="1 day").transformWithState(object(), "k string", "Update", "None")


@pytest.mark.parametrize("within", [False, True])
def test_a_query_of_spark_goes_on(feed: Any, tmp_path: pathlib.Path, within: bool) -> None:
    cols = ["v", "k"] if within else ["ts", "k"]

    def sparks(df: Any) -> Any:
        return marked(df).dropDuplicatesWithinWatermark(cols) if within else marked(df).dropDuplicates(cols)

    def ours(df: Any) -> Any:
        call = drop_duplicates_within_watermark if within else drop_duplicates
        return call(
            marked(df), cols, state=tmp_path / "state", initial_state=import_state(tmp_path / "moved-checkpoint")
        )

    first = [[row("a", 1, 1), row("b", 3, 2), row(None, 14, 3)], [row("a", 31, 1), row("b", 25, 2), row(None, 26, 3)]]
    later = [[row("b", 25, 2), row("a", 31, 1), row("c", 33, 4)], [row("a", 90, 1), row("c", 80, 5)]]
    before = batches_of_runs(feed, tmp_path, "moved", "append", sparks, [first], SCHEMA)
    stayed = batches_of_runs(feed, tmp_path, "stayed", "append", sparks, [first, later], SCHEMA)
    moved = batches_of_runs(feed, tmp_path, "ours", "append", ours, [later], SCHEMA)
    assert list(moved.values()) == [rows for number, rows in stayed.items() if number > max(before)]
    assert len(moved) == 2


@pytest.mark.parametrize("ttl", [None, "1 day"])
def test_a_state_is_read_saved_and_rescaled(feed: Any, spark: Any, tmp_path: pathlib.Path, ttl: str | None) -> None:
    source, checkpoint = feed("k string, v long", [("a", 1), ("b", 2)]), tmp_path / "checkpoint"
    run(drop_duplicates(source.stream(), ["k"], state=tmp_path / "state", ttl=ttl), checkpoint, mode="append")
    state = read_state(spark, checkpoint, tmp_path / "state")
    assert [row.key for row in state.orderBy("key").collect()] == ["a", "b"]
    saved = tmp_path / "saved"
    assert main(["savepoint", str(checkpoint), "--state", str(tmp_path / "state"), "--to", str(saved)]) == 0
    assert main(["verify", str(saved)]) == 0
    assert main(["export", str(saved), "--to", str(tmp_path / "rows.parquet")]) == 0
    assert sorted(pq.read_table(tmp_path / "rows.parquet").column("key").to_pylist()) == ["a", "b"]
    source.add([("b", 3), ("c", 4)])
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 5)
    try:
        options = {"start_from": str(saved)}
        ours = drop_duplicates(source.stream(), ["k"], state=tmp_path / "state", ttl=ttl, options=options)
        found = run(ours, tmp_path / "elsewhere", mode="append").batches
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert [row.k for rows in found.values() for row in rows] == ["c"]
