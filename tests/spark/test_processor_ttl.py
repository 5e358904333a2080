"""States that end, and timers by the clock, over restarts: Spark's operator and ours give the same answers.

Owns: TTLs that differ between states and change at a restart, batches without rows by processing time. Does not own:
states that all end alike, in one run (`test_processor_states`), event time (`test_processor_time`).

No answer depends on how long anything takes: what a TTL of a millisecond has written in one batch has ended in the
next, what one of a day has written has not.
"""

from __future__ import annotations

import datetime as dt
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from support.kills import clock
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, check, compare, sides, start
from support.spark.processors import LIST, MAP, SCRIPT_OUTPUT, SCRIPT_SCHEMA, VALUE, Script, script
from support.spark.stream_harness import rows_of
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)
by_value("support.kills.clock")
by_value("support.spark.processors")

SEED = int(os.environ.get("FASTCHANGELOG_SEED", "16"))
BASE = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
DAY = 86_400_000
#: Of a value, a list and a map, in each run of the query.
TTLS = [(1, DAY, DAY), (DAY, 1, 1), (1, DAY, DAY)]
#: Without what removes entries of a map: one that is put again goes with Spark when the removed one would have ended.
CALLS = (*VALUE, *LIST, *(op for op in MAP if op not in ("remove", "empty map")))


class Ending(Script):
    """Each state has a TTL of its own."""

    def __init__(self, ttls: tuple[int, int, int]):
        self.ttls = ttls

    def init(self, handle: Any) -> None:
        of_value, of_list, of_map = self.ttls
        self.handle = handle
        self.value = handle.getValueState("value", "x long, s string", of_value)
        self.list = handle.getListState("list", "x long, s string", of_list)
        self.map = handle.getMapState("map", "x long", "s string", of_map)


def test_ttls_that_change_at_a_restart(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    """An entry ends by the TTL under which it was written."""
    conf(NO_DATA_BATCHES, "false")
    source, (ours, sparks) = feed(SCRIPT_SCHEMA), sides(spark, tmp_path)
    batches = iter(script(SEED + 5, 2 * len(TTLS), 50, CALLS, BASE, keys=4))
    for ttls in TTLS:
        source.add(next(batches))
        source.add(next(batches))
        for side in (ours, sparks):
            job = Job(lambda ttls=ttls: Ending(ttls), SCRIPT_OUTPUT, time_mode="ProcessingTime")
            side.run(job, source.stream())
    check(ours.answers, sparks.answers)


def test_what_the_kill_tests_expect(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    """Their processor of frames: an initial state, timers by the clock and TTLs, with restarts."""
    conf(NO_DATA_BATCHES, "false")
    model = clock.ClockModel(SEED)
    batches = [model.batch(15, 40) for _ in range(3)]
    job = Job(
        clock.Clocked,
        clock.OUTPUT,
        api="pandas",
        time_mode="ProcessingTime",
        initial=lambda: spark.createDataFrame(clock.INITIAL, clock.INITIAL_SCHEMA),
    )
    answered = compare(feed, spark, tmp_path, job, "k string, v bigint", batches, restart=True)
    assert {n: rows_of(rows) for n, rows in answered.rows.items()} == {
        n: rows_of(model.apply(rows)) for n, rows in enumerate(batches)
    }


#: So often a key answers: once for its row, then for timers.
TICKS = 6
OUTPUT = "k string, said string"


class Ticking(StatefulProcessor):
    """Each timer sets the next one; a value that ends at once and one that does not count how often."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.short = handle.getValueState("short", "n long", 1)
        self.long = handle.getValueState("long", "n long", DAY)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self.tick(key, len(list(rows)), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        return self.tick(key, 0, timerValues)

    def tick(self, key: Any, rows: int, times: Any) -> Iterator[Row]:
        n = (self.long.get() or (0,))[0] + 1
        yield Row(k=key[0], said=f"{n} by {rows} rows, {self.short.get()}")
        self.short.update((n,))
        self.long.update((n,))
        if n % TICKS:
            self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 1)

    def close(self) -> None:
        """Nothing to end."""


def test_batches_without_rows_by_the_clock(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    """Spark's own setting: one batch follows another as long as the query runs."""
    conf(NO_DATA_BATCHES, None)
    expected = [(k, f"{n + 1} by {0 if n else 1} rows, None") for k in "abc" for n in range(TICKS)]
    for side in sides(spark, tmp_path):
        source = feed("k string", name=f"{side.name}-in")
        for keys, enough in (("a", 2), ("bc", 3 * TICKS)):  # the first run ends amid its timers, or soon after them
            source.add([(key,) for key in keys])
            job = Job(Ticking, OUTPUT, time_mode="ProcessingTime")
            got = side.answers.rows
            query = start(job.build(source.stream(), side.group), side.checkpoint, got, processingTime="0 seconds")
            until("its timers", lambda got=got, q=query, n=enough: sum(map(len, got.values())) >= n or not q.isActive)
            query.stop()
            assert query.exception() is None
        assert sorted((row.k, row.said) for rows in got.values() for row in rows) == expected, side.name
