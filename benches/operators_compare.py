"""Windows, sessions and distinct rows beside Spark's own operators: the time of a batch.

Owns: the inputs, the queries, the turns. Does not own: the Spark session and its settings (compare_run,
compare_queries).

    tumbling    counts per key and window of 10 s, append mode; a batch is a window
    sliding     counts per key and window of 60 s that slides by 1 s, append mode
    sessions    counts per key and session with a gap of 5 s, append mode
    distinct    rows with distinct ids; half of the ids of a batch were there before
    within      the same within the watermark

`native` is Spark with its RocksDB state store, `native-hdfs` with its default one. One process, one warm JVM, variants
in turns. Reported is the median trigger of the batches after the warm-up, no-data batches added to the batch before.

    python benches/operators_compare.py [CASE …] [--rounds 2] [--small] [--ids 10000000] [--out FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from compare_queries import configure
from compare_run import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastchangelog.spark import drop_duplicates, drop_duplicates_within_watermark, grouped

VARIANTS = ("ours", "native", "native-hdfs")
OPTIONS = {"file_sync": "false"}  # Spark syncs nothing either
_SCHEMA = "id long, ts timestamp, v long"
_FILES = 2
#: Event time of a batch, and where it begins.
_SECONDS, _EPOCH = 10, 1_700_000_000


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator and the shape of its input."""

    plan: Callable[[DataFrame, Path | None], DataFrame]
    keys: int
    rows: int
    #: Batches that bring every key once.
    seeds: int = 0


def _counted(df: DataFrame, state: Path | None, *keys: Any) -> DataFrame:
    aggregate = F.count("*").alias("n")
    df = df.withWatermark("ts", "5 seconds")
    if state is None:
        return df.groupBy(*keys).agg(aggregate)
    return grouped(df, *keys, state=state, output_mode="append", options=OPTIONS).agg(aggregate)


def _distinct(df: DataFrame, state: Path | None) -> DataFrame:
    return df.dropDuplicates(["id"]) if state is None else drop_duplicates(df, ["id"], state=state, options=OPTIONS)


def _within(df: DataFrame, state: Path | None) -> DataFrame:
    df = df.withWatermark("ts", "1 day")
    if state is None:
        return df.dropDuplicatesWithinWatermark(["id"])
    return drop_duplicates_within_watermark(df, ["id"], state=state, options=OPTIONS)


def _cases(ids: int) -> dict[str, Case]:
    seeds = max(1, ids // 500_000)
    return {
        "tumbling": Case(lambda df, state: _counted(df, state, F.window("ts", "10 seconds"), "id"), 100_000, 300_000),
        "sliding": Case(
            lambda df, state: _counted(df, state, F.window("ts", "60 seconds", "1 second"), "id"), 1_000, 100_000
        ),
        "sessions": Case(
            lambda df, state: _counted(df, state, F.session_window("ts", "5 seconds"), "id"), 50_000, 100_000
        ),
        "distinct": Case(_distinct, ids, 100_000, seeds),
        "within": Case(_within, ids, 100_000, seeds),
    }


def _write(folder: Path, case: Case, batches: int) -> None:
    rng = np.random.default_rng(7)
    order = rng.permutation(case.keys)
    for batch in range(case.seeds + batches):
        if batch < case.seeds:
            ids = np.array_split(order, case.seeds)[batch]
        elif case.seeds:  # half are new
            new = case.keys + (batch - case.seeds) * case.rows + np.arange(case.rows // 2)
            ids = np.concatenate([new, rng.integers(0, case.keys, case.rows - case.rows // 2)])
            rng.shuffle(ids)
        else:
            ids = rng.integers(0, case.keys, case.rows)
        stamps = (_EPOCH + batch * _SECONDS) * 1_000_000 + np.sort(rng.integers(0, _SECONDS * 1_000_000, len(ids)))
        for part, at in enumerate(np.array_split(np.arange(len(ids)), _FILES)):
            table = pa.table(
                {"id": ids[at].astype("int64"), "ts": pa.array(stamps[at], pa.timestamp("us", "UTC")), "v": at}
            )
            pq.write_table(table, folder / f"{batch:04d}-{part}.parquet")


def _run(spark: SparkSession, case: Case, variant: str, folder: Path, work: Path, warm: int) -> dict[str, Any]:
    configure(spark, variant)
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", _FILES).parquet(str(folder / "*.parquet"))
    plan = case.plan(stream, work / "state" if variant == "ours" else None)
    start = time.monotonic()
    query = (
        plan.writeStream.format("noop")
        .outputMode("append")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    times: list[int] = []
    for progress in query.recentProgress:
        millis = progress["durationMs"]["triggerExecution"]
        if progress["numInputRows"] or not times:
            times.append(millis)
        else:
            times[-1] += millis
    kept = times[case.seeds + warm :]
    return {"trigger_ms": statistics.median(kept), "times": times, "wall_s": round(time.monotonic() - start, 1)}


def main() -> None:
    """Runs the cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--warm", type=int, default=6, help="batches that do not count")
    parser.add_argument("--small", action="store_true", help="batches of 1,000 rows")
    parser.add_argument("--ids", type=int, default=10_000_000, help="ids of distinct rows")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = _cases(args.ids)
    spark = session()
    found: dict[str, Any] = {}
    for name in args.cases or known:
        case = known[name]
        if args.small:
            case = dataclasses.replace(case, rows=1_000, keys=min(case.keys, 10_000), seeds=min(case.seeds, 1))
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), case, args.batches)
            runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in args.variants}
            for _ in range(args.rounds):
                for variant in args.variants:
                    work = Path(tempfile.mkdtemp())
                    runs[variant].append(_run(spark, case, variant, Path(folder), work, args.warm))
                    shutil.rmtree(work, ignore_errors=True)
        found[name] = runs
        medians = {variant: statistics.median(run["trigger_ms"] for run in runs[variant]) for variant in runs}
        fastest = min((ms for variant, ms in medians.items() if variant != "ours"), default=None)
        rounds = {variant: [run["trigger_ms"] for run in runs[variant]] for variant in runs}
        ratio = "" if fastest is None or "ours" not in medians else f"{fastest / medians['ours']:.2f}x"
        print(f"{name:10} {ratio:>6}  {rounds}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
