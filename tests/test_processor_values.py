"""Values of states: what they take, what is kept and what is seen; the same by row and by column."""

from __future__ import annotations

import collections
import datetime
import enum
import gc
import math
import os
import pickle
import random
import re
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import versions
from fastchangelog.spark.types.ddl import parse_ddl
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.state_type import Refused, StateType, UnencodableRow
from fastchangelog.spark.types.values import row_values
from support.processor_runs import TYPES, random_value, spark_arrow

NAN = float("nan")
#: What PySpark has for binaries.
BINARY = bytes if versions.HAS_BYTES else bytearray


@pytest.fixture(autouse=True)
def _new_york() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def state(ddl: str) -> StateType:
    return StateType(parse_ddl(ddl), "state `s`")


def seen(ddl: str, value: Any) -> Any:
    """The only field of a value as it is read back, which is the same before and after it was stored."""
    dtype = state(f"f {ddl}")
    row = dtype.admit((value,))
    column = dtype.columns([row, None, row])
    assert column.type == dtype.arrow
    assert dtype.rows(column) == [row, None, row]
    stored = dtype.shown_rows(column)
    assert stored[1] is None
    assert repr(stored[0]) == repr(dtype.shown(row)) == repr(stored[2])
    assert hash(row) == hash(dtype.rows(column)[0])
    assert type(dtype.shown(row)) is tuple
    return dtype.shown(row)[0]


UTC = datetime.timezone.utc
DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 7, 1, 12, 0, 0, 5)


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("boolean", True, True),
        ("boolean", np.bool_(False), False),
        ("boolean", 1, True),
        ("tinyint", -128, -128),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("bigint", True, 1),
        ("bigint", 2.0, 2),
        ("bigint", Decimal("3.00"), 3),
        ("bigint", np.int32(7), 7),
        ("bigint", NAN, None),
        ("int", np.float64(5.0), 5),
        ("double", 1, 1.0),
        ("double", 2**53, 2.0**53),
        ("double", Decimal("0.5"), 0.5),
        ("double", np.float32(0.1), float(np.float32(0.1))),
        ("double", -0.0, -0.0),
        ("double", NAN, NAN),
        ("double", math.inf, math.inf),
        ("float", 1.1, 1.100000023841858),
        ("float", 3, 3.0),
        ("float", 1e300, math.inf),
        ("string", "ü\0x", "ü\0x"),
        ("string", np.str_("x"), "x"),
        ("string", 12, "12"),
        ("string", True, "true"),
        ("string", Decimal("1.50"), "1.50"),
        ("string", b"abc", "abc"),
        ("string", 1.5, "1.5"),
        ("string", 100.0, "100.0"),
        ("string", 1e7, "1.0E7"),
        ("string", 1.25e-5, "1.25E-5"),
        ("string", 123456789.5, "1.234567895E8"),
        ("string", -0.001, "-0.001"),
        ("string", NAN, "NaN"),
        ("string", -math.inf, "-Infinity"),
        ("binary", b"\0\xff", BINARY(b"\0\xff")),
        ("binary", bytearray(b"x"), BINARY(b"x")),
        ("binary", "ü", BINARY("ü".encode())),
        ("date", DAY, DAY),
        ("date", datetime.datetime(2024, 2, 29, 23, 59), DAY),
        ("date", pd.Timestamp("2024-02-29"), DAY),
        ("timestamp", NOON, NOON),
        ("timestamp", NOON.replace(tzinfo=UTC), NOON - datetime.timedelta(hours=4)),
        ("timestamp", pd.Timestamp("2024-07-01 12:00:00.000005"), NOON),
        ("timestamp", np.datetime64("2024-07-01T12:00:00.000005"), NOON),
        ("timestamp", datetime.datetime(1880, 1, 2, tzinfo=UTC), datetime.datetime(1880, 1, 1, 19, 3, 58)),
        ("timestamp", pd.NaT, None),
        ("timestamp", np.datetime64("NaT"), None),
        ("date", np.datetime64("NaT"), None),
        ("interval day to second", np.timedelta64("NaT"), None),
        ("timestamp_ntz", NOON, NOON),
        ("timestamp_ntz", NOON.replace(tzinfo=UTC), NOON),
        ("timestamp_ntz", datetime.datetime.max, datetime.datetime.max),
        ("interval day to second", datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(-1, 0, 1)),
        ("interval day to second", np.timedelta64(5, "ms"), datetime.timedelta(milliseconds=5)),
        ("interval year to month", -13, -13),
        ("decimal(10,2)", Decimal("1.005"), Decimal("1.01")),
        ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(10,2)", 7, Decimal("7.00")),
        ("decimal(10,2)", 0.1, Decimal("0.10")),
        (
            "decimal(38,18)",
            Decimal("99999999999999999999.999999999999999999"),
            Decimal("99999999999999999999.999999999999999999"),
        ),
        ("void", None, None),
        ("array<int>", [1, None], [1, None]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("array<int>", range(2), [0, 1]),
        ("array<double>", (1, 2.5), [1.0, 2.5]),
        ("array<array<timestamp_ntz>>", [[NOON], None, []], [[NOON], None, []]),
        ("map<string,int>", {"a": 1, "b": None}, {"a": 1, "b": None}),
        ("map<string,int>", [("a", 1)], {"a": 1}),
        ("map<string,binary>", {}, {}),
        ("map<int,struct<x:binary>>", {1: (b"y",)}, {1: Row(x=BINARY(b"y"))}),
        ("struct<x:int,y:string>", Row(y=1, x="b"), Row(x=1, y="b")),
        ("struct<x:int,y:string>", {"y": "b"}, Row(x=None, y="b")),
        ("struct<x:int,y:string>", [1, "b"], Row(x=1, y="b")),
        ("struct<x:double>", {"x": 1, "other": 2}, Row(x=1.0)),
    ],
    ids=str,
)
def test_values_are_converted_where_they_stay_the_same(ddl: str, value: Any, expected: Any) -> None:
    found = seen(ddl, value)
    assert type(found) is type(expected) or isinstance(found, type(expected))
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("ddl", "value", "why"),
    [
        ("boolean", 2, "is no boolean"),
        ("boolean", "true", "is no boolean"),
        ("tinyint", 128, "is beyond tinyint"),
        ("bigint", 2**63, "is beyond bigint"),
        ("bigint", 1.5, "is no bigint"),
        ("bigint", "5", "is no bigint"),
        ("bigint", math.inf, "is no bigint"),
        ("bigint", Decimal("Infinity"), "is no bigint"),
        ("double", 2**53 + 1, "is no double: the nearest one differs"),
        ("double", 10**400, "is no double: the nearest one differs"),
        ("double", Decimal("0.1"), "is no double: the nearest one differs"),
        ("double", Decimal("sNaN"), "is no double"),
        ("float", Decimal("NaN"), "is no double"),
        ("double", "1.0", "is no double"),
        ("string", b"\xff", "is no text"),
        ("string", ["x"], "is no string"),
        ("string", DAY, "is no string"),
        ("binary", 5, "is no binary"),
        ("binary", "\ud800", "is no Unicode text"),
        ("date", "2024-02-29", "is no date"),
        ("timestamp", DAY, "is no timestamp"),
        ("timestamp", 5, "is no timestamp"),
        ("timestamp_ntz", "now", "is no timestamp"),
        ("interval day to second", 5, "is no interval"),
        ("decimal(5,2)", Decimal("1000"), "has too many digits for decimal\\(5,2\\)"),
        ("decimal(5,2)", Decimal("999.995"), "has too many digits for decimal\\(5,2\\)"),
        ("decimal(5,2)", 0.001, "its digits do not fit"),
        ("decimal(5,2)", 1e308, "its digits do not fit"),
        ("decimal(5,2)", math.inf, "its digits do not fit"),
        ("decimal(5,2)", "1.5", "is no decimal\\(5,2\\)"),
        ("decimal(5,2)", Decimal("NaN"), "is no decimal\\(5,2\\)"),
        ("void", 1, "always null"),
        ("array<int>", "ab", "is no array"),
        ("array<int>", pd.DataFrame({"x": [1]}), "field `f`: x 0 1 is no array"),
        ("array<int>", {1}, "is no array"),
        ("array<int>", [1, "x"], "field `f.\\[1\\]`: 'x' is no int"),
        ("map<string,int>", [1], "is no map"),
        ("map<string,int>", {"a": "x"}, "field `f.\\['a'\\]`: 'x' is no int"),
        ("map<string,int>", [("a", 1), ("a", 2)], "is twice in a map"),
        ("map<string,int>", {None: 1}, "allows no null"),
        ("struct<x:int,y:string>", (1,), "has 1 values for the 2 fields x, y"),
        ("struct<x:int,y:string>", (1, 2, 3), "has 3 values"),
        ("struct<x:struct<y:int not null>>", {"x": {}}, "field `f.x.y`: None stands where the schema allows no null"),
        ("struct<x:int>", 5, "is no struct"),
        ("int not null", None, "field `f`: None stands where the schema allows no null"),
        ("int not null", NAN, "allows no null"),
    ],
    ids=str,
)
def test_other_values_are_refused_with_their_field(ddl: str, value: Any, why: str) -> None:
    dtype = state(f"f {ddl}")
    with pytest.raises(Refused) as caught:
        dtype.admit((value,))
    text = caught.value.text(dtype.struct)
    assert re.search(why, text), text
    assert "field `f" in text
    assert "\n" not in text


def test_the_first_and_the_last_times_of_python_are_kept() -> None:
    for moment in (datetime.datetime.min, datetime.datetime.max):
        assert seen("timestamp", moment) == moment
        assert seen("timestamp_ntz", moment) == moment
    for day in (datetime.date.min, datetime.date.max):
        assert seen("date", day) == day


def test_a_decimal_has_one_zero() -> None:
    for zero in (-0.0, Decimal("-0"), Decimal("-0.001"), 0):
        assert repr(seen("decimal(5,2)", zero)) == "Decimal('0.00')"


def test_an_enum_of_texts_is_its_text() -> None:
    class Color(str, enum.Enum):
        RED = "red"

    assert StateType(parse_ddl("s string, m map<string,int>"), "a state").admit((Color.RED, {Color.RED: 1})) == (
        "red",
        (("red", 1),),
    )


def test_rows_are_taken_by_place_and_dicts_by_name() -> None:
    dtype = state("a bigint, b double")
    for value in ((1, 2.0), [1, 2.0], Row(b=1, a=2.0), {"b": 2.0, "a": 1}, iter((1, 2)), np.array([1, 2])):
        assert dtype.admit(value) == (1, 2.0)
    Pair = collections.namedtuple("Pair", "a b")
    assert type(dtype.admit(Pair(1, 2.0))) is tuple
    assert dtype.admit({"a": 1}) == (1, None)
    for value, why in (
        ((1,), "has 1 values for the 2 fields a, b"),
        ((1, 2, 3), "has 3 values for the 2 fields a, b"),
        (5, "is no tuple of the fields a, b"),
        (None, "is no tuple of the fields a, b"),
        ({"c": 1}, "has 'c', which is none of the fields a, b"),
    ):
        with pytest.raises(Refused, match=why):
            dtype.admit(value)


def test_common_rows_are_taken_as_they_are() -> None:
    dtype = state("a bigint, b double, c string, d boolean not null")
    row = (5, 1.5, "x", True)
    assert dtype.admit(row) is row
    nulls = (None, None, None, False)
    assert dtype.admit(nulls) is nulls
    for other in ((2**63, 1.5, "x", True), (5, 1.5, "x", None), (5, 1.5, b"\xff", True)):
        with pytest.raises(Refused):
            dtype.admit(other)
    assert dtype.admit((True, 2, 3, 1)) == (1, 2.0, "3", True)


def test_text_that_is_no_unicode_is_found_when_rows_are_encoded() -> None:
    dtype = state("a bigint, s string")
    rows = [dtype.admit((1, "x")), dtype.admit((2, "\ud800"))]
    with pytest.raises(UnencodableRow) as caught:
        dtype.columns(rows)
    assert caught.value.row == 1
    assert "field `s`" in caught.value.text(dtype.struct)


def test_types_that_no_state_can_keep_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="state `s` has no fields"):
        StateType(T.StructType([]), "state `s`")
    if hasattr(T, "VariantType"):
        with pytest.raises(InvalidArgumentError, match="cannot keep"):
            StateType(T.StructType([T.StructField("v", T.VariantType())]), "state `s`")


def test_fields_of_one_name_keep_their_places() -> None:
    struct = T.StructType([T.StructField("a", T.LongType()), T.StructField("A", T.StringType())])
    dtype = StateType(struct, "state `s`")
    column = dtype.columns([(1, "x")])
    assert dtype.rows(column) == [(1, "x")]


@pytest.mark.parametrize("seed", range(5))
def test_random_rows_come_back_as_they_are_seen_before(seed: int) -> None:
    rng = random.Random(seed)
    dtype = state(", ".join(f"f{i} {kind}" for i, kind in enumerate(rng.sample(TYPES, 6))))
    rows = [dtype.admit(tuple(random_value(rng, f.dataType) for f in dtype.struct.fields)) for _ in range(50)]
    column = dtype.columns([*rows[:20], None, *rows[20:]])
    assert [*rows[:20], None, *rows[20:]] == dtype.rows(column)
    part = column.slice(7, 30)
    assert repr(dtype.shown_rows(part)) == repr([None if r is None else dtype.shown(r) for r in dtype.rows(part)])


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("seed", range(3))
def test_columns_of_rows_have_the_values_that_arrow_gives(seed: int, zone: str) -> None:
    rng = random.Random(seed)
    for kind in TYPES:
        dtype = parse_ddl(f"f {kind}").fields[0].dataType
        values = [random_value(rng, dtype) for _ in range(30)]
        array = pa.array(values, spark_arrow(dtype, zone))
        expected = array.to_pylist()
        assert repr(row_values(dtype, zone)(array)) == repr(expected)
        assert repr(row_values(dtype, zone)(array.slice(5, 9))) == repr(expected[5:14])
        assert row_values(dtype, zone)(array.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("ddl", "number", "zone", "text"),
    [
        ("date", 2_932_897, "UTC", "10000-01-01"),
        ("date", -719_163, "UTC", "0000-12-31"),
        ("timestamp_ntz", 253_402_300_800_000_000, "UTC", "10000-01-01 00:00:00.000000"),
        ("timestamp", 253_402_300_800_000_000, "UTC", "10000-01-01 00:00:00.000000Z"),
        ("timestamp", 253_402_300_799_000_000, "Asia/Tokyo", "9999-12-31 23:59:59.000000Z"),
        ("timestamp", -62_135_596_800_000_000, "America/New_York", "0001-01-01 00:00:00.000000Z"),
    ],
)
def test_times_of_rows_that_python_does_not_have_are_named(ddl: str, number: int, zone: str, text: str) -> None:
    types = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    whole = pa.int32() if ddl == "date" else pa.int64()
    array = pa.array([0, None, number], whole).cast(types[ddl])
    with pytest.raises(InvalidArgumentError, match=f"^Python has no {text}, its years are 1 to 9999: cast the column"):
        row_values(parse_ddl(f"f {ddl}")[0].dataType, zone)(array)


def test_times_of_rows_are_aware_in_the_sessions_zone() -> None:
    array = pa.array([NOON], pa.timestamp("us", "UTC"))
    (utc,) = row_values(T.TimestampType(), "UTC")(array)
    assert utc == NOON.replace(tzinfo=UTC)
    assert str(utc.tzinfo) == "UTC"
    (other,) = row_values(T.TimestampType(), "Asia/Kolkata")(array)
    assert other == utc
    assert other.tzinfo == ZoneInfo("Asia/Kolkata")
    (naive,) = row_values(T.TimestampNTZType(), "UTC")(pa.array([NOON], pa.timestamp("us")))
    assert naive == NOON
    for beyond in (pa.array([2**62], pa.timestamp("us", "UTC")), pa.array([-(2**62)], pa.timestamp("us", "UTC"))):
        with pytest.raises((ValueError, OverflowError)):
            row_values(T.TimestampType(), "UTC")(beyond)


def test_a_value_that_has_no_python_form_names_state_and_field() -> None:
    kept = StateType(parse_ddl("n int, at timestamp"), "state `seen`")
    for shown in (lambda: kept.shown((1, 2**62)), lambda: kept.shown_rows(kept.columns([(1, 2**62)]))):
        with pytest.raises(
            InvalidArgumentError, match=r"state `seen`: field `at` of type timestamp has values that can"
        ):
            shown()


def test_rows_of_a_class_are_rows() -> None:
    make = row_class(["a", "count", "b c", "a", "__x"])
    row = make((1, 2, 3, 4, 5))
    assert isinstance(row, Row)
    assert repr(row) == "Row(a=1, count=2, b c=3, a=4, __x=5)"
    assert row == Row(1, 2, 3, 4, 5)
    assert (row.a, row["a"], row[1], row[-1], row["b c"], getattr(row, "b c")) == (1, 1, 2, 5, 3, 3)
    assert callable(row.count), "a method of tuples, as of a plain Row"
    assert row["count"] == 2
    assert row[1:3] == (2, 3)
    assert "b c" in row
    assert "x" not in row
    assert row.asDict() == {"a": 4, "count": 2, "b c": 3, "__x": 5}
    assert list(row.__fields__) == ["a", "count", "b c", "a", "__x"]
    for wrong in ("x", "__y"):
        with pytest.raises(AttributeError):
            getattr(row, wrong)
    with pytest.raises(ValueError):
        row["x"]
    with pytest.raises(Exception, match="READ_ONLY"):
        row.a = 5
    again = pickle.loads(pickle.dumps(row))
    assert type(again) is Row
    assert (again, again.__fields__) == (row, list(row.__fields__))
    assert row_class(["a"])((1,)).__class__ is row_class(["a"])((2,)).__class__


def test_a_row_class_survives_a_garbage_collection() -> None:
    class Name(str):
        def startswith(self, *args: Any) -> bool:
            gc.collect()
            return super().startswith(*args)

    assert row_class([Name("collected")])((7,)).collected == 7
