"""Batch times of a query while snapshots are made all the time, beside the same query without any, taken in turns.

Owns: the options of the two, what a batch felt. Does not own: sessions, queries and measuring (compare_run).
"""

from __future__ import annotations

import dataclasses

import compare_data
from changelog_flink import percentile
from compare_data import Shape
from compare_parts import WARM_UP, Part, Setting
from compare_run import NO_BASES, BatchTime, Outcome, median, run, session, warm_up

#: The next one as soon as a handle carries the last one.
ALWAYS = {**NO_BASES, "materialization_log_bytes": "1"}
VARIANTS = {"no bases": NO_BASES, "bases all the time": ALWAYS}
#: What is wanted of the second, as a multiple of the first: median, 99th percentile.
WANTED = (1.1, 1.5)


def while_bases_are_made(setting: Setting) -> list[Part]:
    """One table for each number of keys. At least 40 batches a round, for the sake of the 99th percentile."""
    batches = setting.batches if setting.quick else max(40, setting.batches)
    spark = session()
    parts = []
    for keys in setting.keys:
        shape = Shape(keys, setting.rows, batches)
        data = setting.input(shape)
        glob = compare_data.files(data, 0, batches + shape.seed_batches)
        warm_up(spark, "ours", compare_data.files(data, 0, 2), setting.work("warm-up"))
        outcomes: dict[str, list[Outcome]] = {name: [] for name in VARIANTS}
        for counts in [False] * (setting.rounds > 1) + [True] * setting.rounds:
            for name, options in VARIANTS.items():
                outcome = run(spark, "ours", glob, setting.work("ours"), options=options)
                outcomes[name] += [outcome] * counts
        parts.append(_part(shape, outcomes))
    spark.stop()
    return parts


def _part(shape: Shape, outcomes: dict[str, list[Outcome]]) -> Part:
    def of(batches: list[BatchTime]) -> list[float]:
        return [float(batch.trigger_ms) for batch in batches]

    rows, data = [], {}
    base: tuple[float, float] | None = None
    for name, runs in outcomes.items():
        times = of([batch for outcome in runs for batch in outcome.body(shape.seed_batches + WARM_UP)])
        found = (median(times), percentile(times, 0.99))
        base = base or found
        ratios = [now / max(1.0, then) for now, then in zip(found, base)]
        made = sum(outcome.server.get("materializations_completed", 0) for outcome in runs)
        pause = sum(outcome.server.get("materialize_sync_micros", 0) for outcome in runs) / 1e3
        verdict = " ".join("met" if ratio <= wanted else "MISSED" for ratio, wanted in zip(ratios, WANTED))
        cells = [f"{found[0]:,.0f}", f"{found[1]:,.0f}", *(f"{ratio:.2f}" for ratio in ratios), verdict]
        rows.append([name, str(len(times)), *cells, str(made), f"{pause / max(1, made):.1f}"])
        data[name] = {"median_ms": found[0], "p99_ms": found[1], "ratios": ratios, "bases": made, "times": times}
        data[name]["runs"] = [dataclasses.asdict(outcome) for outcome in runs]
    head = ["", "batches", "median ms", "p99 ms", "x median", "x p99", f"wanted {WANTED}", "bases", "held ms/base"]
    title = f"{shape.keys:,} keys, {shape.rows:,} rows a batch, while bases are made"
    return Part(title, head, rows, data)
