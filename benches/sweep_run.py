"""A running query whose folder stays clean without any command: `python benches/sweep_run.py --minutes 60`.

Owns: the query, a look at its folder every half minute, the table and the verdict.
Does not own: sweeps (the query's state server), what a checkpoint needs (a dry run of `fastchangelog sweep`).

The query adds up a rate source with the shortest grace period (a minute), a sweep every ten seconds, and a hundred
retained batches, so that an hour here is worth weeks with the defaults. Now and then a batch fails after its work was
done, and starts anew. Each line of the table has the bytes of all objects in the folder, those that the retained
batches need, and their ratio: about one, and the share of the grace period in the time that the retained batches span
(a hundred batches of three seconds: 1.2). Ends with 1 if the ratio exceeds `--bound` after `--warm-up`, when the first
batches have left the checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fastchangelog.cli.sweep import SweepRequest, sweep

LOOK = 30.0
"""Seconds between two lines of the table."""


def folder_of(root: Path) -> tuple[int, int]:
    """Objects under a root, and their bytes."""
    sizes = []
    for path in root.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return len(sizes), sum(sizes)


def needed(root: Path, checkpoint: Path) -> tuple[int, int]:
    """Objects that the retained batches need, and their bytes. A folder that changes meanwhile is asked again."""
    for _ in range(5):
        result = sweep(SweepRequest(str(root), grace="1m", checkpoints=(f"file:{checkpoint}",)))
        kept = [entry for report in result.folders for entry in (*report.reachable, *report.adoptable)]
        if kept and not any(report.kept_because for report in result.folders):
            return len(kept), sum(entry.size for entry in kept)
        time.sleep(1.0)
    return 0, 0


def start(spark: Any, args: argparse.Namespace, root: Path, checkpoint: Path, failing: random.Random) -> Any:
    """The query; some of its batches fail."""
    from pyspark.sql import functions as F

    from fastchangelog.spark import grouped

    options = {
        "sweep_grace": "1m",
        "sweep_interval": args.interval,
        "materialization_interval": "30s",
        "memory_budget": "256MiB",
        "file_sync": "false",
    }
    rows = spark.readStream.format("rate").option("rowsPerSecond", args.rows).load()
    keyed = rows.select((F.col("value") % args.keys).alias("k"), "value")
    totals = grouped(keyed, "k", state=str(root), options=options).agg(
        F.count("*").alias("n"), F.sum("value").alias("s")
    )

    def take(batch: Any, number: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        if failing.random() < args.failures:
            raise RuntimeError(f"batch {number} fails, as asked")

    writer = totals.writeStream.foreachBatch(take).outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="3 seconds").start()


def main() -> int:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=8.0, help="minutes before the bound counts")
    parser.add_argument("--bound", type=float, default=1.5, help="bytes in the folder per byte needed, at most")
    parser.add_argument("--interval", default="10s", help="the option sweep_interval")
    parser.add_argument("--retain", type=int, default=100, help="batches that Spark retains")
    parser.add_argument("--rows", type=int, default=20_000, help="rows per second")
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--failures", type=float, default=0.01, help="share of batches that fail")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    base = Path(tempfile.mkdtemp(prefix="fcl-sweep-"))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "1g")
    builder = builder.config("spark.sql.streaming.minBatchesToRetain", str(args.retain))
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.local.dir", str(base / "local"))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        return watch(spark, args, base / "state", base / "ckpt")
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)


def watch(spark: Any, args: argparse.Namespace, root: Path, checkpoint: Path) -> int:
    """Runs the query, prints the table; 1 if the folder grew beyond the bound."""
    from pyspark.errors import StreamingQueryException

    failing, began, worst = random.Random(args.seed), time.monotonic(), 0.0
    query = start(spark, args, root, checkpoint, failing)
    restarts = 0
    print("minute  batch  restarts  objects      MB  needed  needed MB  ratio", flush=True)
    while (minutes := (time.monotonic() - began) / 60) < args.minutes:
        deadline = time.monotonic() + LOOK
        while time.monotonic() < deadline:
            with contextlib.suppress(StreamingQueryException):  # as asked
                query.awaitTermination(1)
            if not query.isActive:
                query, restarts = start(spark, args, root, checkpoint, failing), restarts + 1
        (objects, size), (kept, kept_size) = folder_of(root), needed(root, checkpoint)
        if not kept_size:
            continue
        ratio = size / kept_size
        if minutes >= args.warm_up:
            worst = max(worst, ratio)
        batch = max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)
        line = f"{minutes:6.1f}  {batch:5}  {restarts:8}  {objects:7}  {size / 1e6:6.1f}"
        print(f"{line}  {kept:6}  {kept_size / 1e6:9.1f}  {ratio:5.2f}", flush=True)
    query.stop()
    print(json.dumps({"worst_ratio": round(worst, 3), "bound": args.bound, "restarts": restarts}))
    return int(worst > args.bound)


if __name__ == "__main__":
    sys.exit(main())
