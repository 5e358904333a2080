"""How fast the state of a Spark query is imported: by the core, and through Spark's own source.

    import_compare.py [--keys N …] [--rounds N] [--partitions N] [--quick] [--work FOLDER] [--out FILE]

A query of Spark's own (count, sum and max by a text key, RocksDB provider) is filled with all keys and stopped. Then
its state is read as the first batch of a new query reads it, in the tasks of a job, up to the payloads for the shards:
a process and a session for each reading, the two readers in turns, after one reading of a small state that is not
measured. A third figure is the core alone, in one process without Spark. `--quick` shows that it works.

Memory is the peak of all processes of a session of Linux (JVM, driver, workers), by their share of pages (PSS), and how
much of it came with the reading.

Owns: the phases, the table, the JSON file. Does not own: the session and the machine's description (compare_run).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from compare_run import machine, median, session

SEED_ROWS = 1_000_000
WARM_KEYS = 1_000
READERS = ("core", "spark")
ALONE = "core, without Spark"
SAMPLE_SECONDS = 0.1


def aggregates() -> list[Any]:
    """What the old query keeps and the new one takes over."""
    from pyspark.sql import functions as F

    return [F.count("*").alias("n"), F.sum("amount").alias("total"), F.max("amount").alias("most")]


def stream(spark: Any, folder: Path) -> Any:
    """The input: a file is a batch."""
    return spark.readStream.schema("key string, amount double").option("maxFilesPerTrigger", 1).parquet(str(folder))


def fill(work: Path, keys: int, partitions: int) -> None:
    """The old query, stopped after all keys and one small batch."""
    from fastchangelog.spark.settings import REQUIRED

    data = work / "data"
    data.mkdir(parents=True)
    for number, first in enumerate(range(0, keys, SEED_ROWS)):
        ids = range(first, min(first + SEED_ROWS, keys))
        table = pa.table({"key": [f"user-{i:012}" for i in ids], "amount": [i * 0.5 for i in ids]})
        pq.write_table(table, data / f"{number:04}.parquet")
    pq.write_table(pa.table({"key": ["user-000000000001"], "amount": [1.0]}), data / "9999.parquet")
    spark = session(partitions=partitions)
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    query = stream(spark, data).groupBy("key").agg(*aggregates()).writeStream.format("noop").outputMode("update")
    query = query.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def read(work: Path, reader: str, partitions: int) -> dict[str, float]:
    """One reading, after one of the small state."""
    spark = session(partitions=partitions)
    imported(spark, work / "small", reader)
    time.sleep(1)
    with peak_memory() as memory:
        begun = time.monotonic()
        payload_bytes = imported(spark, work / "large", reader)
        seconds = time.monotonic() - begun
    spark.stop()
    return {"seconds": seconds, "payload_bytes": payload_bytes, **memory}


def imported(spark: Any, work: Path, reader: str) -> int:
    """Reads the state into payloads; their bytes."""
    from pyspark.sql import functions as F

    from fastchangelog.checkpoints import handles
    from fastchangelog.spark import grouped, import_state
    from fastchangelog.spark.aggregates import seed

    if reader == "spark":
        setattr(handles, "core_uri", lambda *_, **__: None)  # noqa: B010
    kept: list[Any] = []
    make = seed.initial_payloads

    def made(*arguments: Any) -> Any:
        kept.append(make(*arguments))
        return kept[-1]

    setattr(seed, "initial_payloads", made)  # noqa: B010
    try:
        with tempfile.TemporaryDirectory() as state:
            old = import_state(work / "checkpoint")
            grouped(stream(spark, work / "data"), "key", state=state).agg(*aggregates(), initial_state=old)
            return int(kept[0].select(F.sum(F.length("payload"))).head()[0])
    finally:
        setattr(seed, "initial_payloads", make)  # noqa: B010


def alone(work: Path) -> dict[str, float]:
    """The core in one process: rows as Arrow batches, a partition after the other."""
    from pyspark.sql import types as T

    from fastchangelog.checkpoints.core import CoreFiles
    from fastchangelog.hidden import Hidden
    from fastchangelog.spark.checkpoint.stored_rows import CoreRows, CoreState

    files = CoreFiles(f"file://{work / 'large' / 'checkpoint'}", Hidden({}))
    with peak_memory() as memory:
        begun = time.monotonic()
        batch = max(files.log("commits"))
        (operator,) = files.operators(batch)
        family = files.families(operator.number, batch)["default"]
        key, value = (T.StructType.fromJson(json.loads(text)) for text in (family.key, family.value))
        state = CoreState(files, operator.number, batch, operator.partitions)
        rows = sum(b.num_rows for b in CoreRows(state, None, family.key_encoder, key, value, False).all_batches())
        seconds = time.monotonic() - begun
    return {"seconds": seconds, "rows": rows, **memory}


@contextlib.contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """The peak of the memory of this session's processes, and what it is above the beginning, in MiB."""
    found: dict[str, float] = {"before_mib": memory_mib()}
    found["peak_mib"] = found["before_mib"]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            found["peak_mib"] = max(found["peak_mib"], memory_mib())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield found
    finally:
        stop.set()
        sampler.join()


def memory_mib() -> float:
    """The memory of all processes of this session of Linux."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) != os.getsid(0):
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def child(args: argparse.Namespace, phase: str, **extra: Any) -> Any:
    """A phase in a process and a session of Linux of its own."""
    command = [sys.executable, __file__, "--phase", phase, "--work", str(args.work)]
    command += ["--partitions", str(args.partitions)]
    command += [text for name, value in extra.items() for text in (f"--{name}", str(value))]
    with tempfile.TemporaryFile("w+") as output:
        subprocess.run(command, stdout=output, start_new_session=True, check=True)
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def measure(args: argparse.Namespace, keys: int) -> dict[str, list[dict[str, float]]]:
    """All rounds of both readers on one size."""
    for name, size in (("small", WARM_KEYS), ("large", keys)):
        shutil.rmtree(args.work / name, ignore_errors=True)
        child(args, "fill", keys=size, name=name)
    found: dict[str, list[dict[str, float]]] = {reader: [] for reader in (*READERS, ALONE)}
    for _ in range(args.rounds):
        for reader in READERS:
            found[reader].append(child(args, "read", reader=reader))
        found[ALONE].append(child(args, "alone"))
    return found


def table(keys: int, found: dict[str, list[dict[str, float]]]) -> str:
    """What was found, as Markdown."""
    lines = [
        "| reader | keys | seconds of each round | rows/s | peak MiB | of it by reading |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for reader, rounds in found.items():
        seconds = [one["seconds"] for one in rounds]
        peak = max(one["peak_mib"] for one in rounds)
        own = max(one["peak_mib"] - one["before_mib"] for one in rounds)
        shown = " ".join(f"{s:.2f}" for s in seconds)
        lines.append(f"| {reader} | {keys:,} | {shown} | {keys / median(seconds):,.0f} | {peak:,.0f} | {own:,.0f} |")
    core, sparks = (median([one["seconds"] for one in found[reader]]) for reader in READERS)
    return "\n".join([*lines, "", f"The core took {sparks / core:.1f} times less time than Spark's source."])


def main() -> None:
    """Fills, reads in turns, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase == "fill":
        fill(args.work / args.name, args.keys[0], args.partitions)
        print("{}")
        return
    if args.phase == "read":
        print(json.dumps(read(args.work, args.reader, args.partitions)))
        return
    if args.phase == "alone":
        print(json.dumps(alone(args.work)))
        return
    if args.quick:
        args.keys, args.rounds = [10_000], 1
    with tempfile.TemporaryDirectory(prefix="import-compare-", ignore_cleanup_errors=True) as work:
        args.work = args.work or Path(work)
        args.work.mkdir(parents=True, exist_ok=True)
        all_found = {}
        for keys in args.keys:
            all_found[keys] = measure(args, keys)
            print(table(keys, all_found[keys]), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"machine": machine(), "found": all_found}, indent=1))


if __name__ == "__main__":
    main()
