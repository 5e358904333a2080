"""Changelog against changelog: our writer and reader beside Flink's own, on this machine, taken in turns.

    changelog_compare.py [CASE[:PLACE] …] --flink-harness DIR --flink-dist DIR [--rounds N] [--runs N] [--out FILE]
    changelog_compare.py --quick        our side alone with tiny sizes, some seconds: shows that it works, no more

Without Flink, our side alone. Places are memory (`shm`) and `disk`. In each round a case runs on our side, then on
Flink's, each in a process of its own that warms up first; so the two meet the same quiet or busy minutes. A ratio is
Flink's median of one round over ours; shown are the rounds' median, lowest and highest ratio.

Owns: the command line, the turns, ratios, targets, tables, the JSON file. Does not own: what a case does on our side
(changelog_ours), how Flink's figures are obtained (changelog_flink).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import changelog_ours
from changelog_flink import CASES as FLINK_CASES
from changelog_flink import Figures, FlinkFailed, Harness, asked_harness
from changelog_ours import Plan
from compare_parts import Part
from compare_run import machine
from spark_compare import show

SHM = Path("/dev/shm")
#: What runs by default, in this order.
TURNS = (
    *("A1:shm", "A:shm", "A:disk", "Acomp:shm", "Acomp:disk", "Acopy:shm", "B0:shm", "B0:disk", "B10:shm", "B10:disk"),
    *("C:shm", "C:disk", "D:shm", "D:disk", "Dcache:shm", "E:shm", "E:disk", "R:shm"),
)


@dataclasses.dataclass(frozen=True)
class Family:
    """How some cases are compared and shown."""

    title: str
    #: The parameters that a row of ours and its row of Flink's have in common.
    pair: tuple[str, ...]
    #: Figures shown with a ratio, figures of both sides, figures of ours.
    ratios: tuple[str, ...]
    both: tuple[str, ...]
    ours: tuple[str, ...]


_TIMES, _HELD = ("wall_ms", "cpu_ms"), ("objects", "object_mb")
_PEAK = ("peak_mb", "in_flight_mb", "peak_over_in_flight")
_CALLS = ("append_ns", "list_ns", "loop_ns", "over_list", "over_list_bound", "over_list_less_loop")
_RESCALE = ("all_mb", "part_mb", "part_over_all", "all_ms", "part_ms")
_ROUNDS = ("changes_each_per_round", "rounds")
_APPEND = Family("appends in batches until durable", ("size", "compressed", "fresh"), _TIMES, _HELD, _PEAK)
_PERSIST = Family("a persist", ("outstanding", "delay_ms"), ("p50_ms", "p99_ms", "cpu_ms"), ("call_p50_ms",), ())
_REPLAY = Family("replay", ("reader", "compressed"), _TIMES, _HELD, ("requests", "mb_read"))
FAMILIES = {
    "A": _APPEND,
    "A1": Family("one append beside one list.append", (), (), (), _CALLS),
    "Acomp": _APPEND,
    "Acopy": dataclasses.replace(_APPEND, title="the same, with a copy of each value made on the way"),
    "B0": _PERSIST,
    "B10": _PERSIST,
    "C": Family("16 writers of one storage", _ROUNDS, _TIMES, ("objects_per_round", "persist_all_p50_ms"), ()),
    "D": _REPLAY,
    "Dcache": _REPLAY,
    "E": Family("the change sets of one object", ("mode", "compressed"), _TIMES, (), _HELD),
    "R": Family("a reader of an eighth of the key groups", (), (), (), _RESCALE),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """What is wanted: a ratio of at least so much, or a figure of ours of at most so much."""

    cases: tuple[str, ...]
    figure: str
    where: dict[str, Any] = dataclasses.field(default_factory=dict)
    ratio: float | None = None
    most: float | None = None


_APPENDS = ("A", "Acomp")
TARGETS = (
    Target(_APPENDS, "wall_ms", {"size": 16, "sync": "false"}, ratio=3),
    Target(_APPENDS, "wall_ms", {"size": 100, "sync": "false"}, ratio=2),
    Target(_APPENDS, "wall_ms", {"size": 1000, "sync": "false"}, ratio=1.2),
    Target(_APPENDS, "cpu_ms", {"sync": "false"}, ratio=3),
    Target(_APPENDS, "peak_over_in_flight", most=2),
    Target(("A1",), "over_list", most=3),
    Target(("B0", "B10"), "p50_ms", ratio=1),
    Target(("B0", "B10"), "p99_ms", ratio=1),
    Target(("C",), "cpu_ms", {"form": "batch"}, ratio=2),
    Target(("C",), "objects_per_round", {"rounds": 50}, most=1),
    Target(("D",), "wall_ms", ratio=2),
    Target(("Dcache",), "wall_ms", {"compression": "none"}, ratio=4),
    Target(("Dcache",), "wall_ms", {"compression": "lz4"}, ratio=2),
    Target(("Dcache",), "wall_ms", {"compression": "zstd"}, ratio=2),
    Target(("E",), "wall_ms", {"mode": "read_1thread_direct", "compression": "lz4"}, ratio=10),
    Target(("E",), "wall_ms", {"mode": "read_1thread_direct", "compression": "zstd"}, ratio=10),
    Target(("R",), "part_over_all", {"reader": "direct"}, most=1 / 6),
)

Range = tuple[float, float, float]


@dataclasses.dataclass
class Row:
    """One row of ours in all rounds, with its row of Flink's where there is one."""

    case: str
    ours: list[Figures]
    flink: list[Figures | None]

    @property
    def params(self) -> dict[str, Any]:
        """Of ours."""
        return self.ours[0].params

    def label(self) -> str:
        """What tells it from the other rows of its case."""
        params, parts = self.params, []
        if "size" in params:
            parts.append(f"{params['size']} B")
        if "outstanding" in params:
            parts.append(f"{params['outstanding'] / 1000:,.0f} kB outstanding")
        if "form" in params:
            parts.append(f"{params['rounds']} x {params['changes_each_per_round']:,} changes, {params['form']}")
        parts += [params[name] for name in ("reader", "mode") if name in params]
        parts.append("plain" if params["compression"] == "none" else params["compression"])
        return ", ".join([*parts, *(["synced"] if params.get("sync") == "true" else [])])

    def ratio(self, figure: str) -> Range | None:
        """Flink over ours."""
        found = [
            theirs.median[figure] / max(1e-9, ours.median[figure])
            for ours, theirs in zip(self.ours, self.flink, strict=True)
            if theirs is not None and figure in theirs.median
        ]
        return (statistics.median(found), min(found), max(found)) if found else None

    def value(self, figure: str, flink: bool = False) -> Range | None:
        """Of one side: the median of the rounds' medians, the lowest and the highest of all runs."""
        side = [found for found in (self.flink if flink else self.ours) if found is not None and figure in found.median]
        if not side:
            return None
        middle = statistics.median(found.median[figure] for found in side)
        return middle, min(found.low[figure] for found in side), max(found.high[figure] for found in side)


def paired(case: str, ours: list[list[Figures]], flink: list[list[Figures]]) -> list[Row]:
    """Rows of one case from what each round gave."""
    pair, rows = FAMILIES[case].pair, []

    def key(figures: Figures) -> list[Any]:
        compressed = figures.params.get("compression", "none") not in (False, "none")
        return [compressed if name == "compressed" else figures.params.get(name) for name in pair]

    for number in range(len(ours[0])):
        mine = [found[number] for found in ours]
        theirs = [next((f for f in found if key(f) == key(mine[0])), None) for found in flink]
        rows.append(Row(case, mine, theirs))
    return rows


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(found: Range | None, unit: str = "") -> str:
    """A median with its range."""
    if found is None:
        return "-"
    middle, low, high = (number(value) for value in found)
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low}..{high})"


def table(case: str, place: str, rows: list[Row], flink: bool) -> Part:
    """The rows of a case for people."""
    family = FAMILIES[case]
    head = [""]
    for figure in family.ratios:
        head += [figure, *(["Flink", "Flink/ours"] if flink else [])]
    head += [name for figure in family.both for name in (figure, *(["Flink"] if flink else []))] + [*family.ours]
    out = []
    for row in rows:
        cells = [row.label()]
        for figure in family.ratios:
            cells.append(span(row.value(figure)))
            cells += [span(row.value(figure, True)), span(row.ratio(figure), "x")] if flink else []
        for figure in (*family.both, *family.ours):
            sides = (False, True) if flink and figure in family.both else (False,)
            found = [row.value(figure, side) for side in sides]
            cells += ["-" if value is None else number(value[0]) for value in found]
        out.append(cells)
    return Part(f"{case}:{place}  {family.title}", head, out, _data(rows, family))


def _data(rows: list[Row], family: Family) -> list[dict[str, Any]]:
    out = []
    for row in rows:
        ratios = {figure: row.ratio(figure) for figure in family.ratios}
        sides = {
            "ours": [dataclasses.asdict(found) for found in row.ours],
            "flink": [None if found is None else dataclasses.asdict(found) for found in row.flink],
        }
        out.append({"row": row.label(), "params": row.params, "flink_over_ours": ratios, **sides})
    return out


def judged(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Each target with the rows that it is about."""
    for row in rows:
        for target in TARGETS:
            if row.case not in target.cases or any(row.params.get(k) != v for k, v in target.where.items()):
                continue
            found = row.value(target.figure) if target.ratio is None else row.ratio(target.figure)
            if found is None:
                continue
            if target.ratio is not None:
                met, wanted = found[0] >= target.ratio, f">= {number(target.ratio)}x"
            else:
                met, wanted = found[0] <= (target.most or 0), f"<= {number(target.most or 0)}"
            name = f"{row.case}:{row.params['place']}  {row.label()}"
            yield {"row": name, "figure": target.figure, "wanted": wanted, "found": found, "met": met}


def show_targets(rows: list[Row]) -> None:
    """How many targets were met, and those that were not."""
    found = list(judged(rows))
    missed = [[t["row"], t["figure"], t["wanted"], span(t["found"])] for t in found if not t["met"]]
    title = f"targets: {len(found) - len(missed)} met, {len(missed)} missed"
    if missed:
        show(Part(title, ["", "figure", "wanted", "found"], missed, None))
    else:
        print(f"\n{title}")


def in_own_process(plan: Plan) -> list[Figures]:
    """A case of ours in a new interpreter."""
    command = [sys.executable, changelog_ours.__file__, json.dumps(dataclasses.asdict(plan))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Figures(**raw) for raw in json.loads(done.stdout.splitlines()[-1])]


def take_turns(plan: Plan, rounds: int, harness: Harness | None) -> tuple[list[Row], bool]:
    """Ours, Flink, ours, Flink, …; and whether Flink gave its figures each time."""
    ours: list[list[Figures]] = []
    flink: list[list[Figures]] = []
    complete = True
    for turn in range(rounds):
        began = time.monotonic()
        ours.append(changelog_ours.run_case(plan) if plan.quick else in_own_process(plan))
        between, theirs = time.monotonic(), []
        if harness is not None and plan.case in FLINK_CASES:
            try:
                theirs = harness.run(plan.case, plan.place, plan.runs, plan.warm, plan.sizes)
            except FlinkFailed as error:
                print(f"\n{error}", file=sys.stderr)
                complete = False
        flink.append(theirs)
        spent = f"ours {between - began:.0f} s" + (f", Flink {time.monotonic() - between:.0f} s" if theirs else "")
        print(f"{plan.case}:{plan.place}, round {turn + 1} of {rounds}: {spent}", file=sys.stderr)
    return paired(plan.case, ours, flink), complete


def main() -> int:
    """Runs the cases that were asked for."""
    args = _arguments()
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]}")
    work, shm = Path(tempfile.mkdtemp(prefix="fcl-bench-", dir=args.work)), None
    result: dict[str, Any] = {"machine": about, "setting": {k: str(v) for k, v in vars(args).items()}, "cases": {}}
    rows: list[Row] = []
    failed = False
    try:
        if SHM.is_dir() and not args.quick:
            shm = Path(tempfile.mkdtemp(prefix="fcl-bench-", dir=SHM))
        harness = asked_harness(args, work, shm or work)
        for turn in args.cases:
            case, place = turn.split(":")
            if place == "shm" and shm is None:
                print(f"\n{turn} left out: no {SHM}")
                continue
            folder = str((shm if place == "shm" and shm else work) / "ours")
            often = (args.runs, args.warm, args.quick)
            plan = Plan(case, place, folder, *often, args.batch_rows, tuple(args.sizes), dict(args.option))
            try:
                found, complete = take_turns(plan, args.rounds, harness)
            except Exception as error:  # the other cases are still worth having
                print(f"\n{turn} failed: {type(error).__name__}: {str(error).strip()[:2000]}", file=sys.stderr)
                failed = True
                continue
            failed |= not complete
            rows += found
            part = table(case, place, found, harness is not None and case in FLINK_CASES)
            show(part)
            result["cases"][turn] = part.data
            result["targets"] = list(judged(rows))
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=1, default=str))
    finally:
        for scratch in (work, *([shm] if shm else [])):
            shutil.rmtree(scratch, ignore_errors=True)
    if not args.quick:
        show_targets(rows)
    if args.out.exists():
        print(f"\n{args.out}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = " ".join(FAMILIES)
    parser.add_argument("cases", nargs="*", metavar="CASE[:PLACE]", help=f"of {names}; at shm or disk; default: all")
    parser.add_argument("--quick", action="store_true", help="our side alone, tiny sizes: shows that it works, no more")
    parser.add_argument("--rounds", type=int, help="turns of ours and Flink (default 3)")
    parser.add_argument("--runs", type=int, help="measured runs of each side in a round (default 5)")
    parser.add_argument("--warm", type=int, help="runs before them (default 2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 100, 1000], help="bytes of a value, in A and A1")
    parser.add_argument("--batch-rows", type=int, help="rows of our append_batch (default 65,536)")
    parser.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="of ours")
    parser.add_argument("--flink-harness", type=_folder, default=_folder(os.environ.get("FLINK_HARNESS")))
    parser.add_argument("--flink-dist", type=_folder, default=_folder(os.environ.get("FLINK_DIST")), help="the jars")
    parser.add_argument("--work", type=_folder, default=Path(tempfile.gettempdir()), help="where the place `disk` is")
    cache = Path(os.environ.get("FASTCHANGELOG_CACHE") or "~/.cache/fastchangelog").expanduser() / "bench"
    name = time.strftime("changelog-%Y%m%d-%H%M%S.json", time.gmtime())
    parser.add_argument("--out", type=Path, default=cache / name)
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.runs = args.runs or (1 if args.quick else 5)
    args.batch_rows = args.batch_rows or (4_096 if args.quick else 65_536)
    args.warm = (0 if args.quick else 2) if args.warm is None else args.warm
    chosen = [turn for case in args.cases for turn in ([case] if ":" in case else _places(case, args.quick))]
    args.cases = chosen or ([f"{case}:disk" for case in FAMILIES] if args.quick else list(TURNS))
    for turn in args.cases:
        case, _, place = turn.partition(":")
        if case not in FAMILIES or place not in ("shm", "disk"):
            parser.error(f"no case {turn}; cases are {names}, places shm and disk")
    if bool(args.flink_harness) != bool(args.flink_dist):
        parser.error("--flink-harness and --flink-dist belong together")
    return args


def _places(case: str, quick: bool) -> list[str]:
    return ([f"{case}:disk"] if quick else [t for t in TURNS if t.startswith(f"{case}:")]) or [case]


def _folder(text: str | None) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    raise SystemExit(main())
