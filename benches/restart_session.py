"""A restart without Spark around it: the first batches of a restored state at a state server, eager and lazy.

    restart_session.py [--keys N …] [--rows N …] [--rounds N] [--batches N] [--pause SECONDS]
                       [--latency-ms N | --root URI [--storage-option N=V …]]

Two shards are filled with all keys, materialized and left by their server. A new server on an empty local disk then
runs batches of `--rows` rows (keys drawn evenly), both shards at the same time, one after the other or with a pause
between them; the time is that from the first `open` to the last `commit` of a batch. Variants take turns on the same
handles. With `--latency-ms`, the state is in an S3 server (moto) behind a proxy with that latency; with `--root`, in
that folder, which the caller removes afterwards. What is restored has a snapshot, wherever it is: without one the
measurement would be of something else, and is refused.

Owns: the sessions and the table. Does not own: rows and specification (bench_session), the slow store
(restart_compare).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bench_session import _INPUT, ARROW_BATCH, SHARDS, spec, split
from compare_run import machine, median
from restart_compare import FILLING, RESTARTED, SEED_ROWS, slow_store

from fastchangelog import _internal
from fastchangelog.server import ensure_server, open_session

VARIANTS = ("eager", "lazy")
#: Seconds without a new materialization after which none is expected.
QUIET = 8


class World:
    """A state and the handles of its newest batch."""

    def __init__(self, root: str, storage: dict[str, str]) -> None:
        self.root, self.storage, self.text = root, storage, spec()
        self.handles: list[str | None] = [None] * SHARDS
        self.batch = 0

    def run(self, ids: np.ndarray, options: dict[str, str]) -> tuple[float, dict[str, int]]:
        """One batch on both shards: seconds, and the sessions' numbers added up."""
        payloads = split(self.text, [_rows(part) for part in np.array_split(ids, -(-len(ids) // ARROW_BATCH))])

        def session(shard: int) -> dict[str, int]:
            with open_session(json.dumps(self._request(shard, options)), options) as client:
                for _, payload in (p for p in payloads if p[0] == shard):
                    client.merge(payload)
                for _ in client.finish():
                    pass
                self.handles[shard], numbers, _ = client.commit()
                return numbers

        begun = time.perf_counter()
        with ThreadPoolExecutor(SHARDS) as pool:
            numbers = list(pool.map(session, range(SHARDS)))
        took = time.perf_counter() - begun
        self.batch += 1
        return took, {name: sum(n.get(name, 0) for n in numbers) for name in numbers[0]}

    def _request(self, shard: int, options: dict[str, str]) -> dict[str, Any]:
        place = {"root": self.root, "query_id": "bench", "name": "default", "shard": shard, "shards": SHARDS}
        what = {"batch": self.batch, "handle": self.handles[shard], "spec": self.text, "ephemeral": False}
        every = {"file_sync": "false", **options}
        return {**place, **what, "options": every, "storage_options": self.storage, "checkpoint": None}


def _rows(ids: np.ndarray) -> pa.RecordBatch:
    columns = [pa.array(np.char.add("user-", ids.astype("U10"))), pa.array(ids * 0.5), pa.array(ids)]
    return pa.RecordBatch.from_arrays(columns, schema=_INPUT)


@contextmanager
def server(options: dict[str, str]) -> Iterator[Any]:
    """A server with an empty local disk."""
    run = Path(tempfile.mkdtemp(prefix="fcl-", dir="/tmp"))  # short: the path of a socket has at most 107 bytes
    os.environ["XDG_RUNTIME_DIR"], os.environ["SPARK_LOCAL_DIRS"] = str(run), ""
    client = _internal.ServerClient(str(ensure_server(options).socket))
    try:
        yield client
    finally:
        client.shutdown()
        shutil.rmtree(run, ignore_errors=True)


def fill(world: World, keys: int, rows: int) -> None:
    """All keys, and a snapshot that the newest handles name."""
    rng = np.random.default_rng(42)
    with server(FILLING) as client:
        for part in np.array_split(rng.permutation(keys), max(1, keys // SEED_ROWS)):
            world.run(part, FILLING)
        # A snapshot is of the version that the next batch hands back: two batches without a new one find the log short.
        started = [_started(client)]
        while len(started) < 3 or started[-1] > started[-3]:
            world.run(rng.integers(0, keys, rows), FILLING)
            started.append(_started(client))
    for handle in world.handles:
        if handle is None or not json.loads(_internal.handle_json(handle))["base"]:
            raise SystemExit(f"a shard of {keys:,} keys has no base: its log is below {FILLING}; ask for more keys")


def _started(client: Any) -> int:
    """How many materializations were started, once all are done and none has begun for a while."""
    last, since = -1, time.monotonic()
    while True:
        metrics = json.loads(client.metrics())
        started, completed, failed = (int(metrics[f"materializations_{s}"]) for s in ("started", "completed", "failed"))
        if started != completed + failed or started != last:
            last, since = started, time.monotonic()
        elif time.monotonic() - since > QUIET:
            return started
        time.sleep(0.5)


def measure(world: World, keys: int, rows: int, args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Rounds of restarts, the variants in turns."""
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    stopped = (list(world.handles), world.batch)
    for number in range(args.rounds):
        for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
            rng = np.random.default_rng(7)
            world.handles, world.batch = list(stopped[0]), stopped[1]
            options = {**RESTARTED, "restore": variant}
            with server(options) as client:
                first, numbers = world.run(rng.integers(0, keys, rows), options)
                later = []
                for _ in range(args.batches - 1):
                    time.sleep(args.pause)
                    later.append(world.run(rng.integers(0, keys, rows), options)[0])
                metrics = json.loads(client.metrics())
            times = {"first": first, "open": numbers.get("open_micros", 0) / SHARDS / 1e6, "all": first + sum(later)}
            times |= {"middle": median(later), "longest": max(later), "last": later[-1]}
            sizes = {name: metrics[f"{name}_bytes"] / 1e6 for name in ("restore", "replay", "hot")}
            found[variant].append({**times, **sizes})
    return found


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000, 500_000])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batches", type=int, default=10, help="batches after each restart")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two batches")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--latency-ms", type=float, help="of an S3 server on this machine; 0 = no more than it has")
    where.add_argument("--root", metavar="URI", help="an empty folder or bucket")
    parser.add_argument("--storage-option", action="append", default=[], metavar="NAME=VALUE", help="of --root")
    args = parser.parse_args()
    storage = dict(option.split("=", 1) for option in args.storage_option)
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}")
    for keys in args.keys:
        work = Path(tempfile.mkdtemp(prefix="restart-"))
        try:
            if args.root:
                root = f"{args.root.rstrip('/')}/{keys}"
                _table(args.root, World(root, storage), keys, args)
            elif args.latency_ms is not None:
                with slow_store(args.latency_ms) as place:
                    _table(f"S3, +{args.latency_ms:g} ms", World(place.uri, place.credentials), keys, args)
            else:
                _table("file", World(f"file://{work}/state", {}), keys, args)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _table(name: str, world: World, keys: int, args: argparse.Namespace) -> None:
    fill(world, keys, min(args.rows))
    for rows in args.rows:
        for variant, runs in measure(world, keys, rows, args).items():
            of = {key: median([run[key] for run in runs]) for key in runs[0]}
            rounds = " ".join(f"{run['first']:.2f}" for run in runs)
            print(
                f"  {name}, {keys:>10,} keys, {rows:>7,} rows, {variant:<5}  first {of['first']:6.2f} s ({rounds}), "
                f"of that open {of['open']:6.2f} s; later: middle {of['middle']:6.3f}, longest {of['longest']:6.3f}, "
                f"last {of['last']:6.3f} s; all {of['all']:6.2f} s; MB: restored {of['restore']:.0f}, "
                f"of that log {of['replay']:.1f}, hot {of['hot']:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
