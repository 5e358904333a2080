"""Memory of a processor whose batch is larger than memory: `python benches/processor_memory.py --gigabytes 5`.

Owns: one Spark query with one shard, one batch of distinct bytes and a processor with a value and a list state; the
resident memory of its Python workers and of its state server while it runs; the check of every result.
Does not own: speed beside Spark's operator (processor_compare), batches of aggregates (large_batch), the sessions and
their memory on their own (`rust/core/tests/spill.rs`).

Each row has 4 KiB that no compression shortens. Ends with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare_run
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.demo import processes
from fastchangelog.spark import grouped
from fastchangelog.spark.settings import REQUIRED

_ROW = 4096
_ROWS_OF_A_KEY = 250


class Sizes(StatefulProcessor):
    """Counts the rows and bytes of a key, keeps its last row, and lists the first bytes of each row."""

    def init(self, handle: Any) -> None:
        """Declares the states."""
        self.total = handle.getValueState("total", "n long, bytes long, last string")
        self.heads = handle.getListState("heads", "head string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """One pass over the rows."""
        n, size, last = self.total.get() or (0, 0, "")
        for row in rows:
            n, size, last = n + 1, size + len(row.wide), row.wide
            self.heads.appendValue((row.wide[:16],))
        self.total.update((n, size, last))
        yield Row(key=key[0], n=n, bytes=size)

    def close(self) -> None:
        """Nothing is open."""


class Watch(threading.Thread):
    """The most memory that each kind of process held, looked at until the end of the block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, int] = {}
        self._over = threading.Event()

    def run(self) -> None:
        """Looks every fifth of a second."""
        while not self._over.wait(0.2):
            for process in processes.marked(os.environ[processes.MARK]):
                held = _resident(process.pid)
                self.most[process.role] = max(held, self.most.get(process.role, 0))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), 0)


def main() -> int:
    """One batch, and the memory that it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--budget", default="256MiB", help="of the state server and of a worker, each")
    args = parser.parse_args()
    rows = int(args.gigabytes * 1e9 / _ROW)
    keys = max(1, rows // _ROWS_OF_A_KEY)
    spark = compare_run.session("local[1]", partitions=1, memory="2g")
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    folder = Path(tempfile.mkdtemp(prefix="fcl-processor-memory-"))
    try:
        wrong = _run(spark, folder, rows, keys, args.budget)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return int(wrong)


def _run(spark: Any, folder: Path, rows: int, keys: int, budget: str) -> bool:
    spark.range(0, rows, 1, 1).write.parquet(str(folder / "in"))
    stream = spark.readStream.schema("id bigint").parquet(str(folder / "in"))
    parts = [F.sha2(F.concat_ws("-", F.col("id"), F.lit(i)), 256) for i in range(_ROW // 64)]
    wide = stream.select((F.col("id") % keys).alias("key"), F.concat(*parts).alias("wide"))
    options = {"memory_budget": budget, "worker_memory": budget, "file_sync": "false"}
    output = "key bigint, n bigint, bytes bigint"
    group = grouped(wide, "key", state=str(folder / "state"), options=options)
    result = group.transformWithState(Sizes(), output, "Update", "None")
    found: list[tuple[int, int, int]] = []

    def write(batch: DataFrame, _: int) -> None:
        found.append(tuple(batch.agg(F.count("*"), F.sum("n"), F.sum("bytes")).collect()[0]))

    start = time.monotonic()
    with Watch() as watch:
        writer = result.writeStream.foreachBatch(write).outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
    taken = time.monotonic() - start
    wrong = found != [(keys, rows, rows * _ROW)]
    counted = query.recentProgress[-1]["observedMetrics"]["fastchangelog.default"]
    print(f"{rows:,} rows of {_ROW} bytes, {keys:,} keys, one shard, one batch: {taken:.0f} s{', WRONG' * wrong}")
    for role, held in sorted(watch.most.items()):
        print(f"  {role:<8} at most {held / 2**20:8.0f} MiB resident")
    print("  " + ", ".join(f"{name} {value:,}" for name, value in counted.asDict().items() if value))
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
