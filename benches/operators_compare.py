"""Windows, sessions and distinct rows beside Spark's own operators: the time of a batch.

Owns: the inputs, the queries, the turns. Does not own: the Spark session and its settings (compare_run,
compare_queries).

    tumbling    counts per key and window of 10 s, append mode; a batch is a window
    sliding     counts per key and window of 60 s that slides by 1 s, append mode
    sessions    counts per key and session with a gap of 5 s, append mode
    distinct    rows with distinct ids; half of the ids of a batch were there before
    within      the same within the watermark

`native` is Spark with its RocksDB state store, `native-hdfs` with its default one. `floor` reads the rows in Python and
forgets them, and keeps a short text per partition in Spark's state: no operator that Spark calls in Python takes less
time. One process, one JVM, variants in turns. Reported is the median trigger of the batches after the warm-up, no-data
batches added to the batch before. Half of the first batches' time is the JVM's compiler, so the warm-up is long.

    python benches/operators_compare.py [CASE …] [--rounds 2] [--small] [--ids 10000000] [--budget 256MiB] [--out FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from compare_queries import configure
from compare_run import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.spark import drop_duplicates, drop_duplicates_within_watermark, grouped

VARIANTS = ("ours", "native", "native-hdfs", "floor")
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
    #: Rows that come out of a batch, for each that goes in.
    share: float
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


class _Floor(StatefulProcessor):
    """Keeps what an operator keeps for a shard, and emits as many rows as its payload says."""

    def init(self, handle: Any) -> None:
        self._kept = handle.getValueState("kept", "kept string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        emitted = np.arange(sum(int(frame["emitted"].sum()) for frame in rows))
        self._kept.get()
        yield pd.DataFrame({"id": emitted, "n": emitted})
        self._kept.update(("a handle of a version, with its segments" * 8,))

    def close(self) -> None:
        pass


def _floor(df: DataFrame, share: float) -> DataFrame:
    def forget(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        payload, emitted = [bytes(4 * rows)] * 2, [int(rows * share / 2)] * 2
        columns = [pa.array([0, 1], pa.int32()), pa.array(payload, pa.binary()), pa.array(emitted, pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, ["shard", "payload", "emitted"])

    payloads = df.select("id", "ts").mapInArrow(forget, "shard int, payload binary, emitted long")
    return payloads.groupBy("shard").transformWithStateInPandas(_Floor(), "id long, n long", "append", "None")


def _cases(ids: int) -> dict[str, Case]:
    seeds = max(1, ids // 500_000)
    return {
        "tumbling": Case(
            lambda df, state: _counted(df, state, F.window("ts", "10 seconds"), "id"), 100_000, 300_000, 0.3
        ),
        "sliding": Case(
            lambda df, state: _counted(df, state, F.window("ts", "60 seconds", "1 second"), "id"), 1_000, 100_000, 0.1
        ),
        "sessions": Case(
            lambda df, state: _counted(df, state, F.session_window("ts", "5 seconds"), "id"), 50_000, 100_000, 0.5
        ),
        "distinct": Case(_distinct, ids, 100_000, 0.5, seeds),
        "within": Case(_within, ids, 100_000, 0.5, seeds),
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
    configure(spark, "native" if variant == "floor" else variant)
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", _FILES).parquet(str(folder / "*.parquet"))
    if variant == "floor":
        plan = _floor(stream, case.share)
    else:
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
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--warm", type=int, default=25, help="batches that do not count")
    parser.add_argument("--small", action="store_true", help="batches of 1,000 rows")
    parser.add_argument("--ids", type=int, default=10_000_000, help="ids of distinct rows")
    parser.add_argument("--budget", help="the option `memory_budget` of ours; default: the option's own")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = _cases(args.ids)
    if args.budget:
        OPTIONS["memory_budget"] = args.budget
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
        fastest = min((ms for variant, ms in medians.items() if variant.startswith("native")), default=None)
        rounds = {variant: [run["trigger_ms"] for run in runs[variant]] for variant in runs}
        ratio = "" if fastest is None or "ours" not in medians else f"{fastest / medians['ours']:.2f}x"
        print(f"{name:10} {ratio:>6}  {rounds}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
