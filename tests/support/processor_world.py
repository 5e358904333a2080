"""A processor that does random things to a shard's states, and bounds that make it hard.

Owns: the operations, the comparison of each result where it is made. Does not own: the model of the states (`model`),
what sessions it is run over (the tests).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.spark.processor.states.order import number_bytes
from support.fake_state_session import FakeSession
from support.model import NEVER, Model, States
from support.processor_runs import Runner

TTL = 7


class World:
    """A shard, and the operations that are drawn."""

    def __init__(self, seed: int, ttl: int | None) -> None:
        self.rng = random.Random(seed)
        self.ttl = ttl
        self.states = Model()
        self.done = 0

    def step(self, p: Operations, key: str, iterators: list[tuple[Iterator[Any], list[Any]]]) -> None:
        """One operation on processor and model."""
        self.done += 1
        getattr(self, self.rng.choice(OPERATIONS))(p, self.states.of(key), iterators)

    def lives(self, value: Any) -> tuple[Any, int]:
        """A value with the time at which it expires."""
        return value, NEVER if self.ttl is None else self.states.now + self.ttl

    def row(self) -> tuple[int, str]:
        """A value, sometimes a large one."""
        return self.rng.randrange(1000), "x" * self.rng.choice((0, 1, 5, 60))

    def name(self) -> str:
        """A key of the map."""
        return f"m{self.rng.randrange(25):02}"

    def value_get(self, p: Operations, model: States, _: Any) -> None:
        assert p.v.get() == model.held

    def value_exists(self, p: Operations, model: States, _: Any) -> None:
        assert p.v.exists() is (model.value is not None)

    def value_update(self, p: Operations, model: States, _: Any) -> None:
        row = self.row()
        p.v.update(row)
        model.value = self.lives(row)

    def value_clear(self, p: Operations, model: States, _: Any) -> None:
        p.v.clear()
        model.value = None

    def list_get(self, p: Operations, model: States, _: Any) -> None:
        assert list(p.l.get()) == model.listed

    def list_exists(self, p: Operations, model: States, _: Any) -> None:
        assert p.l.exists() is bool(model.elements)

    def list_append(self, p: Operations, model: States, _: Any) -> None:
        row = self.row()
        p.l.appendValue(row)
        model.elements.append(self.lives(row))

    def list_extend(self, p: Operations, model: States, _: Any) -> None:
        rows = [self.row() for _ in range(self.rng.randrange(6))]
        p.l.appendList(rows)
        model.elements += map(self.lives, rows)

    def list_put(self, p: Operations, model: States, _: Any) -> None:
        rows = [self.row() for _ in range(self.rng.randrange(4))]
        p.l.put(rows)
        model.elements = list(map(self.lives, rows))

    def list_clear(self, p: Operations, model: States, _: Any) -> None:
        p.l.clear()
        model.elements = []

    def list_iterate(self, p: Operations, model: States, iterators: list[Any]) -> None:
        expected = model.listed
        iterator = p.l.get()
        if expected:
            assert next(iterator) == expected.pop(0)
            iterators.append((iterator, expected))

    def map_get(self, p: Operations, model: States, _: Any) -> None:
        key = self.name()
        found = p.m.getValue((key,))
        assert found == model.mapped.get(key)
        assert found is None or (isinstance(found, Row) and found.n == found[0])

    def map_contains(self, p: Operations, model: States, _: Any) -> None:
        key = self.name()
        assert p.m.containsKey((key,)) is (key in model.entries)

    def map_update(self, p: Operations, model: States, _: Any) -> None:
        for _ in range(self.rng.choice((1, 1, 8))):
            key, row = self.name(), self.row()
            p.m.updateValue((key,), row)
            model.entries[key] = self.lives(row)

    def map_remove(self, p: Operations, model: States, _: Any) -> None:
        key = self.name()
        p.m.removeKey((key,))
        model.entries.pop(key, None)

    def map_clear(self, p: Operations, model: States, _: Any) -> None:
        p.m.clear()
        model.entries = {}

    def map_exists(self, p: Operations, model: States, _: Any) -> None:
        assert p.m.exists() is bool(model.entries)

    def map_read(self, p: Operations, model: States, _: Any) -> None:
        expected = sorted(((key,), value) for key, value in model.mapped.items())
        assert sorted(p.m.iterator()) == expected
        assert sorted(p.m.keys()) == [key for key, _ in expected]
        assert sorted(p.m.values()) == sorted(value for _, value in expected)

    def map_iterate(self, p: Operations, model: States, iterators: list[Any]) -> None:
        expected = sorted(((key,), value) for key, value in model.mapped.items())
        iterator = p.m.iterator()
        first = next(iterator, None)
        assert (first is None) is (not expected)
        if first is not None:
            expected.remove(first)
            iterators.append((iterator, expected))

    def iterator_end(self, p: Operations, model: States, iterators: list[Any]) -> None:
        if iterators:
            iterator, expected = iterators.pop(self.rng.randrange(len(iterators)))
            assert sorted(iterator) == sorted(expected)

    def timers_change(self, p: Operations, model: States, _: Any) -> None:
        time = self.states.now + self.rng.randrange(1, 6)
        if self.rng.random() < 0.6:
            p.handle.registerTimer(time)
            model.timers.add(time)
        else:
            p.handle.deleteTimer(time)
            model.timers.discard(time)

    def timers_list(self, p: Operations, model: States, _: Any) -> None:
        assert list(p.handle.listTimers()) == sorted(model.timers, key=number_bytes)


OPERATIONS = [name for name in vars(World) if name.startswith(("value_", "list_", "map_", "iterator_", "timers_"))]


class Operations(StatefulProcessor):
    """Some operations before, between and after the rows of a key, and in the handlers of its timers."""

    def __init__(self, world: World) -> None:
        self.world = world

    def init(self, handle: Any) -> None:
        ttl = self.world.ttl
        self.handle = handle
        self.v = handle.getValueState("v", "n long, s string", ttl)
        self.l = handle.getListState("l", "n long, s string", ttl)
        self.m = handle.getMapState("m", "a string", "n long, s string", ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        world, count = self.world, 0
        iterators: list[tuple[Iterator[Any], list[Any]]] = []
        for row in rows:
            count += 1
            for _ in range(row.v):
                world.step(self, key[0], iterators)
        for iterator, expected in iterators:
            assert sorted(iterator) == sorted(expected)
        yield Row(k=key[0], n=count)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        world, time = self.world, expiredTimerInfo.getExpiryTimeInMs()
        assert time in world.states.of(key.k).timers
        iterators: list[tuple[Iterator[Any], list[Any]]] = []
        for _ in range(world.rng.randrange(4)):
            world.step(self, key.k, iterators)
        for iterator, expected in iterators:
            assert sorted(iterator) == sorted(expected)
        world.states.of(key.k).timers.discard(time)
        yield Row(k=key.k, n=-1)

    def close(self) -> None:
        pass


def set_bounds(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Bounds of the caches so small that windows, pages and early writes happen all the time; sometimes not."""
    bounds = {
        "states.cache._KEYS_AHEAD": (1, 2, 256),
        "states.cache._MOST_KEYS_AHEAD": (2, 256, 1024),
        "states.cache._BYTES_AHEAD": (1, 80, 300, 10**6),
        "states.cache._ALL_BYTES_AHEAD": (1, 3000, 10**7),
        "states.cache._PAGE_BYTES": (1, 100, 10**6),
        "states.cache._WRITE_BYTES": (50, 500, 10**7),
        "states.cache.MOST_PENDING": (2, 10, 10**5),
        "states.cache.MOST_READ_BYTES": (0, 500, 10**7),
        "states.cache.PENDING_BYTES": (100, 10**7),
        "run._TIMERS_PAGE": (1, 3, 4096),
        "states.timers._KEYS_AHEAD": (1, 256),
        "states.value._FIRST_READ": (1, 3, 256),
        "states.value._READ_BYTES": (10, 10**6),
    }
    for name, choices in bounds.items():
        monkeypatch.setattr(f"fastchangelog.spark.processor.{name}", rng.choice(choices))
    monkeypatch.setattr(FakeSession, "most_bytes", rng.choice((0, 30, 10**6)))


def run_batches(runner: Runner, world: World, rng: random.Random, batches: int) -> None:
    """Runs batches of random rows; the processor of `runner` is `Operations(world)`."""
    for _ in range(batches):
        world.states.now += rng.randrange(1, 5)
        runner.chunk_rows = rng.choice((1, 2, 5, None))
        rows = [(rng.choice("abcdefgh"), rng.randrange(12)) for _ in range(rng.randrange(12))]
        output = runner.batch(rows, now=world.states.now)
        assert sum(n for _, n in output if n > 0) == len(rows)
