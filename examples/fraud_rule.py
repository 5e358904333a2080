"""A rule against fraud: alert when a card is tried with a small payment and a large one follows within a minute.

Run: python examples/fraud_rule.py

It shows a value state with a timer that forgets it. The alert is written in the batch of the large payment, and waits
for no watermark. The timer keeps the state small: it goes by the watermark, which follows the payments with a delay. So
the rule compares the times of the payments, and does not rely on the expiry of old ones.

Payments within a batch come in any order. Of two batches the later one is expected to have the later payments of a
card, as with a topic that is partitioned by card.

The query starts twice: the small payment of the first run is known to the second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from fastchangelog.spark import grouped, read_state

SMALL, LARGE = 1.0, 500.0
MINUTE = 60_000

#: The input before each start of the query: card, time, amount.
ARRIVALS = (
    """\
card 1,2026-03-01T10:00:00Z,0.50
card 2,2026-03-01T10:00:10Z,0.40
card 3,2026-03-01T10:00:20Z,900.00
""",
    """\
card 1,2026-03-01T10:00:45Z,700.00
card 2,2026-03-01T10:01:30Z,800.00
card 4,2026-03-01T10:01:25Z,0.30
""",
)


class Fraud(StatefulProcessor):
    """Remembers the last small payment of a card for a minute."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.tried = handle.getValueState("tried", "at long, amount double")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.at):
            at = millis(row.at)
            tried = self.tried.get()
            if row.amount < SMALL:
                if tried is not None:
                    self.handle.deleteTimer(tried[0] + MINUTE)
                self.tried.update((at, row.amount))
                self.handle.registerTimer(at + MINUTE)
            elif row.amount >= LARGE and tried is not None and 0 <= at - tried[0] <= MINUTE:
                yield Row(card=key[0], at=row.at, tried=tried[1], amount=row.amount)

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        self.tried.clear()
        return iter(())

    def close(self) -> None:
        pass


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def alerts_of(payments: DataFrame, state: str) -> DataFrame:
    return grouped(payments.withWatermark("at", "10 seconds"), "card", state=state).transformWithState(
        Fraud(), "card string, at timestamp, tried double, amount double", "Append", "EventTime"
    )


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Starts the query after each arrival, until it has read all there is; gives the alerts."""
    arrived = folder / "payments"
    arrived.mkdir()
    for number, lines in enumerate(ARRIVALS):
        (arrived / f"{number}.csv").write_text(lines)
        payments = spark.readStream.schema("card string, at timestamp, amount double").csv(str(arrived))
        query = (
            alerts_of(payments, state=f"file://{folder}/state")
            .writeStream.format("parquet")
            .option("path", f"{folder}/alerts")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return spark.read.parquet(f"{folder}/alerts").orderBy("at")


def remembered(spark: SparkSession, folder: Path) -> DataFrame:
    """The small payments that no timer has forgotten yet, as the query has kept them."""
    tried = read_state(spark, f"{folder}/checkpoint", state=f"file://{folder}/state", variable="tried")
    return tried.select("key.card", "value.amount")


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        print("Alerts:")
        run(spark, Path(folder)).show()
        print("Small payments that are still remembered:")
        remembered(spark, Path(folder)).show()


if __name__ == "__main__":
    main()
