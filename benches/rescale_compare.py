"""Rescaling a million keys from one shard to two and back, beside Flink's, on this machine, taken in turns.

    rescale_compare.py [--rounds N] [--out FILE] [--flink-harness DIR --flink-dist DIR]
    rescale_compare.py --quick          our side alone, one round

Ours is the group `snapshots` of the benchmark rust/core/benches/rescale.rs, Flink's the end of its case F: keys and
values of 8 bytes, and values of 100; snapshots without a log, on a local disk. The second case starts from the result
of the first.
Each number is the median of a run; shown are medians of the rounds, with the lowest and the highest.

Owns: the turns, the table. Does not own: what is done on either side, how Flink's figures are obtained
(changelog_flink).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from changelog_flink import asked_harness
from compare_parts import Part
from compare_run import machine
from spark_compare import show
from state_compare import span

ROOT = Path(__file__).resolve().parent.parent
#: Of each of our measurements, Flink's, and the factor that is wanted.
PAIRS = {
    "1 to 2 first": ("rescale_1to2_first_wall_ms", 1),
    "1 to 2 second": ("rescale_1to2_second_wall_ms", 1),
    "2 to 1": ("rescale_2to1_wall_ms", 3),
}
TYPES = {"Long": "8 B", "Bytes100": "100 B"}
_TIME = re.compile(r"^snapshots/(?P<name>[^\n]+?)\s+time:\s+\[\S+ \S+ (?P<time>\S+) (?P<unit>\S+)", re.MULTILINE)
_MILLIS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def ours() -> dict[str, float]:
    """Milliseconds by name."""
    command = [sys.executable, str(ROOT / "scripts" / "setup.py"), "cargo", "bench", "--locked"]
    command += ["-p", "fastchangelog-core", "--bench", "rescale", "--", "--noplot", "snapshots"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = {m["name"]: float(m["time"]) * _MILLIS[m["unit"]] for m in _TIME.finditer(done.stdout)}
    missing = {f"{name} {size}" for name in PAIRS for size in TYPES.values()} - found.keys()
    if missing:
        raise SystemExit(f"the benchmark gave no {sorted(missing)}:\n{done.stdout[-2000:]}")
    return found


def table(mine: list[dict[str, float]], theirs: dict[str, list[dict[str, float]]]) -> Part:
    """What was found, for people."""
    rows = []
    for kind, size in TYPES.items():
        for name, (flinks, wanted) in PAIRS.items():
            own = [found[f"{name} {size}"] for found in mine]
            cells = [f"{name}, {size}", span(own)]
            if theirs[kind]:
                other = [found[flinks] for found in theirs[kind]]
                ratio = statistics.median(o / m for o, m in zip(other, own))
                cells += [span(other), f"{ratio:.3g}x", f">= {wanted}: {'met' if ratio >= wanted else 'MISSED'}"]
            rows.append(cells)
    head = ["ms", "ours", *(["Flink", "Flink/ours", "wanted"] if theirs["Long"] else [])]
    return Part("rescale", head, rows, None)


def main() -> int:
    """Takes turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="our side alone, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flink-harness", type=Path)
    parser.add_argument("--flink-dist", type=Path, help="the jars")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}")
    work = Path(tempfile.mkdtemp(prefix="fcl-bench-"))
    mine: list[dict[str, float]] = []
    theirs: dict[str, list[dict[str, float]]] = {kind: [] for kind in TYPES}
    try:
        harness = asked_harness(args, work, work)
        for turn in range(1 if args.quick else args.rounds):
            mine.append(ours())
            if harness is not None:
                for kind in TYPES:
                    [figures] = harness.run(f"F-{kind}", "disk", 3, 1, (100,))
                    theirs[kind].append(figures.median)
            print(f"round {turn + 1}", file=sys.stderr)
        show(table(mine, theirs))
        if args.out:
            result: dict[str, Any] = {"machine": about, "ours": mine, "flink": theirs}
            args.out.write_text(json.dumps(result, indent=1))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
