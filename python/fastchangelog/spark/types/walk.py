"""The one walk over a Spark type.

Owns: what the parts of a type are, and the walks that see all of them.
Does not own: what is made of a type (all other modules here).

A user-defined type counts as atomic here: few callers look behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.sql import types as T

__all__ = ["contains", "fold", "nullable", "parts"]

_Made = TypeVar("_Made")


def parts(dtype: T.DataType) -> list[T.StructField]:
    """The fields of a struct, the element of an array, key and value of a map; none of an atomic type."""
    if isinstance(dtype, T.StructType):
        return list(dtype.fields)
    if isinstance(dtype, T.ArrayType):
        return [T.StructField("element", dtype.elementType, dtype.containsNull)]
    if isinstance(dtype, T.MapType):
        return [T.StructField("key", dtype.keyType), T.StructField("value", dtype.valueType, dtype.valueContainsNull)]
    return []


def fold(
    dtype: T.DataType,
    atomic: Callable[[T.DataType], _Made],
    array: Callable[[T.ArrayType, _Made], _Made],
    map: Callable[[T.MapType, _Made, _Made], _Made],
    struct: Callable[[T.StructType, list[_Made]], _Made],
) -> _Made:
    """Makes something of a type, from what was made of its parts.

    >>> dtype = T.StructType().add("n", "long").add("tags", T.ArrayType(T.StringType()))
    >>> fold(dtype, lambda _: 1, lambda _, n: n + 1, lambda _, k, v: max(k, v) + 1, lambda _, fields: max(fields) + 1)
    3
    """
    made = [fold(part.dataType, atomic, array, map, struct) for part in parts(dtype)]
    if isinstance(dtype, T.StructType):
        return struct(dtype, made)
    if isinstance(dtype, T.ArrayType):
        return array(dtype, *made)
    if isinstance(dtype, T.MapType):
        return map(dtype, *made)
    return atomic(dtype)


def contains(dtype: T.DataType, test: Callable[[T.DataType], bool]) -> bool:
    """True if the test holds for the type, or for a part of it at any depth."""
    return test(dtype) or any(contains(part.dataType, test) for part in parts(dtype))


def nullable(
    dtype: T.DataType,
    atomic: Callable[[T.DataType], T.DataType] = lambda dtype: dtype,
    names: Callable[[T.StructType], list[str]] = lambda struct: struct.names,
) -> T.DataType:
    """The type with nulls allowed everywhere, other `atomic` types in it, and other `names` of fields.

    >>> nullable(T.ArrayType(T.LongType(), containsNull=False)) == T.ArrayType(T.LongType())
    True
    """
    return fold(
        dtype,
        atomic,
        lambda _, element: T.ArrayType(element),
        lambda _, key, value: T.MapType(key, value),
        lambda struct, made: T.StructType([T.StructField(*field) for field in zip(names(struct), made, strict=True)]),
    )
