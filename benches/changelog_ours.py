"""Our side of the changelog comparison: appends, persists and replays through the public API, case by case.

    changelog_ours.py '{"case": "A", "place": "shm", …}'      one case; its figures as JSON on the last line

Owns: what each case does on our side. Does not own: Flink's side and what both have in common, values above all
(changelog_flink); which cases meet, and what is derived from them (changelog_compare).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from changelog_flink import GROUPS, Clock, Figures, Pool, held, key_groups, measure, percentile, pool_size

import fastchangelog as fc

THRESHOLD = 5 << 20
COMPRESSED = ("lz4", "zstd")
WRITERS = 16
MODES = ("open_only_1thread", "read_1thread", "read_8threads", "read_1thread_direct")


@dataclasses.dataclass(frozen=True)
class Plan:
    """One case at one place, and how often."""

    case: str
    place: str
    folder: str
    runs: int
    warm: int
    quick: bool
    batch_rows: int
    sizes: tuple[int, ...]
    options: dict[str, str]

    def fresh(self, name: str) -> Path:
        """An empty folder; nothing of an earlier run still waits for its write-back."""
        target = Path(self.folder) / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if self.place == "disk" and not self.quick:
            os.sync()
        return target

    def changes(self, size: int) -> int:
        """How many changes there are to append or to replay."""
        if self.quick:
            return 5_000 if size >= 1000 else 20_000
        return 1_000_000_000 // size if size >= 1000 else 5_000_000

    def pool(self, size: int, seed: int, longest: int) -> Pool:
        """The values."""
        return Pool(1_021 if self.quick else pool_size(size), size, seed, longest)

    def storage(self, folder: Path, compression: str = "none", **options: str) -> Any:
        """The changelog of a folder. Flink's defaults where it has the option; Flink never syncs."""
        base = {
            "compression": compression,
            "preemptive_persist_threshold": "256KiB" if self.quick else str(THRESHOLD),
            "persist_delay": "10ms",
            "file_sync": "false",
        }
        return fc.ChangelogStorage(folder.as_uri(), options={**base, **options, **self.options})

    def measure(self, params: dict[str, Any], run: Callable[[], dict[str, float]]) -> Figures:
        """All runs of a case."""
        params = {"place": self.place, "compression": "none", **params}
        return measure(self.case, params, self.warm, self.runs, run)


# A: batches of appends until all is durable.


def append(plan: Plan) -> list[Figures]:
    """Each run has a storage of its own."""
    syncs = ("false", "true") if plan.case == "A" and plan.place == "disk" else ("false",)
    variants = list(itertools.product(COMPRESSED if plan.case == "Acomp" else ("none",), syncs))
    out = []
    for size in plan.sizes:
        pool, changes, fresh = plan.pool(size, 42, plan.batch_rows), plan.changes(size), plan.case == "Acopy"
        for compression, sync in variants:
            run = partial(_append_run, plan, pool, fresh, compression, sync)
            run(1_000)
            peak: dict[str, float] = {}
            run(changes, peak)
            params = {"size": size, "changes": changes, "compression": compression, "sync": sync, "fresh": fresh}
            found = plan.measure(params, partial(run, changes))
            for part in (found.median, found.low, found.high):
                part.update(peak)
            out.append(found)
    return out


def _append_run(
    plan: Plan, pool: Pool, fresh: bool, compression: str, sync: str, changes: int, peak: dict[str, float] | None = None
) -> dict[str, float]:
    folder = plan.fresh("a")
    with (
        plan.storage(folder, compression, file_sync=sync) as storage,
        contextlib.nullcontext() if peak is None else _watched(storage, peak),
    ):
        return _append(plan, folder, storage, pool, changes, fresh)[1]


def _append(
    plan: Plan, folder: Path, storage: Any, pool: Pool, changes: int, fresh: bool = False
) -> tuple[Any, dict[str, float]]:
    groups = key_groups(plan.batch_rows + GROUPS)
    writer = storage.writer("op", key_groups=range(GROUPS))
    start = writer.next_sequence_number
    clock = Clock()
    for at in range(0, changes, plan.batch_rows):
        rows = min(plan.batch_rows, changes - at)
        writer.append_batch(groups[at % GROUPS : at % GROUPS + rows], pool.take(at, rows, fresh))
    appended = clock.wall_ms()
    handle = writer.persist(start, checkpoint_id=1).result()
    found = {**clock.figures(), "append_wall_ms": appended, **held(folder)}
    writer.close()
    return handle, found


@contextlib.contextmanager
def _watched(storage: Any, out: dict[str, float]) -> Iterator[None]:
    """The memory's peak above what is taken now; and the most that was in flight, with a set that is being filled."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before, most, done = _memory("VmRSS"), float(storage.metrics()["in_flight_bytes"]), threading.Event()

    def look() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, storage.metrics()["in_flight_bytes"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    out["peak_mb"] = (_memory("VmHWM") - before) / 1e6
    out["in_flight_mb"] = (most + THRESHOLD) / 1e6
    out["peak_over_in_flight"] = out["peak_mb"] / out["in_flight_mb"]


def _memory(name: str) -> int:
    path = Path("/proc/self/status")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


# A1: a call.


def scalar(plan: Plan) -> list[Figures]:
    """One `append` beside one `list.append` of the same object; below the threshold, so that no upload runs."""
    out = []
    for size in plan.sizes:
        value = plan.pool(size, 42, 1).objects(1)[0]
        calls = 50 if plan.quick else min(50_000, THRESHOLD // (2 * size))
        blocks = 3 if plan.quick else max(20, 2_000_000 // calls)
        with plan.storage(plan.fresh("a1")) as storage:
            writer = storage.writer("op", key_groups=range(GROUPS))
            params = {"size": size, "calls": calls * blocks}
            out.append(plan.measure(params, partial(_scalar_run, writer, value, calls, blocks)))
            writer.close()
    return out


def _scalar_run(writer: Any, value: bytes, calls: int, blocks: int) -> dict[str, float]:
    gc.disable()
    try:
        spans = list(zip(*[_calls(writer, value, calls) for _ in range(blocks)], strict=True))
    finally:
        gc.enable()
    ours, beside, bound, bound_beside, loop = (statistics.median(span) for span in spans)
    return {
        "append_ns": ours,
        "list_ns": beside,
        "loop_ns": loop,
        "over_list": ours / beside,
        "over_list_bound": bound / bound_beside,
        "over_list_less_loop": (ours - loop) / max(0.1, beside - loop),
    }


def _calls(writer: Any, value: bytes, calls: int) -> list[float]:
    """Nanoseconds of a turn: ours, a list's, both again with the method looked up before, and of an empty loop."""
    now, turns = time.perf_counter_ns, range(calls)
    items: list[bytes] = []
    begun = now()
    for _ in turns:
        writer.append(7, value)
    ours = now()
    for _ in turns:
        items.append(value)
    listed = now()
    writer.truncate(writer.rollover())
    items = []
    append, add = writer.append, items.append
    again = now()
    for _ in turns:
        append(7, value)
    bound = now()
    for _ in turns:
        add(value)
    bound_listed = now()
    for _ in turns:
        pass
    ended = now()
    writer.truncate(writer.rollover())
    spans = [ours - begun, listed - ours, bound - again, bound_listed - bound, ended - bound_listed]
    return [span / calls for span in spans]


# B: the wait for a persist.


def persist(plan: Plan) -> list[Figures]:
    """Some bytes are outstanding: how long until they are durable?"""
    delay, rounds, size = int(plan.case[1:]), 5 if plan.quick else 200, 100
    out = []
    for outstanding in (10_000, 100_000) if plan.quick else (10_000, 1_000_000, 4_000_000):
        pool = plan.pool(size, 7, outstanding // size)
        params = {"outstanding": outstanding, "delay_ms": delay, "rounds": rounds}
        out.append(plan.measure(params, partial(_persist_run, plan, pool, outstanding // size, delay, rounds)))
    return out


def _persist_run(plan: Plan, pool: Pool, rows: int, delay: int, rounds: int) -> dict[str, float]:
    folder, groups = plan.fresh("b"), key_groups(rows)
    waits, calls = [], []
    with plan.storage(folder, persist_delay=f"{delay}ms") as storage:
        writer = storage.writer("op", key_groups=range(GROUPS))
        clock = Clock()
        for number in range(rounds):
            start = writer.next_sequence_number
            writer.append_batch(groups, pool.take(number * rows, rows))
            asked = Clock()
            future = writer.persist(start, checkpoint_id=number + 1)
            calls.append(asked.wall_ms())
            future.result()
            waits.append(asked.wall_ms())
        found = {**clock.figures(), **held(folder), "max_ms": max(waits), "call_p50_ms": percentile(calls, 0.5)}
        writer.close()
    return {**found, "p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}


# C: many writers.


def many(plan: Plan) -> list[Figures]:
    """The writers of one storage persist together; appended in batches, and change by change in turns as Flink is."""
    size, out = 100, []
    for changes, rounds in ((100, 3), (500, 1)) if plan.quick else ((300_000, 1), (1_000, 50)):
        pool = plan.pool(size, 9, min(changes, plan.batch_rows))
        for form, function in (("batch", _batches(plan, pool, changes)), ("scalar", _scalars(pool, changes))):
            run = partial(_many_run, plan, function, rounds)
            out.append(plan.measure({"changes_each_per_round": changes, "rounds": rounds, "form": form}, run))
    return out


def _many_run(plan: Plan, appended: Callable[[list[Any]], None], rounds: int) -> dict[str, float]:
    folder, each = plan.fresh("c"), GROUPS // WRITERS
    waits, appending = [], 0.0
    with plan.storage(folder) as storage:
        parts = [range(number * each, (number + 1) * each) for number in range(WRITERS)]
        writers = [storage.writer(f"op{n}", key_groups=part) for n, part in enumerate(parts)]
        clock = Clock()
        for number in range(rounds):
            starts = [writer.next_sequence_number for writer in writers]
            begun = Clock()
            appended(writers)
            appending += begun.wall_ms()
            begun = Clock()
            futures = [w.persist(start, checkpoint_id=number + 1) for w, start in zip(writers, starts, strict=True)]
            for future in futures:
                future.result()
            waits.append(begun.wall_ms())
        found = {**clock.figures(), **held(folder), "append_wall_ms": appending}
        for writer in writers:
            writer.close()
    found["objects_per_round"] = found["objects"] / rounds
    return {**found, "persist_all_p50_ms": percentile(waits, 0.5), "persist_all_p99_ms": percentile(waits, 0.99)}


def _batches(plan: Plan, pool: Pool, changes: int) -> Callable[[list[Any]], None]:
    each, longest = GROUPS // WRITERS, min(changes, plan.batch_rows)
    groups = [key_groups(longest) % np.uint16(each) + np.uint16(number * each) for number in range(WRITERS)]

    def function(writers: list[Any]) -> None:
        for at in range(0, changes, longest):
            rows = min(longest, changes - at)
            for number, writer in enumerate(writers):
                writer.append_batch(groups[number][:rows], pool.take(at + number * rows, rows))

    return function


def _scalars(pool: Pool, changes: int) -> Callable[[list[Any]], None]:
    each, values = GROUPS // WRITERS, pool.objects(min(changes, pool.count))

    def function(writers: list[Any]) -> None:
        for at, value in zip(range(changes), itertools.cycle(values)):
            group = at % each
            for writer in writers:
                writer.append(group, value)
                group += each

    return function


# D, E, R: reading.


def _written(plan: Plan, folder: Path, compression: str, changes: int) -> tuple[Any, tuple[int, int]]:
    """Changes of 100 bytes: their handle, and what `_read` must find."""
    pool = plan.pool(100, 42, plan.batch_rows)
    with plan.storage(folder, compression) as storage:
        handle, _ = _append(plan, folder, storage, pool, changes)
    rounds, rest = divmod(changes, GROUPS)
    return handle, (changes, pool.first_bytes(changes) + rounds * sum(range(GROUPS)) + sum(range(rest)))


def _read(batches: Any, size: int = 100) -> tuple[int, int]:
    """Changes; and all key groups and first bytes added up, so that each value is touched."""
    rows = total = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        values = batch.column("value")
        _, offsets, data = values.buffers()
        kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        at = np.frombuffer(offsets, kind)[values.offset : values.offset + batch.num_rows + 1]
        if at[-1] - at[0] != batch.num_rows * size:
            raise RuntimeError(f"{batch.num_rows} values have {at[-1] - at[0]} bytes, not {size} each")
        first = np.frombuffer(data, np.uint8)[at[0] : at[-1] : size]
        rows += batch.num_rows
        total += int(first.sum(dtype=np.int64)) + int(pc.sum(batch.column("key_group")).as_py())
    return rows, total


def replay(plan: Plan) -> list[Figures]:
    """All changes again, straight from the store, or through a cache that is empty at first."""
    kind, changes = "with_cache" if plan.case == "Dcache" else "direct", plan.changes(100)
    out = []
    for compression in ("none", *COMPRESSED):
        folder = plan.fresh("d")
        handle, expected = _written(plan, folder, compression, changes)
        run = partial(_replay_run, plan, folder, compression, kind, handle, expected)
        out.append(plan.measure({"reader": kind, "changes": changes, "compression": compression}, run))
    return out


def _replay_run(
    plan: Plan, folder: Path, compression: str, kind: str, handle: Any, expected: tuple[int, int]
) -> dict[str, float]:
    cache = plan.fresh("dcache") if kind == "with_cache" else None
    with plan.storage(folder, compression) as storage:
        before = storage.metrics()
        clock = Clock()
        with storage.reader(cache_dir=cache) as reader:
            got = _read(reader.read_batches(handle))
            found = clock.figures()
        after = storage.metrics()
    if got != expected:
        raise RuntimeError(f"written were {expected}, read {got}")
    found["requests"] = after["store_requests"] - before["store_requests"]
    found["mb_read"] = (after["store_bytes_read"] - before["store_bytes_read"]) / 1e6
    return {**found, **held(folder)}


def sets(plan: Plan) -> list[Figures]:
    """One object with many change sets, each read by a handle of its own, in no order."""
    number, rows = (4, 500) if plan.quick else (64, 10_486)
    wide = {"preemptive_persist_threshold": "512MiB", "persist_size_threshold": "512MiB", "max_in_flight": "1GiB"}
    pool, groups, out = plan.pool(100, 5, rows), key_groups(rows), []
    for compression in ("none", *COMPRESSED):
        folder = plan.fresh("e")
        # Persists that wait for one another share an object.
        with plan.storage(folder, compression, persist_delay="100ms" if plan.quick else "1s", **wide) as storage:
            writer = storage.writer("op", key_groups=range(GROUPS))
            futures = []
            for at in range(number):
                start = writer.next_sequence_number
                writer.append_batch(groups, pool.take(at * rows, rows))
                futures.append(writer.persist(start, checkpoint_id=at + 1))
            handles = [future.result() for future in futures]
            writer.close()
        random.Random(1).shuffle(handles)
        for mode in MODES:
            run = partial(_sets_run, plan, folder, compression, mode, handles, rows)
            out.append(plan.measure({"mode": mode, "change_sets": number, "compression": compression}, run))
    return out


def _sets_run(plan: Plan, folder: Path, compression: str, mode: str, handles: list[Any], rows: int) -> dict[str, float]:
    cache = None if mode.endswith("direct") else plan.fresh("ecache")
    threads = 8 if "8threads" in mode else 1
    with plan.storage(folder, compression) as storage:
        clock = Clock()
        with storage.reader(cache_dir=cache) as reader:

            def some(first: int) -> int:
                mine = (reader.read_batches(handle) for handle in handles[first::threads])
                if mode.startswith("open"):
                    return sum(rows for batches in mine if next(iter(batches)).num_rows)
                return sum(_read(batches)[0] for batches in mine)

            with ThreadPoolExecutor(threads) as workers:
                got = sum(workers.map(some, range(threads)))
            found = clock.figures()
    if got != len(handles) * rows:
        raise RuntimeError(f"written were {len(handles) * rows} changes, read {got}")
    return {**found, **held(folder)}


def rescale(plan: Plan) -> list[Figures]:
    """What a reader of an eighth of the key groups fetches, beside a reader of all."""
    changes, out = 50_000 if plan.quick else 2_000_000, []
    for compression, kind in itertools.product(("none", *COMPRESSED), ("direct", "with_cache")):
        folder = plan.fresh("r")
        handle, _ = _written(plan, folder, compression, changes)
        run = partial(_rescale_run, plan, folder, compression, kind, handle, changes)
        out.append(plan.measure({"reader": kind, "changes": changes, "compression": compression}, run))
    return out


def _rescale_run(plan: Plan, folder: Path, compression: str, kind: str, handle: Any, changes: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, part in (("all", range(GROUPS)), ("part", range(GROUPS // 8))):
        cache = plan.fresh("rcache") if kind == "with_cache" else None
        with plan.storage(folder, compression) as storage:
            before, clock = storage.metrics()["store_bytes_read"], Clock()
            with storage.reader(cache_dir=cache) as reader:
                rows, _ = _read(reader.read_batches(handle, key_groups=part))
                found[f"{name}_ms"] = clock.wall_ms()
            found[f"{name}_mb"] = (storage.metrics()["store_bytes_read"] - before) / 1e6
        expected = changes // GROUPS * len(part) + min(changes % GROUPS, len(part))
        if rows != expected:
            raise RuntimeError(f"{expected} changes are of {part}, read {rows}")
    return {**found, "part_over_all": found["part_mb"] / max(1e-9, found["all_mb"])}


CASES: dict[str, Callable[[Plan], list[Figures]]] = {
    "A": append,
    "A1": scalar,
    "Acomp": append,
    "Acopy": append,
    "B0": persist,
    "B10": persist,
    "C": many,
    "D": replay,
    "Dcache": replay,
    "E": sets,
    "R": rescale,
}


def run_case(plan: Plan) -> list[Figures]:
    """Runs a case; its folder is gone afterwards."""
    try:
        return CASES[plan.case](plan)
    finally:
        shutil.rmtree(plan.folder, ignore_errors=True)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    answer = run_case(Plan(**{**request, "sizes": tuple(request["sizes"])}))
    print(json.dumps([dataclasses.asdict(found) for found in answer]))
