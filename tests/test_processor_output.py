"""What user code yields, as Arrow: by name, converted as PySpark converts it, refused with column and row."""

from __future__ import annotations

import datetime
from collections import deque
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.processor.frames.output import OutputFrames
from fastchangelog.spark.processor.output_values import output_schema
from fastchangelog.spark.processor.rows.output import OutputRows
from fastchangelog.spark.types.ddl import parse_ddl
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.spark_arrow import spark_columns

NOON = datetime.datetime(2024, 7, 1, 12)
UTC = datetime.timezone.utc


def rows_of(ddl: str, *rows: Any) -> list[dict[str, Any]]:
    out = OutputRows(parse_ddl(ddl))
    for row in rows:
        out.append(row)
    batches = list(out.flush())
    assert all(batch.schema == output_schema(parse_ddl(ddl)) for batch in batches)
    assert not out.pending
    return [row for batch in batches for row in batch.to_pylist()]


def value_of(ddl: str, value: Any) -> Any:
    return rows_of(f"f {ddl}", Row(f=value))[0]["f"]


def test_fields_are_taken_by_name() -> None:
    ddl = "a bigint, b string"
    rows = (
        Row(b="x", a=1),
        Row(a=2, c=3),
        Row(b="y"),
        row_class(["a", "b"])((3, "z")),
        Row("b", "a")("w", 4),
    )
    assert [tuple(row.values()) for row in rows_of(ddl, *rows)] == [
        (1, "x"),
        (2, None),
        (None, "y"),
        (3, "z"),
        (4, "w"),
    ]
    assert rows_of(ddl, Row("a", "b")(1)) == [{"a": 1, "b": None}]
    assert rows_of(ddl, *[Row("a", "b")(1, "x"), Row("a", "b")(1)]) == [{"a": 1, "b": "x"}, {"a": 1, "b": None}]
    assert rows_of(ddl) == []


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("bigint", 1.0, 1),
        ("bigint", 1.5, 1),
        ("bigint", np.int32(4), 4),
        ("double", 3, 3.0),
        ("float", 1.1, 1.100000023841858),
        ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(5,2)", 3, Decimal("3.00")),
        ("timestamp", NOON, NOON.replace(tzinfo=UTC)),
        (
            "timestamp",
            NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            NOON.replace(hour=10, tzinfo=UTC),
        ),
        ("timestamp_ntz", NOON, NOON),
        ("binary", bytearray(b"x"), b"x"),
        ("array<int>", [1, None], [1, None]),
        ("array<int>", (1, 2), [1, 2]),
        ("map<string,int>", {"a": 1}, [{"key": "a", "value": 1}]),
        ("map<string,int>", [("a", None)], [{"key": "a", "value": None}]),
        ("map<string,int>", Row(a=1), [{"key": "a", "value": 1}]),
        ("struct<x:int,y:string>", Row(y="b", x=1), {"x": 1, "y": "b"}),
        ("struct<x:int,y:string>", {"x": 1, "z": 5}, {"x": 1, "y": None}),
        ("struct<x:int,y:string>", (1, "b"), {"x": 1, "y": "b"}),
        (
            "array<struct<m:map<int,struct<x:int>>>>",
            [Row(m={1: Row(x=2)}), None],
            [{"m": [{"key": 1, "value": {"x": 2}}]}, None],
        ),
        ("interval year to month", 5, 5),
        ("void", None, None),
    ],
    ids=str,
)
def test_values_are_converted_as_arrow_does(ddl: str, value: Any, expected: Any) -> None:
    assert value_of(ddl, value) == expected
    assert value_of(ddl, None) is None


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("bigint", True), ("bigint", "5"), ("string", 5), ("tinyint", 300), ("bigint", 2**63), ("date", "2024-01-01"),
        ("decimal(5,2)", Decimal("1.005")), ("array<int>", 5), ("map<string,int>", 5), ("struct<x:int>", 5),
        ("struct<x:int>", (1, 2)), ("string", "\ud800"), ("array<struct<x:int>>", [Row(x="y")]), ("void", 5),
        ("void", True), ("array<void>", [0]), ("map<string,int>", {None: 1}), ("array<map<int,int>>", [[(None, 1)]]),
    ],
    ids=str,
)  # fmt: skip
def test_other_values_are_refused_with_column_and_row(ddl: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        rows_of(f"n int, f {ddl}", Row(n=1, f=None), Row(n=2, f=value), Row(n=3, f=None))
    text = str(caught.value)
    assert text.startswith("output column `f` of type")
    assert f"{value!r} of Row(n=2, f={value!r}) does not fit" in text
    assert "\n" not in text


@pytest.mark.parametrize("row", [(1,), {"n": 1}, Row(1), 5, None, [Row(n=1)]], ids=str)
def test_other_things_than_named_rows_are_refused(row: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"yields Rows with names, such as Row\(n=1\), not"):
        rows_of("n int", Row(n=1), row)


def test_a_null_key_of_a_map_does_not_end_the_process() -> None:
    """Arrow checks it with an abort: an array that the user's own Arrow code made comes this far."""
    output = parse_ddl("k string, f map<string,int>")
    entry = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.int32())])
    batch = pa.RecordBatch.from_pylist(
        [{"k": "a", "f": [{"key": None, "value": 1}]}], pa.schema([("k", pa.string()), ("f", pa.list_(entry))])
    )
    with pytest.raises(InvalidArgumentError, match="output column `f`: a key of a map is null"):
        spark_columns(batch, output)


def test_an_output_without_columns_has_no_rows() -> None:
    """As with PySpark."""
    out = OutputRows(T.StructType([]))
    out.append(Row(a=1))
    assert [batch.num_rows for batch in out.flush()] == [0]


def test_batches_grow_while_rows_are_small() -> None:
    out = OutputRows(parse_ddl("n bigint, s string"))
    sizes = []
    for text in ("x", "x" * 100_000):
        for i in range(30_000 if text == "x" else 300):
            out.append(Row(n=i, s=text))
            if len(out.pending) >= out.limit and out.is_full():
                sizes += [(batch.num_rows, batch.nbytes) for batch in out.flush()]
    assert [rows for rows, _ in sizes[:5]] == [256, 1024, 4096, 8192, 8192]
    assert max(size for _, size in sizes[-3:]) < 20_000_000


@pytest.mark.parametrize(
    ("ddl", "small", "large"),
    [
        ("s string", "x", "x" * 2**20),
        ("s binary", b"", bytes(2**20)),
        ("s array<string>", [], ["x" * 2**10] * 2**10),
        ("s map<string,array<double>>", {}, {"a": np.zeros(2**17), "b": [0.5]}),
        ("s struct<a:string,b:int>", Row(a=None, b=1), Row(a="x" * 2**20, b=2)),
        ("n int", "of no column", "x" * 2**20),
    ],
)
def test_rows_wait_by_their_bytes_whatever_came_before(ddl: str, small: Any, large: Any) -> None:
    """The first rows are large, or those after thousands of small ones."""
    out = OutputRows(parse_ddl(ddl))
    for value, count in ((large, 100), (small, 20_000), (large, 300)):
        most = 0
        for _ in range(count):
            out.append(Row(s=value))
            most = max(most, len(out.pending))
            if len(out.pending) >= out.limit and out.is_full():
                list(out.flush())
        list(out.flush())
        assert most == 8192 if value is small else most <= 64, (most, count)


def test_frames_wait_by_their_bytes() -> None:
    out = OutputFrames(parse_ddl("s string, n bigint"), "UTC")
    for text, dtype, count in (("x", object, 2000), ("x" * 2**20, object, 100), ("x" * 2**20, "string", 100)):
        most = 0
        for _ in range(count):
            out.append(pd.DataFrame({"s": pd.Series([text], dtype=dtype), "n": [1]}))
            most = max(most, len(out.pending))
            if len(out.pending) >= out.limit and out.is_full():
                list(out.flush())
        list(out.flush())
        assert most == 1024 if text == "x" else most <= 5, (most, dtype)


def test_what_user_code_changes_later_does_not_reach_a_row() -> None:
    items: list[Any] = [1]
    inner, data = {"a": items}, bytearray(b"x")
    array = np.array([1.5])
    names = deque(["p"])
    out = OutputRows(
        parse_ddl("xs array<int>, m map<string,array<int>>, s struct<b:binary>, d array<double>, q array<string>")
    )
    for i in (2, 3):
        out.append(Row(xs=items, m=inner, s=Row(b=data), d=array, q=names))
        items.append(i)
        inner["b"] = []
        data += b"y"
        array[0] = i
        names.append("q")
    found = [row for batch in out.flush() for row in batch.to_pylist()]
    assert [(row["xs"], row["s"]["b"], row["d"], row["q"]) for row in found] == [
        ([1], b"x", [1.5], ["p"]),
        ([1, 2], b"xy", [2.0], ["p", "q"]),
    ]
    assert [row["m"] for row in found] == [
        [{"key": "a", "value": [1]}],
        [{"key": "a", "value": [1, 2]}, {"key": "b", "value": []}],
    ]


def frames_of(ddl: str, *frames: Any, timezone: str = "UTC", **options: bool) -> list[dict[str, Any]]:
    out = OutputFrames(parse_ddl(ddl), timezone, **options)
    for frame in frames:
        out.append(frame)
    batches = list(out.flush())
    assert all(batch.schema == output_schema(parse_ddl(ddl)) for batch in batches)
    assert not out.pending
    return [row for batch in batches for row in batch.to_pylist()]


def column_of(ddl: str, values: Any, **options: Any) -> list[Any]:
    return [row["f"] for row in frames_of(f"f {ddl}", pd.DataFrame({"f": values}), **options)]


def test_columns_are_taken_by_name_or_by_place() -> None:
    ddl = "a bigint, b string"
    first = pd.DataFrame({"b": ["x", None], "c": [0, 0], "a": [1, 2]})
    second = pd.DataFrame([[3, "y"]])
    assert frames_of(ddl, first, second, pd.DataFrame(), pd.DataFrame({"a": [], "b": []})) == [
        {"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "y"},
    ]  # fmt: skip
    assert frames_of(ddl, pd.DataFrame({"x": [1], "y": ["z"]}), by_name=False) == [{"a": 1, "b": "z"}]
    assert frames_of(ddl, pd.DataFrame(index=[0, 1])) == [{"a": None, "b": None}] * 2
    with pytest.raises(InvalidArgumentError, match=r"has the columns a, c; b of the schema is missing"):
        frames_of(ddl, pd.DataFrame({"a": [1], "c": [2]}))
    with pytest.raises(InvalidArgumentError, match="has 1 columns, but the schema has 2"):
        frames_of(ddl, pd.DataFrame([1]))
    for wrong in (5, Row(a=1), pd.Series([1]), None):
        with pytest.raises(InvalidArgumentError, match="yields pandas frames, not") as caught:
            frames_of(ddl, wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "values", "expected"),
    [
        ("bigint", [1, 2], [1, 2]),
        ("bigint", [1.0, None], [1, None]),
        ("bigint", ["8", None], [8, None]),
        ("bigint", [True, False], [1, 0]),
        ("bigint", pd.array([1, None], dtype="Int64"), [1, None]),
        ("bigint", pd.Categorical([5, 6, 5]), [5, 6, 5]),
        ("double", [1, 2], [1.0, 2.0]),
        ("double", [0.5, float("nan")], [0.5, None]),
        ("string", ["x", None], ["x", None]),
        ("string", pd.array(["x", None], dtype=pd.ArrowDtype(pa.string())), ["x", None]),
        ("boolean", [True, None], [True, None]),
        ("date", [datetime.date(2024, 1, 1), None], [datetime.date(2024, 1, 1), None]),
        ("decimal(5,2)", [Decimal("1.5"), None], [Decimal("1.50"), None]),
        ("binary", [b"x", bytearray(b"y")], [b"x", b"y"]),
        ("void", [None, None], [None, None]),
        ("void", [pd.NA, None], [None, None]),
        ("timestamp_ntz", [pd.Timestamp(NOON), pd.NaT], [NOON, None]),
        ("interval day to second", [pd.Timedelta(1, "s")], [datetime.timedelta(seconds=1)]),
        ("array<int>", [[1, 2], np.array([3]), None], [[1, 2], [3], None]),
        ("map<string,int>", [{"a": 1}, None], [[{"key": "a", "value": 1}], None]),
        ("map<string,int>", [[("a", 1)]], [[{"key": "a", "value": 1}]]),
        ("struct<x:int,y:array<int>>", [{"x": 1}, Row(x=2, y=[3]), (4, None), None],
         [{"x": 1, "y": None}, {"x": 2, "y": [3]}, {"x": 4, "y": None}, None]),
    ],
    ids=str,
)  # fmt: skip
def test_columns_are_converted_as_pyspark_does(ddl: str, values: Any, expected: list[Any]) -> None:
    assert column_of(ddl, values) == expected


def test_whole_numbers_are_decimals_if_pyspark_is_told_so() -> None:
    for values in ([1, 2], pd.array([1, 2], dtype="Int64"), np.array([1, 2], np.int8)):
        with pytest.raises(InvalidArgumentError, match=r"output column `f` of type decimal128\(3, 1\)"):
            column_of("decimal(3,1)", values)
        assert column_of("decimal(3,1)", values, decimals_of_integers=True) == [Decimal("1.0"), Decimal("2.0")]
    with_null = pd.array([1, None], dtype="Int64")
    assert column_of("decimal(3,1)", with_null, decimals_of_integers=True) == [Decimal("1.0"), None]
    with pytest.raises(InvalidArgumentError, match="output column `f`"):
        column_of("decimal(3,1)", [1000], decimals_of_integers=True)


def test_naive_times_are_of_the_sessions_zone() -> None:
    zone = "America/New_York"
    (found,) = column_of("timestamp", [pd.Timestamp(NOON)], timezone=zone)
    assert found == NOON.replace(hour=16, tzinfo=UTC)
    (aware,) = column_of("timestamp", [pd.Timestamp(NOON, tz="UTC")], timezone=zone)
    assert aware == NOON.replace(tzinfo=UTC)
    (standard,) = column_of("timestamp", [pd.Timestamp("2015-11-01 01:30")], timezone=zone)
    assert standard == datetime.datetime(2015, 11, 1, 6, 30, tzinfo=UTC)
    for dtype, skipped in (
        ("timestamp", pd.Timestamp("2024-03-10 02:30")),
        ("array<timestamp>", [datetime.datetime(2024, 3, 10, 2, 30)]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"output column `f` of type .*2024-03-10 02:30:00"):
            column_of(dtype, [skipped], timezone=zone)
    # In a column of objects they are of UTC: so it is in PySpark.
    objects = pd.Series([pd.Timestamp(NOON), NOON], dtype=object)
    assert column_of("timestamp", objects, timezone=zone) == [NOON.replace(tzinfo=UTC)] * 2
    frame = pd.DataFrame({"f": objects})
    assert [row["f"] for row in frames_of("f timestamp", frame, frame, timezone=zone)] == [NOON.replace(tzinfo=UTC)] * 4
    (nested,) = column_of("array<timestamp>", [[pd.Timestamp(NOON), None, NOON.replace(tzinfo=UTC)]], timezone=zone)
    assert nested == [NOON.replace(hour=16, tzinfo=UTC), None, NOON.replace(tzinfo=UTC)]


@pytest.mark.parametrize(
    ("ddl", "values", "text"),
    [
        ("bigint", [1.0, 1.5], "1.5 of dtype float64"),
        ("bigint", ["8", "x"], "'x' of dtype object"),
        ("tinyint", [1, 300], "300 of dtype int64"),
        ("decimal(5,2)", ["x"], "'x' of dtype object"),
        ("decimal(5,2)", [Decimal("1"), Decimal("sNaN")], "Decimal('sNaN') of dtype object"),
        ("array<int>", [5], "5 of dtype int64"),
        ("struct<x:int>", [(1, 2)], "(1, 2) of dtype object"),
        ("void", [None, "x"], "'x' of dtype object"),
        ("map<string,int>", [{"a": 1}, {None: 1}], "{None: 1} of dtype object"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_named_with_the_value(ddl: str, values: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        frames_of(f"f {ddl}", pd.DataFrame({"f": values[:1]}), pd.DataFrame({"f": values}))
    assert str(caught.value).startswith("output column `f` of type")
    assert text in str(caught.value)
    assert f"row {len(values) - 1} of a frame: " in str(caught.value)
    if ddl == "bigint" and values[0] == 1.0:
        assert column_of(ddl, values, safe=False) == [1, 1]


@pytest.mark.parametrize(
    ("ddl", "value", "path"),
    [
        ("bigint not null", None, "f"),
        ("struct<x:int not null>", Row(x=None), "f.x"),
        ("struct<x:int not null>", Row(y=1), "f.x"),
        ("array<struct<s:struct<x:int not null>>>", [None, {"s": None}, {"s": {"x": None}}], "f.element.s.x"),
        ("map<string,struct<x:int not null>>", {"a": None, "b": {}}, "f.value.x"),
    ],
    ids=str,
)  # fmt: skip
def test_nulls_of_rows_where_the_schema_allows_none_are_named(ddl: str, value: Any, path: str) -> None:
    ddl = f"n int, f {ddl}"
    with pytest.raises(InvalidArgumentError, match=rf"of Row\(n=2.* does not fit: `{path}` allows no null"):
        rows_of(ddl, Row(n=2, f=value))
    if path == "f":
        with pytest.raises(InvalidArgumentError, match="None of Row\\(n=1\\) does not fit: `f` allows no null"):
            rows_of(ddl, Row(n=1))
    else:
        assert rows_of(ddl, Row(n=1, f=None)) == [{"n": 1, "f": None}]
        with pytest.raises(InvalidArgumentError, match=f"output column `{path}` allows no null, and row 1 of a frame"):
            frames_of(
                ddl,
                pd.DataFrame(
                    {
                        "n": [1, 2],
                        "f": [
                            None,
                            value
                            if isinstance(value, list)
                            else dict(value.asDict() if isinstance(value, Row) else value),
                        ],
                    }
                ),
            )


def test_nulls_in_parts_of_what_is_null_itself_are_none() -> None:
    ddl = "f array<struct<x:int not null, y:string>>"
    assert rows_of(ddl, Row(f=[None, Row(x=1)]), Row(f=None)) == [{"f": [None, {"x": 1, "y": None}]}, {"f": None}]


def test_a_row_whose_names_are_no_texts_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="the names of a Row are texts"):
        rows_of("f int", Row(f=[1])(1), Row([1])(1))


def test_null_where_the_schema_allows_none_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="output column `f` allows no null, and row 1 of a frame has"):
        frames_of("f bigint not null", pd.DataFrame({"f": [1.0] * 5}), pd.DataFrame({"f": [1.0, None]}))


def test_frames_of_different_dtypes_are_each_converted() -> None:
    parts = [[1], [2.0], ["3"], [True], [None]]
    assert [row["f"] for row in frames_of("f bigint", *(pd.DataFrame({"f": part}) for part in parts))] == [
        1,
        2,
        3,
        1,
        None,
    ]
    decimals = [pd.DataFrame({"f": [Decimal(text)]}) for text in ("1.5", "1.005")]
    assert [row["f"] for row in frames_of("f float", *decimals)] == [1.5, np.float32(1.005)]
    objects = [pd.DataFrame({"f": pd.Series(part, dtype=object)}) for part in ([1], ["2"], [3.0])]
    assert [row["f"] for row in frames_of("f bigint", *objects)] == [1, 2, 3]


def test_what_user_code_changes_later_does_not_reach_a_frame() -> None:
    out = OutputFrames(parse_ddl("n bigint, xs array<int>, t timestamp, i bigint"), "UTC")
    frame = pd.DataFrame(
        {"n": [1], "xs": [[1]], "t": [pd.Timestamp(NOON, tz="UTC")], "i": pd.array([1], dtype="Int64")}
    )
    for i in (2, 3):
        out.append(frame)
        frame.loc[0, "n"] = i
        frame["xs"][0].append(i)
        frame.loc[0, "t"] += pd.Timedelta(1, "h")
        frame.loc[0, "i"] = i
    found = [tuple(row.values()) for batch in out.flush() for row in batch.to_pylist()]
    noon = NOON.replace(tzinfo=UTC)
    assert found == [(1, [1], noon, 1), (2, [1, 2], noon.replace(hour=13), 2)]


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    frame = pd.DataFrame([[1, 2, 3]], columns=["a", "b", "b"])
    with pytest.raises(InvalidArgumentError, match="has several columns b; keep one of them"):
        frames_of("a bigint, b bigint", frame)
    assert frames_of("a bigint", frame) == [{"a": 1}]


def test_batches_of_frames_with_large_values_have_few_of_them() -> None:
    out = OutputFrames(parse_ddl("s string"), "UTC")
    sizes = []
    for _ in range(300):
        out.append(pd.DataFrame({"s": ["x" * 100_000]}))
        if len(out.pending) >= out.limit and out.is_full():
            sizes += [batch.nbytes for batch in out.flush()]
    assert len(sizes) == 7
    assert max(sizes) < 5_000_000


def test_many_frames_or_rows_are_a_batch() -> None:
    out = OutputFrames(parse_ddl("n bigint"), "UTC")
    out.append(pd.DataFrame({"n": range(5)}))
    assert not out.is_full()
    out.append(pd.DataFrame({"n": range(10_000)}))
    assert out.is_full()
    assert sum(batch.num_rows for batch in out.flush()) == 10_005
    assert not out.is_full()
