"""The grammar of DDL texts, which Arrow's and Spark's types share.

Owns: the tree of a text. Does not own: types in Arrow (`test_embedded_state`) and in Spark (`test_processor_ddl`).
"""

from __future__ import annotations

import pytest

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.schema import arrow_type
from fastchangelog.schema.ddl import DdlError, DdlField, DdlType, read_columns, read_schema


def test_a_text_is_a_tree_of_types() -> None:
    text = "`a ``b`: map<string COLLATE utf8, dec(5)> NOT NULL comment 'no <type', s struct<d interval HOUR to second>"
    key, value = DdlType("string", ("utf8",)), DdlType("decimal", ("5",))
    nested = DdlType("map", parts=(DdlField("key", key), DdlField("value", value)))
    hours = DdlType("struct", parts=(DdlField("d", DdlType("interval", ("hour", "second"))),))
    assert read_columns(text).parts == (DdlField("a `b", nested, nullable=False), DdlField("s", hours))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LONG", "bigint"),
        ("decimal(3, 2)", "decimal"),
        ("array<int>", "array"),
        ("interval day", "interval"),
        ("interval interval day", "struct"),
        ("interval long", "struct"),
        ("array array<int>", "struct"),
        ("`long` int", "struct"),
    ],
)
def test_a_text_without_names_is_a_type(text: str, name: str) -> None:
    assert read_schema(text).name == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n", "a type is missing at the end"),
        ("n int,", "a name is missing at the end"),
        ("n int m int", "unexpected `m`"),
        ("n in#t", "unexpected `#`"),
        ("n array<int", "`>` is missing"),
        ("n map<int>", "`,` is missing"),
        ("n 'long'", "a type is missing before `'long'`"),
        ("n int comment", "the text of a comment is missing at the end"),
        ("n decimal(", "a parameter is missing at the end"),
    ],
)
def test_an_error_names_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(DdlError) as caught:
        read_columns(text)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int(3)", "`int` takes 0 parameters, not 1, in `int(3)`"),
        ("decimal(1,2,3)", "`decimal` takes 0 to 2 parameters, not 3, in `decimal(1,2,3)`"),
        ("n decimal(x)", "`x` is not a number in `n decimal(x)`"),
        ("time(x)", "`x` is not a number in `time(x)`"),
        ("n long, N LNOG", "unknown type `lnog` in `n long, N LNOG`"),
        ("n int, n int", "duplicate field `n` in `n int, n int`"),
        ("n interval day to year", "unknown type `interval day to year` in `n interval day to year`"),
        ("struct<>", "a struct has no field in `struct<>`"),
    ],
)
def test_a_type_that_does_not_exist_is_named_with_its_text(text: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        arrow_type("value", text)
    assert str(caught.value) == f"value: {why}"
