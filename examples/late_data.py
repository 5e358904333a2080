"""Late data: hourly sums of meters that wait ten minutes for late readings, and a second operator behind them.

Run: python examples/late_data.py

It shows event time. The watermark is ten minutes before the newest reading. Readings that are not after it are dropped
and counted; all others find their hour still open. When the watermark passes the end of an hour, a timer writes the
hour's sum. `eventTimeColumnName` says which column of the result carries the watermark on, so that Spark's own
aggregation behind it knows when an hour of all meters is complete.

The processor takes pandas DataFrames: all readings of a meter in a batch, in one or more frames.

The query starts twice: hours that are open when it ends are open when it starts again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from fastchangelog.spark import grouped

HOUR = 60 * 60_000

#: The input before each start of the query: meter, time, kWh.
ARRIVALS = (
    """\
north,2026-03-01T10:05:00Z,1.0
south,2026-03-01T10:20:00Z,2.0
north,2026-03-01T11:02:00Z,4.0
""",
    """\
south,2026-03-01T10:53:00Z,8.0
south,2026-03-01T10:51:00Z,16.0
north,2026-03-01T12:30:00Z,32.0
""",
)


class Hourly(StatefulProcessor):
    """Keeps the sum of each open hour of a meter, by the hour's end in milliseconds."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.sums = handle.getMapState("sums", "end long", "kwh double")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            ends = frame["millis"] // HOUR * HOUR + HOUR
            for end, kwh in frame["kwh"].groupby(ends).sum().items():
                before = self.sums.getValue((end,))
                self.sums.updateValue((end,), (kwh if before is None else before[0] + kwh,))
                self.handle.registerTimer(end)
        return iter(())

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        end = expiredTimerInfo.getExpiryTimeInMs()
        (kwh,) = self.sums.getValue((end,)) or (0.0,)
        self.sums.removeKey((end,))
        # The end of the hour is not before the watermark of the batch before, as a column that carries it on must be.
        yield pd.DataFrame({"meter": [key[0]], "end": [pd.Timestamp(end, unit="ms", tz="UTC")], "kwh": [kwh]})

    def close(self) -> None:
        pass


def hourly(readings: DataFrame, state: str) -> DataFrame:
    timed = readings.withWatermark("at", "10 minutes").withColumn("millis", F.unix_millis("at"))
    by_meter = grouped(timed, "meter", state=state).transformWithStateInPandas(
        Hourly(),
        "meter string, end timestamp, kwh double",
        "Append",
        "EventTime",
        eventTimeColumnName="end",
    )
    return by_meter.groupBy("end").agg(F.count("*").alias("meters"), F.sum("kwh").alias("kwh"))


def run(spark: SparkSession, folder: Path) -> tuple[DataFrame, int]:
    """Starts the query after each arrival; gives the hours that are complete, and how many readings were too late."""
    arrived, late = folder / "readings", 0
    arrived.mkdir()
    for number, lines in enumerate(ARRIVALS):
        (arrived / f"{number}.csv").write_text(lines)
        readings = spark.readStream.schema("meter string, at timestamp, kwh double").csv(str(arrived))
        query = (
            hourly(readings, state=f"file://{folder}/state")
            .writeStream.format("parquet")
            .option("path", f"{folder}/hours")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        late += sum(batch.observedMetrics["fastchangelog.default"].late_rows for batch in query.recentProgress)
    return spark.read.parquet(f"{folder}/hours").orderBy("end"), late


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        hours, late = run(spark, Path(folder))
        hours.show()
        print(f"{late} reading was too late")


if __name__ == "__main__":
    main()
