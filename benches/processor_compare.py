"""Stateful processors: Spark's own operator beside ours, on this machine, in one session, taken in turns.

    processor_compare.py [--processors value map …] [--keys N …] [--rows N] [--batches N] [--rounds N] [--latency]
                         [--quick] [--out FILE]

Each round runs every processor once on each operator over the same files, the order reversed in every other round. The
figure of a run is the median over its batches after the warm-up; the table shows the median over rounds and the spread.
`--latency` measures batches of 1,000 rows over 10,000 keys, and shows median and p99 of a trigger.

Owns: the command line, the runs, the table and the JSON file.
Does not own: the processors (compare_processors), the data (compare_data), the session (compare_run).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import compare_data
import compare_processors
import compare_run

from fastchangelog.spark import grouped
from fastchangelog.spark.settings import REQUIRED

_OPERATORS = ("sparks", "ours")
_WARM_BATCHES = 2
_LATENCY = {"keys": 10_000, "rows": 1_000, "batches": 202}


def triggers(spark: Any, operator: str, processor: str, glob: str, work: Path, warm: int) -> list[int]:
    """Milliseconds of each trigger of a run, without the first ones.

    Each run has a folder of its own: Spark's maintenance of an ended query may write to its folder once more.
    """
    work = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    stream = compare_run.source(spark, glob)
    group = stream.groupBy("key") if operator == "sparks" else grouped(stream, "key", state=str(work / "state"))
    result = compare_processors.PROCESSORS[processor](group)
    writer = result.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(work / "ckpt"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        progress = [p for p in query.recentProgress if p["numInputRows"]]
    finally:
        query.stop()
        shutil.rmtree(work, ignore_errors=True)
    return [int(p["durationMs"]["triggerExecution"]) for p in progress][warm:]


def measure(spark: Any, args: argparse.Namespace, keys: int) -> list[dict[str, Any]]:
    """One row for each processor: both operators over the same input."""
    shape = compare_data.Shape(keys, args.rows, args.batches)
    glob = str(compare_data.folder(args.work, shape) / "*.parquet")
    found: dict[tuple[str, str], list[list[int]]] = {}
    for turn in range(args.rounds):
        for processor in args.processors:
            for operator in _OPERATORS if turn % 2 == 0 else _OPERATORS[::-1]:
                taken = triggers(spark, operator, processor, glob, args.work, 1 + _WARM_BATCHES)
                found.setdefault((processor, operator), []).append(taken)
    rows = []
    for processor in args.processors:
        row: dict[str, Any] = {"processor": processor, "keys": keys, "rows": args.rows}
        for operator in _OPERATORS:
            rounds = found[processor, operator]
            medians = sorted(statistics.median(taken) for taken in rounds)
            every = sorted(ms for taken in rounds for ms in taken)
            row[operator] = {
                "median_ms": statistics.median(medians),
                "least_ms": medians[0],
                "most_ms": medians[-1],
                "p99_ms": every[min(len(every) - 1, int(len(every) * 0.99))],
                "triggers_ms": rounds,
            }
        row["times_faster"] = round(row["sparks"]["median_ms"] / row["ours"]["median_ms"], 2)
        rows.append(row)
    return rows


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    cells = [f"  {row['processor']:<11}{row['keys']:>9,} keys"]
    for operator in _OPERATORS:
        found = row[operator]
        spread = f"({found['least_ms']:.0f}-{found['most_ms']:.0f}, p99 {found['p99_ms']})"
        cells.append(f"{operator:>7} {found['median_ms']:7.0f} ms {spread:<28}")
    print(*cells, f"{row['times_faster']:6.2f}x")


def main() -> int:
    """Runs what was asked for."""
    args = _arguments()
    about = compare_run.machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}; PySpark {about['pyspark']}")
    spark = compare_run.session()
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    warm = compare_data.Shape(100, 1_000, 3)
    for processor in args.processors:  # JVM, workers and imports
        for operator in _OPERATORS:
            glob = str(compare_data.folder(args.work, warm) / "*.parquet")
            triggers(spark, operator, processor, glob, args.work, 0)
    rows: list[dict[str, Any]] = []
    for keys in args.keys:
        for row in measure(spark, args, keys):
            show(row)
            rows.append(row)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps({"machine": about, "rows": rows}, indent=1, default=str))
    print(args.out)
    spark.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = list(compare_processors.PROCESSORS)
    parser.add_argument("--processors", nargs="+", choices=names, default=names)
    parser.add_argument("--keys", type=int, nargs="+")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--batches", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--latency", action="store_true", help="200 small batches")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: shows that it works, no more")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / f"fastchangelog-bench-{os.getuid()}")
    cache = Path(os.environ.get("FASTCHANGELOG_CACHE") or "~/.cache/fastchangelog").expanduser() / "bench"
    stamp = time.strftime("processors-%Y%m%d-%H%M%S.json", time.gmtime())
    parser.add_argument("--out", type=Path, default=cache / stamp)
    args = parser.parse_args()
    if args.latency:
        args.keys, args.rows, args.batches = [_LATENCY["keys"]], _LATENCY["rows"], _LATENCY["batches"]
    args.keys = args.keys or ([1_000] if args.quick else [10_000, 100_000])
    args.rows = args.rows or (5_000 if args.quick else 100_000)
    args.batches = args.batches or (4 if args.quick else 8)
    args.rounds = args.rounds or (1 if args.quick else 3)
    if args.batches <= _WARM_BATCHES:
        parser.error(f"--batches must be more than {_WARM_BATCHES}: so many warm up, and are not measured")
    return args


if __name__ == "__main__":
    raise SystemExit(main())
