"""`Batch.aggregate` and aggregating states, without Spark.

Owns: some functions against plain Python and each against an embedded state, over random rows; types of results,
ANSI mode, TTL, refusals.
Does not own: equality with Spark's aggregates (`tests/spark/test_processor_vectorised.py`), stored forms
(`test_vectorised_stored`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fastchangelog as fc
from fastchangelog.function_table import FUNCTIONS, Function
from fastchangelog.functions import Aggregate
from fastchangelog.testing import run_processor
from fastchangelog.vectorised.batch import Batch
from fastchangelog.vectorised.context import Context


def batch_of(groups: list[list[Any]], dtype: pa.DataType, **more: pa.Array) -> Batch:
    values = [value for group in groups for value in group]
    offsets = [0]
    for group in groups:
        offsets.append(offsets[-1] + len(group))
    keys = pa.array([{"k": i} for i in range(len(groups))], pa.struct([("k", pa.int64())]))
    columns = {"v": pa.array(values, dtype), "i": pa.array(range(len(values)), pa.int64()), **more}
    return Batch(keys, pa.record_batch(columns), pa.array(offsets, pa.int64()))


def random_groups(rng: random.Random, make: Any) -> list[list[Any]]:
    return [[make() if rng.random() < 0.8 else None for _ in range(rng.randrange(1, 5))] for _ in range(30)]


MAKERS = {
    "int": (pa.int32(), lambda rng: rng.randrange(-5, 5)),
    "double": (pa.float64(), lambda rng: rng.choice([0.5, -1.25, 3.0, math.inf])),
    "decimal": (pa.decimal128(10, 2), lambda rng: Decimal(rng.randrange(-500, 500)).scaleb(-2)),
    "string": (pa.string(), lambda rng: rng.choice(["", "a", "é", "zz"])),
    "boolean": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "time": (pa.timestamp("us", "UTC"), lambda rng: rng.randrange(10**15)),
}


def present(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


@pytest.mark.parametrize("kind", MAKERS)
def test_functions_are_those_of_python(kind: str) -> None:
    dtype, make = MAKERS[kind]
    rng = random.Random(kind)
    groups = random_groups(rng, lambda: make(rng))
    batch = batch_of(groups, dtype)
    values = pa.array([v for group in groups for v in group], dtype).to_pylist()
    numbers = iter(range(len(values)))
    rows = [[(next(numbers)) for _ in group] for group in groups]
    lists = [[(values[i], i) for i in group] for group in rows]
    named = {
        "all": fc.count(),
        "n": fc.count("v"),
        "low": fc.min("v"),
        "high": fc.max("v"),
        "first": fc.first("v"),
        "last": fc.last("v", ignorenulls=True),
        "at_low": fc.min_by("i", "v"),
        "at_high": fc.max_by("i", "v"),
        "some": fc.count(where="i > 20"),
    }
    found = batch.aggregate(**named)
    assert found.schema.names == list(named)
    for row, pairs in zip(found.to_pylist(), lists, strict=True):
        here = present([v for v, _ in pairs])
        low, high = min(here, default=None), max(here, default=None)
        assert row == {
            "all": len(pairs),
            "n": len(here),
            "low": low,
            "high": high,
            "first": pairs[0][0],
            "last": here[-1] if here else None,
            "at_low": max((i for v, i in pairs if v is not None and v == low), default=None),
            "at_high": max((i for v, i in pairs if v is not None and v == high), default=None),
            "some": sum(1 for _, i in pairs if i > 20),
        }


def test_sums_and_averages() -> None:
    groups = [[1, 2, None], [None], [3, 4]]
    whole = batch_of(groups, pa.int32()).aggregate(s=fc.sum("v"), a=fc.avg("v"), w=fc.sum("v", where="v > 1"))
    assert whole.schema.types == [pa.int64(), pa.float64(), pa.int64()]
    assert whole.to_pylist() == [
        {"s": 3, "a": 1.5, "w": 2},
        {"s": None, "a": None, "w": None},
        {"s": 7, "a": 3.5, "w": 7},
    ]
    decimals = batch_of([[Decimal("1.10"), None], [], [Decimal("-2.05"), Decimal("3.00")]], pa.decimal128(5, 2))
    summed = decimals.aggregate(s=fc.sum("v"))
    assert summed.schema.types == [pa.decimal128(15, 2)]
    assert summed["s"].to_pylist() == [Decimal("1.10"), None, Decimal("0.95")]
    assert batch_of([[0.5, 0.25], [None]], pa.float32()).aggregate(s=fc.sum("v"))["s"].to_pylist() == [0.75, None]


def test_a_sum_beyond_64_bits_is_an_error_and_one_below_is_exact() -> None:
    near = batch_of([[2**62, 2**62 - 1, None], [-(2**63)], [None]], pa.int64())
    assert near.aggregate(s=fc.sum("v"))["s"].to_pylist() == [2**63 - 1, -(2**63), None]
    with pytest.raises(fc.InvalidArgumentError, match="ARITHMETIC_OVERFLOW"):
        batch_of([[2**62, 2**62]], pa.int64()).aggregate(s=fc.sum("v"))


def test_without_ansi_mode_a_sum_beyond_64_bits_wraps() -> None:
    ansi = batch_of([[2**62, 2**62]], pa.int64())
    found = Batch(ansi.keys, ansi.rows, ansi.offsets, ansi=False).aggregate(s=fc.sum("v"))
    assert found["s"].to_pylist() == [-(2**63)]


def test_a_nan_is_the_largest() -> None:
    found = batch_of([[1.0, math.nan, None], [math.nan], [2.0]], pa.float64()).aggregate(
        low=fc.min("v"), high=fc.max("v"), at=fc.max_by("i", "v")
    )
    assert found["low"].to_pylist()[::2] == [1.0, 2.0]
    assert [math.isnan(v) for v in found["high"].to_pylist()] == [True, True, False]
    assert math.isnan(found["low"][1].as_py())
    assert found["at"].to_pylist() == [1, 3, 4]


def test_booleans() -> None:
    found = batch_of([[True, False], [True, None], [None]], pa.bool_()).aggregate(
        some=fc.bool_or("v"), every=fc.bool_and("v")
    )
    assert found.to_pylist() == [
        {"some": True, "every": False},
        {"some": True, "every": True},
        {"some": None, "every": None},
    ]


def test_without_rows() -> None:
    found = batch_of([], pa.string()).aggregate(n=fc.count(), high=fc.max("v"), s=fc.sum("i"))
    assert found.num_rows == 0
    assert found.schema.types == [pa.int64(), pa.string(), pa.int64()]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": fc.sum("s")}, r"sum\(string\) is not supported"),
        ({"x": fc.sum("missing")}, "rows have no column `missing`; they have: v, i, d, s"),
        ({"x": fc.count(where="missing > 1")}, "missing"),
        ({"x": 1}, "is no aggregate"),
        ({}, "takes aggregates"),
    ],
)
def test_refusals(named: Any, message: str) -> None:
    more = {"d": pa.array([Decimal(1)], pa.decimal128(5, 2)), "s": pa.array(["x"])}
    with pytest.raises(fc.FastChangelogError, match=message):
        batch_of([[1]], pa.int64(), **more).aggregate(**named)


#: Columns that functions are given: type and values, of which some are null.
COLUMNS = {
    "long": (pa.int64(), lambda rng: rng.randrange(-9, 9)),
    "half": (pa.float64(), lambda rng: rng.randrange(-9, 9) / 2),
    "price": MAKERS["decimal"],
    "text": MAKERS["string"],
    "truth": MAKERS["boolean"],
    "time": MAKERS["time"],
    "third": (pa.float64(), lambda rng: 1 / 3),
    "away": (pa.duration("us"), lambda rng: timedelta(seconds=rng.randrange(-9, 9))),
    "bins": (pa.int64(), lambda rng: 200),
}
ROWS = pa.schema([(name, dtype) for name, (dtype, _) in COLUMNS.items()])
#: Columns of each kind of argument.
TAKEN = {
    "presence": ["text", "price"],
    "any": ["text", "price", "half", "truth", "time"],
    "ordered": ["price", "text", "half", "truth", "time", "long"],
    "quantity": ["long", "half", "price", "away"],
    "double": ["half", "long", "price"],
    "integer": ["long"],
    "measured": ["price", "time", "away", "half"],
    "boolean": ["truth"],
    "text": ["text"],
    "percentages": ["third"],
    "hashed": ["text", "price", "half", "truth", "time", "away"],
}
#: The same for some functions: more bins than values.
TAKEN_BY = {"histogram_numeric": {"integer": ["bins"]}}


def calls_of_each(function: Function) -> dict[str, Aggregate]:
    """Calls over columns of all kinds that the function takes, with and without a condition."""
    kinds = [function.kind(position) for position in range(max(len(function.arguments), 1 if function.more else 0))]
    found, taken = {}, {**TAKEN, **TAKEN_BY.get(function.name, {})}
    for number in range(max(len(taken[kind]) for kind in kinds)):
        args = tuple(taken[kind][(number + i) % len(taken[kind])] for i, kind in enumerate(kinds))
        for where in (None, "long > 0"):
            found[f"r{len(found)}"] = Aggregate(function.name, args, where)
    if function.ignores_nulls:
        found["ignoring"] = Aggregate(function.name, args, None, True)
    return found


def random_rows(rng: random.Random, count: int, keys: str) -> pa.Table:
    columns = {"k": pa.array([rng.choice(keys) for _ in range(count)], pa.string())}
    for name, (dtype, make) in COLUMNS.items():
        there = 1 if name == "bins" else 0.7
        columns[name] = pa.array([make(rng) if rng.random() < there else None for _ in range(count)], dtype)
    return pa.table(columns)


@pytest.fixture
def embedded(request: pytest.FixtureRequest) -> Iterator[fc.State]:
    with fc.open_state(f"memory://vectorised-aggregates/{request.node.name}") as state:
        yield state


def embedded_results(state: fc.State, calls: dict[str, Aggregate], tables: list[pa.Table]) -> dict[str, Any]:
    """The results of all rows by an embedded state that gets the tables one after the other."""
    totals = state.aggregating_state("totals", key="string", value=ROWS, **calls)
    for table in tables:
        totals.add_many(table["k"], table.drop_columns("k"))
    return dict(totals.items())


class Totals(fc.Processor):
    """Adds the rows of a batch to a state, in two parts; yields the results of the batch and those of the state."""

    def __init__(self, calls: dict[str, Aggregate], ttl: Any = None) -> None:
        self.calls, self.ttl = calls, ttl

    def open(self, ctx: Any) -> None:
        self.totals = ctx.aggregating_state("totals", ROWS, ttl=self.ttl, **self.calls)

    def process(self, batch: Any) -> Any:
        before = self.totals.get(batch.keys)
        half = batch.rows.num_rows // 2
        for part in (slice(0, half), slice(half, None)):
            self.totals.add(batch.row_keys[part], batch.rows[part])
        one = batch.aggregate(**self.calls).to_struct_array()
        columns = [batch.keys.field("k"), before, one, self.totals.get(batch.keys)]
        yield pa.RecordBatch.from_arrays(columns, ["k", "before", "batch", "state"])


@pytest.mark.parametrize("name", sorted({function.name for function in FUNCTIONS.values()}))
def test_each_function_gives_what_an_embedded_state_gives(name: str, embedded: fc.State) -> None:
    calls = calls_of_each(FUNCTIONS[name])
    rng = random.Random(name)
    tables = [random_rows(rng, 40, keys) for keys in ("abc", "abcd", "bd")]
    first = embedded_results(embedded, calls, tables[:1])
    answered = run_processor(Totals(calls), tables)
    assert {row["k"]: row["batch"] for row in answered[0].to_pylist()} == first
    assert [row["before"] for row in answered[1].to_pylist()] == [first.get(k) for k in answered[1]["k"].to_pylist()]
    whole = embedded_results(embedded, calls, tables[1:])
    assert set(whole) == set("abcd")
    for row in answered[2].to_pylist():
        expected: Any = heights(name, whole[row["k"]])
        assert heights(name, row["state"]) == (
            pytest.approx(expected, rel=1e-9, abs=1e-9) if is_inexact(name) else expected
        )
    types = {answered[2].schema.field(name).type for name in ("before", "batch", "state")}
    assert types == {embedded.aggregating_state("totals", key="string", value=ROWS, **calls).result_type}


def heights(name: str, results: Any) -> Any:
    """Histograms as how many values have each center: partial results have bins of their own. Others as they are."""
    if name != "histogram_numeric":
        return results
    return {
        call: {x: sum(bin["y"] for bin in bins if bin["x"] == x) for x in {bin["x"] for bin in bins or ()}}
        for call, bins in results.items()
    }


def is_inexact(name: str) -> bool:
    """True if partial results may differ in their last bits."""
    return name.startswith(("product", "var", "stddev", "skewness", "kurtosis", "covar", "corr"))


def test_aggregates_expire_after_the_last_row() -> None:
    calls = {"n": fc.count(), "mean": fc.avg("long")}
    rows = random_rows(random.Random(1), 9, "a")
    seconds = iter([0, 50, 105, 300])
    answered = run_processor(Totals(calls, "1 minute"), [rows] * 4, clock=lambda: next(seconds))
    counts = [(row["before"] or {}).get("n") for table in answered for row in table.to_pylist()]
    assert counts == [None, 9, 18, None]
    assert [row["state"]["n"] for row in answered[3].to_pylist()] == [9]


@pytest.mark.parametrize("kind", ["int", "double", "decimal", "string", "boolean", "time"])
def test_an_aggregating_state_gives_what_all_rows_together_give(kind: str) -> None:
    dtype, make = MAKERS[kind]
    calls = {"n": fc.count("v"), "low": fc.min("v"), "high": fc.max("v"), "some": fc.count(where="i > 3")}
    if kind in ("int", "double", "decimal"):
        calls["total"] = fc.sum("v", where="i > 1")
    if kind == "boolean":
        calls |= {"every": fc.bool_and("v"), "any": fc.bool_or("v")}

    class Totals(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.totals = ctx.aggregating_state("totals", pa.schema([("v", dtype), ("i", pa.int32())]), **calls)

        def process(self, batch: Any) -> Any:
            half = batch.rows.num_rows // 2
            for part in (slice(half, None), slice(0, half)):
                self.totals.add(batch.row_keys[part], batch.rows[part])
            found = self.totals.get(batch.keys)
            yield pa.RecordBatch.from_arrays([batch.keys.field("k"), found], ["k", "found"])

    rng = random.Random(kind)
    rows: list[tuple[Any, ...]] = []
    for _ in range(6):
        new = [
            (rng.choice("abc"), make(rng) if rng.random() < 0.7 else None, rng.randrange(9))
            for _ in range(rng.randrange(1, 9))
        ]
        rows.append(tuple(new))
    schema = pa.schema([("k", pa.string()), ("v", dtype), ("i", pa.int32())])
    tables = [
        pa.table([pa.array(column, field.type) for column, field in zip(zip(*new), schema)], schema) for new in rows
    ]
    answered = run_processor(Totals(), tables)
    for i, table in enumerate(answered):
        every = pa.concat_tables(tables[: i + 1])
        for row in table.to_pylist():
            of_key = every.filter(pc.equal(every["k"], row["k"])).combine_chunks().to_batches()[0]
            whole = Batch(pa.array([{"k": row["k"]}]), of_key, pa.array([0, of_key.num_rows], pa.int64()))
            assert row["found"] == whole.aggregate(**calls).to_pylist()[0]


def test_plain_rows_and_overflow_of_an_aggregating_state() -> None:
    class Sums(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.sums = ctx.aggregating_state("sums", "decimal(38,0)", total=fc.sum("value"))

        def process(self, batch: Any) -> Any:
            self.sums.add(batch.keys[:0], [])
            self.sums.add(batch.row_keys, batch.rows["v"])
            yield pa.record_batch({"total": self.sums.get(batch.keys).field("total")})
            if len(batch.keys) > 1:
                self.sums.clear(batch.keys)
                assert self.sums.get(batch.keys).null_count == len(batch.keys)

    def rows(*pairs: Any) -> pa.Table:
        values = pa.array([v for _, v in pairs], pa.decimal128(38, 0))
        return pa.table({"k": [k for k, _ in pairs], "v": values})

    large = Decimal(6 * 10**37)
    one = rows(("a", large))
    answered = run_processor(Sums(), [one, rows(("a", Decimal(1)), ("b", None)), one])
    assert [table["total"].to_pylist() for table in answered] == [[large], [Decimal(6 * 10**37 + 1), None], [large]]
    with pytest.raises(fc.InvalidArgumentError, match="sum"):
        run_processor(Sums(), [one, one])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": fc.sum("missing")}, "missing"),
        ({"x": 1}, "is no aggregate"),
        ({}, "has no aggregates"),
    ],
)
def test_refusals_of_an_aggregating_state(named: Any, message: str) -> None:
    ctx = Context(pa.struct([("k", pa.string())]), "none", 0, 0)
    with pytest.raises(fc.FastChangelogError, match=message):
        ctx.aggregating_state("s", "v long", **named)
