"""Tests of one's own processor: of its logic with PySpark's `TwsTester`, and of a whole query with a memory sink.

Run: pytest examples/testing_a_processor.py    (or: python examples/testing_a_processor.py)

`TwsTester` calls the processor with rows of one key, without Spark: such a test takes milliseconds, and sets the
watermark itself. It is in PySpark since 4.2. The test of a query covers the parts that
`TwsTester` leaves out: schemas, pickling, TTL, watermarks that follow the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from fastchangelog.spark import grouped

# ---- The processor under test. In a project it has its own module.

PATIENCE = 5 * 60_000


class Silence(StatefulProcessor):
    """Reports a device that sends nothing for five minutes, and how often it did before."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.heard = handle.getValueState("heard", "signals long, last long")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        signals, last = self.heard.get() or (0, 0)
        for row in rows:
            signals, last = signals + 1, max(last, millis(row.at))
        self.heard.update((signals, last))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + PATIENCE)
        return iter(())

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        signals, _ = self.heard.get() or (0, 0)
        yield Row(device=key[0], signals=signals)
        self.heard.clear()

    def close(self) -> None:
        pass


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def silent(signals: DataFrame, state: str) -> DataFrame:
    return grouped(signals.withWatermark("at", "1 minute"), "device", state=state).transformWithState(
        Silence(), "device string, signals long", "Append", "EventTime"
    )


# ---- Its logic.


def of_silence() -> Any:
    tws_tester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 is the first with it")
    return tws_tester.TwsTester(Silence(), timeMode="EventTime", eventTimeExtractor=lambda row: millis(row.at))


def noon(minutes: int) -> datetime:
    return datetime(2026, 3, 1, 12, tzinfo=timezone.utc) + timedelta(minutes=minutes)


def signals(*minutes: int) -> list[Row]:
    return [Row(device="d1", at=noon(minute)) for minute in minutes]


def test_the_last_signal_counts() -> None:
    tester = of_silence()
    assert tester.test("d1", signals(1, 3, 2)) == []
    assert tester.setWatermark(millis(noon(7))) == []
    assert tester.setWatermark(millis(noon(8))) == [Row(device="d1", signals=3)]
    assert tester.peekValueState("heard", "d1") is None


def test_a_signal_in_time_moves_the_end() -> None:
    tester = of_silence()
    tester.test("d1", signals(0))
    tester.test("d1", signals(4))
    assert tester.setWatermark(millis(noon(5))) == []
    assert tester.setWatermark(millis(noon(9))) == [Row(device="d1", signals=2)]


def test_a_late_signal_does_not_count() -> None:
    tester = of_silence()
    tester.setWatermark(millis(noon(3)))
    tester.test("d1", signals(3, 4))
    assert tester.setWatermark(millis(noon(9))) == [Row(device="d1", signals=1)]


# ---- The whole query.


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Spark's workers cannot import a file of tests, so they get its classes by value. What they can import, such as a
    # package that is installed there, needs no such line.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    yield session
    session.stop()


def test_the_query(spark: SparkSession, tmp_path: Path) -> None:
    arrived = tmp_path / "signals"
    arrived.mkdir()
    (arrived / "1.csv").write_text("d1,2026-03-01T12:00:00Z\nd1,2026-03-01T12:01:00Z\nd2,2026-03-01T12:07:00Z\n")
    arriving = spark.readStream.schema("device string, at timestamp").csv(str(arrived))
    query = (
        silent(arriving, state=f"file://{tmp_path}/state")
        .writeStream.format("memory")
        .queryName("silent")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("silent").collect() == [Row(device="d1", signals=2)]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
