"""The parts of the comparison: each gives rows for a table and numbers for the JSON file.

Owns: which variants meet on which sizes, and what is derived from their outcomes. Does not own: how a query is run
(compare_run), the command line (spark_compare).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import compare_data
from compare_data import Shape
from compare_run import (
    Outcome,
    materializations_settled,
    median,
    resident,
    run,
    server_shards,
    session,
    spread,
    tree_size,
    warm_up,
)

#: Of a run: the batches that hold every key once, then these many are thrown away.
WARM_UP = 3
STATEFUL: tuple[str, ...] = ("ours", "ours-sync", "native", "native-hdfs")
SIDE_BY_SIDE = (*STATEFUL, "floor", "unanchored")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all parts share."""

    root: Path
    rounds: int
    rows: int
    batches: int
    keys: tuple[int, ...]
    quick: bool
    variants: tuple[str, ...]

    def input(self, shape: Shape) -> Path:
        """The generated folder of a shape."""
        return compare_data.folder(self.root / "data", shape)

    def work(self, name: str) -> Path:
        """An empty folder."""
        target = self.root / "work" / name
        shutil.rmtree(target, ignore_errors=True)
        return target


@dataclasses.dataclass(frozen=True)
class Part:
    """What a part found: a table for people, and everything for machines."""

    title: str
    head: list[str]
    rows: list[list[str]]
    data: Any
    notes: tuple[str, ...] = ()


def side_by_side(setting: Setting) -> list[Part]:
    """Batch times of all variants, taken in turns: A B C, A B C, …; one table for each number of keys."""
    shapes = [Shape(keys, setting.rows, setting.batches) for keys in setting.keys]
    return _in_turns(setting, shapes, [v for v in SIDE_BY_SIDE if v in setting.variants])


def skewed(setting: Setting) -> list[Part]:
    """The same with one key that has 90 of 100 rows, and with none, side by side with Spark's own operators."""
    variants = [v for v in STATEFUL if v in setting.variants]
    keys = 10_000 if setting.quick else 100_000
    return _in_turns(setting, [Shape(keys, setting.rows, setting.batches, hot_percent=h) for h in (0, 90)], variants)


def _in_turns(setting: Setting, shapes: list[Shape], variants: list[str]) -> list[Part]:
    spark = session()
    parts = []
    for shape in shapes:
        data = setting.input(shape)
        short = compare_data.files(data, 0, 2)
        glob = compare_data.files(data, 0, setting.batches + shape.seed_batches)
        outcomes: dict[str, list[Outcome]] = {v: [] for v in variants}
        for variant in variants:
            warm_up(spark, variant, short, setting.work("warm-up"))
        # The JVM compiles for some dozen batches: a round that does not count, unless there is only one.
        for counts in [False] * (setting.rounds > 1) + [True] * setting.rounds:
            for variant in variants:
                outcome = run(spark, variant, glob, setting.work(variant))
                outcomes[variant] += [outcome] * counts
        hot = f", one with {shape.hot_percent} % of the rows" if shape.hot_percent else ""
        title = f"{shape.keys:,} keys{hot}, {shape.rows:,} rows a batch"
        parts.append(_compared(title, outcomes, shape.seed_batches + WARM_UP))
    spark.stop()
    return parts


def row_by_row(setting: Setting) -> list[Part]:
    """PySpark's transformWithState on a size that it can do: it updates some thousand keys a second."""
    keys, rows, batches = (10_000, 10_000, 4) if setting.quick else (100_000, 100_000, 5)
    shape = Shape(keys, rows, batches)
    data = setting.input(shape)
    short, glob = compare_data.files(data, 0, 2), compare_data.files(data, 0, batches + 1)
    spark = session()
    variants = [v for v in ("ours", "tws-row") if v in setting.variants]
    outcomes: dict[str, list[Outcome]] = {v: [] for v in variants}
    for variant in variants:
        warm_up(spark, variant, short, setting.work("warm-up"))
    # The slow one once: its minute is long enough for the JVM to compile all it runs. The other gets some rounds for
    # that which do not count.
    for variant in reversed(variants):
        cold = 0 if setting.quick or variant != "ours" else 4
        for number in range(cold + (setting.rounds if variant == "ours" else 1)):
            outcome = run(spark, variant, glob, setting.work(variant))
            outcomes[variant] += [outcome] * (number >= cold)
    spark.stop()
    return [_compared(f"{keys:,} keys, {rows:,} rows a batch, row by row in Python", outcomes, 2)]


def _compared(title: str, outcomes: dict[str, list[Outcome]], drop: int) -> Part:
    rows, data = [], {}
    base = median([b.trigger_ms for o in outcomes.get("ours", []) for b in o.body(drop)])
    for variant, runs in outcomes.items():
        body = [b for o in runs for b in o.body(drop)]
        trigger = [float(b.trigger_ms) for b in body]
        add = [float(b.add_batch_ms) for b in body]
        rounds = [median([b.trigger_ms for b in o.body(drop)]) for o in runs]
        done = max(1, sum(len(o.batches) for o in runs))
        files, size = sum(o.state_files for o in runs) / done, sum(o.state_bytes for o in runs) / done
        per_second = sum(b.rows for b in body) / max(0.001, sum(trigger) / 1000)
        ratio = median(trigger) / base if base else 0.0
        rows.append(
            [
                variant,
                f"{median(trigger):,.0f}",
                f"±{spread(trigger):.0%}",
                " ".join(f"{r:,.0f}" for r in rounds),
                f"{median(add):,.0f}",
                f"{per_second:,.0f}",
                f"{ratio:.2f}",
                f"{size / 1e6:.2f}",
                f"{files:.1f}",
                f"{sum(o.server.get('store_requests', 0) for o in runs) / done:.1f}" if runs[0].server else "",
            ]
        )
        data[variant] = {
            "median_trigger_ms": median(trigger),
            "median_add_batch_ms": median(add),
            "spread": spread(trigger),
            "round_medians_ms": rounds,
            "rows_per_second": per_second,
            "times_ours": ratio,
            "state_bytes_per_batch": size,
            "state_files_per_batch": files,
            "runs": [dataclasses.asdict(o) for o in runs],
        }
    head = ["variant", "trigger ms", "spread", "rounds", "addBatch", "rows/s", "x ours", "MB/batch", "files/batch"]
    notes = ("MB and files: what a batch leaves in the checkpoint's state folder and in ours, deletions not counted.",)
    return Part(title, [*head, "requests/batch"], rows, data, notes)


def steps(setting: Setting) -> list[Part]:
    """Where the time of one batch of ours goes: Spark's own parts, then ours as the workers and the server saw them."""
    parts = []
    spark = session()
    for keys in setting.keys:
        shape = Shape(keys, setting.rows, setting.batches)
        glob = compare_data.files(setting.input(shape), 0, setting.batches + 1)
        outcome = run(spark, "ours", glob, setting.work("ours"))
        parts.append(_steps(f"one batch of {setting.rows:,} rows, {keys:,} keys", outcome))
    spark.stop()
    return parts


def _steps(title: str, outcome: Outcome) -> Part:
    body = outcome.body(1 + WARM_UP)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    def of_worker(name: str) -> float:
        return median([b.ours.get(name, 0) / max(1, b.ours.get("shards", 1)) / 1000 for b in body])

    done = max(1, len(outcome.batches))
    shards = max(1.0, mean([float(b.ours.get("shards", 1)) for b in body]))
    found: dict[str, float] = {
        "trigger": median([float(b.trigger_ms) for b in body]),
        "trigger / write-ahead log": median([float(b.wal_ms) for b in body]),
        "trigger / commit log": median([float(b.commit_ms) for b in body]),
        "trigger / addBatch": median([float(b.add_batch_ms) for b in body]),
        "addBatch / state store commit, sum of shards": median([float(b.state_commit_ms) for b in body]),
    }
    for name in ("open_micros", "finish_micros", "commit_micros"):
        found[f"task / {name.removesuffix('_micros')}, per shard"] = of_worker(name)
    for name, value in sorted(outcome.server.items()):
        if name.endswith("_micros") and value:
            found[f"server / {name.removesuffix('_micros')}, per shard"] = value / done / shards / 1000
    rows = [[name, f"{value:,.1f}"] for name, value in found.items()]
    notes = ("The server's lines are means over all batches, the seeding one included; tasks overlap.",)
    return Part(title, ["step", "ms"], rows, {"steps": found, "run": dataclasses.asdict(outcome)}, notes)


def restart_first(setting: Setting, variant: str) -> Outcome:
    """Before the restart: the state is filled and some batches run. Its process ends after this."""
    keys = max(setting.keys)
    shape = Shape(keys, setting.rows, setting.batches)
    glob = compare_data.files(setting.input(shape), 0, 1 + setting.batches // 2)
    spark = session()
    outcome = run(spark, variant, glob, setting.work(f"restart-{variant}"))
    spark.stop()
    return outcome


def restart_second(setting: Setting, variant: str) -> Outcome:
    """After it, in a new process: a small query first, so that imports and JIT are not measured; then the real one."""
    keys = max(setting.keys)
    shape = Shape(keys, setting.rows, setting.batches)
    data = setting.input(shape)
    small = setting.input(Shape(1_000, 10_000, 3))
    spark = session()
    warm_up(spark, variant, compare_data.files(small, 0, 4), setting.work("warm-up"))
    work = setting.root / "work" / f"restart-{variant}"
    outcome = run(spark, variant, compare_data.files(data, 0, 1 + setting.batches), work)
    spark.stop()
    return outcome


def restarted(setting: Setting, outcomes: dict[str, list[Outcome]]) -> Part:
    """The table of the restart test."""
    rows, data = [], {}
    for variant, runs in outcomes.items():
        first = median([o.first_batch_s for o in runs])
        trigger = median([float(o.batches[0].trigger_ms) for o in runs])
        later = median([float(b.trigger_ms) for o in runs for b in o.batches[1:]])
        read = median([float(o.server.get("restore_bytes", 0)) for o in runs])
        shown = f"{read / 1e6:.1f}" if runs[0].server else ""
        rows.append([variant, f"{first:.2f}", f"{trigger:,.0f}", f"{later:,.0f}", f"{trigger - later:,.0f}", shown])
        data[variant] = [dataclasses.asdict(o) for o in runs]
    head = ["variant", "start to first batch done, s", "first trigger ms", "later ms", "difference", "MB restored"]
    title = f"restart with {max(setting.keys):,} keys, nothing left on the local disk"
    return Part(title, head, rows, data)


def memory(setting: Setting) -> list[Part]:
    """Resident memory while far more state than the budget goes through, and of workers over many batches."""
    keys, rows, extra, many = (200_000, 50_000, 4, 20) if setting.quick else (10_000_000, 500_000, 10, 200)
    seeds = keys // rows
    spark = session()
    big = Shape(keys, rows, extra, key_bytes=100, seed_batches=seeds)
    glob = compare_data.files(setting.input(big), 0, seeds + extra)
    budget = {"memory_budget": "256MiB"}
    full = run(spark, "ours", glob, setting.work("memory"), options=budget, each_batch=lambda _: resident())
    spark.stop()
    shutil.rmtree(setting.root / "work" / "memory", ignore_errors=True)
    spark = session()
    long = Shape(10_000, 20_000, many)
    glob = compare_data.files(setting.input(long), 0, 1 + many)
    flat = run(spark, "ours", glob, setting.work("workers"), each_batch=lambda _: resident())
    spark.stop()
    return [
        _memory(f"{keys:,} keys of 100 bytes, memory_budget 256 MiB", full),
        _memory(f"{many} small batches", flat),
    ]


def _memory(title: str, outcome: Outcome) -> Part:
    points = outcome.memory
    chosen = points[:: max(1, len(points) // 10)] + points[-1:]
    by_batch = {b.batch: b for b in outcome.batches}
    rows = [
        [
            str(p["batch"]),
            f"{p['state server'] / 2**20:,.0f}",
            f"{p['worker'] / 2**20:,.0f}",
            f"{by_batch[p['batch']].trigger_ms:,}" if p["batch"] in by_batch else "",
        ]
        for p in chosen
    ]
    return Part(title, ["batch", "server MiB", "largest worker MiB", "trigger ms"], rows, dataclasses.asdict(outcome))


def size(setting: Setting) -> list[Part]:
    """What the newest handles reach after a materialization, against the net size of keys and values."""
    keys = max(setting.keys)
    shape = Shape(keys, setting.rows, setting.batches)
    data = setting.input(shape)
    spark = session()
    work = setting.work("size")
    options = {"materialization_interval": "2s"}
    outcome = run(spark, "ours", compare_data.files(data, 0, 1 + setting.batches), work, options=options)
    # A batch is in the state when the next one asks for it, and a snapshot is named by the next handle after it: small
    # batches, the last one after all that came before has been materialized.
    small = setting.input(Shape(10, 10, 2))
    for number in range(2):
        run(spark, "ours", compare_data.files(small, number, 1), work, options=options)
        materializations_settled(spark, options)
    run(spark, "ours", compare_data.files(small, 2, 1), work, options=options)
    shards = server_shards(spark)
    handles = newest_handles(spark, work / "checkpoint")
    spark.stop()
    net = sum(int(h["state_bytes"]) for h in handles)
    base = sum(int(h["base"]["total_bytes"]) for h in handles if h["base"])
    log = sum(int(s["length"]) for h in handles for s in h["segments"])
    files, kept = tree_size(work / "state")
    objects = outcome.server.get("log_objects", 0)
    done = max(1, len(outcome.batches))
    found = {
        "keys and values, net": net,
        "reachable: base": base,
        "reachable: log after the base": log,
        "reachable / net": round((base + log) / net, 2) if net else 0,
        "in the folder, old versions included": kept,
        "files in the folder": files,
        "log objects per batch": round(objects / done, 2),
        "materializations": outcome.server.get("materializations_completed", 0),
    }
    rows = [[name, f"{value:,}"] for name, value in found.items()]
    title = f"durable size with {keys:,} keys after {done} batches"
    return [Part(title, ["what", "bytes or number"], rows, {"size": found, "shards": shards, "handles": handles})]


def newest_handles(spark: Any, checkpoint: Path) -> list[dict[str, Any]]:
    """The handles that Spark would hand back next, as Spark's own reader of state stores gives them."""
    from fastchangelog import _internal

    reader = spark.read.format("statestore").option("path", str(checkpoint)).option("stateVarName", "handle")
    out = []
    for row in reader.load().collect():
        out.append(json.loads(_internal.handle_json(row["value"]["handle"])))
    return out
