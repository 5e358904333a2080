"""Vectorised processors without Spark's operator, over a session in plain Python.

Owns: a model of value states over random batches, whole keys, refusals.
Does not own: the same on Spark (`tests/spark/test_processor_vectorised.py`).
"""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")
import fastchangelog as fc
from support.processor_runs import Runner


class Code(fc.Processor):
    """Runs a function for each batch."""

    def __init__(self, process: Callable[..., Any], schema: Any = "long", ttl: str | None = None) -> None:
        self.run, self.schema, self.ttl = process, schema, ttl

    def open(self, ctx: Any) -> None:
        self.ctx = ctx
        self.seen = ctx.value_state("seen", self.schema, ttl=self.ttl)

    def process(self, batch: Any) -> Any:
        return self.run(self, batch)


def answer(batch: Any, numbers: Any) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([batch.keys.field("k"), pa.array(numbers, pa.int64())], ["k", "n"])]


def sums(code: Code, batch: Any) -> Any:
    values = np.asarray(batch.rows["v"])
    added = pa.array(np.add.reduceat(values, np.asarray(batch.offsets)[:-1]))
    total = pc.add(pc.fill_null(code.seen.get(batch.keys), 0), added)
    code.seen.put(batch.keys, pc.if_else(pc.greater(total, 50), pa.scalar(None, pa.int64()), total))
    return answer(batch, total)


def runner(process: Callable[..., Any], schema: Any = "long", ttl: str | None = None, **settings: Any) -> Runner:
    def make() -> Any:
        return Code(process, schema, ttl)

    return Runner(make, api="arrow", **settings)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 1000])
def test_sums_are_those_of_a_dict(chunk_rows: int) -> None:
    rng = random.Random(chunk_rows)
    shard, model = runner(sums, chunk_rows=chunk_rows), {}
    for _ in range(20):
        rows = [(rng.choice(["a", "b", "c", None]), rng.randrange(10)) for _ in range(rng.randrange(12))]
        wanted = {}
        for k, v in rows:
            wanted[k] = wanted.get(k, model.get(k, 0)) + v
        assert sorted(shard.batch(rows), key=repr) == sorted(wanted.items(), key=repr)
        model.update(wanted)
        model = {k: n for k, n in model.items() if n <= 50}


def test_the_last_duplicate_counts_and_a_null_deletes() -> None:
    def twice(code: Code, batch: Any) -> Any:
        code.seen.put(["a", "a"], [1, 2])
        first = code.seen.get(batch.keys).to_pylist()
        code.seen.put(["a", "a"], [3, None])
        assert code.seen.get([{"k": "a"}]).to_pylist() == [None]
        return answer(batch, first)

    assert runner(twice).batch([("a", 1)]) == [("a", 2)]


def test_values_end() -> None:
    def put(code: Code, batch: Any) -> Any:
        before = code.seen.get(batch.keys)
        code.seen.put(batch.keys, batch.rows["v"])
        return answer(batch, before)

    shard = runner(put, ttl="10s", time_mode="processingtime")
    assert shard.batch([("a", 1)], now=1000) == [("a", None)]
    assert shard.batch([("a", 2)], now=10_999) == [("a", 1)]
    assert shard.batch([("a", 3)], now=20_999) == [("a", None)]


def test_structs_and_times() -> None:
    def put(code: Code, batch: Any) -> Any:
        code.seen.put(batch.keys, [(1, "x")])
        assert code.seen.get(batch.keys).to_pylist() == [{"n": 1, "t": "x"}]
        code.seen.delete(batch.keys)
        assert code.seen.get(batch.keys).to_pylist() == [None]
        return answer(batch, [code.ctx.processing_time.timestamp() + code.ctx.watermark.timestamp()])

    structs = runner(put, "n long, t string", time_mode="eventtime")
    assert structs.batch([("a", 1)], now=4000, watermark=-1) == [("a", 4)]


@pytest.mark.parametrize(
    "form",
    [
        lambda values: values,
        tuple,
        np.array,
        lambda values: np.array(values, object),
        pa.array,
        lambda values: pa.chunked_array([values]),
        lambda values: pa.array(values, pa.large_string()),
        lambda values: [{"k": value} for value in values],
        lambda values: [(value,) for value in values],
        lambda values: pa.array([{"k": value} for value in values]),
        lambda values: pa.table({"k": values}),
        lambda values: pa.record_batch({"k": values}),
        lambda values: pytest.importorskip("pandas").Series(values),
    ],
)
def test_keys_of_one_column_in_all_forms(form: Callable[[Any], Any]) -> None:
    def put(code: Code, batch: Any) -> Any:
        code.seen.put(form(["b", "a"]), [1, 2])
        return answer(batch, code.seen.get(batch.keys).to_pylist())

    assert runner(put).batch([("a", 0), ("b", 0)]) == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (lambda code, batch: code.seen.get(["b"]), r"key \('b',\) is none of the batch"),
        (lambda code, batch: code.seen.put(batch.keys, ["x"]), "state `seen`: values: this is not int64"),
        (lambda code, batch: code.seen.put(batch.keys, [1, 2]), "1 keys and 2 values"),
        (lambda code, batch: 5, "returned a int; yield record batches"),
        (lambda code, batch: [1], "yielded a int"),
        (lambda code, batch: [batch.rows], "yielded the columns k, v; the output has k, n"),
        (
            lambda code, batch: [batch.rows.rename_columns(["k", "n"]).cast(WRONG)],
            "output column `n`: this is not int64",
        ),
        (lambda code, batch: code.ctx.value_state("late", "long"), "declared too late"),
    ],
)
def test_refusals(process: Callable[..., Any], message: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=message):
        runner(process).batch([("a", 1)])


@pytest.mark.parametrize(
    "columns",
    [
        {"n": pa.array([5], pa.int32()), "k": pa.array(["a"])},
        {"k": pa.array(["a"], pa.large_string()), "n": pa.array([5.0])},
        {"k": pa.array(["a"]).dictionary_encode(), "n": pa.array([5], pa.uint8())},
    ],
)
def test_output_has_the_declared_columns_by_name(columns: dict[str, pa.Array]) -> None:
    assert runner(lambda code, batch: [pa.record_batch(columns)]).batch([("a", 1)]) == [("a", 5)]
    assert runner(lambda code, batch: [pa.table(columns)]).batch([("a", 1)]) == [("a", 5)]


@pytest.mark.parametrize("number", [pa.array([5.5]), pa.array([2**63], pa.uint64()), pa.array([True]), pa.array(["5"])])
def test_what_would_lose_something_is_refused(number: pa.Array) -> None:
    columns = {"k": pa.array(["a"]), "n": number}
    with pytest.raises(fc.InvalidArgumentError, match="output column `n`: this is not int64, the declared type"):
        runner(lambda code, batch: [pa.record_batch(columns)]).batch([("a", 1)])


MOMENT = datetime.datetime(2024, 7, 1, 12)
#: A declared type, a column of another type, and whether it fits.
LAYOUTS: list[tuple[str, pa.Array, bool]] = [
    ("string", pa.array(["é"], pa.large_string()), True),
    ("string", pa.array(["é"], pa.string_view()), True),
    ("string", pa.array(["é"]).dictionary_encode(), True),
    ("string", pc.run_end_encode(pa.array(["é"])), True),
    ("string", pa.nulls(1), True),
    ("binary", pa.array([b"ab"], pa.binary(2)), True),
    ("binary", pa.array([b"ab"], pa.binary_view()), True),
    ("long", pa.nulls(1), True),
    ("long", pa.array([1], pa.int8()), True),
    ("long", pa.array([1.0]), True),
    ("long", pa.array([1.5]), False),
    ("long", pa.array([2**63], pa.uint64()), False),
    ("long", pa.array(["1"]), False),
    ("string", pa.array([1]), False),
    ("decimal(10,2)", pa.array([decimal.Decimal("1.50")], pa.decimal256(40, 2)), True),
    ("date", pa.array([MOMENT.date()], pa.date64()), True),
    ("timestamp", pa.array([MOMENT], pa.timestamp("ns", "UTC")), True),
    ("timestamp", pa.array([MOMENT], pa.timestamp("us", "Asia/Tokyo")), True),
    ("timestamp", pa.array([1], pa.timestamp("ns", "UTC")), False),
    ("timestamp", pa.array([MOMENT], pa.timestamp("us")), False),
    ("timestamp_ntz", pa.array([MOMENT], pa.timestamp("us", "UTC")), False),
    ("array<string>", pa.array([["a", None]], pa.large_list(pa.large_string())), True),
    ("array<int>", pa.array([[1, 2]], pa.list_(pa.int32(), 2)), True),
    (
        "struct<a:bigint,b:string>",
        pa.array([{"b": "x", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int32())])),
        True,
    ),
]


@pytest.mark.parametrize(("declared", "given", "fits"), LAYOUTS, ids=[f"{d}: {g.type}" for d, g, _ in LAYOUTS])
def test_outputs_and_states_take_the_same_columns(declared: str, given: pa.Array, fits: bool) -> None:
    def through_output(code: Code, batch: Any) -> Any:
        return [pa.record_batch({"k": ["a"], "v": given})]

    def through_state(code: Code, batch: Any) -> Any:
        code.seen.put(batch.keys, pa.record_batch({"v": given}))
        return [pa.record_batch({"k": ["a"], "v": code.seen.get(batch.keys).field("v")})]

    for process in (through_output, through_state):
        shard = runner(process, f"v {declared}", output=f"k string, v {declared}")
        if fits:
            ((_, value),) = shard.batch([("a", 1)])
            assert value == given.to_pylist()[0], process.__name__
        else:
            with pytest.raises(fc.InvalidArgumentError, match="this is not "):
                shard.batch([("a", 1)])


def test_a_processor_may_yield_nothing() -> None:
    code = runner(lambda code, batch: code.seen.put(batch.keys, pa.array([7] * len(batch.keys))))
    assert code.batch([("a", 1), ("b", 2)]) == []
    assert len(code.store.rows("value")) == 2


WRONG = pa.schema([("k", pa.string()), ("n", pa.string())])


def test_a_map_is_refused_by_name() -> None:
    with pytest.raises(fc.FastChangelogError, match="field `m` has the type map"):
        runner(sums, pa.schema([("m", pa.map_(pa.string(), pa.int64()))])).batch([("a", 1)])
