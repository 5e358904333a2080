"""Operators behind a processor: the watermark goes on, as behind Spark's own operator.

Owns: `eventTimeColumnName`, and chains of processors and of Spark's aggregates. Does not own: late rows at the first
operator (`test_processor_time`).
"""

from __future__ import annotations

import datetime as dt
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark import grouped
from support.spark.frames_of_rows import with_state
from support.spark.processor_harness import Job, by_value, check, compare, halves, sides

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
by_value(__name__)

SCHEMA = "k string, ts timestamp"
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
OUTPUT = "k string, t timestamp, n bigint"


def at(key: str, seconds: float) -> tuple[str, dt.datetime]:
    return key, NOON + dt.timedelta(seconds=seconds)


BATCHES = [[at("a", 0), at("b", 7)], [at("a", 60)], [at("b", 61), at("c", 30)], [at("a", 200)], [at("a", 201)]]


class Passes(StatefulProcessor):
    """Hands each row on, with a number."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0]
        for row in sorted(rows, key=lambda r: r[1]):
            n += 1
            yield Row(k=key[0], t=row[1], n=n)
        self.count.update((n,))

    def close(self) -> None:
        """Nothing to end."""


class Stamps(Passes):
    """Emits rows at a time before the watermark."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], t=NOON - dt.timedelta(days=1), n=0)


class Tells(Passes):
    """The second of two: tells its watermark."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        times = sorted(row.t.isoformat() for row in rows)
        yield Row(k=key[0], said=f"{times} {timerValues.getCurrentWatermarkInMs()}")


def job(**changes: Any) -> Job:
    standard = {
        "processor": Passes,
        "output": OUTPUT,
        "output_mode": "Append",
        "sink_mode": "append",
        "time_mode": "EventTime",
        "watermark": ("ts", "10 seconds"),
        "event_time_column": "t",
    }
    return Job(**{**standard, **changes})


def test_the_watermark_goes_on(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    compare(feed, spark, tmp_path, job(), SCHEMA, BATCHES)


def test_sparks_window_aggregate_behind_it(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    def after(df: Any) -> Any:
        return df.groupBy(F.window("t", "10 seconds"), "k").agg(F.count("*").alias("c"), F.sum("n").alias("s"))

    answered = compare(feed, spark, tmp_path, job(after=after), SCHEMA, BATCHES)
    assert sum(map(len, answered.rows.values())) >= 3, "windows close when the watermark has passed them"


def test_a_part_of_the_columns_behind_it(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    def after(df: Any) -> Any:
        return df.groupBy(F.window("t", "10 seconds")).count()

    compare(feed, spark, tmp_path, job(after=after), SCHEMA, BATCHES)


def test_a_processor_behind_a_processor(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    class Chained(Job):
        def build(self, df: Any, group: Any, **more: Any) -> Any:
            first = super().build(df, group)
            return with_state(group(first, "k"), Tells(), "k string, said string", "Append", "EventTime")

    ours, sparks = sides(spark, tmp_path)
    made = itertools.count()
    # The two operators of one query need names of their own.
    ours.group = lambda df, *keys: grouped(df, *keys, state=str(tmp_path / "state"), name=f"op{next(made) % 2}")
    source = feed(SCHEMA)
    for part in halves(BATCHES):
        for rows in part:
            source.add(rows)
        for side in (ours, sparks):
            side.run(Chained(**vars(job())), source.stream())
    check(ours.answers, sparks.answers)


def test_rows_older_than_the_watermark_have_sparks_condition(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *BATCHES)
    for side in sides(spark, tmp_path):
        with pytest.raises(Exception, match="EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED"):
            side.run(job(processor=Stamps), source.stream())


def test_a_missing_column_or_watermark_has_sparks_condition(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *BATCHES)
    for side in sides(spark, tmp_path):
        with pytest.raises(Exception, match=r"UNRESOLVED_COLUMN"):
            job(event_time_column="nowhere").build(source.stream(), side.group)
        with pytest.raises(Exception, match="CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"):
            job(watermark=None).build(source.stream(), side.group)


def test_an_event_time_that_holds_no_null(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    output = "k string not null, t timestamp not null, n bigint not null"
    compare(feed, spark, tmp_path, job(output=output), SCHEMA, BATCHES)
