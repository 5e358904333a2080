"""What aggregating states of vectorised processors store: accumulators, or the results that an older catalog describes.

Owns: stored forms over a real state server, their catalogs, and which declarations may follow each other.
Does not own: results of functions (`test_vectorised_aggregates`), readers (`test_state_scan`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")
import fastchangelog as fc
from fastchangelog import _internal
from support.processor_servers import CodecRunner, make

__all__ = ["make"]

OUTPUT = "k string, n long, total long"
#: The catalog entry of `n=fc.count(), total=fc.sum("v")` as versions before accumulators wrote it.
OF_RESULTS = {
    "id": 0, "name": "totals", "kind": "value", "key": "k string", "value": "n bigint, total bigint", "encoding": 1,
    "ttl": False, "versions": ["n bigint, total bigint"],
}  # fmt: skip


class OldTotals(fc.Processor):
    """Keeps results as values, as aggregating states did before accumulators."""

    def open(self, ctx: Any) -> None:
        self.totals = ctx.value_state("totals", "n bigint, total bigint")

    def process(self, batch: Any) -> Any:
        found = batch.aggregate(n=fc.count(), total=fc.sum("v"))
        self.totals.put(batch.keys, found)
        yield found.add_column(0, "k", batch.keys.field("k"))


class Totals(fc.Processor):
    """Yields the results of an aggregating state, as `n` and `total`."""

    def __init__(self, ttl: Any = None, **named: Any) -> None:
        self.ttl = ttl
        self.named = named or {"n": fc.count(), "total": fc.sum("v")}

    def open(self, ctx: Any) -> None:
        self.totals = ctx.aggregating_state("totals", "v long", ttl=self.ttl, **self.named)

    def process(self, batch: Any) -> Any:
        self.totals.add(batch.row_keys, batch.rows)
        found = self.totals.get(batch.keys)
        columns = [pc.cast(found.field(i), pa.int64(), safe=False) for i in range(2)]
        yield pa.RecordBatch.from_arrays([batch.keys.field("k"), *columns], ["k", "n", "total"])


def totals(runner: CodecRunner, *rows: tuple[str, int | None], **settings: Any) -> list[tuple[Any, ...]]:
    return sorted(runner.batch(list(rows), **settings))


def entry(runner: Any) -> dict[str, Any]:
    """The catalog's entry of the state."""
    text = runner.store.catalog if runner.store.catalog != "[]" else None
    text = text or json.loads(_internal.handle_json(runner.handle))["schema"]
    (found,) = json.loads(text)
    return found  # type: ignore[no-any-return]


def test_results_of_an_older_catalog_go_on(make: Callable[..., CodecRunner]) -> None:
    runner = make(OldTotals, api="arrow", output=OUTPUT)
    assert totals(runner, ("a", 1), ("a", 2), ("b", None)) == [("a", 2, 3), ("b", 1, None)]
    assert entry(runner) == OF_RESULTS
    runner.make = Totals
    assert totals(runner, ("a", 10), ("b", 5), ("c", None)) == [("a", 3, 13), ("b", 2, 5), ("c", 1, None)]
    assert entry(runner) == OF_RESULTS, "they stay results"
    runner.kill_server()
    assert totals(runner, ("a", None), ("c", 7)) == [("a", 4, 13), ("c", 2, 7)]
    runner.make = OldTotals
    assert totals(runner, ("a", 1)) == [("a", 1, 1)], "an earlier version reads them"


def test_results_of_an_older_catalog_take_what_can_go_on(make: Callable[..., CodecRunner]) -> None:
    runner = make(OldTotals, api="arrow", output=OUTPUT)
    totals(runner, ("a", 1))
    runner.make = lambda: Totals(n=fc.count(), mean=fc.avg("v"))
    with pytest.raises(fc.SchemaMismatchError, match="the state `totals` keeps the results of its aggregates"):
        totals(runner, ("a", 1))
    runner.abort()
    runner.make = lambda: Totals(n=fc.count(), total=fc.sum("v"), high=fc.max("v"))
    assert totals(runner, ("a", 5)) == [("a", 2, 6)]


def test_accumulators_are_stored_with_their_description(make: Callable[..., CodecRunner]) -> None:
    runner = make(lambda: Totals(n=fc.avg("v"), total=fc.last("v")), api="arrow", output=OUTPUT)
    assert totals(runner, ("a", 1), ("a", 4), ("b", None)) == [("a", 2, 4), ("b", None, None)]
    found = entry(runner)
    assert (found["kind"], found["value"], found["versions"]) == (
        "aggregating",
        "n double, total bigint",
        ["n double, total bigint"],
    )
    assert found["results"] == ["avg(v)", "last(v)"]
    described = json.loads(found["accumulators"])
    assert [(part["fn"], part["types"]) for part in described["aggregates"]] == [
        ("avg", ["bigint"]),
        ("last", ["bigint"]),
    ]
    runner.kill_server()
    assert totals(runner, ("a", 7), ("b", 3)) == [("a", 4, 7), ("b", 3, 3)]


def test_names_and_order_of_results_may_change(make: Callable[..., CodecRunner]) -> None:
    runner = make(lambda: Totals(n=fc.count(), total=fc.sum("v")), api="arrow", output=OUTPUT)
    totals(runner, ("a", 1), ("a", 4))
    runner.make = lambda: Totals(sum=fc.sum("v"), rows=fc.count())
    assert totals(runner, ("a", 1)) == [("a", 6, 3)]
    for named, difference in [
        ({"n": fc.count(), "high": fc.max("v")}, r"`sum\(v\)` was removed, `max\(v\)` added"),
        ({"n": fc.count(), "total": fc.sum("v"), "mean": fc.avg("v")}, r"`avg\(v\)` added"),
    ]:
        runner.make = lambda named=named: Totals(**named)  # type: ignore[misc]
        with pytest.raises(fc.SchemaMismatchError, match=f"new aggregates: aggregates changed: {difference}"):
            totals(runner, ("a", 1))
        runner.abort()
    runner.make = lambda: Totals("1 hour")
    with pytest.raises(fc.SchemaMismatchError, match="it had no TTL and now has one"):
        totals(runner, ("a", 1))
    runner.abort()
    runner.make = OldTotals
    with pytest.raises(fc.SchemaMismatchError, match="Cannot change totals to ValueState"):
        totals(runner, ("a", 1))
    runner.abort()


def test_ansi_mode_may_change(make: Callable[..., CodecRunner]) -> None:
    runner = make(Totals, api="arrow", output=OUTPUT)
    totals(runner, ("a", 2**62))
    with pytest.raises(fc.InvalidArgumentError, match="ARITHMETIC_OVERFLOW"):
        totals(runner, ("a", 2**62))
    runner.abort()
    runner.settings["ansi"] = False
    assert totals(runner, ("a", 2**62)) == [("a", 2, -(2**63))]


def test_aggregates_expire_after_the_last_row(make: Callable[..., CodecRunner]) -> None:
    runner = make(lambda: Totals("1s"), api="arrow", output=OUTPUT, time_mode="processingtime")
    assert totals(runner, ("a", 1), ("b", 1), now=0) == [("a", 1, 1), ("b", 1, 1)]
    assert totals(runner, ("a", 2), now=900) == [("a", 2, 3)]
    runner.kill_server()
    assert totals(runner, ("a", 4), ("b", 4), now=1800) == [("a", 3, 7), ("b", 1, 4)]
    assert totals(runner, ("a", 8), now=5000) == [("a", 1, 8)]
