"""A batch larger than the memory of its state server: `python benches/large_batch.py --keys 5000000 --budget 256MiB`.

Owns: one shard's batch of so many distinct keys through a state server of its own, the check of every result by a
formula, and what it took: time, resident memory of server and worker, bytes spilled and logged. Then a small batch on
top of it (the large version becomes live), and another one after a kill of the server (a restore).
Does not own: the specification (`bench_session`), how a server's memory is watched (`memory_run`).

Key `i` comes once with the value `i % 1000003`, and every tenth key once more, much later, with 1. Rows are made while
they are sent, so the worker holds one payload. Ends with 1 if the server's resident memory exceeds the budget by more
than three tenths, or a result is wrong.
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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bench_session import _INPUT, GROUPS, PAYLOAD, spec
from memory_run import SAMPLE, Watch

from fastchangelog import _internal
from fastchangelog.options import parse_size
from fastchangelog.server import ensure_server, open_session
from fastchangelog.server.paths import ServerPaths

ROWS = 50_000
"""Rows that are made at a time."""
STRIDE = 7_368_787
"""Prime: keys come in an order that has nothing to do with their numbers."""
SMALL = 10_000
"""Rows of the batches after the large one."""


class Memory(Watch):
    """Looks at the process only: a server that replays a version answers no question about its shards."""

    def _run(self) -> None:
        while not self._ending.wait(SAMPLE):
            self.samples.append(self.status("VmRSS"))


def value(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a key comes with first."""
    return ids % 1_000_003


def rows(ids: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """Rows of these keys."""
    key = pc.binary_join_element_wise("user-", pa.array(ids).cast(pa.string()), "")
    return pa.RecordBatch.from_arrays([key, pa.array(values.astype("f8")), pa.array(values)], schema=_INPUT)


def large(keys: int) -> Iterator[pa.RecordBatch]:
    """The rows of the large batch."""
    for start in range(0, keys, ROWS):
        ids = np.arange(start, min(start + ROWS, keys), dtype=np.int64) * STRIDE % keys
        yield rows(ids, value(ids))
    for start in range(0, keys, 10 * ROWS):
        ids = np.arange(start, min(start + 10 * ROWS, keys), 10, dtype=np.int64)
        yield rows(ids, np.ones(len(ids), np.int64))


class Check:
    """Whether every key came out once, with what it must have."""

    def __init__(self, keys: int, touched: np.ndarray[Any, Any] | None, batch: int) -> None:
        self.keys, self.touched, self.batch = keys, touched, batch
        self.bits, self.rows, self.wrong = np.zeros(keys // 8 + 1, np.uint8), 0, 0

    def see(self, batch: pa.RecordBatch) -> None:
        """Checks one batch of results."""
        ids = np.asarray(pc.cast(pc.utf8_slice_codeunits(batch.column(0).cast(pa.string()), 5), pa.int64()))
        count, total, most = (np.asarray(batch.column(i)) for i in (1, 2, 3))
        again = (ids % 10 == 0).astype(np.int64)
        base, small = value(ids), self.batch
        self.wrong += int((count != 1 + again + small).sum() + (total != base + again + small).sum())
        self.wrong += int((most != np.maximum(base, (again + small > 0).astype(np.int64))).sum())
        order = np.sort(ids)
        self.wrong += int((order[1:] == order[:-1]).sum()) + int((self.bits[ids >> 3] >> (ids & 7) & 1).sum())
        np.bitwise_or.at(self.bits, ids >> 3, (1 << (ids & 7)).astype(np.uint8))
        self.rows += len(ids)

    def passed(self) -> bool:
        """True if all was as it must be."""
        expected = self.keys if self.touched is None else len(self.touched)
        return self.wrong == 0 and self.rows == expected


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def batch(request: dict[str, Any], given: Iterator[pa.RecordBatch], check: Check) -> dict[str, Any]:
    """One session: its handle, its numbers and times."""
    text = request["spec"]
    begun = time.perf_counter()
    with open_session(json.dumps(request), request["options"]) as session:
        opened = time.perf_counter()
        splitter = _internal.Splitter(text, 1, GROUPS, PAYLOAD)
        first, most = 0, 0
        for some in given:
            for _, payload in splitter.push(some):
                session.merge(payload)
            most = max(most, resident())
            first = first or most
        for _, payload in splitter.finish():
            session.merge(payload)
        merged = time.perf_counter()
        for results in session.finish():
            check.see(results)
            most = max(most, resident())
        drained = time.perf_counter()
        handle, numbers, _ = session.commit()
    ended = time.perf_counter()
    times = {"open": opened - begun, "merge": merged - opened, "results": drained - merged, "commit": ended - drained}
    return {"handle": handle, "numbers": numbers, "seconds": ended - begun, "times": times, "worker": most - first}


def report(name: str, done: dict[str, Any], watch: Memory, budget: int, check: Check) -> bool:
    """Prints a batch; true if it was right."""
    peak, numbers = max(watch.samples, default=0), done["numbers"]
    times = ", ".join(f"{what} {seconds:.2f}" for what, seconds in done["times"].items())
    verdict = "exact" if check.passed() else "WRONG"
    log_bytes = numbers.get("log_bytes", 0) / 1e6
    print(
        f"  {name}: {done['seconds']:.1f} s ({times}); {check.rows:,} results, {verdict}; "
        f"server {peak >> 20} MiB = {peak / budget:.2f} x budget (empty {watch.empty >> 20} MiB), "
        f"worker +{done['worker'] >> 20} MiB; spilled {numbers.get('spilled_bytes', 0) / 1e6:.0f} MB in "
        f"{numbers.get('spills', 0)} runs, {numbers.get('ranges', 0)} ranges, log {log_bytes:.0f} MB",
        flush=True,
    )
    return check.passed()


def measure(args: argparse.Namespace, data: Path, options: dict[str, str], keys: int) -> bool:
    """A large batch, a small one, and one after a kill."""
    budget, good, handle = parse_size("budget", args.budget), True, None
    base = {"root": f"file://{data}/{keys}", "query_id": "large", "name": "default", "shard": 0, "shards": 1}
    base |= {"spec": spec(), "ephemeral": args.ephemeral, "options": options, "storage_options": {}, "checkpoint": None}
    touched = np.arange(0, keys, max(1, keys // SMALL), dtype=np.int64)
    names = ["large batch", "small batch on top", "small batch after a kill"]
    names = names[:1] if args.ephemeral or args.large_only else names
    for number, name in enumerate(names):
        watch = Memory(ensure_server(options))
        if number == 2:
            with os.fdopen(os.pidfd_open(watch.pid)) as descriptor:
                os.kill(watch.pid, signal.SIGKILL)
                select.select([descriptor], [], [])
            watch = Memory(ensure_server(options))
        check = Check(keys, touched if number else None, number)
        given = iter([rows(touched, np.ones(len(touched), np.int64))]) if number else large(keys)
        with watch:
            done = batch({**base, "batch": number, "handle": handle}, given, check)
        handle = done["handle"]
        peak = max(watch.samples, default=0)
        good &= report(name, done, watch, budget, check) and peak <= 1.3 * budget
    return good


def main() -> int:
    """One run for each number of keys."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--budget", default="256MiB")
    parser.add_argument("--ephemeral", action="store_true", help="as for a batch DataFrame: no state")
    parser.add_argument("--large-only", action="store_true", help="without the small batches")
    parser.add_argument("--materialize", action="store_true", help="with materializations, as by default")
    args = parser.parse_args()
    run = Path(tempfile.mkdtemp(prefix="fcl-", dir="/tmp"))  # short: the path of a socket has at most 107 bytes
    os.environ["XDG_RUNTIME_DIR"], os.environ["SPARK_LOCAL_DIRS"] = str(run), ""
    options = {"memory_budget": args.budget, "file_sync": "false"}
    if not args.materialize:
        never = {"log_ratio": "1e9", "log_bytes": "1TiB", "segments": "0", "interval": "100h", "replay_time": "100h"}
        options |= {f"materialization_{name}": text for name, text in never.items()}
    good = True
    for keys in args.keys:
        data = Path(tempfile.mkdtemp(prefix="fcl-large-"))
        print(f"{keys:,} keys, budget {args.budget}", flush=True)
        try:
            good &= measure(args, data, options, keys)
        finally:
            _internal.ServerClient(str(ServerPaths.here().socket)).shutdown()
            shutil.rmtree(data, ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
