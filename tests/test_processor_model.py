"""Random operations on all kinds of state against plain dicts: within a chunk, across chunks and across batches.

Bounds of the caches are so small that windows, pages and early writes happen all the time. Each operation's result is
compared where it is made; iterators are compared with what the model had at their first `next`.
"""

from __future__ import annotations

import os
import random

import pytest

from support.processor_runs import Runner
from support.processor_world import TTL, Operations, World, run_batches, set_bounds

SEED = int(os.environ.get("FASTCHANGELOG_SEED", "0"))


@pytest.mark.parametrize("ttl", [None, TTL], ids=["forever", "ttl"])
@pytest.mark.parametrize("seed", range(SEED, SEED + 12))
def test_random_operations(seed: int, ttl: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{seed} {ttl}")
    set_bounds(monkeypatch, rng)
    world = World(seed, ttl)
    run_batches(Runner(lambda: Operations(world), time_mode="processingtime"), world, rng, 25)
    assert world.done > 200
