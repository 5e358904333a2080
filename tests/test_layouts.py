"""Data of pandas, numpy, Polars, DuckDB and Arrow in its usual layouts, as a state takes it.

Owns: layouts and their refusals, and what pandas has in the place of a null.
Does not own: the rule for a value (`test_kept_or_refused`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fastchangelog as fc
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import Typed
from fastchangelog.schema import arrow_type

UTC = dt.timezone.utc
NAIVE = dt.datetime(2026, 7, 1, 12)
NOON = NAIVE.replace(tzinfo=UTC)
NAN = float("nan")
D = decimal.Decimal


@pytest.fixture
def state() -> Iterator[fc.State]:
    with fc.open_state(f"memory://{uuid.uuid4()}") as opened:
        yield opened


# -------------------------------------------------------------------------------------------------- pandas and NaN


@pytest.mark.parametrize(
    "data",
    [
        pd.Series([1.5, NAN]),
        pd.Index([1.5, NAN]),
        pd.Series([1.5, NAN], dtype="float32"),
        pd.Series([1.5, NAN], dtype=object),
        pd.Series([1.5, NAN], dtype=pd.SparseDtype(float)),
        pd.Series(pd.array([3.0, 0.0], "Float64") / pd.array([2.0, 0.0], "Float64")),
        np.array([1.5, NAN]),
        np.array([1.5, NAN], ">f8"),
        pa.array([1.5, NAN]),
        [1.5, NAN],
    ],
    ids=lambda data: f"{type(data).__name__} {getattr(data, 'dtype', '')}",
)
def test_nan_is_a_number_and_only_a_null_deletes(state: fc.State, data: Any) -> None:
    values = state.value_state("values", key="string", value="double")
    values.put_many(["a", "b"], [7.0, 7.0])
    values.put_many(["a", "b"], data)
    assert repr(dict(values)) == "{'a': 1.5, 'b': nan}"
    keys = state.value_state("keys", key="double", value="long")
    keys.put_many(data, [1, 2])
    assert repr(dict(keys)) == "{1.5: 1, nan: 2}"
    lists = state.list_state("lists", key="string", value="double")
    lists.append_many(["a", "a"], data)
    lists.extend("a", data)
    assert repr(list(lists["a"])) == "[1.5, nan, 1.5, nan]"
    sums = state.aggregating_state("sums", key="string", value="double", n=fc.count("value"), high=fc.max("value"))
    sums.add_many(["a", "a"], data)
    assert repr(sums["a"]) == "{'n': 2, 'high': nan}"


@pytest.mark.parametrize("null", [None, pd.NA, pd.NaT, np.datetime64("NaT")], ids=str)
def test_a_null_of_each_library_is_a_null(state: fc.State, null: Any) -> None:
    values = state.value_state("values", key="string", value="timestamp")
    values.put_many(["a", "b"], [NOON, NOON])
    values["a"] = null
    values.put_many(["b"], [null])
    assert dict(values) == {}


def test_columns_of_a_frame_of_pandas_are_kept(state: fc.State) -> None:
    frame = pd.DataFrame({"other": [1, 2], "s": ["a", None], "price": [1.5, NAN]}, index=pd.Index([5, 6], name="id"))
    sums = state.aggregating_state("sums", key="long", value="price double, s string", n=fc.count("price"))
    sums.add_many([1, 1], frame)
    assert sums[1] == {"n": 2}
    by_id = state.aggregating_state("ids", key="long", value="id long", total=fc.sum("id"))
    by_id.add_many([1, 1], frame)
    assert by_id[1] == {"total": 11}
    values = state.value_state("values", key="long", value="price double, s string")
    values.put_many([1, 2], frame[["s", "price"]])
    assert repr(list(values.values())) == "[{'price': 1.5, 's': 'a'}, {'price': nan, 's': None}]"
    with pytest.raises(InvalidArgumentError, match="a column `other`, which"):
        values.put_many([1, 2], frame)
    with pytest.raises(InvalidArgumentError, match=r"`s\[1\]`: nan is no text"):
        values.put_many([1, 2], pd.DataFrame({"price": [1.5, 2], "s": ["a", NAN]}))
    with pytest.raises(InvalidArgumentError, match="more than one column `s`"):
        sums.add_many([1, 1], frame[["s", "s", "price"]])


# ---------------------------------------------------------------------------------------- layouts of other libraries


class Foreign:
    """Data of a library that Arrow knows by its interface only."""

    def __init__(self, data: Any) -> None:
        self.data = pa.chunked_array([data]) if isinstance(data, pa.Array) else data

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.data.__arrow_c_stream__(requested_schema)


def dictionary(values: pa.Array, index: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, None, 1], index), values)


TEXTS = ["a" * 30, None, "b"]
VIEW = pa.string_view() if hasattr(pa, "string_view") else pa.large_string()
BYTES_VIEW = pa.binary_view() if hasattr(pa, "binary_view") else pa.large_binary()
LIST_VIEW = pa.list_view if hasattr(pa, "list_view") else pa.large_list


@pytest.mark.parametrize(
    ("schema", "data", "expected"),
    [
        ("string", pa.array(TEXTS, VIEW), TEXTS),
        ("string", pa.array(TEXTS, pa.large_string()), TEXTS),
        ("string", dictionary(pa.array([TEXTS[0], "b"], VIEW), pa.uint32()), TEXTS),
        ("string", dictionary(pa.array([TEXTS[0], "b"], pa.large_string()), pa.uint8()), TEXTS),
        ("binary", pa.array([b"x", None], BYTES_VIEW), [b"x", None]),
        ("binary", pa.array([b"xy", None], pa.binary(2)), [b"xy", None]),
        ("long", pc.run_end_encode(pa.array([7, 7, 8])), [7, 7, 8]),
        ("int", pa.array([1, None], pa.uint64()), [1, None]),
        ("long", pa.array([D(45), None], pa.decimal128(38, 0)), [45, None]),
        ("double", pa.array([D("0.5")], pa.decimal128(3, 1)), [0.5]),
        ("decimal(10,2)", pa.array([5, None]), [D("5.00"), None]),
        ("decimal(10,2)", pa.array([D("1.5")], pa.decimal128(38, 4)), [D("1.50")]),
        ("double", np.array([1.5], np.float16), [1.5]),
        ("long", np.arange(6)[::3], [0, 3]),
        ("long", np.arange(3, dtype=">i8"), [0, 1, 2]),
        ("x long, y double", np.array([(1, 2.5)], [("x", "i8"), ("y", "f8")]), [{"x": 1, "y": 2.5}]),
        ("date", pa.array([dt.date(2026, 7, 1)], pa.date64()), [dt.date(2026, 7, 1)]),
        ("date", np.array(["2026-07-01", "NaT"], "M8[D]"), [dt.date(2026, 7, 1), None]),
        ("timestamp", pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")), [NOON]),
        ("timestamp", pa.array([NOON], pa.timestamp("s", "UTC")), [NOON]),
        ("timestamp", pd.DatetimeIndex(["2026-07-01 12:00"], tz="UTC"), [NOON]),
        ("timestamp", pd.Series(pd.to_datetime(["2026-07-01 12:00", None], utc=True)), [NOON, None]),
        ("timestamp_ntz", pd.Series(pd.to_datetime(["2026-07-01 12:00", None])), [NAIVE, None]),
        ("timestamp_ntz", np.array(["2026-07-01T12"], "M8[h]"), [NAIVE]),
        ("interval day to second", np.array([1], "m8[D]"), [dt.timedelta(days=1)]),
        ("time", pa.array([dt.time(1, 2, 3)], pa.time32("s")), [dt.time(1, 2, 3)]),
        (
            "array<string>",
            pa.array([["a"], None, [], ["b", None]], pa.large_list(VIEW)),
            [["a"], None, [], ["b", None]],
        ),
        ("array<string>", pa.array([["a"], None, ["b"]], LIST_VIEW(VIEW)), [["a"], None, ["b"]]),
        ("array<int>", pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)), [[1, 2], None, [3, 4]]),
        ("array<string>", pa.array([["x"], ["a"], None, ["b"]]).slice(1), [["a"], None, ["b"]]),
        (
            "array<string>",
            pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["a", "b", "a"]).dictionary_encode()),
            [["a"], ["b", "a"]],
        ),
        (
            "map<string,int>",
            pa.array([[("x", 9)], [("a", 1)], None, [], [("b", None)]], pa.map_(VIEW, pa.int64())).slice(1),
            [[("a", 1)], None, [], [("b", None)]],
        ),
        (
            "map<string,int>",
            pa.array([[{"key": "a", "value": 1}], None], pa.list_(pa.struct([("key", VIEW), ("value", pa.int64())]))),
            [[("a", 1)], None],
        ),
        ("p struct<x:int,s:string>", pa.array([{"p": {"s": "a", "x": 1}}, {"p": None}, None]), None),
        ("x int, s string", pa.table({"s": ["a", "b"], "x": [1, 2]}), [{"x": 1, "s": "a"}, {"x": 2, "s": "b"}]),
        ("x int, s string", pa.RecordBatch.from_pydict({"s": ["a"]}), [{"x": None, "s": "a"}]),
        ("string", pd.Series(["a", None], dtype="category"), ["a", None]),
        ("string", pd.Series(["a", None], dtype="string"), ["a", None]),
        ("string", pd.Series(["a", None]), ["a", None]),
        ("long", pd.Series([1, None], dtype="Int64"), [1, None]),
        ("long", pd.RangeIndex(2), [0, 1]),
        ("s string, n int", pd.MultiIndex.from_tuples([("a", 1)]), [{"s": "a", "n": 1}]),
        ("array<float>", np.ones((2, 2)), [[1.0, 1.0], [1.0, 1.0]]),
        ("array<float>", [np.ones(2, np.float32), [0.5], None], [[1.0, 1.0], [0.5], None]),
        ("timestamp", [NOON, None, NOON], [NOON, None, NOON]),
        ("timestamp", [NOON, NOON.astimezone(dt.timezone(dt.timedelta(hours=5)))], [NOON, NOON]),
        ("timestamp_ntz", [NAIVE, None], [NAIVE, None]),
        ("double", [1, 2**60, 0.5, None], [1.0, 2.0**60, 0.5, None]),
        ("float", [1, 2**60], [1.0, 2.0**60]),
        ("float", [0.5, 1, np.float64(1.5)], [0.5, 1.0, 1.5]),
        ("int", [np.int64(1), np.int64(2)], [1, 2]),
        ("array<float>", [np.array([0.5, 1.5]), None, np.array([])], [[0.5, 1.5], None, []]),
        ("array<float>", [np.array([0.5]), np.array([2], np.int8)], [[0.5], [2.0]]),
        ("array<double>", [np.ma.array([0.5, 1.5], mask=[True, False])], [[None, 1.5]]),
        ("array<int>", [(1, 2), None, ()], [[1, 2], None, []]),
        ("map<string,int>", [{"a": 1}, None, {}, {"b": None}], [[("a", 1)], None, [], [("b", None)]]),
        ("array<array<int>>", [[[1], [2, 3]], [], [None]], [[[1], [2, 3]], [], [None]]),
        ("double", np.ma.array([1.0, 2.0], mask=[True, False]), [None, 2.0]),
        ("string", [], []),
        ("string", np.array([]), []),
        ("string", pa.array([None, None]), [None, None]),
    ],
    ids=lambda value: value if isinstance(value, str) else str(getattr(value, "type", "")),
)
def test_usual_layouts_are_taken(schema: str, data: Any, expected: list[Any] | None) -> None:
    wanted = arrow_type("value", schema)
    carriers = [data]
    if isinstance(data, pa.Array):
        carriers += [pa.chunked_array([data, data])]
        carriers += [Foreign(data)] if hasattr(pa.ChunkedArray, "__arrow_c_stream__") else []
    for carrier in carriers:
        found = Typed("value", wanted).many(carrier)
        found.validate(full=True)
        assert found.type == wanted
        if expected is None:
            expected = [{"p": {"x": 1, "s": "a"}}, {"p": None}, None]
        assert found.to_pylist()[: len(expected)] == expected


@pytest.mark.parametrize(
    ("schema", "data", "message"),
    [
        ("long", pa.array(["1"]), "an array of string came"),
        ("string", pa.array([1]), "an array of int64 came"),
        ("long", pa.array([True]), "an array of bool came"),
        ("boolean", np.array([1]), "an array of int64 came"),
        ("timestamp", pa.array([1]), "an array of int64 came"),
        ("long", pa.array([NOON]), r"an array of timestamp\[us, tz=UTC\] came"),
        ("timestamp", pa.array([NAIVE]), "which has no time zone; pyarrow.compute.assume_timezone"),
        ("timestamp", np.array(["2026-07-01"], "M8[ns]"), "which has no time zone"),
        ("timestamp", pd.Series([NAIVE]), "which has no time zone"),
        ("timestamp_ntz", pa.array([NOON]), "which has a time zone, and the type has none"),
        ("date", pd.Series([NAIVE]), "whose times of day would be lost; cast it"),
        ("timestamp", pa.array([1]).cast(pa.timestamp("ns", "UTC")), "would lose data"),
        ("decimal(10,2)", np.array([1.005]), "is no decimal"),
        ("decimal(10,2)", pa.array([D("1.005")]), "Rescaling Decimal.* would cause data loss"),
        ("double", pa.array([D("0.1")]), "has no equal double"),
        ("float", np.array([0.5, 1e300]), r"`\[1\]`: .*1e\+300.* is beyond float"),
        ("float", pa.array([1e-300]), "is beyond float"),
        ("long", pa.array([2**63], pa.uint64()), "is beyond int64"),
        ("x int", pa.array([{"x": 1, "z": 2}]), "an array with the field `z` came"),
        ("x int", pa.table({"x": [1], "z": [2]}), "an array with the field `z` came"),
        ("p struct<x:int>", pa.array([{"p": {"x": 1, "z": 2}}]), "`p`: an array with the field `z` came"),
        ("array<struct<x:int>>", pa.array([[{"z": 2}]]), "an array with the field `z` came"),
        ("m map<string,struct<x:int>>", [{"m": {"a": {"z": 1}}}], r"`\[0\].m\['a'\]`: {'z': 1} has fields that"),
        ("p struct<x:int>", [{"p": [("x", 1), ("z", 1)]}], r"`\[0\].p`: .* has fields that .* has not: `z`"),
        ("p struct<x:int>", [{"p": [("x", 1), ("x", 2)]}], "has a field twice"),
        ("p struct<x:int>", [{"p": (1, 2)}], "has 2 fields, not the 1 of"),
        ("array<string>", [["a"], "ab"], r"`\[1\]`: 'ab' is no list"),
        ("array<int>", [{1: 1}], "is no list"),
        ("map<string,int>", [[("a", 1, 2)]], "is no map"),
        ("map<string,int>", [{None: 1}], "a key of a map is null"),
        ("string", pd.Series(["a", NAN]), r"`\[1\]`: nan is no text"),
        ("string", pa.array([b"\xff"]), "UTF-?8"),
        ("long", np.ones((2, 2)), "is no whole number"),
        ("timestamp", [NOON, NAIVE], r"`\[1\]`: .* has no time zone"),
        ("timestamp_ntz", [NAIVE, NOON], r"`\[1\]`: .* has a time zone"),
        ("float", [0.5, 2**24 + 1], r"`\[1\]`: 16777217 has no equal float"),
        ("double", [0.5, True], r"`\[1\]`: True is a boolean"),
        ("double", [1, 2**53 + 1], r"`\[1\]`: 9007199254740993 has no equal double"),
        ("int", [np.int64(1), np.int64(2**40)], r"`\[1\]`: .* is beyond int32"),
        ("string", ["a", "\ud800"], "surrogates not allowed"),
        ("array<float>", [np.array([0.5, 1e300])], r"`\[0\]\[1\]`: 1e\+300 is beyond float"),
        ("array<int>", [[1], [2, 1.5]], r"`\[1\]\[1\]`: 1.5 has a fraction"),
        ("array<array<int>>", [[[1], [True]]], r"`\[0\]\[1\]\[0\]`: True is a boolean"),
        ("map<string,int>", [{"a": 1}, {"b": 1.5}], r"`\[1\]\['b'\]`: 1.5 has a fraction"),
        ("map<string,int>", [{"a": 1}, {1: 1}], r"`\[1\]\[1\]`: 1 is no text"),
        ("string", "ab", "a str is one value"),
        ("string", np.array("ab"), "a ndarray is one value"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(schema: str, data: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Typed("value", arrow_type("value", schema)).many(data)


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="an Arrow without UUIDs")
def test_bytes_of_a_uuid_are_no_text() -> None:
    given = pa.array([uuid.UUID(int=1)], pa.uuid())
    assert Typed("value", pa.binary(16)).many(given).to_pylist() == [uuid.UUID(int=1).bytes]
    for schema in ("string", "binary"):
        with pytest.raises(InvalidArgumentError, match="uuid"):
            Typed("value", arrow_type("value", schema)).many(given)
