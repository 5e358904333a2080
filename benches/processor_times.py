"""What is due at once: many timers that fire in one batch, and many entries that expire.

    processor_times.py timers [--keys N] [--operators sparks ours]
    processor_times.py ttl [--keys N] [--ttl-seconds N] [--batches N]

`timers`: the first batch registers one timer for each of N keys, the second one fires all of them; both triggers, and
the number of rows that came out. `ttl`: the first batch writes N entries with a TTL, small batches follow; their
triggers before the entries end, and while they are removed.

Owns: the two processors, the runs, the lines. Does not own: the data (compare_data), the session (compare_run),
processors at their usual work (processor_compare).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare_data
import compare_run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.spark import grouped
from fastchangelog.spark.settings import REQUIRED

_ROWS = 1_000
_OUTPUT = "key string, n long"


class Alarm(StatefulProcessor):
    """Registers a timer that the next batch finds due."""

    def init(self, handle: Any) -> None:
        """Keeps the handle; there is no other state."""
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """One timer, no result."""
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """One row for each timer."""
        yield Row(key=key[0], n=1)

    def close(self) -> None:
        """Nothing to end."""


class Kept(StatefulProcessor):
    """Counts the rows of a key in a state with a TTL."""

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        """Declares the state."""
        self.count = handle.getValueState("count", "n long", ttlDurationMs=self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Adds the rows; one row for the key."""
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(key=key[0], n=n)

    def close(self) -> None:
        """Nothing to end."""


def _progress(
    spark: Any, operator: str, processor: StatefulProcessor, glob: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """The progress of each batch with rows."""
    work = Path(tempfile.mkdtemp(prefix="run-", dir=args.work))
    stream = compare_run.source(spark, glob)
    group: Any = stream.groupBy("key") if operator == "sparks" else grouped(stream, "key", state=str(work / "state"))
    result = group.transformWithState(processor, _OUTPUT, "Update", "ProcessingTime")
    writer = result.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(work / "ckpt"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        return [p for p in query.recentProgress if p["numInputRows"]]
    finally:
        query.stop()
        shutil.rmtree(work, ignore_errors=True)


def timers(spark: Any, args: argparse.Namespace) -> None:
    """Registered in one batch, fired in the next one."""
    shape = compare_data.Shape(args.keys, _ROWS, 1, seed_batches=1)
    glob = str(compare_data.folder(args.work, shape) / "*.parquet")
    for operator in args.operators:
        first, second = _progress(spark, operator, Alarm(), glob, args)
        took = [batch["durationMs"]["triggerExecution"] for batch in (first, second)]
        fired = second["sink"]["numOutputRows"]
        print(
            f"  {operator:<7}{args.keys:>10,} timers: registered {took[0]:,} ms, {fired:,} fired {took[1]:,} ms",
            flush=True,
        )


def ttl(spark: Any, args: argparse.Namespace) -> None:
    """Batches before and after the end of all entries of the first batch."""
    shape = compare_data.Shape(args.keys, _ROWS, args.batches, seed_batches=1)
    glob = str(compare_data.folder(args.work, shape) / "*.parquet")
    batches = _progress(spark, "ours", Kept(int(args.ttl_seconds * 1000)), glob, args)
    found: dict[bool, list[int]] = {False: [], True: []}
    removed = 0
    for batch in batches[3:]:
        gone = batch["observedMetrics"]["fastchangelog.default"].asDict().get("entries_ended", 0)
        removed += gone
        found[gone > 0].append(batch["durationMs"]["triggerExecution"])
    for removes, took in found.items():
        what = f"remove {removed:,} entries" if removes else "remove nothing"
        if took:
            print(f"  {len(took)} batches {what}: median {statistics.median(took):.0f} ms, most {max(took)} ms")


def main() -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", choices=("timers", "ttl"))
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--operators", nargs="+", choices=("sparks", "ours"), default=["sparks", "ours"])
    parser.add_argument("--ttl-seconds", type=float, default=45.0)
    parser.add_argument("--batches", type=int, default=200)
    args = parser.parse_args()
    args.work = Path(tempfile.gettempdir()) / f"fastchangelog-bench-{os.getuid()}"
    args.work.mkdir(exist_ok=True)
    spark = compare_run.session()
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    warm = str(compare_data.folder(args.work, compare_data.Shape(100, _ROWS, 3)) / "*.parquet")
    for operator in args.operators:  # JVM, workers and imports
        _progress(spark, operator, Alarm(), warm, args)
    (timers if args.part == "timers" else ttl)(spark, args)
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
