"""Aggregations by event time beside Spark's own: the same rows in the same batches, with restarts between them.

Owns: the comparison of windows, output modes, late rows and closed groups with Spark.
Does not own: the arithmetic of windows and the histories of sessions (tests of the Rust crates).
"""

from __future__ import annotations

import datetime as dt
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.spark import grouped
from support.spark.stream_harness import batches_of_runs, end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, ts timestamp, v long, d double"
NOON = dt.datetime(2024, 3, 10, 6, 59, 30, tzinfo=dt.timezone.utc)


def row(key: str | None, seconds: float | None, value: int) -> tuple[Any, ...]:
    time = None if seconds is None else NOON + dt.timedelta(seconds=seconds)
    return key, time, value, value / 7


#: Runs of the query, each with its batches. New York's clocks change half a minute after the first row.
RUNS: list[list[list[tuple[Any, ...]]]] = [
    [
        [row("a", 1, 1), row("b", 3, 2), row("a", 12, 3), row(None, 4, 4), row("a", None, 5)],
        [row("a", 31, 6), row("a", 29.9, 7), row("b", 11, 8), row("a", 2, 9)],
        [row("a", 30, 10), row("b", 40, 11), row("b", 9, 12), row("a", 20, 13), row("a", 25.5, 14)],
    ],
    [
        [row("b", 41, 15), row("a", 29, 16), row("c", 75, 17), row("c", 75.0001, 18)],
        [row("a", 60, 19), row("a", 70, 20), row("a", 66, 21), row("b", 5, 22)],
    ],
    [[row("a", 200, 23), row("a", 140, 24)], [row("d", 201, 25)]],
]


def counts() -> list[Any]:
    return [F.count("*").alias("n"), F.sum("v").alias("total"), F.max("v").alias("most")]


def ordered() -> list[Any]:
    """Aggregates that depend on the order of rows, so that windows are filled row by row."""
    return [F.first("v").alias("first"), F.last("v").alias("last"), F.sum("d").alias("d"), F.avg("v").alias("mean")]


#: The keys, the stream that has them, and the aggregates.
CASES: dict[str, tuple[Callable[[], Sequence[Any]], Callable[[Any], Any], Callable[[], Sequence[Any]]]] = {
    "tumbling": (lambda: [F.window("ts", "10 seconds"), "k"], lambda df: df, counts),
    "the window last": (lambda: ["k", F.window("ts", "10 seconds")], lambda df: df, ordered),
    "the window alone": (lambda: [F.window("ts", "10 seconds")], lambda df: df, counts),
    "from an offset": (lambda: [F.window("ts", "10 seconds", startTime="3 seconds"), "k"], lambda df: df, counts),
    "sliding": (lambda: [F.window("ts", "20 seconds", "5 seconds"), "k"], lambda df: df, counts),
    "sliding in order": (lambda: [F.window("ts", "20 seconds", "5 seconds", "1 second"), "k"], lambda df: df, ordered),
    "sliding unevenly": (lambda: [F.window("ts", "10 seconds", "7 seconds"), "k"], lambda df: df, counts),
    "a day": (lambda: [F.window("ts", "1 day"), "k"], lambda df: df, counts),
    "a column of windows": (lambda: ["w", "k"], lambda df: df.withColumn("w", F.window("ts", "10 seconds")), counts),
    "a window's start": (lambda: [F.window("ts", "10 seconds").start, "k"], lambda df: df, counts),
    "a window twice": (
        lambda: [F.window("ts", "10 seconds"), "k", F.window("ts", "10 seconds").alias("w")],
        lambda df: df,
        counts,
    ),
    "the time twice": (lambda: ["ts", F.col("ts").alias("t"), "k"], lambda df: df, counts),
    "a text": (lambda: [F.expr("window(ts, '10 seconds')"), "k"], lambda df: df, counts),
    "the time": (lambda: ["k", "ts"], lambda df: df, counts),
    "another time": (lambda: [F.window(F.expr("ts + interval 1 second"), "10 seconds"), "k"], lambda df: df, counts),
}
#: Those that Spark refuses in append mode: the key carries no watermark.
UPDATE_ONLY = {"a window's start", "another time"}


def history(
    feed: Any,
    folder: pathlib.Path,
    name: str,
    mode: str,
    plan: Callable[[Any], Any],
    runs: Any = None,
    schema: str = SCHEMA,
) -> dict[int, list[Any]]:
    return batches_of_runs(feed, folder, name, mode, plan, RUNS if runs is None else runs, schema)


@pytest.mark.parametrize(
    ("case", "mode"),
    [(case, mode) for case in CASES for mode in ("update", "append") if mode == "update" or case not in UPDATE_ONLY],
)
def test_windows_are_sparks(feed: Any, tmp_path: pathlib.Path, case: str, mode: str) -> None:
    keys, prepare, aggregates = CASES[case][0](), CASES[case][1], CASES[case][2]()

    def marked(df: Any) -> Any:
        return prepare(df.withWatermark("ts", "10 seconds"))

    sparks = history(feed, tmp_path, "sparks", mode, lambda df: marked(df).groupBy(*keys).agg(*aggregates))
    ours = history(
        feed,
        tmp_path,
        "ours",
        mode,
        lambda df: grouped(marked(df), *keys, state=str(tmp_path / "state"), output_mode=mode).agg(*aggregates),
    )
    assert ours == sparks
    assert len(ours) > 3 or (case, mode) == ("a day", "append"), "a day is not over in minutes"


@pytest.mark.parametrize("key", ["k", "window"])
def test_complete_mode_is_sparks(feed: Any, spark: Any, tmp_path: pathlib.Path, key: str) -> None:
    def keys() -> list[Any]:
        return ["k"] if key == "k" else [F.window("ts", "20 seconds", "5 seconds"), "k"]

    def marked(df: Any) -> Any:
        return df.withWatermark("ts", "10 seconds")

    runs = [*RUNS, [[]]]
    args = (feed, tmp_path)
    sparks = history(
        *args, "sparks", "complete", lambda df: marked(df).groupBy(*keys()).agg(*ordered(), *counts()), runs
    )
    ours = history(
        *args,
        "ours",
        "complete",
        lambda df: grouped(marked(df), *keys(), state=str(tmp_path / "state"), output_mode="complete").agg(
            *ordered(), *counts()
        ),
        runs,
    )
    assert ours == sparks
    assert len(ours) == sum(map(len, runs))
    assert spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", None) in (None, "true")


def test_names_types_and_metadata_are_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    stream = feed(SCHEMA, RUNS[0][0]).stream().withWatermark("ts", "10 seconds")
    for keys in ([F.window("ts", "10 seconds", "5 seconds"), "k"], ["k", "ts"], [F.window("ts", "1 day").alias("w")]):
        sparks = stream.groupBy(*keys).agg(*counts()).schema
        ours = grouped(stream, *keys, state=str(tmp_path / "state"), output_mode="append").agg(*counts()).schema
        assert [(f.name, f.dataType.simpleString(), f.nullable, f.metadata) for f in ours] == [
            (f.name, f.dataType.simpleString(), f.nullable, f.metadata) for f in sparks
        ]


@pytest.mark.parametrize("delay", ["0 seconds", "1 minute"])
@pytest.mark.parametrize("mode", ["update", "append"])
def test_a_delay_is_sparks(feed: Any, tmp_path: pathlib.Path, delay: str, mode: str) -> None:
    def plan(df: Any, group: Callable[..., Any]) -> Any:
        return group(df.withWatermark("ts", delay), F.window("ts", "10 seconds"), "k").agg(*counts())

    sparks = history(feed, tmp_path, "sparks", mode, lambda df: plan(df, lambda df, *keys: df.groupBy(*keys)))
    state = str(tmp_path / "state")
    ours = history(
        feed, tmp_path, "ours", mode, lambda df: plan(df, lambda df, *k: grouped(df, *k, state=state, output_mode=mode))
    )
    assert ours == sparks


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_windows_without_a_watermark_stay(feed: Any, tmp_path: pathlib.Path, kind: str) -> None:
    """Also before 1970, where a watermark would drop them."""
    early = dt.datetime(1969, 12, 31, 23, 59, 50)
    runs = [[[("a", early + dt.timedelta(seconds=s), s, 0.5) for s in range(0, 20, 3)]], [[("a", early, 1, 0.5)]]]
    keys, schema = (F.window("ts", "7 seconds", "2 seconds"), "k"), SCHEMA.replace("timestamp", kind)

    def ours(df: Any) -> Any:
        return grouped(df, *keys, state=str(tmp_path / "state")).agg(*counts())

    sparks = history(
        feed, tmp_path, "sparks", "update", lambda df: df.groupBy(*keys).agg(*counts()), runs=runs, schema=schema
    )
    assert history(feed, tmp_path, "ours", "update", ours, runs=runs, schema=schema) == sparks
    assert len(sparks) == 2


def test_windows_over_windows_are_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    """Ours behind ours, ours behind Spark's, Spark's behind ours: the watermark goes on."""

    def chained(df: Any, first: str, second: str) -> Any:
        small = group(df.withWatermark("ts", "10 seconds"), first, "small", F.window("ts", "10 seconds"), "k")
        counted = small.agg(F.count("*").alias("n"))
        return group(counted, second, "large", F.window("window", "1 minute"), "k").agg(F.sum("n").alias("n"))

    def group(df: Any, whose: str, name: str, *keys: Any) -> Any:
        if whose == "sparks":
            return df.groupBy(*keys)
        return grouped(df, *keys, state=str(tmp_path / "state"), name=name, output_mode="append")

    sparks = history(feed, tmp_path, "sparks", "append", lambda df: chained(df, "sparks", "sparks"))
    assert sparks
    for first, second in (("ours", "ours"), ("sparks", "ours"), ("ours", "sparks")):
        name = f"{first}-{second}"
        assert history(feed, tmp_path, name, "append", lambda df, a=first, b=second: chained(df, a, b)) == sparks


@pytest.mark.parametrize("mode", ["update", "append"])
def test_open_windows_of_a_spark_query_go_on(feed: Any, tmp_path: pathlib.Path, mode: str) -> None:
    first = [[row("a", 1, 1), row("b", 3, 2), row("a", 12, 3)], [row("a", 31, 6), row("b", 22, 8), row("b", 31, 2)]]
    later = [[row("a", 33, 9), row("b", 50, 10)], [row("b", 90, 11)]]

    def keys() -> list[Any]:
        return ["k", F.window("ts", "20 seconds", "10 seconds")]

    def marked(df: Any) -> Any:
        return df.withWatermark("ts", "10 seconds")

    def sparks(df: Any) -> Any:
        return marked(df).groupBy(*keys()).agg(*counts())

    def ours(df: Any) -> Any:
        windows = grouped(marked(df), *keys(), state=str(tmp_path / "state"), output_mode=mode)
        return windows.agg(*counts(), initial_state=fc.spark.import_state(tmp_path / "moved-checkpoint"))

    before = history(feed, tmp_path, "moved", mode, sparks, [first])
    stayed = history(feed, tmp_path, "stayed", mode, sparks, [first, later])
    expected = [rows for number, rows in sorted(stayed.items()) if number > max(before)]
    moved = history(feed, tmp_path, "ours", mode, ours, [later])
    assert [rows for _, rows in sorted(moved.items())] == expected
    assert len(expected) == 2


def test_a_restored_state_closes_its_windows(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    def plan(df: Any) -> Any:
        windows = grouped(
            df.withWatermark("ts", "0 seconds"),
            F.window("ts", "10 seconds"),
            "k",
            state=str(tmp_path / "state"),
            output_mode="append",
        )
        return windows.agg(*counts())

    source = feed(SCHEMA, [row(f"k{i}", 1, i) for i in range(2_000)])
    assert not any(run(plan(source.stream()), tmp_path / "checkpoint", mode="append").batches.values())
    end_state_server(spark)
    source.add([row("later", 30, 1)])
    (closed,) = filter(None, run(plan(source.stream()), tmp_path / "checkpoint", mode="append").batches.values())
    assert sorted(found["k"] for found in closed) == sorted(f"k{i}" for i in range(2_000))


def test_a_batch_frame_gives_all_windows(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    rows = [row for batches in RUNS for batch in batches for row in batch]
    frame = spark.createDataFrame(rows, SCHEMA).withWatermark("ts", "1 second")
    for mode in ("update", "append", "complete"):
        ours = grouped(frame, F.window("ts", "20 seconds", "5 seconds"), "k", state=str(tmp_path), output_mode=mode)
        sparks = frame.groupBy(F.window("ts", "20 seconds", "5 seconds"), "k").agg(*counts())
        assert rows_of(ours.agg(*counts()).collect()) == rows_of(sparks.collect())


def test_modes_that_cannot_work_are_refused(feed: Any, tmp_path: pathlib.Path) -> None:
    stream, state = feed(SCHEMA, RUNS[0][0]).stream(), str(tmp_path / "state")
    late = stream.withWatermark("ts", "1 second")
    with pytest.raises(AnalysisException, match=r"no key carries a watermark.*withWatermark") as refused:
        grouped(stream, F.window("ts", "1 minute"), state=state, output_mode="append").count()
    assert refused.value.getCondition() == "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"
    with pytest.raises(fc.InvalidArgumentError, match="no key carries a watermark"):
        grouped(late, "k", state=state, output_mode="append").count()
    with pytest.raises(fc.InvalidArgumentError, match="'upsert' is none of 'update', 'append', 'complete'"):
        grouped(stream, "k", state=state, output_mode="upsert")
    with pytest.raises(fc.InvalidArgumentError, match="the keys window, ts carry the watermark"):
        grouped(late, F.window("ts", "1 minute"), "ts", state=state).count()
    windows = grouped(late, F.window("ts", "1 minute"), state=state, output_mode="append").count()
    with pytest.raises(Exception, match=r'output_mode=.append.\) in update mode: write it with outputMode\("append"\)'):
        run(windows, tmp_path / "checkpoint", mode="update")
