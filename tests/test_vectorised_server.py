"""The same logic as a processor of rows and as a vectorised one gives the same, also over a real state server.

Owns: equality of both over random batches with all kinds of state, time to live and timers, and server restarts.
Does not own: what each of them promises (`test_processor_server`, `test_vectorised_states`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import fastchangelog as fc
from support.processor_servers import CodecRunner, make

__all__ = ["make"]

TTL = 400
EPOCH = date(1970, 1, 1)


class RowSide(StatefulProcessor):
    """One key after the other."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "value long", TTL)
        self.values = handle.getListState("values", "value long", TTL)
        self.names = handle.getMapState("names", "key string", "value long", TTL)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        given = [row.v for row in rows]
        before = (self.n.get() or (0,))[0]
        self.n.update((before + len(given),))
        for v in given:
            self.values.appendValue((v,))
            if v % 4:
                self.names.updateValue((f"m{v % 7}",), (v,))
            else:
                self.names.removeKey((f"m{v % 7}",))
        for v in given:
            if v % 3:
                self.handle.registerTimer(v * 20)
        if max(given) > 95:
            self.values.clear()
        n = sum(v for (v,) in self.values.get()) + 10_000 * sum(v for (v,) in self.names.values())
        yield Row(k=key[0], n=n * 1000 + before)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        self.values.appendValue((time,))
        if time % 40 == 0:
            self.handle.registerTimer(time + 30)
        yield Row(k=key[0], n=-time - sum(1 for _ in self.values.get()))

    def close(self) -> None:
        pass


class VectorSide(fc.Processor):
    """Many keys at a time."""

    def open(self, ctx: Any) -> None:
        self.ctx = ctx
        ttl = timedelta(milliseconds=TTL)
        self.n = ctx.value_state("n", "long", ttl=ttl)
        self.values = ctx.list_state("values", "long", ttl=ttl)
        self.names = ctx.map_state("names", "map<string, long>", ttl=ttl)

    def process(self, batch: Any) -> Any:
        agg = batch.aggregate(n=fc.count(), high=fc.max("v"))
        before = pc.fill_null(self.n.get(batch.keys), 0)
        self.n.put(batch.keys, pc.add(before, agg["n"]))
        v = np.asarray(batch.rows["v"])
        self.values.extend(batch.keys, batch.lists("v"))
        self.names.put(batch.row_keys, [f"m{one % 7}" for one in v], pa.array(v, mask=v % 4 == 0))
        times = pa.array(v * 20_000, pa.timestamp("us", "UTC"))
        is_timer = pa.array(v % 3 != 0)
        self.ctx.register_timers(batch.row_keys.filter(is_timer), times.filter(is_timer))
        self.values.clear(batch.keys.filter(pc.greater(agg["high"], 95)))
        sums = np.array([sum(one or ()) for one in self.values.get(batch.keys).to_pylist()], np.int64)
        maps = np.array([sum(v for _, v in one or ()) for one in self.names.entries(batch.keys).to_pylist()], np.int64)
        n = pa.array((sums + 10_000 * maps) * 1000 + np.asarray(before))
        yield pa.record_batch({"k": batch.keys.field("k"), "n": n})

    def on_timer(self, timers: Any) -> Any:
        millis = np.asarray(timers.times.cast(pa.int64())) // 1000
        self.values.append(timers.keys, pa.array(millis))
        again = pa.array(millis % 40 == 0)
        later = pc.add(timers.times, pa.scalar(timedelta(milliseconds=30)))
        self.ctx.register_timers(timers.keys.filter(again), later.filter(again))
        n = pa.array(-millis - np.asarray(self.values.length(timers.keys)))
        yield pa.record_batch({"k": timers.keys.field("k"), "n": n})


def test_rows_and_columns_give_the_same(make: Callable[..., CodecRunner]) -> None:
    rng = random.Random(16)
    rows, columns = make(RowSide, time_mode="processingtime"), make(VectorSide, api="arrow", time_mode="processingtime")
    columns.root = columns.root / "columns"
    columns.root.mkdir()
    now, fired, ended = 0, 0, 0
    for number in range(24):
        now += rng.randrange(10, 300)
        given = [(rng.choice(["a", "b", "c", "d", None]), rng.randrange(100)) for _ in range(rng.randrange(1, 15))]
        wanted = rows.batch(given, now=now)
        assert sorted(columns.batch(given, now=now), key=repr) == sorted(wanted, key=repr)
        fired += sum(n < 0 for _, n in wanted)
        ended += sum(n % 1000 == 0 for _, n in wanted if n >= 0)
        if number % 8 == 7:
            rows.kill_server()
    assert fired > 20
    assert ended > 10


def test_an_initial_state(make: Callable[..., CodecRunner]) -> None:
    class Started(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.n = ctx.value_state("n", "long")

        def initial_state(self, batch: Any) -> None:
            self.n.put(batch.keys, batch.aggregate(n=fc.sum("start"))["n"])

        def process(self, batch: Any) -> Any:
            yield pa.record_batch({"k": batch.keys.field("k"), "n": self.n.get(batch.keys)})

    runner = make(Started, api="arrow", initial="start long")
    assert runner.batch([("a", 0), ("b", 0)], initial=[("a", 5), ("c", 1), ("a", 6)]) == [("a", 11), ("b", None)]
    assert runner.batch([("c", 0)]) == [("c", 1)]
    plain = make(VectorSide, api="arrow", initial="start long")
    with pytest.raises(fc.InvalidArgumentError, match=r"VectorSide has no method initial_state\(\); write one"):
        plain.batch([("a", 0)], initial=[("a", 5)])
    plain.abort()


def test_aggregates_and_nested_values_come_back(make: Callable[..., CodecRunner]) -> None:
    class Nested(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.totals = ctx.aggregating_state("totals", "v long", n=fc.count(), total=fc.sum("v"))
            self.lists = ctx.list_state("lists", "a array<long>, b struct<x: decimal(5,2)>")
            self.maps = ctx.map_state("maps", "map<struct<a: date>, array<string>>")

        def process(self, batch: Any) -> Any:
            self.totals.add(batch.row_keys, batch.rows)
            v = batch.rows["v"].to_pylist()
            self.lists.append(batch.row_keys, [([one, None], (None,)) for one in v])
            self.maps.put(batch.row_keys, [{"a": EPOCH + timedelta(days=one)} for one in v], [["x", None]] * len(v))
            lists, maps = self.lists.get(batch.keys).to_pylist(), self.maps.entries(batch.keys).to_pylist()
            for seen, entries in zip(lists, maps):
                assert all(one == {"a": [one["a"][0], None], "b": {"x": None}} for one in seen)
                days = {one["a"][0] for one in seen}
                assert entries == [({"a": EPOCH + timedelta(days=day)}, ["x", None]) for day in sorted(days)]
            found = self.totals.get(batch.keys)
            n = pc.add(pc.multiply(found.field("n"), 1000), found.field("total"))
            yield pa.record_batch({"k": batch.keys.field("k"), "n": n})

    runner, model = make(Nested, api="arrow"), dict[str, int]()
    rng = random.Random(3)
    for _ in range(4):
        given = [(rng.choice("ab"), rng.randrange(20)) for _ in range(5)]
        for k, v in given:
            model[k] = model.get(k, 0) + 1000 + v
        assert sorted(runner.batch(given)) == sorted((k, model[k]) for k in {k for k, _ in given})
        runner.kill_server()


def test_entries_of_a_key_that_fill_several_pages(make: Callable[..., CodecRunner]) -> None:
    class Long(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.list = ctx.list_state("list", "string")
            self.map = ctx.map_state("map", "map<string, string>")

        def process(self, batch: Any) -> Any:
            names = [f"{v:05}" * 20 for v in batch.rows["v"].to_pylist()]
            self.list.append(batch.row_keys, names)
            self.map.put(batch.row_keys, names, names)
            lists, maps = self.list.get(batch.keys).to_pylist(), self.map.entries(batch.keys).to_pylist()
            assert [sorted(one) for one in lists] == [[key for key, _ in one] for one in maps]
            yield pa.record_batch({"k": batch.keys.field("k"), "n": pa.array([len(one) for one in lists])})

    runner = make(Long, api="arrow")
    assert runner.batch([("a", v) for v in range(900)] + [("b", 1)]) == [("a", 900), ("b", 1)]
