"""What a batch and a restart cost where both the state and Spark's checkpoint are in S3: requests, seconds, dollars.

    store_latency.py [--partitions N …] [--variants …] [--batches N] [--rounds N] [--keys N] [--rows N]
                     [--get-ms N] [--put-ms N] [--list-ms N] [--slots N] [--submit ARGUMENTS] [--out FILE]

An S3 server of this machine stands behind a proxy that delays each request by its kind and notes it: versitygw, if one
is on the PATH or in ~/go/bin, else moto. Each run is a process of its own on an empty local disk: some batches, the
first of them not measured. Then another process restarts the query for one batch. Variants are a query and the
settings of Spark's checkpoint, in turns:

    ours            grouped().agg(), Spark's default settings
    ours-fast       the same with the settings of docs/deploying.md
    native          groupBy().agg() with Spark's RocksDB store and changelog checkpointing, Spark's default settings
    native-fast     the same with the settings of docs/deploying.md

PYTHONPATH=tests is needed for the proxy. Spark fetches `spark-hadoop-cloud` (some 600 MB) from Maven Central once,
unless `--submit` has other arguments that bring it, such as `--jars`.

Owns: the runs, the delays, the price list, the table and the JSON file. Does not own: queries and data
(compare_queries, compare_data), the proxy (`support.stores` of the tests).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare_data
from compare_data import Shape
from compare_queries import build, configure
from compare_run import machine, median, session, source

from fastchangelog.demo import processes

VARIANTS = ("ours", "ours-fast", "native", "native-fast")
#: Batches at the start of a run that are not measured.
WARM = 3
#: Dollars of a request, by kind: Amazon's list for S3 Standard in us-east-1. Deletions are free.
PRICES = {"PUT": 5e-6, "LIST": 5e-6, "MULTIPART": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
ACCESS, SECRET = "bench", "bench-secret"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


@dataclasses.dataclass(frozen=True)
class Noted:
    """A request that the proxy saw."""

    at: float
    kind: str
    path: str

    @property
    def is_of_state(self) -> bool:
        """True for one of fastchangelog's, not of Spark's."""
        return "/state-root" in self.path


# --- a run, in a process of its own


def spark_arguments(args: argparse.Namespace) -> str:
    """What the JVM is started with."""
    confs = {
        "spark.hadoop.fs.s3a.endpoint": args.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": ACCESS,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        # Plain bytes, which the proxy and every server understand.
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    if args.variant.endswith("-fast"):
        confs["spark.hadoop.fs.s3a.performance.flags"] = "create,mkdir"
        confs[MANAGER] = ABORTABLE
    return " ".join([args.submit, *(f"--conf {name}={value}" for name, value in confs.items()), "pyspark-shell"])


def work(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the query over its next batches."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = spark_arguments(args)
    kind = args.variant.removesuffix("-fast")
    data = compare_data.folder(args.work / "data", Shape(args.keys, args.rows, args.batches + 1))
    spark = session(f"local[{args.slots}]", args.partitions[0], memory="3g")
    configure(spark, kind)
    storage = {
        "aws_endpoint": args.endpoint,
        "aws_region": "us-east-1",
        "aws_access_key_id": ACCESS,
        "aws_secret_access_key": SECRET,
        "aws_allow_http": "true",
    }
    count = args.batches + (2 if args.phase == "restart" else 1)
    frame = build(kind, source(spark, compare_data.files(data, 0, count)), f"{args.bucket}/state-root", {}, storage)
    writer = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    began = time.time()
    query = writer.option("checkpointLocation", f"{args.bucket.replace('s3:', 's3a:')}/checkpoint").start()
    query.awaitTermination()
    progress = [json.loads(found.json) for found in query.recentProgress]
    batches = [
        {
            "began": datetime.datetime.fromisoformat(found["timestamp"].replace("Z", "+00:00")).timestamp(),
            "ms": found["durationMs"]["triggerExecution"],
        }
        for found in progress
        if found["numInputRows"]
    ]
    spark.stop()
    return {"began": began, "batches": batches}


# --- the runs, and what the proxy saw of them


def child(args: argparse.Namespace, phase: str, variant: str, partitions: int, endpoint: str, bucket: str) -> Any:
    """A phase in a process of its own, on an empty local disk."""
    local = args.work / "local"
    shutil.rmtree(local, ignore_errors=True)
    local.mkdir(parents=True)
    command = [sys.executable, __file__, "--phase", phase, "--variant", variant, "--work", str(args.work)]
    command += ["--partitions", str(partitions), "--rows", str(args.rows), "--keys", str(args.keys)]
    command += ["--batches", str(args.batches), "--slots", str(args.slots), f"--submit={args.submit}"]
    command += ["--endpoint", endpoint, "--bucket", bucket]
    environ = {k: v for k, v in os.environ.items() if k != processes.MARK and not k.startswith("AWS_")}
    environ["SPARK_LOCAL_DIRS"] = str(local)
    # Not through a pipe: a JVM that outlives its Python would keep it open. It ends with the group.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, env=environ, start_new_session=True)
        try:
            code = process.wait(args.limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code != 0:
            raise SystemExit(f"{phase} of {variant} with {partitions} partitions ended with {code}")
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def cost(requests: list[Noted], batches: int) -> dict[str, Any]:
    """Requests by kind, those of the state, its log objects, and the dollars of a million, for each batch."""
    kinds = collections.Counter(request.kind for request in requests)
    state = [request for request in requests if request.is_of_state]
    objects = sum(request.kind in ("PUT", "MULTIPART") and "/log/" in request.path for request in state)
    dollars = sum(PRICES.get(kind, 0.0) * n for kind, n in kinds.items())
    return {
        "requests": len(requests) / batches,
        "kinds": {kind: round(n / batches, 2) for kind, n in sorted(kinds.items())},
        "state": len(state) / batches,
        "log_objects": objects / batches,
        "dollars_per_million": round(1e6 * dollars / batches, 1),
    }


def measure(args: argparse.Namespace, variant: str, partitions: int, store: SlowStore) -> dict[str, Any]:
    """One run and one restart of a variant."""
    bucket = f"s3://{store.bucket()}"
    found = child(args, "run", variant, partitions, store.url, bucket)
    batches = found["batches"][WARM:]
    since, until = batches[0]["began"], batches[-1]["began"] + batches[-1]["ms"] / 1e3
    result = {
        "ms": [batch["ms"] for batch in batches],
        **cost([n for n in store.noted if since <= n.at < until], len(batches)),
    }
    store.noted.clear()
    again = child(args, "restart", variant, partitions, store.url, bucket)
    first = again["batches"][0]
    end = first["began"] + first["ms"] / 1e3
    result["restart"] = {
        "seconds": end - again["began"],
        **cost([n for n in store.noted if again["began"] <= n.at < end], 1),
    }
    store.noted.clear()
    return result


# --- the slow store


class SlowStore:
    """Buckets of a server behind the proxy."""

    def __init__(self, server: str, proxy: Any) -> None:
        import boto3

        self.url = proxy.url
        self.noted: list[Noted] = []
        self._admin = boto3.client(
            "s3",
            endpoint_url=f"http://{server}",
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
        self._made = 0

    def bucket(self) -> str:
        """A new bucket."""
        self._made += 1
        name = f"bench-{os.getpid()}-{self._made}"
        self._admin.create_bucket(Bucket=name)
        return name


@contextlib.contextmanager
def slow_store(args: argparse.Namespace) -> Iterator[SlowStore]:
    """The store with its delays."""
    from support.stores.fault_proxy import FaultProxy
    from support.stores.faults import DELETE, GET, HEAD, LIST, MULTIPART, PUT, First, Request

    delays = {GET: args.get_ms, HEAD: args.get_ms, DELETE: args.put_ms, PUT: args.put_ms, MULTIPART: args.put_ms}
    delays[LIST] = args.list_ms
    with server(args.work) as host, FaultProxy(host) as proxy:
        store = SlowStore(host, proxy)

        def delay(request: Request) -> None:
            store.noted.append(Noted(time.time(), request.kind, request.path))
            proxy.log.clear()  # it would keep every body
            time.sleep(delays.get(request.kind, args.get_ms) / 1e3)

        proxy.always(First(delay))
        yield store


@contextlib.contextmanager
def server(work: Path) -> Iterator[str]:
    """`host:port` of an S3 server."""
    program = shutil.which("versitygw") or shutil.which("versitygw", path=str(Path.home() / "go" / "bin"))
    if program is None:
        from support.stores.servers import s3_server

        with s3_server() as host:
            yield host
        return
    folder = work / "buckets"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--access", ACCESS, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "--quiet"]
    process = subprocess.Popen([*command, "posix", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


# --- the table


def row(partitions: int, variant: str, rounds: list[dict[str, Any]]) -> list[str]:
    """A line of the table: medians over the rounds."""

    def of(name: str, runs: list[dict[str, Any]]) -> float:
        return median([run[name] for run in runs])

    restarts = [run["restart"] for run in rounds]
    return [
        str(partitions),
        variant,
        f"{median([ms for run in rounds for ms in run['ms']]):,.0f}",
        " ".join(f"{median(run['ms']):,.0f}" for run in rounds),
        f"{of('requests', rounds):.1f}",
        f"{of('state', rounds):.1f}",
        f"{of('log_objects', rounds):.2f}",
        f"{of('dollars_per_million', rounds):,.0f}",
        f"{of('seconds', restarts):.1f}",
        f"{of('requests', restarts):.0f}",
        f"{of('state', restarts):.0f}",
    ]


COLUMNS = ["P", "variant", "ms a batch", "rounds", "requests", "of the state", "log objects", "$ per 1M batches"]
COLUMNS += ["restart s", "its requests", "of the state"]


def main() -> int:
    """The table."""
    args = _arguments()
    if args.phase:
        print(json.dumps(work(args)))
        return 0
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}; PySpark {about['pyspark']}")
    result: dict[str, Any] = {"machine": about, "arguments": vars(args), "runs": []}
    table = [COLUMNS]
    try:
        with slow_store(args) as store:
            for partitions in args.partitions:
                found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in args.variants}
                for _ in range(args.rounds):
                    for variant in args.variants:
                        found[variant].append(measure(args, variant, partitions, store))
                        print(f"  {partitions} {variant}: {found[variant][-1]}", file=sys.stderr, flush=True)
                table += [row(partitions, variant, rounds) for variant, rounds in found.items()]
                result["runs"].append({"partitions": partitions, "found": found})
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(result, indent=1, default=str))
    finally:
        shutil.rmtree(args.work / "local", ignore_errors=True)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(f"\n{args.out}")
    return 0


def _arguments() -> argparse.Namespace:
    import pyspark

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--batches", type=int, default=10, help=f"of a run; the first {WARM} are not measured")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of a batch")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--get-ms", type=float, default=20.0, help="delay of a GET or HEAD")
    parser.add_argument("--put-ms", type=float, default=40.0, help="delay of a PUT, POST or DELETE")
    parser.add_argument("--list-ms", type=float, default=50.0, help="delay of a LIST")
    package = f"--packages org.apache.spark:spark-hadoop-cloud_2.13:{pyspark.__version__}"
    parser.add_argument("--submit", default=package, help="arguments of spark-submit that bring Hadoop's client of S3")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")
    cache = Path(os.environ.get("FASTCHANGELOG_CACHE") or "~/.cache/fastchangelog").expanduser() / "bench"
    name = time.strftime("store-latency-%Y%m%d-%H%M%S.json", time.gmtime())
    parser.add_argument("--out", type=Path, default=cache / name)
    work_folder = Path(tempfile.gettempdir()) / f"fastchangelog-bench-{os.getuid()}-s3"
    parser.add_argument("--work", type=Path, default=work_folder, help="folder for data and buckets")
    for hidden in ("--phase", "--variant", "--endpoint", "--bucket"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
