"""The memory of a state server whose state is larger than its budget: `python benches/memory_run.py --budget 512MiB`.

Owns: a run of batches as a query would give them (64 shards, two tasks at a time, materializations now and then), and
the server's resident memory while it continues, beside what each part of the budget says that it holds.
Does not own: speed, rows and specification (`bench_session`), the test that the budget holds
(`rust/core/tests/memory.rs`).

The server is a process of its own, so what is measured is its allocator, its threads and its interpreter, too. Keys
come first in order (each batch brings new ones, until all are there), then at random. Ends with 1 if the growth over an
empty server exceeds the budget by more than a fifth.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bench_session import _INPUT, ARROW_BATCH, GROUPS, PAYLOAD, spec

from fastchangelog import _internal
from fastchangelog.options import parse_size
from fastchangelog.server import ensure_server, open_session
from fastchangelog.server.paths import ServerPaths

SAMPLE = 0.05
"""Seconds between two looks at the server."""


class Watch:
    """The server's resident memory, looked at from a thread of its own."""

    def __init__(self, place: ServerPaths) -> None:
        self.client = _internal.ServerClient(str(place.socket))
        events = [json.loads(line) for line in place.log.read_text().splitlines() if line.startswith("{")]
        self.pid = [event["pid"] for event in events if event["event"] == "started"][-1]
        self.empty = self.status("VmRSS")
        self.samples: list[int] = []
        self.peaks: dict[str, int] = {}
        self.at_peak: dict[str, int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def status(self, name: str) -> int:
        """Bytes of a line of /proc/<pid>/status."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
        return 0

    def parts(self) -> dict[str, int]:
        """The gauges of memory."""
        found: dict[str, int] = json.loads(self.client.metrics())
        return {name: value for name, value in found.items() if name.startswith("memory_")}

    def _run(self) -> None:
        while not self._ending.wait(SAMPLE):
            resident, parts = self.status("VmRSS"), self.parts()
            if resident > max(self.samples, default=0):
                self.at_peak = parts
            self.samples.append(resident)
            for name, value in parts.items():
                self.peaks[name] = max(value, self.peaks.get(name, 0))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


def batches(rng: np.random.Generator, ids: np.ndarray[Any, Any]) -> Iterator[pa.RecordBatch]:
    """Rows with these ids."""
    for start in range(0, len(ids), ARROW_BATCH):
        part = ids[start : start + ARROW_BATCH]
        columns = [
            pa.array(np.char.add("user-", part.astype("U10"))),
            pa.array(rng.random(len(part)) * 100),
            pa.array(rng.integers(0, 1 << 40, len(part))),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_INPUT)


def main() -> int:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget", default="512MiB")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a batch")
    parser.add_argument("--seconds", type=float, default=150.0, help="stop when this time has passed")
    parser.add_argument("--materialize", type=int, default=4, help="batches between materializations, about")
    parser.add_argument("--kill", action="store_true", help="kill the server in the middle: its successor is measured")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    run = Path(tempfile.mkdtemp(prefix="fcl-", dir="/tmp"))
    os.environ["XDG_RUNTIME_DIR"], os.environ["SPARK_LOCAL_DIRS"] = str(run), ""
    data = Path(tempfile.mkdtemp(prefix="fcl-memory-"))
    options = {"memory_budget": args.budget, "file_sync": "false"}
    # By the time of a replay nothing is due: by the interval, a few shards with each batch.
    options["materialization_interval"] = f"{max(args.materialize, 1)}s"
    try:
        return measure(args, data, options)
    finally:
        _internal.ServerClient(str(ServerPaths.here().socket)).shutdown()
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(data, ignore_errors=True)


def measure(args: argparse.Namespace, data: Path, options: dict[str, str]) -> int:
    """Feeds the server and prints what it held."""
    text, rng = spec(), np.random.default_rng(args.seed)
    handles: list[str | None] = [None] * args.shards
    root = f"file://{data}/state"
    number = 0

    def task(shard: int, payloads: list[bytes]) -> None:
        request = {
            "root": root,
            "query_id": "memory",
            "name": "default",
            "shard": shard,
            "shards": args.shards,
            "batch": number,
            "handle": handles[shard],
            "spec": text,
            "options": options,
        }
        with open_session(json.dumps(request), options) as session:
            for payload in payloads:
                session.merge(payload)
            for _ in session.finish():
                pass
            handles[shard], _, _ = session.commit()

    start = time.monotonic()
    filled = 0

    def feed(seconds: float) -> Watch:
        watch = Watch(ensure_server(options))
        with watch, ThreadPoolExecutor(2) as pool:
            while time.monotonic() - start < seconds:
                batch(pool)
        return watch

    def batch(pool: ThreadPoolExecutor) -> None:
        nonlocal filled, number
        if filled < args.keys:
            ids = np.arange(filled, min(filled + args.rows, args.keys))
            filled += len(ids)
        else:
            ids = rng.integers(0, args.keys, args.rows)
        splitter = _internal.Splitter(text, args.shards, GROUPS, PAYLOAD)
        payloads: dict[int, list[bytes]] = {shard: [] for shard in range(args.shards)}
        for rows in batches(rng, ids):
            for shard, payload in splitter.push(rows):
                payloads[shard].append(payload)
        for shard, payload in splitter.finish():
            payloads[shard].append(payload)
        list(pool.map(task, payloads.keys(), payloads.values()))
        number += 1

    if args.kill:
        first = feed(args.seconds / 2)
        report(args, first, number, filled)
        descriptor = os.pidfd_open(first.pid)
        os.kill(first.pid, signal.SIGKILL)
        select.select([descriptor], [], [])
        os.close(descriptor)
    return report(args, feed(args.seconds), number, filled)


def report(args: argparse.Namespace, watch: Watch, number: int, filled: int) -> int:
    """Prints the run; 1 if the budget did not hold."""
    budget = parse_size("budget", args.budget)
    steady = sorted(watch.samples[len(watch.samples) // 2 :])
    peak = watch.status("VmHWM")
    counters = json.loads(watch.client.metrics())
    print(
        f"budget {budget >> 20} MiB, {args.shards} shards, seed {args.seed}: {number} batches of {args.rows} rows, "
        f"{filled} keys; {counters['materializations_completed']} materializations, "
        f"{counters['restores']} restores, {counters['hot_evictions']} evictions"
    )
    p99, median = steady[len(steady) * 99 // 100], steady[len(steady) // 2]
    for what, value in (("peak", peak), ("p99", p99), ("median", median)):
        ratio = (value - watch.empty) / budget
        print(f"  resident, {what:6} {value >> 20:6} MiB, {ratio:.2f} x budget over the empty server")
    print(f"  empty server     {watch.empty >> 20:6} MiB")
    for name, value in sorted(watch.peaks.items()):
        print(f"  {name:28} at most {value / (1 << 20):8.1f} MiB, at the peak {watch.at_peak[name] / (1 << 20):8.1f}")
    return 0 if peak - watch.empty <= 1.2 * budget else 1


if __name__ == "__main__":
    sys.exit(main())
