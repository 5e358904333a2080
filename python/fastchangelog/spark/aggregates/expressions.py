"""Expressions over aggregates: what the core computes, and what Spark computes of it.

Owns: which parts of an expression are aggregates, keys and constants; the columns that stand for them.
Does not own: how an expression is taken apart (`internals_expressions`), which calls are aggregates (`analyse`).

The core computes the distinct aggregates of a query. Spark's own projection behind the operator computes the
expressions, so their values, names and types are Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.spark import internals
from fastchangelog.spark.internals_expressions import is_alias, is_reference, replaced, without_alias

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

__all__ = ["aggregate_name", "is_computed", "key_name", "over_aggregates"]

#: Gives the number of the aggregate that a part is; None for any other part.
Number: TypeAlias = "Callable[[Column], int | None]"


def key_name(number: int) -> str:
    """The name of the column that stands for a key in expressions."""
    return f"__key{number}"


def aggregate_name(number: int) -> str:
    """The name of the column that stands for an aggregate in expressions."""
    return f"__aggregate{number}"


def over_aggregates(column: Column, keys: Sequence[Column], number: Number) -> Column | None:
    """The expression over the columns that stand for aggregates and keys; None if any other column is in it.

    Spark names fields of structs after columns, and after nothing else: `coalesce` hides the name of a stand-in.
    """
    plain = [without_alias(key) for key in keys]
    texts = [internals.text_of(key).lower() for key in plain]
    others: list[Column] = []

    def stand_in(part: Column) -> Column | None:
        if is_alias(part):  # a field of a struct may be named so
            return None
        key = _key(part, plain, texts)
        if key is not None:
            column = F.col(key_name(key))
            return column.alias(_last_name(internals.text_of(part))) if is_reference(part) else F.coalesce(column)
        aggregate = number(part)
        if aggregate is not None:
            return F.coalesce(F.col(aggregate_name(aggregate)))
        if is_reference(part):
            others.append(part)
            return part
        return None

    found = replaced(column, stand_in)
    return None if others else found


def _key(part: Column, keys: Sequence[Column], texts: Sequence[str]) -> int | None:
    """The number of the key that the part is.

    A column's name is a key's if only one key has it: Spark has checked that it is one.
    """
    for i, key in enumerate(keys):
        if internals.same(part, key):
            return i
    if is_reference(part):
        named = [i for i, text in enumerate(texts) if text == internals.text_of(part).lower()]
        return named[0] if len(named) == 1 else None
    return None


def _last_name(reference: str) -> str:
    """The name of a column, without that of its table.

    >>> _last_name("t.k"), _last_name("t.`a.b`")
    ('k', 'a.b')
    """
    quoted = re.search(r"`([^`]+)`$", reference)
    return quoted[1] if quoted else reference.rpartition(".")[2]


def is_computed(spark: SparkSession, columns: T.StructType, expressions: Sequence[Column]) -> bool:
    """True if a projection computes the expressions from `columns`: an aggregate of Spark's is not in them."""
    empty = spark.createDataFrame([], columns)
    try:
        # A condition is refused where a projection would become an aggregation of its own.
        _ = empty.where(F.struct(*[e.alias(f"e{i}") for i, e in enumerate(expressions)]).isNull()).schema
    except AnalysisException:
        return False
    return True
