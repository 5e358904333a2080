"""The Spark program of `test_backlog`: `python -m support.spark.backlog_job FOLDER ROWS`.

One batch, one shard, 4 KiB a row.

Owns: a query whose payloads come to ROWS times 4 KiB, however few its keys, in a small JVM; the memory of its workers.
Does not own: what must come out (the test).

Prints one line of JSON: the keys, the sum of their counts, and the most memory in bytes that a Python worker held.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastchangelog.demo import processes
from fastchangelog.spark import grouped

KEYS = 5_000


class Watch(threading.Thread):
    """Looks at the memory of this program's Python workers until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            for process in processes.marked(os.environ[processes.MARK]):
                if process.role == "worker":
                    self.most = max(self.most, _resident(process.pid))


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def main(folder: Path, rows: int, confs: dict[str, str]) -> None:
    """Runs the query over everything that is there."""
    builder = SparkSession.builder.master("local[1]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-XX:MaxDirectMemorySize=288m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        **confs,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(0, rows, 1, 1).write.parquet(str(folder / "in"))
    stream = spark.readStream.schema("id bigint").parquet(str(folder / "in"))
    wide = F.repeat(F.sha2(F.col("id").cast("string"), 256), 64)
    counted = grouped(stream, F.col("id") % KEYS, state=str(folder / "state"), options={"file_sync": "false"}).agg(
        F.count("*").alias("n"), F.max(wide).alias("m")
    )
    found: dict[str, Any] = {}

    def write(batch: DataFrame, number: int) -> None:
        keys, count, bytes_ = batch.agg(F.count("*"), F.sum("n"), F.sum(F.length("m"))).collect()[0]
        found[str(number)] = [keys, count, bytes_]

    watch = Watch()
    watch.start()
    writer = counted.writeStream.foreachBatch(write).outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    watch.over.set()
    watch.join()
    print(json.dumps({"batches": found, "worker_bytes": watch.most}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), dict(pair.split("=", 1) for pair in sys.argv[3:]))
