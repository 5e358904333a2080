"""Processors with the real codec and grouper, over a fake session and over a real state server, which may die."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row

from fastchangelog.errors import SchemaMismatchError
from fastchangelog.spark.types.ddl import parse_ddl
from support.processor_runs import TYPES, Script, random_value
from support.processor_servers import CodecRunner, make
from support.processor_world import TTL, Operations, World, run_batches, set_bounds

#: Fixtures of this module, too.
__all__ = ["make"]

SEED = int(os.environ.get("FASTCHANGELOG_SEED", "0"))


@pytest.mark.parametrize("ttl", [None, TTL], ids=["forever", "ttl"])
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_random_operations(
    seed: int, ttl: int | None, monkeypatch: pytest.MonkeyPatch, make: Callable[..., CodecRunner]
) -> None:
    rng = random.Random(f"{seed} {ttl}")
    set_bounds(monkeypatch, rng)
    world = World(seed, ttl)
    runner = make(lambda: Operations(world), time_mode="processingtime")
    for _ in range(3):
        run_batches(runner, world, rng, 6)
        runner.kill_server()
    assert world.done > 300


def test_every_type_comes_back(make: Callable[..., CodecRunner]) -> None:
    ddl = ", ".join(f"f{i} {kind}" for i, kind in enumerate(TYPES))
    struct = parse_ddl(ddl)
    values = [tuple(random_value(random.Random(i), f.dataType) for f in struct.fields) for i in range(20)]
    keys = "a string, b double, c array<binary>, d struct<x:timestamp>"
    key_struct = parse_ddl(keys)
    names = [tuple(random_value(random.Random(-i), f.dataType) for f in key_struct.fields) for i in range(1, 21)]

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", ddl)
        p.l = handle.getListState("l", ddl)
        p.m = handle.getMapState("m", keys, ddl)

    def rows(p: Script, key: Any, given: Any, times: Any) -> Any:
        if given == [0]:
            for name, value in zip(names, values):
                p.v.update(value)
                p.l.appendValue(value)
                p.m.updateValue(name, value)
        found.append(repr((p.v.get(), list(p.l.get()), [p.m.getValue(name) for name in names])))
        found.append(repr(sorted(p.m.iterator(), key=repr)))

    found: list[str] = []
    runner = make(lambda: Script(rows, init))
    runner.batch([("a", 0)])
    runner.batch([("a", 1)])
    assert found[0] == found[2]
    assert found[1] == found[3]


def test_keys_of_every_type(make: Callable[..., CodecRunner]) -> None:
    """Keys of rows, of states and of timers, nested ones too."""
    ddl = "a string, b double, c array<date>, d struct<x:timestamp,y:binary>, e decimal(10,2), f map<string,int>"

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "n long")

    class Timed(Script):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            old = self.v.get()
            self.v.update(((old[0] if old else 0) + sum(row.v for row in rows),))
            self.handle.registerTimer(5)
            keys.append(key)
            return ()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            fired.append((repr(key), self.v.get()))
            return ()

    keys: list[Any] = []
    fired: list[Any] = []
    runner = make(lambda: Timed(None, init), key=ddl, time_mode="processingtime")
    day, noon = datetime.date(2024, 2, 29), datetime.datetime(2024, 7, 1, 12)
    full = ("ü", 0.0, [day, None], {"x": noon, "y": b"\xff"}, Decimal("1.50"), [("k", 1)])
    wire = (*full[:5], [{"key": "k", "value": 1}])
    nothing = (None,) * 6
    for _ in range(2):
        runner.batch([(*wire, 1), (*nothing, 10), (*wire, 2)], now=5)
    utc = datetime.timezone.utc
    assert keys == [nothing, (*full[:3], {"x": noon.replace(tzinfo=utc), "y": b"\xff"}, *full[4:])] * 2
    local = noon.replace(tzinfo=utc).astimezone().replace(tzinfo=None)
    assert fired[1][0].startswith("Row(a='ü', b=0.0, c=[datetime.date(2024, 2, 29), None], d=Row(x=")
    assert repr(local) in fired[1][0]
    assert fired[1][0].endswith("e=Decimal('1.50'), f={'k': 1})")
    assert [value for _, value in fired] == [(10,), (3,), (20,), (6,)]


def test_old_values_are_read_as_new_ones_or_refused(make: Callable[..., CodecRunner]) -> None:
    seen: list[Any] = []

    def processor(ddl: str, put: Any, delete: bool = False) -> Callable[[], Script]:
        def init(p: Script, handle: Any) -> None:
            if delete:
                handle.deleteIfExists("l")
            p.v = handle.getValueState("v", ddl)
            p.l = handle.getListState("l", ddl)

        def rows(p: Script, key: Any, given: Any, times: Any) -> Any:
            seen.append((p.v.get(), list(p.l.get())))
            p.v.update(put)
            p.l.appendValue(put)

        return lambda: Script(rows, init)

    runner = make(processor("n int, s string, x struct<a:int>", (1, "x", (1,))))
    for make_next in (
        None,
        processor("x struct<b:string,a:double>, s binary, n decimal(20,2)", (("y", 2.0), b"z", 3)),
        processor("n decimal(22,2)", (5,)),
        processor("n decimal(22,2)", (6,), delete=True),
    ):
        if make_next is not None:
            runner.make = make_next
        runner.batch([("a", 1)])
    first = (Row(b=None, a=1.0), b"x", Decimal("1.00"))
    assert seen == [
        (None, []),
        (first, [first]),
        ((Decimal("3.00"),), [(Decimal("1.00"),), (Decimal("3.00"),)]),
        ((Decimal("5.00"),), []),
    ]
    runner.make = processor("n int", (1,))
    with pytest.raises(
        SchemaMismatchError, match=r"_VALUE_SCHEMA_NOT_COMPATIBLE. the state `v` cannot be .* field `n` was"
    ):
        runner.batch([("a", 1)])
    runner.abort()
    runner.make = processor("n decimal(22,2)", (7,))
    runner.batch([("a", 1)])
    assert seen[-1] == ((Decimal("6.00"),), [(Decimal("6.00"),)])


def test_a_batch_that_fails_leaves_nothing(make: Callable[..., CodecRunner]) -> None:
    def rows(p: Script, key: Any, given: Any, times: Any) -> Any:
        seen.append((p.v.get(), len(list(p.l.get()))))
        p.v.update((given[0], 0.0))
        p.l.appendValue((1,))
        if given == [0]:
            raise ValueError("no")

    seen: list[Any] = []
    runner = make(lambda: Script(rows))
    runner.batch([("a", 1)])
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            runner.batch([("a", 0)])
        runner.abort()
    runner.batch([("a", 2)])
    assert seen == [(None, 0), ((1, 0.0), 1), ((1, 0.0), 1), ((1, 0.0), 1)]
