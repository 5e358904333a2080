"""Deduplication: each event goes on once, however often and in however many batches it arrives.

Run: python examples/deduplication.py

It shows a value state with a TTL: the id of an event is forgotten a day after its first arrival, so the state is
bounded by the events of a day. TTL goes by processing time, the time at which a batch is planned.

The query starts twice: the second start knows the ids of the first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from fastchangelog.spark import grouped

DAY = 24 * 60 * 60_000
EVENT = "id string, user string, action string"

#: The input before each start of the query.
ARRIVALS = (
    """\
e1,ann,login
e2,bob,login
e1,ann,login
""",
    """\
e2,bob,login
e3,ann,logout
""",
)


class FirstOnly(StatefulProcessor):
    """Hands on the first row of each id."""

    def __init__(self, remember: int) -> None:
        self.remember = remember

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "yes boolean", ttlDurationMs=self.remember)

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        if not self.seen.exists():
            self.seen.update((True,))
            yield next(rows)

    def close(self) -> None:
        pass


def distinct(events: DataFrame, state: str, remember: int) -> DataFrame:
    return grouped(events, "id", state=state).transformWithState(FirstOnly(remember), EVENT, "Append", "ProcessingTime")


def run(spark: SparkSession, folder: Path, remember: int = DAY) -> DataFrame:
    """Starts the query after each arrival, until it has read all there is; gives the events that went on.

    Milliseconds for which the processor remembers an id.
    """
    # A query in processing time has a batch without rows after each batch, for ever. Without those it ends.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    arrived = folder / "events"
    arrived.mkdir()
    for number, lines in enumerate(ARRIVALS):
        (arrived / f"{number}.csv").write_text(lines)
        events = spark.readStream.schema(EVENT).csv(str(arrived))
        query = (
            distinct(events, f"file://{folder}/state", remember)
            .writeStream.format("parquet")
            .option("path", f"{folder}/distinct")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return spark.read.parquet(f"{folder}/distinct").orderBy("id")


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder)).show()


if __name__ == "__main__":
    main()
