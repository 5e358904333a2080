"""How long a stopped query takes until its first batch is done: an eager and a lazy restore, and Spark's own operator.

    restart_compare.py [--keys N …] [--rows N] [--rounds N] [--variants VARIANT …]
                       [--latency-ms N] [--limit SECONDS] [--out FILE]

Each query is filled with all keys and stopped, in a process of its own, with a snapshot and a short log after it (of
distinct rows none: their last batches bring no new key). It is then started again, in another process and on an empty
local disk: a small query first, so that imports and JIT are not measured, then the real one with one batch of `--rows`
rows. Each round restarts a copy of the same checkpoint, the variants in turns. `--latency-ms` adds rounds with the
state in an S3 server (moto) behind a proxy with that latency; they need PYTHONPATH=tests, and leave out Spark's own
operator, which needs Hadoop's S3 client. A filling or a restart that takes longer than `--limit` is ended and named,
and the rest of its kind is not measured.

Owns: the phases, the table, the JSON file. Does not own: queries and measuring (compare_queries, compare_run), the slow
store (`support.stores` of the tests).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare_data
from compare_data import Shape
from compare_run import Outcome, machine, materializations_settled, median, run, session, warm_up

from fastchangelog.demo import processes

#: A batch of the filling; more rows would only take more memory.
SEED_ROWS = 1_000_000
#: Batches between the filling and the stop: a snapshot is of what the next batch hands back, and named after that.
AFTER_SEED = 4
#: variant -> the query that is filled for it (compare_queries).
KINDS = {
    "eager": "ours",
    "lazy": "ours",
    "native": "native",
    "states": "ours-states",
    "tws-states": "tws-states",
    "distinct": "ours-distinct",
    "lazy-distinct": "ours-distinct",
    "native-distinct": "native-distinct",
}
OURS = tuple(variant for variant, kind in KINDS.items() if kind.startswith("ours"))
#: Materialize at once: what is measured is a snapshot with a little log, not how long a log grew.
FILLING = {"materialization_log_bytes": "1MiB", "memory_budget": "2GiB"}
RESTARTED = {"materialization_interval": "1h", "materialization_log_ratio": "1000", "memory_budget": "2GiB"}


def shape_of(keys: int, rows: int) -> Shape:
    """The input: all keys, then some batches before the stop and one after it."""
    return Shape(keys, rows, AFTER_SEED + 1, seed_batches=max(1, keys // SEED_ROWS))


def fill(args: argparse.Namespace, kind: str) -> None:
    """Every key once and some batches more, with a snapshot that the newest handles name."""
    shape = shape_of(args.size, args.rows)
    data = compare_data.folder(args.work / "data", shape)
    work = args.work / "work" / "filled"
    spark = session()
    query = {"state": args.state, "storage": args.storage} if kind.startswith("ours") else {}
    options = FILLING if kind.startswith("ours") else None
    for last in range(1, AFTER_SEED + 1):
        run(spark, kind, compare_data.files(data, 0, shape.seed_batches + last), work, options=options, **query)
        if kind.startswith("ours"):
            materializations_settled(spark, FILLING)
    spark.stop()


def restart(args: argparse.Namespace, variant: str) -> Outcome:
    """The stopped query again, and one batch."""
    shape = shape_of(args.size, args.rows)
    data = compare_data.folder(args.work / "data", shape)
    small = compare_data.folder(args.work / "data", Shape(1_000, 10_000, 3))
    kind = KINDS[variant]
    spark = session()
    warm_up(spark, kind, compare_data.files(small, 0, 4), args.work / "work" / "warm-up")
    restore = "lazy" if variant.startswith("lazy") else "eager"
    options = {**RESTARTED, "restore": restore} if kind.startswith("ours") else None
    query = {"state": args.state, "storage": args.storage} if kind.startswith("ours") else {}
    glob = compare_data.files(data, 0, shape.seed_batches + AFTER_SEED + 1)
    outcome = run(spark, kind, glob, args.work / "work" / "restarted", options=options, **query)
    spark.stop()
    return outcome


class TooLongError(Exception):
    """A phase took longer than the limit."""


def child(args: argparse.Namespace, phase: str, variant: str) -> Any:
    """A phase in a process of its own; its local folders go with it."""
    begun = time.monotonic()
    local = args.work / "work" / "local"
    shutil.rmtree(local, ignore_errors=True)
    local.mkdir(parents=True)
    command = [sys.executable, __file__, "--phase", phase, "--variant", variant, "--work", str(args.work)]
    command += ["--rows", str(args.rows), "--size", str(args.size)]
    command += ["--state", args.state or "", "--storage", json.dumps(args.storage)]
    environ = {k: v for k, v in os.environ.items() if k != processes.MARK}
    environ["SPARK_LOCAL_DIRS"] = str(local)
    # Not through a pipe: a JVM that outlives its Python would keep it open. It ends with the group.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, env=environ, start_new_session=True)
        try:
            code = process.wait(args.limit)
        except subprocess.TimeoutExpired as error:
            raise TooLongError(f"{phase} of {variant} took longer than {args.limit:g} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code != 0:
            raise SystemExit(f"{phase} of {variant} ended with {code}")
        took = time.monotonic() - begun
        print(f"  {args.size:,} keys, {phase} of {variant}: {took:.0f} s", file=sys.stderr, flush=True)
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def measure(args: argparse.Namespace, variants: list[str]) -> dict[str, list[dict[str, Any]]]:
    """All rounds of all variants on one size and one store."""
    work = args.work / "work"
    found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
    for kind in dict.fromkeys(KINDS[variant] for variant in variants):
        mine = [variant for variant in variants if KINDS[variant] == kind]
        shutil.rmtree(work / "filled", ignore_errors=True)
        try:
            child(args, "fill", kind)
            for _ in range(args.rounds):
                for variant in mine:
                    shutil.rmtree(work / "restarted", ignore_errors=True)
                    shutil.copytree(work / "filled", work / "restarted")
                    found[variant].append(child(args, "restart", variant))
        except TooLongError as error:
            print(f"  {error}", file=sys.stderr, flush=True)
    return found


def rows_of(place: str, keys: int, found: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """The lines of the table."""
    for variant, runs in found.items():
        if not runs:
            yield [place, f"{keys:,}", variant, "not measured", "", "", "", "", ""]
            continue
        server = [run["server"] for run in runs]
        firsts = [run["first_batch_s"] for run in runs]
        triggers = [float(run["batches"][0]["trigger_ms"]) for run in runs]
        restored = [s.get("restore_bytes", 0) / 1e6 for s in server if s]
        log = [s.get("replay_bytes", 0) / 1e6 for s in server if s]
        # Summed over shards, which restore at the same time.
        micros = [s.get("restore_micros", 0) / 1e3 for s in server if s]
        yield [
            place,
            f"{keys:,}",
            variant,
            f"{median(firsts):.2f}",
            " ".join(f"{first:.2f}" for first in firsts),
            f"{median(triggers):,.0f}",
            f"{median(restored):.1f}" if restored else "",
            f"{median(log):.1f}" if log else "",
            f"{median(micros):,.0f}" if micros else "",
        ]


@contextlib.contextmanager
def slow_store(latency_ms: float) -> Iterator[Any]:
    """A bucket behind a proxy that adds the latency to each request."""
    from support.stores.fault_proxy import FaultProxy
    from support.stores.places import S3Place, s3_admin
    from support.stores.servers import s3_server

    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        del os.environ[name]
    with s3_server() as server, FaultProxy(server, latency=latency_ms / 1e3) as proxy:
        yield S3Place(s3_admin(server), proxy)


def main() -> int:
    """The table."""
    args = _arguments()
    if args.phase:
        if args.phase == "fill":
            fill(args, args.variant)
            print("null")
        else:
            print(json.dumps(dataclasses.asdict(restart(args, args.variant))))
        return 0
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}; PySpark {about['pyspark']}")
    head = ["state in", "keys", "variant", "start to first batch done, s", "rounds", "first trigger ms"]
    table = [[*head, "MB restored", "of that log", "restore ms, sum of shards"]]
    result: dict[str, Any] = {"machine": about, "runs": []}
    try:
        for keys in args.keys:
            args.size = keys
            places: list[tuple[str, Any]] = [("file", contextlib.nullcontext())]
            if args.latency_ms:
                places.append((f"S3, {args.latency_ms:g} ms", slow_store(args.latency_ms)))
            for name, opened in places:
                with opened as place:
                    args.state, args.storage = (place.uri, place.credentials) if place else (None, {})
                    variants = [v for v in args.variants if place is None or v in OURS]
                    found = measure(args, variants)
                table += rows_of(name, keys, found)
                result["runs"].append({"place": name, "keys": keys, "found": found})
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(result, indent=1, default=str))
    finally:
        shutil.rmtree(args.work / "work", ignore_errors=True)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"\n{args.out}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a batch that is not of the filling")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=KINDS, default=["eager", "lazy", "native"])
    parser.add_argument("--latency-ms", type=float, default=0.0, help="measure with a slow S3 server, too")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that a filling or a restart may take")
    cache = Path(os.environ.get("FASTCHANGELOG_CACHE") or "~/.cache/fastchangelog").expanduser() / "bench"
    name = time.strftime("restart-%Y%m%d-%H%M%S.json", time.gmtime())
    parser.add_argument("--out", type=Path, default=cache / name)
    work = Path(tempfile.gettempdir()) / f"fastchangelog-bench-{os.getuid()}"
    parser.add_argument("--work", type=Path, default=work, help="folder for data and state")
    for hidden in ("--phase", "--variant", "--state"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--storage", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
