"""Vectorised processors give what the same logic gives as a row processor of Spark's own operator.

Owns: equality over random batches with restarts, timers as Spark's, aggregates as Spark's, initial state, counters,
batch DataFrames, errors in user code.
Does not own: the parts without Spark (`tests/test_vectorised.py`).
"""

from __future__ import annotations

import datetime as dt
import pathlib
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.spark import grouped
from support.spark.frames_of_rows import with_state
from support.spark.processor_harness import by_value, finish, sides, start
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
by_value(__name__)

SCHEMA = "k string, j int, v long"
OUTPUT = "k string, j int, n long, total long"


class Totals(fc.Processor):
    """Counts and sums the values of each key; forgets a key whose sum is above 100; refuses 666."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n long, total long")

    def process(self, batch: Any) -> Any:
        values = np.asarray(batch.rows["v"].fill_null(0))
        if 666 in values:
            raise RuntimeError("this value is refused")
        old = self.seen.get(batch.keys)
        offsets = np.asarray(batch.offsets)
        n = pc.add(pc.fill_null(pc.struct_field(old, "n"), 0), pa.array(np.diff(offsets)))
        total = pc.add(pc.fill_null(pc.struct_field(old, "total"), 0), pa.array(np.add.reduceat(values, offsets[:-1])))
        gone = pc.greater(total, 100)
        self.seen.put(batch.keys, pa.StructArray.from_arrays([n, total], ["n", "total"], mask=gone))
        yield pa.RecordBatch.from_arrays(
            [batch.keys.field("k"), batch.keys.field("j"), n, total], ["k", "j", "n", "total"]
        )


def row_totals() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class RowTotals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "n long, total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            n, total = self.seen.get() or (0, 0)
            for row in rows:
                n, total = n + 1, total + (row.v or 0)
            if total > 100:
                self.seen.clear()
            else:
                self.seen.update((n, total))
            yield Row(k=key[0], j=key[1], n=n, total=total)

        def close(self) -> None:
            pass

    return RowTotals()


def batches(seed: int) -> list[list[tuple[Any, ...]]]:
    rng = random.Random(seed)
    keys = [(k, j) for k in ("a", "b", "é", "", None) for j in (1, None)]
    return [[(*rng.choice(keys), rng.choice([None, *range(30)])) for _ in range(40)] for _ in range(2)]


def test_equal_to_the_row_processor_with_restarts(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    _, sparks = sides(spark, tmp_path)
    source, got, wanted = feed(SCHEMA), {}, {}
    for rows in batches(82):
        source.add(rows)
        ours = grouped(source.stream(), "k", "j", state=str(tmp_path / "state"))
        finish(start(ours.transformWithStateInArrow(Totals(), OUTPUT), tmp_path / "ours", got))
        theirs = with_state(source.stream().groupBy("k", "j"), row_totals(), OUTPUT)
        finish(start(theirs, sparks.checkpoint, wanted))
    assert {n: rows_of(r) for n, r in got.items()} == {n: rows_of(r) for n, r in wanted.items()}
    assert any(got.values())


def test_an_exception_keeps_nothing(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA), {}
    source.add([("a", 1, 5)])

    def run() -> None:
        ours = grouped(source.stream(), "k", "j", state=str(tmp_path / "state"))
        finish(start(ours.transformWithStateInArrow(Forgiving(), OUTPUT), tmp_path / "ours", got))

    class Forgiving(Totals):
        refuses = False

        def process(self, batch: Any) -> Any:
            yield from super().process(batch)
            if self.refuses:
                raise RuntimeError("this batch is refused")

    run()
    source.add([("a", 1, 7)])
    Forgiving.refuses = True
    with pytest.raises(Exception, match="this batch is refused"):
        run()
    Forgiving.refuses = False
    run()
    assert [tuple(row) for row in got[1]] == [("a", 1, 2, 12)]


def test_a_batch_frame(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.createDataFrame([("a", 1, 5), ("a", 1, 7), (None, None, 1)], SCHEMA)
    answered = grouped(frame, "k", "j", state=str(tmp_path)).transformWithStateInArrow(Totals(), OUTPUT)
    assert {tuple(row) for row in answered.collect()} == {("a", 1, 2, 12), (None, None, 1, 1)}
    empty = grouped(frame.where("v > 100"), "k", state=str(tmp_path))
    assert empty.transformWithStateInArrow(Totals(), OUTPUT).collect() == []


class Away(fc.Processor):
    """Says when a key has had no row for ten seconds of event time, and how many rows it had."""

    def open(self, ctx: Any) -> None:
        self.ctx = ctx
        self.ends = ctx.value_state("ends", "timestamp")
        self.texts = ctx.list_state("texts", "string", ttl="1 hour")
        self.rows_seen = ctx.metrics.counter("rows_seen")

    def process(self, batch: Any) -> Any:
        self.rows_seen.add(batch.rows.num_rows)
        old = self.ends.get(batch.keys)
        self.ctx.delete_timers(batch.keys.filter(old.is_valid()), old.drop_null())
        last = batch.aggregate(last=fc.max("ts"))["last"]
        ends = pc.add(last, pa.scalar(dt.timedelta(seconds=10))).cast(pa.timestamp("us", "UTC"))
        self.ctx.register_timers(batch.keys, ends)
        self.ends.put(batch.keys, ends)
        self.texts.extend(batch.keys, batch.lists("k"))
        return []

    def on_timer(self, timers: Any) -> Any:
        n = self.texts.length(timers.keys)
        self.texts.clear(timers.keys)
        self.ends.delete(timers.keys)
        yield pa.record_batch(
            {"k": timers.keys.field("k"), "ms": pc.divide(timers.times.cast(pa.int64()), 1000), "n": n}
        )


def row_away() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class RowAway(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.ends = handle.getValueState("ends", "ms long")
            self.texts = handle.getListState("texts", "t string")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            given = list(rows)
            old = self.ends.get()
            if old is not None:
                self.handle.deleteTimer(old[0])
            ends = int(max(row.ts.timestamp() for row in given) * 1000) + 10_000
            self.handle.registerTimer(ends)
            self.ends.update((ends,))
            for row in given:
                self.texts.appendValue((row.k,))
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            n = sum(1 for _ in self.texts.get())
            self.texts.clear()
            self.ends.clear()
            yield Row(k=key[0], ms=expiredTimerInfo.getExpiryTimeInMs(), n=n)

        def close(self) -> None:
            pass

    return RowAway()


def test_timers_fire_as_those_of_spark(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    _, sparks = sides(spark, tmp_path)
    noon, rng = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc), random.Random(16)
    source, got, wanted, seen = feed("k string, ts timestamp"), {}, {}, 0
    for number in range(3):
        rows = [
            (rng.choice("abcdefghijkl"), noon + dt.timedelta(seconds=20 * number + rng.randrange(20)))
            for _ in range(12)
        ]
        source.add(rows)
    stream = source.stream().withWatermark("ts", "0 seconds")
    output = "k string, ms long, n long"
    ours = grouped(stream, "k", state=str(tmp_path / "state"))
    query = start(ours.transformWithStateInArrow(Away(), output, "update", "eventtime"), tmp_path / "ours", got)
    finish(query)
    for progress in query.recentProgress:
        seen += progress["observedMetrics"].get("fastchangelog.default", {"rows_seen": 0})["rows_seen"]
    theirs = with_state(stream.groupBy("k"), row_away(), output, time="EventTime")
    finish(start(theirs, sparks.checkpoint, wanted))
    assert {n: rows_of(r) for n, r in got.items()} == {n: rows_of(r) for n, r in wanted.items()}
    assert sum(map(len, got.values())) > 3
    assert seen == 36


class Started(fc.Processor):
    """Adds rows to a number that the initial state gave. The number is kept for an hour, without a time mode."""

    def open(self, ctx: Any) -> None:
        self.n = ctx.value_state("n", "long", ttl="1 hour")

    def initial_state(self, batch: Any) -> None:
        self.n.put(batch.keys, batch.rows["n"])

    def process(self, batch: Any) -> Any:
        n = pc.add(pc.fill_null(self.n.get(batch.keys), 0), batch.aggregate(n=fc.count())["n"])
        self.n.put(batch.keys, n)
        yield pa.record_batch({"k": batch.keys.field("k"), "n": n})


def test_an_initial_state_and_a_ttl_without_a_time_mode(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA), {}
    first = spark.createDataFrame([("a", 10), ("z", 20)], "k string, n long").groupBy("k")
    for rows in ([("a", 1, 5), ("b", 1, 5)], [("a", 1, 5), ("z", 1, 5)]):
        source.add(rows)
        ours = grouped(source.stream(), "k", state=str(tmp_path / "state"))
        counts = ours.transformWithStateInArrow(Started(), "k string, n long", "update", "none", first)
        finish(start(counts, tmp_path / "ours", got))
    assert {n: sorted(map(tuple, rows)) for n, rows in got.items()} == {
        0: [("a", 11), ("b", 1)],
        1: [("a", 12), ("z", 21)],
    }


TYPES = "i int, d double, s string, t timestamp, x decimal(10,2), b boolean"


class Aggregated(fc.Processor):
    """The aggregates of a batch."""

    def __init__(self, calls: dict[str, fc.Aggregate]) -> None:
        self.calls = calls

    def open(self, ctx: Any) -> None:
        pass

    def process(self, batch: Any) -> Any:
        found = batch.aggregate(**self.calls)
        yield pa.RecordBatch.from_arrays([batch.keys.field("k"), *found.columns], ["k", *found.schema.names])


def test_aggregates_are_those_of_spark(spark: Any, tmp_path: pathlib.Path) -> None:
    rng = random.Random(11)

    def row() -> tuple[Any, ...]:
        time = dt.datetime.fromtimestamp(rng.randrange(10**9), dt.timezone.utc)
        values = [rng.randrange(-9, 9), rng.choice([0.5, 2.0, float("nan"), float("-inf")]), rng.choice(["", "a", "é"])]
        values += [time, Decimal(rng.randrange(10**6)).scaleb(-2), rng.random() < 0.5]
        return (rng.choice("abcdefgh"), *[value if rng.random() < 0.7 else None for value in values])

    frame = spark.createDataFrame([row() for _ in range(120)], f"k string, {TYPES}").coalesce(1)
    calls: dict[str, fc.Aggregate] = {"n": fc.count(), "n_i": fc.count("i"), "some": fc.count(where="i > 0 and b")}
    theirs = [F.count("*"), F.count("i"), F.count(F.when((F.col("i") > 0) & F.col("b"), 1))]
    for column in "idstxb":
        for name in ("min", "max"):
            calls[f"{name}_{column}"] = getattr(fc, name)(column)
            theirs.append(getattr(F, name)(column))
    for column in "idx":
        calls[f"sum_{column}"] = fc.sum(column)
        theirs.append(F.sum(column))
    for column in "id":
        calls[f"avg_{column}"] = fc.avg(column)
        theirs.append(F.avg(column))
    for name in ("bool_and", "bool_or"):
        calls[name] = getattr(fc, name)("b")
        theirs.append(getattr(F, name)("b"))
    for column in "tx":  # with few ties
        for name in ("max_by", "min_by"):
            calls[f"{name}_{column}"] = getattr(fc, name)("s", column)
            theirs.append(getattr(F, name)("s", column))
    wanted = frame.groupBy("k").agg(*[one.alias(name) for one, name in zip(theirs, calls, strict=True)])
    answered = grouped(frame, "k", state=str(tmp_path)).transformWithStateInArrow(Aggregated(calls), wanted.schema)
    assert sorted(map(repr, answered.collect())) == sorted(map(repr, wanted.collect()))
