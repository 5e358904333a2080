"""Runs one streaming query to the end of its input and takes its measures.

Owns: the Spark session of the comparison, the digest of a batch's progress, sizes on disk, memory of processes.
Does not own: what the query is (compare_queries), which runs there are (spark_compare).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare_queries import build, configure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastchangelog.demo import processes

POLL_SECONDS = 0.02
SETTLED_SECONDS = 5.0
#: Options of a state that makes no snapshot but those that are asked for.
NO_BASES = {
    "materialization_interval": "3650d",
    "materialization_log_bytes": "1024TiB",
    "materialization_log_ratio": "1000000000",
    "materialization_segments": "0",
    "materialization_replay_time": "3650d",
}


def session(master: str = "local[2]", partitions: int = 2, memory: str = "6g") -> SparkSession:
    """The Spark session of the comparison; one for all variants, so that none has a warmer JVM than another."""
    os.environ.setdefault(processes.MARK, f"bench-{os.getpid()}")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    spark = (
        SparkSession.builder.master(master)
        .appName("fastchangelog bench")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", partitions)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@dataclasses.dataclass(frozen=True)
class BatchTime:
    """What Spark's progress says about one batch."""

    batch: int
    rows: int
    trigger_ms: int
    add_batch_ms: int
    #: Spark's own parts of a trigger beside addBatch.
    wal_ms: int
    commit_ms: int
    state_commit_ms: int
    state_rows: int
    #: Which state store it was, by the metrics that only this kind has.
    store: str
    ours: dict[str, int]


@dataclasses.dataclass
class Outcome:
    """One run of one variant."""

    variant: str
    batches: list[BatchTime]
    wall_s: float
    #: From start() until the first batch was done.
    first_batch_s: float
    state_files: int = 0
    state_bytes: int = 0
    server: dict[str, int] = dataclasses.field(default_factory=dict)
    memory: list[dict[str, int]] = dataclasses.field(default_factory=list)

    def body(self, drop: int) -> list[BatchTime]:
        """The batches after the warm-up."""
        return self.batches[drop:]


def source(spark: SparkSession, glob: str) -> DataFrame:
    """The stream of an input: two files are a batch."""
    stream = spark.readStream.schema("key string, ts timestamp, amount double").option("maxFilesPerTrigger", 2)
    return stream.parquet(glob).select("key", F.unix_micros("ts").alias("tsl"), "amount")


def run(
    spark: SparkSession,
    variant: str,
    glob: str,
    work: Path,
    *,
    options: dict[str, str] | None = None,
    each_batch: Callable[[int], dict[str, int]] | None = None,
    seconds: float = 3600,
    state: str | None = None,
    storage: dict[str, str] | None = None,
) -> Outcome:
    """Runs a variant over all of its input, or for `seconds`; starts from what `work` holds.

    Ours keeps its state in `work`, unless `state` names another folder or bucket, with its `storage` options.
    """
    work.mkdir(parents=True, exist_ok=True)
    configure(spark, variant)
    before = server_metrics(spark, options) if _has_server(variant) else {}
    frame = build(variant, source(spark, glob), state or work / "state", options, storage)
    writer = frame.writeStream.format("noop").outputMode("append" if _stateless(variant) else "update")
    start, began = time.monotonic(), time.time()
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    memory: list[dict[str, int]] = []
    seen = -1
    done = False
    while not done and time.monotonic() - start < seconds:
        done = bool(query.awaitTermination(POLL_SECONDS if each_batch else 1))  # type: ignore[arg-type]
        last = query.lastProgress
        if each_batch is not None and last is not None and last["batchId"] != seen:
            seen = last["batchId"]
            memory.append({"batch": seen, **each_batch(seen)})
    if not done:
        query.stop()
    wall = time.monotonic() - start
    raw = [json.loads(p.json) for p in query.recentProgress]
    batches = [_digest(p) for p in raw if p["numInputRows"]]
    outcome = Outcome(variant, batches, wall, _first_batch(raw, began), memory=memory)
    outcome.state_files, outcome.state_bytes = tree_size(work / "checkpoint" / "state")
    if _has_server(variant):
        files, size = tree_size(work / "state")
        outcome.state_files += files
        outcome.state_bytes += size
        after = server_metrics(spark, options)
        outcome.server = {name: value - before.get(name, 0) for name, value in after.items()}
    return outcome


def _has_server(variant: str) -> bool:
    return variant.startswith("ours") or variant == "unanchored"


def _stateless(variant: str) -> bool:
    return variant in ("floor", "unanchored")


def _digest(raw: dict[str, Any]) -> BatchTime:
    millis = raw["durationMs"]
    operators = raw.get("stateOperators") or [{}]
    ours: dict[str, int] = next(iter(raw.get("observedMetrics", {}).values()), {})
    return BatchTime(
        raw["batchId"],
        raw["numInputRows"],
        millis.get("triggerExecution", 0),
        millis.get("addBatch", 0),
        millis.get("walCommit", 0),
        millis.get("commitOffsets", 0),
        operators[0].get("commitTimeMs") or 0,
        operators[0].get("numRowsTotal") or 0,
        _store(operators[0].get("customMetrics") or {}),
        {name: int(value) for name, value in ours.items()},
    )


def _store(custom: dict[str, Any]) -> str:
    if any(name.startswith("rocksdb") for name in custom):
        return "RocksDB"
    return "HDFS-backed" if custom else "none"


def _first_batch(raw: list[dict[str, Any]], began: float) -> float:
    import datetime

    if not raw:
        return 0.0
    text = raw[0]["timestamp"].replace("Z", "+00:00")
    millis = int(raw[0]["durationMs"]["triggerExecution"])
    return datetime.datetime.fromisoformat(text).timestamp() - began + millis / 1000


def tree_size(folder: Path) -> tuple[int, int]:
    """Files and bytes below a folder, Hadoop's checksum files left out."""
    sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.name.endswith(".crc")]
    return len(sizes), sum(sizes)


def server_metrics(spark: SparkSession, options: dict[str, str] | None = None) -> dict[str, int]:
    """The counters of the state server; it is started if there is none, so that the first run is not charged for it."""
    return json.loads(_in_worker(spark, functools.partial(_metrics, options)))  # type: ignore[no-any-return]


def server_shards(spark: SparkSession) -> list[dict[str, Any]]:
    """The server's live shards."""
    return json.loads(_in_worker(spark, _shards))  # type: ignore[no-any-return]


def materializations_settled(spark: SparkSession, options: dict[str, str]) -> None:
    """Returns when none is running and none has been started for a while."""
    seen = None
    while True:
        metrics = server_metrics(spark, options)
        now = (metrics["materializations_started"], metrics["materializations_completed"])
        if now == seen and now[0] == now[1]:
            return
        seen = now
        time.sleep(SETTLED_SECONDS)


def _metrics(options: dict[str, str] | None) -> str:
    from fastchangelog._internal import ServerClient
    from fastchangelog.server import ensure_server

    return ServerClient(str(ensure_server(options).socket)).metrics()


def _shards() -> str:
    from fastchangelog._internal import ServerClient
    from fastchangelog.server import ensure_server

    return ServerClient(str(ensure_server().socket)).shards()


def _in_worker(spark: SparkSession, function: Callable[[], str]) -> str:
    """Asks inside a task: only there the executor's folders, and so its server, are known."""
    return str(spark.sparkContext.parallelize([0], 1).map(lambda _: function()).collect()[0])


def resident(roles: tuple[str, ...] = ("state server", "worker")) -> dict[str, int]:
    """Resident bytes of this run's processes by role: the sum for servers, the largest for workers."""
    out = dict.fromkeys(roles, 0)
    page = os.sysconf("SC_PAGE_SIZE")
    for process in processes.marked(os.environ[processes.MARK]):
        if process.role in out:
            try:
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            size = pages * page
            out[process.role] = max(out[process.role], size) if process.role == "worker" else out[process.role] + size
    return out


def warm_up(spark: SparkSession, variant: str, glob: str, work: Path) -> None:
    """A short throw-away query: imports, workers, code paths of the JVM."""
    run(spark, variant, glob, work)
    shutil.rmtree(work, ignore_errors=True)


def median(values: list[float]) -> float:
    """The median, 0 of nothing."""
    return float(statistics.median(values)) if values else 0.0


def spread(values: list[float]) -> float:
    """Half the distance between the quartiles, relative to the median."""
    if len(values) < 4 or not median(values):
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / median(values)


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    import pyarrow
    import pyspark

    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    root = Path(__file__).resolve().parent.parent
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False).stdout
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "commit": commit.strip(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
