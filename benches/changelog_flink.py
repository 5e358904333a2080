"""Flink's side of the changelog comparison: a harness outside this project that drives Flink's own writer and readers.

Owns: how the harness is run and its answer read; and what our side has in common with it: the values that go through,
which runs count, percentiles, the shape of figures. Does not own: our cases (changelog_ours), what is derived from the
two sides (changelog_compare).

The harness is a folder with `run.sh DIST OUT CASE:PLACE …`; it compiles itself against the jars in DIST and leaves in
OUT a JSON list with, for each case, its parameters and the median, lowest and highest value of every figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

GROUPS = 128
PATTERN = b"user=000000;state=active;"
#: A run in which other processes had more than this many cores is done again.
FOREIGN_CORES = 0.2
#: The harness's cases and its names for them.
CASES = {
    "A": "A.append",
    "Acomp": "A.append",
    "Acopy": "A.append",
    "B0": "B.persist",
    "B10": "B.persist",
    "C": "C.batching",
    "D": "D.replay",
    "Dcache": "D.replay",
    "E": "E.cache",
    "F-Long": "F.rocksdb",
    "F-Bytes100": "F.rocksdb",
    "G-Long": "G.changelog_backend",
    "G-Bytes100": "G.changelog_backend",
}
#: Its names of what we name otherwise.
_NAMES = {
    "loc": "place",
    "fresh_value_arrays": "fresh",
    "files": "objects",
    "files_per_round": "objects_per_round",
    "file_mb": "object_mb",
}


@dataclasses.dataclass(frozen=True)
class Figures:
    """What the runs of one case gave: of each figure the median, the lowest and the highest."""

    case: str
    params: dict[str, Any]
    median: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]


class FlinkFailed(Exception):
    """The harness gave no figures."""


@dataclasses.dataclass(frozen=True)
class Harness:
    """Where it is, and where it may write."""

    folder: Path
    dist: Path
    work: Path
    shm: Path

    def problem(self) -> str | None:
        """Why it cannot run."""
        if not (self.folder / "run.sh").is_file():
            return f"no run.sh in {self.folder}"
        if not list(self.dist.glob("flink-dist-*.jar")):
            return f"no flink-dist-*.jar in {self.dist}"
        missing = [tool for tool in ("bash", "java", "javac") if shutil.which(tool) is None]
        return f"not found: {', '.join(missing)}" if missing else None

    def run(self, case: str, place: str, runs: int, warm: int, sizes: tuple[int, ...]) -> list[Figures]:
        """One case in a JVM of its own, which is gone when this returns."""
        self.work.mkdir(parents=True, exist_ok=True)
        out = self.work / "out.json"
        for old in (out, self.work / "figures.jsonl"):
            old.unlink(missing_ok=True)
        java = f"{os.environ.get('JOPTS', '')} -Dsizes={','.join(map(str, sizes))}".strip()
        own = {"WORK": str(self.work), "SHM": str(self.shm), "RUNS": str(runs), "WARM": str(warm), "JOPTS": java}
        command = ["bash", str(self.folder / "run.sh"), str(self.dist), str(out), f"{case}:{place}"]
        done = subprocess.run(
            command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        rows = json.loads(out.read_text()) if out.exists() else []
        if done.returncode or not rows:
            raise FlinkFailed(f"{case}:{place} gave no figures:\n{done.stdout[-2000:]}")
        return [_figures(case, row) for row in rows]


def asked_harness(args: argparse.Namespace, work: Path, shm: Path) -> Harness | None:
    """The harness that the options name; none without one, or for a quick round. Ends the program if it cannot run."""
    if args.quick or not (args.flink_harness and args.flink_dist):
        return None
    harness = Harness(args.flink_harness, args.flink_dist, work / "flink", shm / "flink-shm")
    if problem := harness.problem():
        print(f"Flink cannot run: {problem}", file=sys.stderr)
        raise SystemExit(2)
    return harness


def _figures(case: str, row: dict[str, Any]) -> Figures:
    if row["case"] != CASES[case]:
        raise FlinkFailed(f"{case} gave figures of {row['case']}")
    params = {_NAMES.get(name, name): value for name, value in row["params"].items()}
    # Of case E, the object's size is a parameter.
    held = {"object_mb": float(params.pop("object_mb"))} if "object_mb" in params else {}
    parts = [{**_renamed(row[part]), **held} for part in ("median", "min", "max")]
    return Figures(case, params, *parts)


def _renamed(figures: dict[str, float | None]) -> dict[str, float]:
    return {_NAMES.get(name, name): value for name, value in figures.items() if value is not None}


class Clock:
    """One interval: wall time, and CPU time of all threads."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter_ns(), time.process_time_ns()

    def wall_ms(self) -> float:
        """Since the start."""
        return (time.perf_counter_ns() - self._wall) / 1e6

    def figures(self) -> dict[str, float]:
        """Both since the start."""
        return {"wall_ms": self.wall_ms(), "cpu_ms": (time.process_time_ns() - self._cpu) / 1e6}


def held(folder: Path) -> dict[str, float]:
    """What the store holds."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"objects": len(sizes), "object_mb": sum(sizes) / 1e6}


def measure(case: str, params: dict[str, Any], warm: int, runs: int, run: Callable[[], dict[str, float]]) -> Figures:
    """Warm-up runs, then the measured ones; noisy ones are done again, and the calmest count."""
    for _ in range(warm):
        run()
    calm: list[dict[str, float]] = []
    noisy: list[dict[str, float]] = []
    while len(calm) < runs and len(calm) + len(noisy) < 2 * runs:
        gc.collect()
        machine, own, began = _machine_cpu_s(), time.process_time(), time.perf_counter()
        found = run()
        busy = (_machine_cpu_s() - machine) - (time.process_time() - own)
        found["other_cores"] = busy / (time.perf_counter() - began)
        (calm if found["other_cores"] <= FOREIGN_CORES else noisy).append(found)
    noisy.sort(key=lambda found: found["other_cores"])
    kept = calm + noisy[: runs - len(calm)]
    series = {name: [found[name] for found in kept] for name in kept[0]}
    median = {name: statistics.median(values) for name, values in series.items()}
    low = {name: min(values) for name, values in series.items()}
    return Figures(case, params, median, low, {name: max(values) for name, values in series.items()})


def _machine_cpu_s() -> float:
    """CPU seconds that the whole machine has used so far; 0 where /proc/stat is missing."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(int(fields[i]) for i in (1, 2, 3, 6, 7, 8)) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], part: float) -> float:
    """The smallest value that `part` of all do not exceed."""
    rank = -int(-part * len(values) // 1)
    return sorted(values)[min(len(values), max(1, rank)) - 1]


def pool_size(size: int) -> int:
    """How many different values there are."""
    return max(509, 8_191_000 // size) if size >= 1000 else 65_537


class Pool:
    """Values made beforehand, which appends take round and round: half random bytes, half a text that repeats."""

    def __init__(self, count: int, size: int, seed: int, longest: int) -> None:
        half = size // 2
        one = np.empty((count, size), np.uint8)
        one[:, :half] = np.random.default_rng(seed).integers(0, 256, (count, half), np.uint8)
        text = np.frombuffer(PATTERN, np.uint8)
        one[:, half:] = text[np.arange(half, size) % len(text)]
        self.count = count
        self._first = one[:, 0].astype(np.int64)
        # A batch is a view from any value on, so the pool continues for one batch after its end.
        self._rows = np.take(one, np.arange(count + longest), axis=0, mode="wrap")
        self._values = _frozen(self._rows)
        self._offsets = pa.py_buffer(np.arange(longest + 1, dtype=np.int32) * np.int32(size))

    def take(self, at: int, rows: int, fresh: bool = False) -> Any:
        """Values number `at` and on, as an immutable Arrow array: a view of the pool, or a copy."""
        if fresh:
            data = _frozen(self._rows[at % self.count : at % self.count + rows].copy())
        else:
            size = self._rows.shape[1]
            data = self._values.slice(at % self.count * size, rows * size)
        return pa.Array.from_buffers(pa.binary(), rows, [None, self._offsets, data])

    def objects(self, rows: int) -> list[bytes]:
        """The first values, as objects."""
        return [row.tobytes() for row in self._rows[:rows]]

    def first_bytes(self, rows: int) -> int:
        """The first bytes of so many values, added up."""
        rounds, rest = divmod(rows, self.count)
        return int(self._first.sum()) * rounds + int(self._first[:rest].sum())


def _frozen(rows: npt.NDArray[np.uint8]) -> pa.Buffer:
    """Rows as an immutable buffer. numpy's memory has large pages: fresh `bytes` would cost more than their append."""
    rows.setflags(write=False)
    return pa.py_buffer(rows)


def key_groups(rows: int) -> npt.NDArray[np.uint16]:
    """Change number i belongs to key group i modulo their number."""
    return (np.arange(rows) % GROUPS).astype(np.uint16)
