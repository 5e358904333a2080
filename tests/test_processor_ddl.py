"""Schemas of states as texts: read as Spark reads them, written so that they are read back."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T

from fastchangelog.errors import UnsupportedError
from fastchangelog.spark import versions
from fastchangelog.spark.types.ddl import ddl_text, parse_ddl
from fastchangelog.spark.types.state_type import StateType

ALL = (
    "b boolean, t tinyint, s smallint, i int, l bigint, f float, d double, p decimal(12,3), x string, y binary, "
    "day date, at timestamp, ntz timestamp_ntz, span interval day to second, hours interval hour, "
    "months interval year to month, nothing void, c char(3), v varchar(9), list array<array<int>>, "
    "map map<string,struct<a:bigint not null,`b c`:array<double>>> not null, `a ``b` int"
)


def test_every_type_is_read_and_written() -> None:
    struct = parse_ddl(ALL)
    assert ddl_text(struct) == ALL
    assert parse_ddl(ddl_text(struct)) == struct
    assert struct["map"].dataType.valueType.fields[0].nullable is False
    assert struct["hours"].dataType == T.DayTimeIntervalType(1, 1)
    assert struct["p"].dataType == T.DecimalType(12, 3)
    assert struct.names[-1] == "a `b"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("n LONG", "n bigint"),
        ("n: Integer, m: byte", "n int, m tinyint"),
        ("n int COMMENT 'it''s, a \"name\"'".replace("''", "\\'"), "n int"),
        ("n struct<a int, b: string COMMENT 'x'>", "n struct<a:int,b:string>"),
        (
            "n numeric, m dec(5), o real, p short, q timestamp_ltz",
            "n decimal(10,0), m decimal(5,0), o float, p smallint, q timestamp",
        ),
        ("n map < string , int >", "n map<string,int>"),
        ("n struct<>", "n struct<>"),
    ],
)
def test_other_spellings(text: str, same: str) -> None:
    assert ddl_text(parse_ddl(text)) == same


@pytest.mark.skipif(not versions.HAS_TIME_TYPE, reason="this PySpark has no TIME")
def test_time() -> None:
    assert ddl_text(parse_ddl("t time, u time(3)")) == "t time(6), u time(3)"


SPATIAL = pytest.mark.skipif(not versions.HAS_SPATIAL_TYPES, reason="this PySpark has no spatial types")


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("v variant, a array<variant>", "variant"),
        ("v interval not null, a array<interval>", "interval"),
        pytest.param("v geometry(4326), a array<geometry(any)>", r"geometry\(4326\)", marks=SPATIAL),
        pytest.param("v geography(4326)", r"geography\(4326\)", marks=SPATIAL),
    ],
)
def test_a_type_that_no_state_keeps_is_read_and_refused(text: str, dtype: str) -> None:
    """Whether Spark's own operator keeps it is Spark's matter: for `accelerate` it is no error of the user's."""
    struct = parse_ddl(text)
    assert ddl_text(struct) == text
    with pytest.raises(UnsupportedError, match=f"state `s` has the type {dtype}, which fastchangelog cannot keep"):
        StateType(struct, "state `s`")


def test_collations() -> None:
    assert ddl_text(parse_ddl("s string collate UTF8_LCASE, t string")) == "s string collate UTF8_LCASE, t string"


@pytest.mark.parametrize("text", ["n lnog", "n array<lnog>", "n interval day to year"])
def test_unknown_types_have_sparks_condition(text: str) -> None:
    with pytest.raises(
        PySparkRuntimeError, match=r"Error parsing string schema: \[(UNSUPPORTED_DATATYPE|PARSE_SYNTAX)"
    ):
        parse_ddl(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n",
        "long",
        "n int,",
        "n int m int",
        "n array<int",
        "n map<int>",
        "n decimal(40)",
        "n decimal(3,5)",
        "n in#t",
        "n decimal(x)",
        "int>",
        "n struct<int>",
        "n char",
        "n interval to",
        pytest.param("n geometry", marks=SPATIAL),
    ],
)
def test_texts_that_are_no_columns_are_refused(text: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=r"\[PARSE_SYNTAX_ERROR\].* in `"):
        parse_ddl(text)
