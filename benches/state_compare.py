"""Embedded state against Flink's: RocksDB, and RocksDB behind the changelog, on this machine, taken in turns.

    state_compare.py [--rounds N] [--types Long Bytes100] [--place shm] [--large] [--out FILE]
                     [--flink-harness DIR --flink-dist DIR]
    state_compare.py --quick            our side alone, tiny: shows that it works, no more

In each round our side runs, then Flink's case G, each in a process of its own, so that the two meet the same quiet or
busy minutes. Shown are medians of the rounds with the lowest and the highest; CPU times too, which a busy machine
changes less. From the total of Flink's checkpoints its 10 ms of waiting for others are taken off.
Updates count until the checkpoint that makes them durable is applied, checkpoints until they are durable.
Keys are 8 bytes. Ours comes in Arrow batches from Python, Flink's in Java one by one: each as its users write it.

Owns: what is done on our side, the turns, the tables. Does not own: how Flink's figures are obtained (changelog_flink).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from changelog_flink import Harness, Pool, asked_harness, percentile
from compare_parts import Part
from compare_run import NO_BASES, machine
from spark_compare import show

import fastchangelog as fc

#: Of each of our figures, Flink's: without or with its changelog, and the factor that is wanted.
PAIRS: dict[str, tuple[bool, str, float | None]] = {
    "fill_wall_ms": (False, "fill_wall_ms", None),
    "update_wall_ms": (False, "random_update_wall_ms", 3),
    "update_cpu_ms": (False, "random_update_cpu_ms", 3),
    "update_durable_wall_ms": (True, "random_update_wall_ms", 3),
    "update_durable_cpu_ms": (True, "random_update_cpu_ms", 3),
    "read_update_wall_ms": (False, "random_read_update_wall_ms", 5),
    "read_update_cpu_ms": (False, "random_read_update_cpu_ms", 5),
    "read_update_durable_wall_ms": (True, "random_read_update_wall_ms", 5),
    "read_update_durable_cpu_ms": (True, "random_read_update_cpu_ms", 5),
    "ckpt_1pct_sync_ms": (True, "ckpt2_1pct_sync_ms", 1),
    "ckpt_1pct_total_ms": (True, "ckpt2_1pct_total_ms", 1),
    "base_1pct_sync_ms": (True, "materialize2_1pct_sync_ms", 1),
    "base_1pct_wall_ms": (True, "materialize2_1pct_wall_ms", None),
    "base_1pct_mb": (False, "ckpt2_1pct_uploaded_mb", 1 / 1.5),
    "restore_1change_ms": (True, "restore_log_1change_wall_ms", 1),
    "restore_10mb_ms": (True, "restore_log_10mb_wall_ms", 3),
}
#: Milliseconds that Flink waits before it uploads.
DELAY = {"ckpt_1pct_total_ms": 10.0}
#: Changes in 10 MB of Flink's log.
TEN_MB = {"Long": 499_310, "Bytes100": 86_183}


class Ours:
    """One run of our side."""

    def __init__(self, folder: Path, kind: str, keys: int, batch: int) -> None:
        self.folder, self.kind, self.keys, self.batch = folder, kind, keys, batch
        self.random = np.random.default_rng(1)
        self.pool = Pool(65_537, 100, 11, max(batch, keys // 100)) if kind == "Bytes100" else None
        self.figures: dict[str, float] = {}
        shutil.rmtree(folder, ignore_errors=True)

    def open(self, **how: Any) -> None:
        """Opens, or opens again."""
        sync = how.pop("file_sync", False)
        options = {"file_sync": sync, "memory_budget": "3GiB", **NO_BASES}
        self.state = fc.open_state(str(self.folder), options=options, **how)
        value = "long" if self.pool is None else "binary"
        self.table = self.state.value_state("v", key="long", value=value)

    def values(self, keys: Any, phase: int) -> Any:
        """As many values, other ones in each phase."""
        if self.pool is None:
            return keys * 4 + phase
        return self.pool.take(int(self.random.integers(self.pool.count)), len(keys))

    def timed(self, name: str, work: Callable[[], object]) -> None:
        """Wall and CPU time of all threads."""
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        self.figures[f"{name}_wall_ms"] = (time.perf_counter() - wall) * 1e3
        self.figures[f"{name}_cpu_ms"] = (time.process_time() - cpu) * 1e3

    def durable(self, name: str, work: Callable[[], object]) -> None:
        """Some changes; the checkpoint that makes them durable; both; and the log's part of both: encode, write."""
        before = self.state.metrics()
        self.timed(name, work)
        self.timed(f"{name}_ckpt", self.settled_checkpoint)
        after = self.state.metrics()
        log = sum(after[part] - before[part] for part in ("encode_micros", "persist_micros")) / 1e3
        for unit in ("wall_ms", "cpu_ms"):
            both = self.figures[f"{name}_{unit}"] + self.figures[f"{name}_ckpt_{unit}"]
            self.figures[f"{name}_durable_{unit}"] = both
        self.figures[f"{name}_log_share"] = log / self.figures[f"{name}_durable_wall_ms"]

    def settled_checkpoint(self) -> None:
        """Until it is applied."""
        self.state.checkpoint()
        self.settle()

    def settle(self) -> None:
        """Waits until the newest checkpoint is applied; `checkpoint` itself returns when it is durable."""
        self.state._native.progress()

    def fill(self) -> None:
        """Every key once; a checkpoint after each million that is not the last."""
        for at in range(0, self.keys, self.batch):
            if at and at % 1_000_000 == 0:
                self.state.checkpoint()
            keys = np.arange(at, min(at + self.batch, self.keys))
            self.table.put_many(keys, self.values(keys, 0))

    def update(self, changes: int, read: bool = False) -> None:
        """Random keys; read before, if asked for."""
        for at in range(0, changes, self.batch):
            keys = self.random.integers(0, self.keys, min(self.batch, changes - at))
            if read and self.table.get_many(keys).null_count:
                raise AssertionError("a key is missing")
            self.table.put_many(keys, self.values(keys, 1))

    def one_percent(self, phase: int) -> None:
        """Every hundredth key."""
        keys = np.arange(0, self.keys, 100)
        self.table.put_many(keys, self.values(keys, phase))

    def checkpoint(self) -> tuple[float, float]:
        """Milliseconds in which the caller waits, and until it is durable."""
        began = time.perf_counter()
        future = self.state.begin_checkpoint()
        back = time.perf_counter()
        future.result()
        return (back - began) * 1e3, (time.perf_counter() - began) * 1e3

    def many_checkpoints(self, name: str, count: int, changes: int, work: Callable[[], object]) -> None:
        """The spread of checkpoints of so many random changes."""
        found = []
        for _ in range(count):
            work()
            self.update(changes)
            found.append(self.checkpoint())
        for part, values in zip(("sync", "total"), zip(*found)):
            for percent in (50, 99):
                self.figures[f"{name}_{part}_p{percent}_ms"] = percentile(list(values), percent / 100)

    def base(self, name: str) -> None:
        """A materialization; the next checkpoint carries it."""
        before = self.state.metrics()["materialize_bytes"]
        began = time.perf_counter()
        run = self.state._native.begin_materialize()
        self.figures[f"{name}_sync_ms"] = (time.perf_counter() - began) * 1e3
        if run is None:
            raise AssertionError("nothing to materialize")
        self.finish(run)
        self.figures[f"{name}_wall_ms"] = (time.perf_counter() - began) * 1e3
        self.figures[f"{name}_mb"] = (self.state.metrics()["materialize_bytes"] - before) / 1e6
        self.state.checkpoint()

    @staticmethod
    def finish(run: Any) -> None:
        """The long part."""
        over: Future[None] = Future()
        run.start(lambda _, error: over.set_result(None) if error is None else over.set_exception(error))
        over.result()
        run.complete()

    def always_a_base(self) -> None:
        """Keeps a materialization under way."""
        bases = self.state._materializer
        if bases is not None:
            bases.materializer.trigger()
            bases.poll()

    def reopen(self, name: str) -> None:
        """A restore, with one look-up."""
        self.state.close(checkpoint=False)
        began = time.perf_counter()
        self.open(read_only=True)
        if self.table.get_many([0]).null_count:
            raise AssertionError("a key is missing")
        self.figures[name] = (time.perf_counter() - began) * 1e3
        self.state.close()
        self.open()

    def spread(self, keys: int, count: int, during: bool) -> None:
        """Checkpoints of a state of so many keys, alone and while snapshots are made."""
        self.keys, name = keys, f"{keys // 1000}k"
        self.open()
        self.fill()
        self.state.checkpoint()
        self.settle()
        self.many_checkpoints(f"{name}_keys", count, 1000, lambda: None)
        if during:
            self.many_checkpoints(f"{name}_keys_base_running", count, 1000, self.always_a_base)
            self.figures[f"{name}_bases"] = self.state.metrics()["materializations_completed"]
        self.state.close(checkpoint=False)
        shutil.rmtree(self.folder)

    def run(self, sizes: list[int], count: int) -> dict[str, float]:
        """All of it."""
        self.open()
        self.durable("fill", self.fill)
        self.durable("update", lambda: self.update(self.keys))
        self.durable("read_update", lambda: self.update(self.keys // 4, read=True))
        self.base("base")
        found = []
        for phase in range(2, 12):
            self.one_percent(phase)
            found.append(self.checkpoint())
            self.settle()
        sync, total = zip(*found)
        self.figures["ckpt_1pct_sync_ms"] = statistics.median(sync)
        self.figures["ckpt_1pct_total_ms"] = statistics.median(total)
        self.base("base_1pct")
        self.update(1)
        self.state.checkpoint()
        self.reopen("restore_1change_ms")
        self.update(TEN_MB[self.kind] * self.keys // 1_000_000)
        self.state.checkpoint()
        self.reopen("restore_10mb_ms")
        self.state.close()
        self.open(file_sync=True)
        found = []
        for phase in range(12, 22):
            self.one_percent(phase)
            found.append(self.checkpoint())
            self.settle()
        self.figures["ckpt_1pct_synced_total_ms"] = statistics.median(total for _, total in found)
        self.state.close()
        shutil.rmtree(self.folder)
        for keys in sizes:
            self.spread(keys, count, during=True)
        return self.figures


def in_own_process(folder: Path, kind: str, args: argparse.Namespace) -> dict[str, float]:
    """Our side in a new interpreter."""
    plan = {"folder": str(folder), "kind": kind, "keys": args.keys, "batch": args.batch_rows}
    plan |= {"sizes": args.sizes, "count": args.checkpoints}
    done = subprocess.run([sys.executable, __file__, json.dumps(plan)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def flink(harness: Harness, kind: str, place: str) -> dict[bool, dict[str, float]]:
    """Flink's figures, without and with its changelog."""
    found = harness.run(f"G-{kind}", place, 1, 1, (100,))
    return {bool(figures.params["changelog"]): figures.median for figures in found}


def span(values: list[float]) -> str:
    """Median and range."""
    low, middle, high = (f"{value:.4g}" for value in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}..{high})"


def tables(kind: str, ours: list[dict[str, float]], theirs: list[dict[bool, dict[str, float]]]) -> list[Part]:
    """What was found, for people."""
    rows = []
    for name, (changelog, flinks, wanted) in PAIRS.items():
        mine = [found[name] for found in ours]
        cells = [name, span(mine)]
        if theirs:
            other = [found[changelog][flinks] - DELAY.get(name, 0) for found in theirs]
            ratio = statistics.median(o / max(m, 1e-6) for o, m in zip(other, mine))
            verdict = "" if wanted is None else f">= {wanted:.2g}: {'met' if ratio >= wanted else 'MISSED'}"
            cells += [span(other) + (" changelog" if changelog else ""), f"{ratio:.3g}x", verdict]
        rows.append(cells)
    head = ["", "ours", *(["Flink", "Flink/ours", "wanted"] if theirs else [])]
    rest = [[name, span([found[name] for found in ours])] for name in ours[0] if name not in PAIRS]
    return [Part(f"{kind}: beside Flink", head, rows, None), Part(f"{kind}: ours", ["", "ours"], rest, None)]


def main() -> int:
    """Takes turns."""
    args = _arguments()
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}")
    work = Path(tempfile.mkdtemp(prefix="fcl-bench-", dir="/dev/shm" if args.place == "shm" else args.work))
    result: dict[str, Any] = {"machine": about, "types": {}}
    try:
        harness = asked_harness(args, work, work)
        for kind in args.types:
            ours, theirs = [], []
            for turn in range(args.rounds):
                ours.append(in_own_process(work / "ours", kind, args))
                if harness is not None:
                    theirs.append(flink(harness, kind, args.place))
                print(f"{kind}, round {turn + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            result["types"][kind] = {"ours": ours, "flink": theirs}
            for part in tables(kind, ours, theirs):
                show(part)
            if args.out:
                args.out.write_text(json.dumps(result, indent=1, default=str))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="our side alone, tiny sizes: shows that it works, no more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--types", nargs="+", default=list(TEN_MB), choices=list(TEN_MB))
    parser.add_argument("--place", choices=["shm", "disk"], default="disk")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch-rows", type=int, default=20_000)
    parser.add_argument("--checkpoints", type=int, default=200, help="of which the spread is taken")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 1_000_000], help="keys, for the spread")
    parser.add_argument("--large", action="store_true", help="the spread with ten million keys, too")
    parser.add_argument("--flink-harness", type=_folder)
    parser.add_argument("--flink-dist", type=_folder, help="the jars")
    parser.add_argument("--work", type=_folder, default=_folder(tempfile.gettempdir()), help="where `disk` is")
    parser.add_argument("--out", type=_folder)
    args = parser.parse_args()
    if args.large:
        args.sizes.append(10_000_000)
    if args.quick:
        args.keys, args.rounds, args.batch_rows, args.checkpoints, args.sizes = 20_000, 1, 1_000, 10, [1_000]
    return args


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        given = json.loads(sys.argv[1])
        one = Ours(Path(given["folder"]), given["kind"], given["keys"], given["batch"])
        print(json.dumps(one.run(given["sizes"], given["count"])))
    else:
        raise SystemExit(main())
