"""The same stream through an aggregation of ours and through Spark's own, batch by batch.

Owns: both runs, with restarts between, and drawn rows of keys and values of many types.
Does not own: what is aggregated (the tests), a run (`stream_harness`), the values (`values`).
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

from fastchangelog.spark import grouped
from support.spark.stream_harness import rows_of, run
from support.spark.values import VALUES

FLAT = [t for t in VALUES if not t.startswith(("array", "struct", "map"))]
NESTED = [t for t in VALUES if t not in FLAT]


def both(
    feed: Any, folder: pathlib.Path, schema: str, runs: list[list[list[Any]]], plan: Callable[[Any, Any], Any]
) -> list[dict[int, list[Any]]]:
    """The rows of each batch, of ours and of Spark's: `plan` gets a stream and the function that groups it."""
    found = []
    for side, group in (
        ("ours", lambda df, *keys, **named: grouped(df, *keys, state=str(folder / "state"), **named)),
        ("sparks", lambda df, *keys, **_: df.groupBy(*keys)),
    ):
        source, batches = feed(schema, name=f"{folder.name}-{side}"), {}
        for run_of_batches in runs:
            for rows in run_of_batches:
                source.add(rows)
            mode = "append" if "ts" in schema else "update"
            batches.update(run(plan(source.stream(), group), folder / side, mode=mode).batches)
        found.append({number: rows_of(rows) for number, rows in batches.items() if rows})
    return found


def drawn(seed: int, types: list[str], sizes: tuple[int, ...] = (30, 12, 40)) -> list[list[list[Any]]]:
    rng = random.Random(seed)
    batches = [
        [(rng.choice(["a", "b", None]), *(rng.choice([None, *VALUES[t]]) for t in types)) for _ in range(size)]
        for size in sizes
    ]
    return [batches[:2], batches[2:]]
