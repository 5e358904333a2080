"""Frames and keys of the pandas API, with the dtypes that PySpark gives."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import versions
from fastchangelog.spark.processor.frames.input import FrameMaker
from fastchangelog.spark.processor.rows.input import RowMaker
from fastchangelog.spark.types.columns import of_column
from fastchangelog.spark.types.spark_arrow import spark_schema
from support.processor_runs import Runner

NOON = datetime.datetime(2024, 7, 1, 12)


class Frames(StatefulProcessor):
    def __init__(self, found: dict[Any, pd.DataFrame]) -> None:
        self.found = found

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        self.found[key] = pd.concat(list(rows), ignore_index=False)
        return iter(())

    def close(self) -> None:
        pass


def frames(given: list[tuple[Any, ...]], **settings: Any) -> dict[Any, pd.DataFrame]:
    found: dict[Any, pd.DataFrame] = {}
    Runner(Frames(found), api="pandas", **settings).batch(given)
    return found


def dtypes(frame: pd.DataFrame) -> list[str]:
    return [str(dtype) for dtype in frame.dtypes]


SCALARS = (
    "b boolean, t tinyint, i int, l long, f float, d double, s string, y binary, day date, at timestamp, "
    "ntz timestamp_ntz, p decimal(5,2), span interval day to second"
)
VALUES: tuple[Any, ...] = (
    True, 1, 2, 3, 1.5, 2.5, "x", b"y", datetime.date(2024, 1, 1), NOON, NOON, Decimal("1.50"), datetime.timedelta(1),
)  # fmt: skip
NULLS: tuple[Any, ...] = (None,) * len(VALUES)
WITHOUT = ["object", "bool", "int64", "int64", "int64", "float64", "float64", "object", "object", "object",
           "datetime64[ns]", "datetime64[ns]", "object", "timedelta64[ns]"]  # fmt: skip
WITH = ["object", "object", *["float64"] * 5, *WITHOUT[7:]]


def test_dtypes_depend_on_the_nulls_of_the_frames_own_rows() -> None:
    found = frames([("a", *VALUES), ("b", *VALUES), ("b", *NULLS), ("c", *NULLS)], rows=SCALARS)
    a, b, c = (found[key,] for key in "abc")
    assert dtypes(a) == WITHOUT
    assert dtypes(b) == WITH
    assert dtypes(c) == WITH
    assert a.iloc[0].tolist()[1:10] == [True, 1, 2, 3, 1.5, 2.5, "x", b"y", datetime.date(2024, 1, 1)]
    assert a["at"][0] == a["ntz"][0] == pd.Timestamp(NOON)
    assert a["p"][0] == Decimal("1.50")
    assert b["b"].tolist() == [True, None]
    assert b["s"].tolist() == ["x", None]
    assert b["at"][1] is pd.NaT
    assert b.index.equals(pd.RangeIndex(2))
    assert all(c.iloc[0, 1:].isna())


def test_without_nulls_all_frames_have_the_plain_dtypes() -> None:
    found = frames([("a", *VALUES), ("b", *VALUES)], rows=SCALARS)
    assert dtypes(found["b",]) == WITHOUT
    assert found["b",].index.equals(pd.RangeIndex(1))


def test_times_are_naive_in_the_sessions_zone() -> None:
    found = frames([("a", NOON, [NOON])], rows="at timestamp, list array<timestamp>", timezone="Asia/Kolkata")
    expected = pd.Timestamp("2024-07-01 17:30")
    assert found["a",]["at"][0] == expected
    assert found["a",]["list"][0].tolist() == [expected]


def test_a_null_time_is_nat_in_an_array_that_is_a_column() -> None:
    rows = "l array<timestamp>, ll array<array<timestamp_ntz>>, s struct<l:array<timestamp>>, m map<int,timestamp>"
    found = frames([("a", [None, NOON], [[None, NOON]], {"l": [None]}, [(1, None)])], rows=rows)["a",].iloc[0]
    assert found["l"].tolist() == [pd.NaT, pd.Timestamp(NOON)]
    assert found["ll"].tolist() == [[pd.NaT, pd.Timestamp(NOON)]]
    assert found["s"]["l"].tolist() == [None]
    assert found["m"] == {1: None}


def test_nested_values() -> None:
    rows = (
        "n array<int>, o array<struct<x:int>>, m map<string,array<int>>, s struct<x:int,y:array<string>>, "
        "z array<array<int>>"
    )
    found = frames(
        [
            ("a", [1, 2], [{"x": 1}], [("k", [1])], {"x": 1, "y": ["t"]}, [[1], [2, 3]]),
            ("a", [1, None], None, None, None, None),
        ],
        rows=rows,
    )["a",]
    first = found.iloc[0]
    assert isinstance(first["n"], np.ndarray)
    assert first["n"].dtype == np.int32
    assert first["n"].tolist() == [1, 2]
    assert found["n"][1].tolist() == [1, None]
    assert isinstance(first["o"], np.ndarray)
    assert first["o"].tolist() == [{"x": 1}]
    assert isinstance(first["m"], dict)
    assert first["m"]["k"].tolist() == [1]
    assert first["s"]["x"] == 1
    assert first["s"]["y"].tolist() == ["t"]
    assert [part.tolist() for part in first["z"]] == [[1], [2, 3]]
    assert found.iloc[1].tolist()[2:] == [None] * 4


def test_unhashable_keys_of_maps_are_tuples_and_rows() -> None:
    rows = "l map<array<string>,int>, s map<struct<a:int,l:array<int>>,int>, n map<array<array<int>>,int>"
    given = [("a", [(["x", "y"], 1)], [({"a": 1, "l": [2]}, 2)], [([[1], [2, 3]], 3)])]
    found = frames(given, rows=rows)["a",].iloc[0]
    assert found["l"] == {("x", "y"): 1}
    assert found["s"] == {Row(a=1, l=(2,)): 2}
    assert found["n"] == {((1,), (2, 3)): 3}


def test_whole_numbers_beside_nulls_stay_whole_by_a_setting() -> None:
    found = frames([("a", 1, 2), ("a", None, 3)], rows="n long, t tinyint", integers_with_na=True)["a",]
    assert found["n"].tolist() == [1, pd.NA]
    assert dtypes(found) == ["object", "object", "int8"]


def test_values_that_cannot_be_given_name_their_column() -> None:
    with pytest.raises(InvalidArgumentError, match=r"column `at`: the timestamp 2500-01-01.*cast the column to string"):
        frames([("a", datetime.datetime(2500, 1, 1))], rows="at timestamp")

    def refuse(array: pa.Array) -> Any:
        raise ValueError("no such value")

    column = of_column(T.StructField("m", T.MapType(T.StringType(), T.LongType())), refuse)
    with pytest.raises(InvalidArgumentError, match=r"column `m` of type map<string,bigint> .*no such value.*cast it"):
        column(pa.array([1]))


def test_equally_long_arrays_stay_arrays() -> None:
    found = frames([("a", [1, 2]), ("a", [3, 4])], rows="n array<int>")["a",]
    assert [value.tolist() for value in found["n"]] == [[1, 2], [3, 4]]


def test_columns_that_are_no_names_of_python_get_pysparks() -> None:
    labels = list(frames([("a", 1, 2, 3)], rows="`a b` long, class long, ok long")["a",])
    assert labels == (["k", "_1", "_2", "ok"] if versions.HAS_FRAMES_OF_TUPLES else ["k", "a b", "class", "ok"])


def test_frames_may_be_changed_without_a_warning() -> None:
    class Changing(Frames):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                frame["w"] = frame["v"] * 2
                frame.loc[0, "v"] = -1
                frame["v"].to_numpy()[0] = -2
                self.found[key] = frame
            return ()

    found: dict[Any, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Runner(Changing(found), api="pandas").batch([(key, i) for i in range(3) for key in "ab"])
    assert [found[key,]["v"].tolist() for key in "ab"] == [[-2, 1, 2]] * 2
    assert [found[key,]["w"].tolist() for key in "ab"] == [[0, 2, 4]] * 2


def test_arrays_of_doubles_may_be_keys() -> None:
    found: list[Any] = []

    class Keys(Frames):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            found.append((key[0].tolist(), sum(len(frame) for frame in rows)))
            return ()

    rows = [([0.5, 1.5], 1), ([], 2), ([0.5, 1.5], 3), ([0.25], 4)]
    Runner(Keys({}), api="pandas", key="k array<double>").batch(rows)
    assert sorted(found) == [([], 1), ([0.25], 1), ([0.5, 1.5], 2)]


@pytest.mark.parametrize(
    ("ddl", "keys"),
    [
        ("k long", [(2,), (None,)]),
        ("k timestamp", [(pd.Timestamp(NOON),), (None,)]),
        ("k boolean", [(True,), (None,)]),
        ("k double", [(0.5,), (None,)]),
        ("k date", [(datetime.date(2024, 1, 1),), (None,)]),
        ("k interval day to second", [(pd.Timedelta(1, "s"),), (None,)]),
        ("k string, n int", [("a", 1), ("a", None)]),
        ("k struct<x:int>", [({"x": 1},), (None,)]),
    ],
)
def test_keys_keep_their_type_beside_nulls(ddl: str, keys: list[Any]) -> None:
    found: list[Any] = []

    class Keys(Frames):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            found.append((key, sum(len(frame) for frame in rows)))
            return ()

    Runner(Keys({}), key=ddl, api="pandas").batch([(*key, 1) for key in [*keys, keys[0]]])
    assert sorted(map(repr, found)) == sorted(map(repr, [(keys[0], 2), (keys[1], 1)]))


def test_an_interval_that_frames_cannot_hold_is_refused() -> None:
    days = datetime.timedelta(days=106_000)
    assert frames([("a", days)], rows="span interval day to second")["a",]["span"][0] == pd.Timedelta(days)
    with pytest.raises(InvalidArgumentError, match="an interval of more than 292 years does not fit into a frame"):
        frames([("a", days + days)], rows="span interval day to second")


def test_a_variant_is_one_in_frames_and_its_bytes_in_rows() -> None:
    """So it is with PySpark: without a schema its Row API shows what Arrow has."""
    struct = T.StructType([T.StructField("v", T.VariantType()), T.StructField("many", T.ArrayType(T.VariantType()))])
    value = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    schema = spark_schema(struct, "column")
    batch = pa.RecordBatch.from_pylist([{"v": value, "many": [value, None]}, {"v": None, "many": None}], schema)
    frame = FrameMaker(struct, (0, 1), "UTC").frames(batch).frame(0, 2)
    assert (type(frame["v"][0]), frame["v"][0].toPython(), frame["v"][1]) == (T.VariantVal, 1, None)
    assert [type(part) for part in frame["many"][0]] == [T.VariantVal, type(None)]
    assert RowMaker(struct, (0, 1), "UTC").rows(batch) == [
        Row(v=value, many=[value, None]), Row(v=None, many=None),
    ]  # fmt: skip


def test_a_users_type_is_what_it_is_kept_as() -> None:
    class Point(T.UserDefinedType):
        @classmethod
        def sqlType(cls) -> T.DataType:
            return T.StructType([T.StructField("at", T.ArrayType(T.DoubleType()))])

    struct = T.StructType([T.StructField("p", Point())])
    batch = pa.RecordBatch.from_pylist([{"p": {"at": [1.5]}}, {"p": None}], spark_schema(struct, "column"))
    assert RowMaker(struct, (0,), "UTC").rows(batch) == [Row(p={"at": [1.5]}), Row(p=None)]
    column = FrameMaker(struct, (0,), "UTC").frames(batch).frame(0, 2)["p"]
    assert (type(column[0]["at"]), list(column[0]["at"]), column[1]) == (np.ndarray, [1.5], None)


@pytest.mark.parametrize("year", [1, 1676, 2262, 9999])
@pytest.mark.parametrize("dtype", ["timestamp", "timestamp_ntz", "array<timestamp_ntz>"])
def test_a_time_that_frames_cannot_hold_is_refused_by_its_value(dtype: str, year: int) -> None:
    time = datetime.datetime(year, 12, 31, 1, 2, 3)
    with pytest.raises(InvalidArgumentError, match=rf"the timestamp {year:04}-12-31 01:02:03.* transformWithState\(\)"):
        frames([("a", [time] if dtype.startswith("array") else time)], rows=f"at {dtype}")


class Changing(StatefulProcessor):
    """Changes what it is given, in place, before the frames of other keys are read; keeps all of them."""

    kept: list[tuple[str, pd.DataFrame, pd.DataFrame]]

    def init(self, handle: Any) -> None:
        self.kept = []

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            self.kept.append((key[0], frame.copy(), frame))
            frame.iloc[:, 1:] = 0
            frame.values[:] = 0
            frame.loc[len(frame)] = [key[0], 7, 7.0]
            frame.index.name = key[0]
            frame.sort_values("i", ascending=False, inplace=True)
            frame["more"] = "more"
        return iter(())

    def close(self) -> None:
        for key, before, after in self.kept:
            assert before.index.equals(pd.RangeIndex(3))
            assert before.index.name is None
            assert before["i"].tolist() == [int(key), int(key) + 1, int(key) + 2]
            assert list(before.columns) == ["k", "i", "d"]
            assert after["i"].tolist() == [7, 0, 0, 0]
            assert after.index.name == key


def test_frames_of_a_chunk_are_independent() -> None:
    given = [(str(n), n + i, 0.5) for n in range(40) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Runner(Changing, key="k string", rows="i long, d double", api="pandas").batch(given)


def test_frames_are_the_same_without_the_inside_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(str(n), n + i, NOON, 0.5, str(i)) for n in range(5) for i in range(n + 1)]
    columns = {"key": "k string", "rows": "i long, at timestamp, d double, s string"}
    fast = frames(given, **columns)
    monkeypatch.setattr("fastchangelog.spark.processor.frames.input._HAS_MANAGERS", False)
    plain = frames(given, **columns)
    assert fast.keys() == plain.keys()
    for key, frame in fast.items():
        pd.testing.assert_frame_equal(frame, plain[key], check_index_type="exact")
