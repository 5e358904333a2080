"""`make bench`: fastchangelog beside Spark's own operators, on this machine, in one session, taken in turns.

    spark_compare.py all|compare|skew|rows|steps|restart|memory|size|bases [--quick] [--rounds N] [--keys N …]
                     [--out FILE]

Owns: the command line, the tables, the JSON file. Does not own: the parts (compare_parts, bases_part), the plot of the
ratios beside the JSON file (ratio_plot).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bases_part
import compare_parts
import ratio_plot
from compare_parts import Part, Setting
from compare_queries import VARIANTS
from compare_run import BatchTime, Outcome, machine

from fastchangelog.demo import processes

_RESTART_VARIANTS = ("ours", "native", "native-hdfs")


def restart(setting: Setting) -> list[Part]:
    """Each phase in a process of its own: the local disk of the first is gone before the second starts."""
    outcomes: dict[str, list[Outcome]] = {v: [] for v in _RESTART_VARIANTS if v in setting.variants}
    for _ in range(setting.rounds):
        for variant in outcomes:
            _child("first", variant, setting)
            outcomes[variant].append(_child("second", variant, setting))
    return [compare_parts.restarted(setting, outcomes)]


PARTS: dict[str, Callable[[Setting], list[Part]]] = {
    "compare": compare_parts.side_by_side,
    "skew": compare_parts.skewed,
    "rows": compare_parts.row_by_row,
    "steps": compare_parts.steps,
    "restart": restart,
    "memory": compare_parts.memory,
    "size": compare_parts.size,
    "bases": bases_part.while_bases_are_made,
}


def _child(phase: str, variant: str, setting: Setting) -> Outcome:
    arguments = [*_setting_arguments(setting), "--phase", phase, "--variant", variant]
    environ = {k: v for k, v in os.environ.items() if k != processes.MARK}
    command = [sys.executable, __file__, "restart", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=True)
    raw = json.loads(done.stdout.splitlines()[-1])
    return Outcome(**{**raw, "batches": [BatchTime(**b) for b in raw["batches"]]})


def _setting_arguments(setting: Setting) -> list[str]:
    out = ["--work", str(setting.root), "--rounds", str(setting.rounds), "--rows", str(setting.rows)]
    out += ["--batches", str(setting.batches), *(["--quick"] if setting.quick else [])]
    return [*out, "--keys", *map(str, setting.keys)]


def show(part: Part) -> None:
    """One table."""
    print(f"\n{part.title}")
    widths = [max(map(len, column)) for column in zip(part.head, *part.rows, strict=True)]
    for row in (part.head, *part.rows):
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  " + "  ".join(cells).rstrip())
    for note in part.notes:
        print(f"  {note}")
    sys.stdout.flush()


def main() -> int:
    """Runs the parts that were asked for."""
    args = _arguments()
    sizes = (args.rounds, args.rows, args.batches, tuple(args.keys))
    setting = Setting(args.work, *sizes, args.quick, tuple(args.variants))
    if args.phase is not None:
        function = compare_parts.restart_first if args.phase == "first" else compare_parts.restart_second
        print(json.dumps(dataclasses.asdict(function(setting, args.variant))))
        return 0
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}; PySpark {about['pyspark']}")
    if about["load"][0] > 0.5 * (about["cores"] or 1):
        print("  something else is running: times will be noise, bytes and requests will not")
    result = {"machine": about, "setting": {k: str(v) for k, v in dataclasses.asdict(setting).items()}, "parts": {}}
    failed = False
    try:
        for name in list(PARTS) if args.part == "all" else [args.part]:
            try:
                parts = PARTS[name](setting)
            except Exception as error:  # the other parts are still worth having
                print(f"\n{name} failed: {type(error).__name__}: {str(error).strip()[:2000]}", file=sys.stderr)
                failed = True
                continue
            for part in parts:
                show(part)
            result["parts"][name] = [{"title": p.title, "data": p.data} for p in parts]
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=1, default=str))
    finally:
        shutil.rmtree(setting.root / "work", ignore_errors=True)
    print("", args.out, *(ratio_plot.draw(args.out) if args.out.exists() else ()), sep="\n")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", nargs="?", default="all", choices=["all", *PARTS])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: shows that it works, no more")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--batches", type=int)
    parser.add_argument("--keys", type=int, nargs="+")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    cache = Path(os.environ.get("FASTCHANGELOG_CACHE") or "~/.cache/fastchangelog").expanduser() / "bench"
    parser.add_argument("--work", type=Path, help="folder for data and state; default: under the temp folder")
    parser.add_argument("--out", type=Path, default=cache / time.strftime("compare-%Y%m%d-%H%M%S.json", time.gmtime()))
    parser.add_argument("--phase", choices=["first", "second"], help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    small = args.quick
    args.rounds = args.rounds or (1 if small else 3)
    args.rows = args.rows or (50_000 if small else 500_000)
    args.batches = args.batches or (5 if small else 12)
    args.keys = args.keys or ([10_000] if small else [10_000, 100_000, 1_000_000])
    args.work = args.work or Path(tempfile.gettempdir()) / f"fastchangelog-bench-{os.getuid()}"
    return args


if __name__ == "__main__":
    raise SystemExit(main())
