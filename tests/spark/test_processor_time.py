"""Time in processors: late rows, watermarks, timers, batches without rows; as on Spark's operator.

Owns: when a row is late, when a timer fires and what is then seen. Does not own: random calls
(`test_processor_states`), the watermark behind the operator (`test_processor_chains`).
"""

from __future__ import annotations

import datetime as dt
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from support.spark.frames_of_rows import with_state
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, compare

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
by_value(__name__)

SCHEMA = "k string, ts timestamp"
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
MILLIS = int(NOON.timestamp() * 1000)
TEN_SECONDS = ("ts", "10 seconds")


def at(key: str, seconds: float | None) -> tuple[str, dt.datetime | None]:
    return key, None if seconds is None else NOON + dt.timedelta(seconds=seconds)


class Seen(StatefulProcessor):
    """Tells each row that it gets, and both times."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.count.get()
        got = sorted("none" if row.ts is None else row.ts.isoformat() for row in rows)
        n = (before[0] if before else 0) + len(got)
        self.count.update((n,))
        clock = timerValues.getCurrentProcessingTimeInMs()
        said = f"{n} {got} watermark {timerValues.getCurrentWatermarkInMs()} clock {clock > 0 or clock}"
        yield Row(k=key[0], said=said)

    def close(self) -> None:
        """Nothing to end."""


OUTPUT = "k string, said string"
#: The last batches have rows before, at and after the mark of the batch before, in other shards than the first ones.
LATE = [
    [at("a", 10)],
    [at("a", 200)],
    [at(key, 189.999) for key in "abcdefgh"] + [at(key, 190) for key in "bcde"] + [at(key, 190.001) for key in "efgh"],
    [at(key, 189) for key in "ijklmnop"] + [at("i", None), at("j", 191)],
    [at("a", 400)],
    [at(key, 389) for key in "abcdefgh"],
    [at(key, 389) for key in "qrstuvwx"] + [at("q", 391)],
]


@pytest.mark.parametrize("time_mode", ["None", "EventTime"])
def test_late_rows(feed: Any, spark: Any, tmp_path: pathlib.Path, time_mode: str) -> None:
    job = Job(Seen, OUTPUT, time_mode=time_mode, watermark=TEN_SECONDS)
    compare(feed, spark, tmp_path, job, SCHEMA, LATE, restart=True)


def test_late_rows_are_not_dropped_by_processing_time(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    conf(NO_DATA_BATCHES, "false")
    for watermark in (TEN_SECONDS, None):
        folder = tmp_path / ("with" if watermark else "without")
        job = Job(Seen, OUTPUT, time_mode="ProcessingTime", watermark=watermark)
        compare(lambda *a, f=folder.name: feed(*a, name=f"in-{f}"), spark, folder, job, SCHEMA, LATE)


def test_event_time_without_a_watermark(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    compare(feed, spark, tmp_path, Job(Seen, OUTPUT, time_mode="EventTime"), SCHEMA, LATE)


def test_rows_before_the_epoch_are_late_from_the_start(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    rows = [("a", epoch + dt.timedelta(seconds=s)) for s in (-1, 0, 1)]
    job = Job(Seen, OUTPUT, time_mode="EventTime", watermark=TEN_SECONDS)
    compare(feed, spark, tmp_path, job, SCHEMA, [rows, rows])


def test_late_by_the_end_of_a_window(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    job = Job(
        Seen,
        OUTPUT,
        time_mode="EventTime",
        watermark=TEN_SECONDS,
        prepare=lambda df: df,
        after=lambda df: df,
    )

    class Windows(Job):
        def build(self, df: Any, group: Any, **more: Any) -> Any:
            marked = df.withWatermark(*TEN_SECONDS).select("k", F.window("ts", "10 seconds").alias("w"), F.lit(1))
            return with_state(group(marked.select("k", "w"), "k"), WindowsSeen(), OUTPUT, "Update", "EventTime")

    compare(feed, spark, tmp_path, Windows(**vars(job)), SCHEMA, LATE[:6])


class WindowsSeen(Seen):
    """The same for rows with a window."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], said=repr(sorted(repr(row.w) for row in rows)))


class Alarms(StatefulProcessor):
    """Sets timers around each row's time. A fired one clears another, sets the next, and one in the past."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getListState("fired", "at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            time = int(row.ts.timestamp() * 1000)
            for offset in (-5_000, 0, 5_000, 5_000, 40_000):
                self.handle.registerTimer(time + offset)
            self.handle.deleteTimer(time)
            self.handle.deleteTimer(12345)
        yield Row(k=key[0], said=f"set {list(self.handle.listTimers())}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        times = [t[0] for t in self.fired.get()]
        said = (
            f"{time} after {times}, has {sorted(self.handle.listTimers())}, is {timerValues.getCurrentWatermarkInMs()}"
        )
        yield Row(k=key[0], said=said)
        self.fired.appendValue((time,))
        self.handle.deleteTimer(time + 45_000)  # due or not: it was listed before, and fires if it was due
        if len(times) < 4:
            self.handle.registerTimer(time - 1)  # in the past: it waits for the next batch
            self.handle.registerTimer(time)  # lost: the fired time is removed after the handler
            self.handle.registerTimer(time + 100_000)

    def close(self) -> None:
        """Nothing to end."""


def test_timers_by_event_time(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = [
        [at("a", 0), at("b", 3)],
        [at("c", 60)],  # timers of a and b are due when this batch has moved the watermark: in one without rows
        [at("c", 61)],
        [at("d", 200)],
        [at("d", 201), at("a", 300)],
        [at("e", 1000)],
    ]
    job = Job(Alarms, OUTPUT, time_mode="EventTime", watermark=TEN_SECONDS)
    answered = compare(feed, spark, tmp_path, job, SCHEMA, batches, restart=True)
    assert any("after" in row.said for rows in answered.rows.values() for row in rows)


def test_timers_at_zero_and_before(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    class Zero(Alarms):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            for time in (0, -1, -(10**12), 1):
                self.handle.registerTimer(time)
            yield Row(k=key[0], said=f"set {list(self.handle.listTimers())}")

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(k=key[0], said=f"fired {expiredTimerInfo.getExpiryTimeInMs()}")

    job = Job(Zero, OUTPUT, time_mode="EventTime", watermark=TEN_SECONDS)
    compare(feed, spark, tmp_path, job, SCHEMA, [[at("a", 0)], [at("b", 100)], [at("c", 101)]])


class NoHandler(Alarms):
    """Sets timers and has no handler for them."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    handleExpiredTimer = StatefulProcessor.handleExpiredTimer


def test_timers_without_a_handler_vanish(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    job = Job(NoHandler, OUTPUT, time_mode="EventTime", watermark=TEN_SECONDS)
    compare(feed, spark, tmp_path, job, SCHEMA, [[at("a", 0)], [at("b", 100)], [at("a", 101)], [at("a", 102)]])


def test_an_idle_shard_wakes_up(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    """By the clock: the timer of a key fires in a later batch that has rows of another shard alone."""
    conf(NO_DATA_BATCHES, "false")

    class Soon(Alarms):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            yield Row(k=key[0], said="set")

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(k=key[0], said="fired")

    job = Job(Soon, OUTPUT, time_mode="ProcessingTime")
    batches = [[at(key, 0)] for key in "abcdefgh"]
    answered = compare(feed, spark, tmp_path, job, SCHEMA, batches)
    assert [len(rows) for rows in answered.rows.values()] == [1] + [2] * 7


def test_batches_without_rows_and_empty_ones(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = [[at("a", 0)], [], [at("a", 100)], [], [], [at("b", 101)]]
    job = Job(Alarms, OUTPUT, time_mode="EventTime", watermark=TEN_SECONDS)
    compare(feed, spark, tmp_path, job, SCHEMA, batches, restart=True)
