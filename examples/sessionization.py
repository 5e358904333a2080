"""Sessions: clicks of a user with less than 30 minutes between them, counted together once the session is over.

Run: python examples/sessionization.py

It shows a list state and timers in event time. Clicks may come in any order, as long as they come before the watermark:
one that arrives later can join two sessions into one. A session ends when the watermark is 30 minutes after its last
click. Then it is written once, so a sink that can only append will do.

The query starts twice. Sessions that were open when it ended go on when it starts again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from fastchangelog.spark import grouped

GAP = 30 * 60_000

#: The input before each start of the query.
ARRIVALS = (
    """\
ann,2026-03-01T10:00:00Z
bob,2026-03-01T10:05:00Z
ann,2026-03-01T10:45:00Z
""",
    """\
ann,2026-03-01T10:25:00Z
bob,2026-03-01T12:00:00Z
""",
)


class Sessions(StatefulProcessor):
    """Keeps the open sessions of a user: each one's first and last click, in milliseconds, and the number of clicks."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getListState("open", "first long, last long, clicks long")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        clicks = [(millis(row.at), millis(row.at), 1) for row in rows]
        sessions = merged([*self.open.get(), *clicks])
        self.open.put(sessions)
        # Sessions have grown: their old ends are no ends any more.
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        for _, last, _ in sessions:
            self.handle.registerTimer(last + GAP)
        return iter(())

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        now = expiredTimerInfo.getExpiryTimeInMs()
        sessions = list(self.open.get())
        for first, last, clicks in sessions:
            if last + GAP <= now:
                yield Row(user=key[0], first=timestamp(first), last=timestamp(last), clicks=clicks)
        still_open = [session for session in sessions if session[1] + GAP > now]
        if still_open:
            self.open.put(still_open)
        else:
            self.open.clear()

    def close(self) -> None:
        pass


def merged(sessions: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The sessions by time; those with less than a gap between them are one."""
    result: list[tuple[int, int, int]] = []
    for first, last, clicks in sorted(sessions):
        if result and first < result[-1][1] + GAP:
            before = result.pop()
            first, last, clicks = before[0], max(before[1], last), before[2] + clicks
        result.append((first, last, clicks))
    return result


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def timestamp(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, timezone.utc)


def sessions_of(clicks: DataFrame, state: str) -> DataFrame:
    return grouped(clicks.withWatermark("at", "30 minutes"), "user", state=state).transformWithState(
        Sessions(), "user string, first timestamp, last timestamp, clicks long", "Append", "EventTime"
    )


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Starts the query after each arrival, until it has read all there is; gives the sessions that are over."""
    arrived = folder / "clicks"
    arrived.mkdir()
    for number, lines in enumerate(ARRIVALS):
        (arrived / f"{number}.csv").write_text(lines)
        clicks = spark.readStream.schema("user string, at timestamp").csv(str(arrived))
        query = (
            sessions_of(clicks, state=f"file://{folder}/state")
            .writeStream.format("parquet")
            .option("path", f"{folder}/sessions")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return spark.read.parquet(f"{folder}/sessions").orderBy("first")


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder)).show()


if __name__ == "__main__":
    main()
