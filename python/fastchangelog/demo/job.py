"""The Spark program of the demo: `python -m fastchangelog.demo.job FILE`.

Owns: one Spark session and the queries in it, the sink that can be written twice, and a line of JSON per thing that
happened. Does not own: when it dies (conduct), what is compared with what (compare).

It may be killed at any moment and started again with the same job file: checkpoints say where to go on, and a batch
that is written again replaces what an unfinished attempt left.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fastchangelog.demo.plan import Agg, Job, Prepare, Query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STORE = "spark.sql.streaming.stateStore."
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_POLL_SECONDS = 0.03


class Events:
    """Lines of JSON, each complete on its own, for the process that started the job."""

    def __init__(self, path: str):
        self._file = Path(path).open("a")  # noqa: SIM115 (open until the process ends)

    def put(self, event: str, **fields: Any) -> None:
        """One event with the time it happened."""
        self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")
        self._file.flush()


def main(path: str) -> int:
    """Runs the job file."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = Job.read(Path(path))
    events = Events(job.events)
    spark = (
        SparkSession.builder.master("local[2,4]")  # with up to 4 attempts a killed worker is Spark's own to repair
        .appName("fastchangelog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", f"{_driver_mebibytes()}m")
        .config("spark.sql.shuffle.partitions", job.partitions)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        .config(_STORE + "providerClass", _ROCKSDB)
        .config(_STORE + "rocksdb.changelogCheckpointing.enabled", "true")
        .config(_STORE + "checkpointFormatVersion", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    events.put("session")
    try:
        if job.prepare is not None and not Path(job.prepare.expected, "_SUCCESS").exists():
            rows = prepare(spark, job.prepare, job.queries[0])
            events.put("prepared", rows=rows)
        for query in job.queries:
            run(spark, query, events)
    except Exception as error:  # the parent shows the first line; the log has the whole
        events.put("error", message=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        raise
    events.put("finished")
    spark.stop()
    return 0


def run(spark: SparkSession, query: Query, events: Events) -> None:
    """Processes all that is left of the query's input."""
    schema = spark.read.parquet(query.input).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(query.input)
    result = aggregated(stream, query)

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(os.path.join(query.output, f"batch={batch_id:06d}"))

    writer = result.writeStream.foreachBatch(write).outputMode("update").queryName(query.id)
    running = writer.option("checkpointLocation", query.checkpoint).trigger(availableNow=True).start()
    events.put("started", query=query.id)
    seen = 0
    done = False
    while not done:
        # A float works (it is multiplied by 1000), whatever the annotation says.
        done = bool(running.awaitTermination(_POLL_SECONDS))  # type: ignore[arg-type]
        last = running.lastProgress
        if last is not None and (done or last["batchId"] > seen - 1):
            for progress in running.recentProgress[seen:]:
                seen += 1
                events.put("batch", query=query.id, **_digest(progress))
    events.put("done", query=query.id)


def aggregated(frame: DataFrame, query: Query) -> DataFrame:
    """The same question to fastchangelog or to Spark."""
    columns = [column(agg) for agg in query.aggs]
    if query.kind == "native":
        return frame.groupBy(*query.keys).agg(*columns)
    from fastchangelog.spark import grouped

    return grouped(frame, *query.keys, state=query.state, name="demo").agg(*columns)


def column(agg: Agg) -> Column:
    """The PySpark expression of an aggregate."""
    return getattr(F, agg.fn)(F.lit(1) if agg.col == "*" else F.col(agg.col)).alias(agg.name)  # type: ignore[no-any-return]


def _digest(progress: Any) -> dict[str, Any]:
    raw = json.loads(progress.json)
    ours: dict[str, Any] = next(iter(raw.get("observedMetrics", {}).values()), {})
    millis = raw["durationMs"]
    return {"batch": raw["batchId"], "rows": raw["numInputRows"], "ms": millis["triggerExecution"], "metrics": ours}


def prepare(spark: SparkSession, wanted: Prepare, query: Query) -> int:
    """Cuts the user's folder into the files of a stream, and computes the expected result at once, by plain Spark."""
    reader = spark.read
    if wanted.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    source = reader.format(wanted.format).load(wanted.source)
    columns = dict.fromkeys([*query.keys, *(a.col for a in query.aggs if a.col != "*")])
    narrow = source.select(*[F.col(name) for name in columns])
    narrow.repartition(2 * query.batches).write.mode("overwrite").parquet(query.input)
    cut = spark.read.parquet(query.input)
    expected = cut.groupBy(*query.keys).agg(*[column(agg) for agg in query.aggs])
    expected.write.mode("overwrite").parquet(wanted.expected)
    return cut.count()


def _driver_mebibytes() -> int:
    """A quarter of the machine, between 1 and 3 GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(max(total // 4, 1024), 3072)


def _end_with_parent() -> None:
    """The parent holds our standard input: when it is gone, so are we. The JVM does the same with ours."""
    while os.read(0, 4096):
        pass
    os._exit(3)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
