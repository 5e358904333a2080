"""A table of queries by event time, Spark's operator and ours over the same files: all that a batch shows is the same.

Owns: the comparison of rows, watermarks, late groups and the number of batches over settings, restarts and odd input.
Does not own: the kinds of windows and of distinct rows (`test_windows`, `test_session_windows`, `test_deduplicate`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog.spark import drop_duplicates_within_watermark, grouped
from fastchangelog.spark.settings import REQUIRED
from support.spark.stream_harness import rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
NOON = dt.datetime(2024, 3, 10, 6, 59, 30, tzinfo=dt.timezone.utc)
SCHEMA = "`a.b` string, ts timestamp, s struct<Kind:string,v:bigint>"


def row(key: str | None, seconds: float | None, value: int, since: dt.datetime = NOON) -> tuple[Any, ...]:
    return key, None if seconds is None else since + dt.timedelta(seconds=seconds), (key, value)


#: Runs of a query, each with its batches.
RUNS = [
    [[row("a", 1, 1), row("b", 3, 2), row(None, 4, 4), row("a", None, 5)], [row("a", 31, 6), row("b", 2, 7)]],
    [[row("b", 41, 15), row("a", 29, 16), row("c", 75, 17), row("a", 5, 1)], [row("a", 60, 19), row("a", 70, 20)]],
]
#: Rows at the watermark, a start without files, a file without rows.
EDGES = [
    [[row("a", 1, 1), row("a", 20, 2)], [row("a", 10, 3), row("a", 9.999999, 4), row("a", 30, 5)]],
    [],
    [[row("a", 20, 6), row("a", 20.000001, 7), row("b", 10, 8)], []],
    [[row("c", 100, 6)]],
]
EARLY = [
    [[row("a", s, s, EPOCH) for s in (-30, -10, -3, 3)], [row("a", -3, 2, EPOCH)]],
    [[row("b", 40, 1, EPOCH)]],
]


@dataclasses.dataclass(frozen=True)
class Ops:
    """How a case groups a stream and drops its duplicates."""

    group: Callable[..., Any]
    once: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    plan: Callable[[Any, Ops], Any]
    runs: Sequence[Sequence[Sequence[Any]]] = dataclasses.field(default_factory=lambda: RUNS)
    mode: str = "append"
    confs: Mapping[str, str] = dataclasses.field(default_factory=dict)


def windows(df: Any, ops: Ops) -> Any:
    sums = F.count("*").alias("n"), F.sum("s.v").alias("sum"), F.max("S.KIND")
    return ops.group(df.withWatermark("ts", "10 seconds"), F.window("ts", "20 seconds", "10 seconds"), "`a.b`").agg(
        *sums
    )


def union(df: Any, ops: Ops) -> Any:
    """Two watermarks: one of them sees no row in some of the runs."""
    one, other = df.where("`a.b` = 'a'"), df.where("`a.b` <> 'a'")
    both = one.withWatermark("ts", "10 seconds").union(other.withWatermark("ts", "3 seconds"))
    return ops.group(both, F.window("ts", "10 seconds"), "s.kind").agg(F.count("*").alias("n"))


def once(df: Any, ops: Ops) -> Any:
    return ops.once(df.withWatermark("ts", "10 seconds"))


STREAMING = "spark.sql.streaming."
CASES = {
    "late at the edge": Case(windows, EDGES),
    "late at the edge in update mode": Case(windows, EDGES, "update"),
    "before 1970": Case(windows, EARLY, "update"),
    "the least of two watermarks": Case(union),
    "the greatest of two watermarks": Case(union, confs={STREAMING + "multipleWatermarkPolicy": "max"}),
    "one watermark for late and closed": Case(windows, confs={STREAMING + "statefulOperator.allowMultiple": "false"}),
    "no batches without data": Case(windows, confs={STREAMING + "noDataMicroBatches.enabled": "false"}),
    "results without keys": Case(windows, confs={"spark.sql.retainGroupColumns": "false"}),
    "distinct rows": Case(once, EDGES),
}


def seen(feed: Any, folder: pathlib.Path, name: str, case: Case, ops: Ops) -> tuple[list[Any], list[Any]]:
    """The columns; for each batch its rows, its watermark, and the groups that were late."""
    source, columns, batches = feed(SCHEMA, name=name), [], []
    for files in case.runs:
        for rows in files:
            source.add(rows)
        df = case.plan(source.stream(), ops)
        columns = [(field.name, field.dataType.simpleString(), field.nullable, field.metadata) for field in df.schema]
        ran = run(df, folder / f"{name}-checkpoint", mode=case.mode)
        for progress in ran.progress:
            if progress.batchId in ran.batches:
                late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
                late += sum(found.asDict().get("late_groups", 0) for found in progress.observedMetrics.values())
                watermark = (progress.eventTime or {}).get("watermark")
                batches.append((progress.batchId, rows_of(ran.batches[progress.batchId]), watermark, late))
    return columns, batches


@pytest.mark.parametrize("name", CASES)
def test_batches_are_sparks(feed: Any, conf: Any, tmp_path: pathlib.Path, name: str) -> None:
    case, state = CASES[name], str(tmp_path / "state")
    for key, value in {**REQUIRED, **case.confs}.items():
        conf(key, value)
    sparks = Ops(lambda df, *keys: df.groupBy(*keys), lambda df: df.dropDuplicatesWithinWatermark(["a.b"]))
    ours = Ops(
        lambda df, *keys: grouped(df, *keys, state=state, output_mode=case.mode),
        lambda df: drop_duplicates_within_watermark(df, ["a.b"], state=state),
    )
    expected = seen(feed, tmp_path, "sparks", case, sparks)
    assert seen(feed, tmp_path, "ours", case, ours) == expected
    assert any(rows for _, rows, *_ in expected[1])
