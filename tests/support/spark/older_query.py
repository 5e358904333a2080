"""Two queries that begin on one version of Spark and go on with another, and what they must answer.

    PYTHONPATH=tests python -m support.spark.older_query FOLDER

runs them over the first batches and leaves checkpoints and state in the folder: with PySpark 4.0.5 it has made
tests/spark/stored/spark-4.0. Sources, `.crc` files and the folder in the paths of schema files were taken out by hand.

Owns: the queries, their rows, the model. Does not own: how they move on (`tests/spark/test_older_spark.py`).
"""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark import grouped

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "k string, v bigint"
OUTPUT = "k string, said string"
#: The first run has all but the last two of them.
BATCHES = [[(f"k{i % (3 + batch)}", 10 * batch + i) for i in range(9)] for batch in range(7)]
BEFORE = len(BATCHES) - 2
NAMES = ("aggregate", "processor")
FAR = 4_000_000_000_000
_CENTURY = 100 * 365 * 86_400_000


class Account(StatefulProcessor):
    """Each kind of state, one value that has ended before the next batch, one that stays, and timers of both kinds."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, s long")
        self.recent = handle.getListState("recent", "v long")
        self.slots = handle.getMapState("slots", "slot long", "s long")
        self.kept = handle.getValueState("kept", "v long", _CENTURY)
        self.ended = handle.getValueState("ended", "v long", 1)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        values = sorted(int(v) for frame in rows for v in frame["v"])
        ended = self.ended.get()
        n, s = self.total.get() or (0, 0)
        self.total.update((n + len(values), s + sum(values)))
        for v in values:
            self.recent.appendValue((v,))
            before = self.slots.getValue((v % 3,))
            self.slots.updateValue((v % 3,), ((before[0] if before else 0) + v,))
            self.handle.registerTimer(FAR + v)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        kept = self.kept.get()
        self.kept.update((values[0] if kept is None else kept[0],))
        self.ended.update((values[0],))
        yield pd.DataFrame({"k": [key[0]], "said": [f"{self._said()} {ended}"]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "said": ["fired"]})

    def close(self) -> None:
        """Nothing to end."""

    def _said(self) -> str:
        far = sorted(int(time) - FAR for time in self.handle.listTimers() if time >= FAR)
        recent = [int(v) for (v,) in self.recent.get()]
        slots = sorted((int(slot), int(s)) for (slot,), (s,) in self.slots.iterator())
        return f"{tuple(map(int, self.total.get()))} {recent} {slots} {tuple(map(int, self.kept.get()))} {far}"


def expected(name: str) -> list[dict[str, Any]]:
    """The answers to each batch by key; of the processor without those of timers."""
    values: dict[str, list[int]] = collections.defaultdict(list)
    out = []
    for batch in BATCHES:
        for k, v in batch:
            values[k].append(v)
        of_batch = {k: values[k] for k, _ in batch}
        if name == "aggregate":
            out.append({k: (len(of_key), sum(of_key), max(of_key)) for k, of_key in of_batch.items()})
        else:
            out.append({k: said(of_key) for k, of_key in of_batch.items()})
    return out


def said(values: list[int]) -> str:
    """What the processor says of a key with these values."""
    slots = sorted((slot, sum(v for v in values if v % 3 == slot)) for slot in {v % 3 for v in values})
    return f"{(len(values), sum(values))} {values} {slots} {(values[0],)} {sorted(set(values))} None"


def build(name: str, stream: DataFrame, **where: Any) -> DataFrame:
    """The query of that name."""
    group = grouped(stream, "k", **where)
    if name == "aggregate":
        return group.agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))
    return group.transformWithStateInPandas(Account(), OUTPUT, "Update", "ProcessingTime")


def main(folder: Path) -> None:
    """Runs both over the first batches."""
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    store = "spark.sql.streaming.stateStore."
    spark.conf.set(store + "minDeltasForSnapshot", "2")
    spark.conf.set(store + "maintenanceInterval", "1s")
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    for number, rows in enumerate(BATCHES[:BEFORE]):
        file = folder / "in" / f"{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows, columns=["k", "v"]).to_parquet(file)
        os.utime(file, (1_700_000_000 + number,) * 2)
    for name in NAMES:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        frame = build(name, stream, state=str(folder / name / "state"))
        writer = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / name / "checkpoint")).start()
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
