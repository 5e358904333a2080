"""The values of a Spark type in Python.

Owns: for types with parts and for timestamps what `atomic` has for all others: columns as values of rows
(`row_values`) and as exact values (`exact_values`), what is seen of exact values (`shown_values`), and what a state
takes (`accepted`).
Does not own: atomic types (`atomic`), rows of a state (`state_type`), pandas frames (`processor.frames`).

| type | values of rows, as PySpark | exact values | seen of a state |
|---|---|---|---|
| struct | dict | tuple of fields | Row |
| map | list of pairs | tuple of pairs | dict |
| array | list | tuple | list |
| timestamp | aware, in the session's zone | microseconds | naive, in the zone of this process or the session |
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import types as T

from fastchangelog.spark import versions
from fastchangelog.spark.types.atomic import UTC_EPOCH, atomic
from fastchangelog.spark.types.columns import (
    Values,
    aware,
    hashable,
    is_hashable,
    lists_of,
    maps_of,
    python,
    structs_of,
)
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.scalars import Convert, Refused, is_nothing
from fastchangelog.spark.types.walk import contains, fold
from fastchangelog.spark.types.zones import zone_of

__all__ = ["accepted", "exact_values", "has_floats", "is_seen_changeable", "row_values", "same", "shown_values"]


def row_values(dtype: T.DataType, timezone: str) -> Values:
    """What turns a column in its wire form into values as rows have them."""

    def leaf(dtype: T.DataType) -> Values:
        if isinstance(dtype, T.UserDefinedType):
            return row_values(dtype.sqlType(), timezone)
        found = atomic(dtype)
        return aware(timezone) if isinstance(dtype, T.TimestampType) else found.row if found else python

    def struct(dtype: T.StructType, fields: list[Values]) -> Values:
        names = dtype.names
        return structs_of(fields, lambda row: dict(zip(names, row)))

    return fold(dtype, leaf, lambda _, e: lists_of(e, list), lambda _, k, v: maps_of(k, v, list), struct)


def exact_values(dtype: T.DataType) -> Values:
    """What turns a column in its wire form into the exact values that states are kept in."""

    def leaf(dtype: T.DataType) -> Values:
        found = atomic(dtype)
        return python if found is None else found.exact or found.row

    return fold(
        dtype,
        leaf,
        lambda _, element: lists_of(element, tuple),
        lambda _, key, value: maps_of(key, value, tuple),
        lambda _, fields: structs_of(fields, tuple),
    )


def has_floats(dtype: T.DataType) -> bool:
    """True if there is a floating-point number anywhere in the type."""
    return contains(dtype, lambda part: isinstance(part, (T.FloatType, T.DoubleType)))


def is_seen_changeable(dtype: T.DataType) -> bool:
    """True if user code can change what it sees of a value of the type."""
    kinds = (T.ArrayType, T.MapType) if versions.HAS_BYTES else (T.ArrayType, T.MapType, T.BinaryType)
    return contains(dtype, lambda part: isinstance(part, kinds))


def shown_values(dtype: T.DataType, timezone: str | None) -> Convert | None:
    """What turns exact values into those that are seen; None where they are the same.

    Timestamps are seen in `timezone`, without one in the zone of this process.
    """

    def leaf(dtype: T.DataType) -> Convert | None:
        if isinstance(dtype, T.TimestampType):
            return _local if timezone is None else _in_zone(timezone)
        found = atomic(dtype)
        return None if found is None else found.shown

    def array(_: T.ArrayType, element: Convert | None) -> Convert:
        return list if element is None else lambda items: [x if x is None else element(x) for x in items]

    def map(dtype: T.MapType, key: Convert | None, value: Convert | None) -> Convert:
        to_key, to_value = key or same, value or same
        if not is_hashable(dtype.keyType) or to_key is bytearray:
            return lambda pairs: {hashable(to_key(k)): v if v is None else to_value(v) for k, v in pairs}
        return lambda pairs: {to_key(k): v if v is None else to_value(v) for k, v in pairs}

    def struct(dtype: T.StructType, fields: list[Convert | None]) -> Convert:
        make, shown = row_class(dtype.names), [field or same for field in fields]
        return lambda row: make([x if x is None else field(x) for field, x in zip(shown, row)])

    return fold(dtype, leaf, array, map, struct)


def same(value: Any) -> Any:
    """The value."""
    return value


def _local(micros: int) -> datetime.datetime:
    seconds, rest = divmod(micros, 1_000_000)
    try:
        return datetime.datetime.fromtimestamp(seconds).replace(microsecond=rest)
    except ValueError:  # on the first day of all, the day before is out of range
        return datetime.datetime(*time.localtime(seconds)[:6], rest)


def _in_zone(timezone: str) -> Convert:
    """What shows a timestamp as the clocks of a zone did."""

    def shown(micros: int) -> datetime.datetime:
        utc = (UTC_EPOCH + datetime.timedelta(microseconds=micros)).replace(tzinfo=datetime.timezone.utc)
        return utc.astimezone(zone_of(timezone)).replace(tzinfo=None, fold=0)

    return shown


def accepted(dtype: T.DataType, nullable: bool) -> Convert:
    """What turns a value of user code into the exact one of a type, None for a null; or raises `Refused`."""
    return _or_null(fold(dtype, _accepted_atomic, _accepted_array, _accepted_map, _accepted_struct), nullable)


def _or_null(convert: Convert, nullable: bool) -> Convert:
    def checked(value: Any) -> Any:
        if not is_nothing(value):
            value = convert(value)
            if value is not None:
                return value
        if not nullable:
            raise Refused(value, "stands where the schema allows no null")
        return None

    return checked


def _accepted_atomic(dtype: T.DataType) -> Convert:
    found = atomic(dtype)
    assert found is not None, "a type without a wire form"
    return found.accepted


def _accepted_array(dtype: T.ArrayType, element: Convert) -> Convert:
    element = _or_null(element, dtype.containsNull)

    def convert(value: Any) -> Any:
        if hasattr(value, "tolist"):  # arrays of numpy, pandas and Arrow
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
            raise Refused(value, "is no array; give a list")
        found = []
        for i, item in enumerate(value):
            try:
                found.append(element(item))
            except Refused as refused:
                raise refused.within(f"[{i}]") from None
        return tuple(found)

    return convert


def _accepted_map(dtype: T.MapType, key: Convert, value: Convert) -> Convert:
    to_key, to_value = _or_null(key, False), _or_null(value, dtype.valueContainsNull)

    def convert(value: Any) -> Any:
        pairs = value
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif not isinstance(value, (list, tuple)) or any(
            not isinstance(pair, (list, tuple)) or len(pair) != 2 for pair in value
        ):
            raise Refused(value, "is no map; give a dict, or a list of pairs")
        found = {}
        for key, item in pairs:
            try:
                exact = to_key(key)
                if exact in found:
                    raise Refused(key, "is twice in a map")
                found[exact] = to_value(item)
            except Refused as refused:
                raise refused.within(f"[{key!r}]") from None
        return tuple(found.items())

    return convert


def _accepted_struct(dtype: T.StructType, made: list[Convert]) -> Convert:
    names = dtype.names
    fields = [_or_null(convert, field.nullable) for convert, field in zip(made, dtype.fields, strict=True)]

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            values: Sequence[Any] = [value.get(name) for name in names]
        elif isinstance(value, (tuple, list)):
            values = value
        elif hasattr(value, "__dict__"):
            values = [vars(value).get(name) for name in names]
        else:
            raise Refused(value, "is no struct; give a Row, a tuple or a dict")
        return accepted_fields(value, values, names, fields)

    return convert


def accepted_fields(
    value: object, values: Sequence[Any], names: Sequence[str], fields: Sequence[Convert]
) -> tuple[Any, ...]:
    """The exact fields of the values of a struct, or of a row of a state."""
    if len(values) != len(names):
        raise Refused(value, f"has {len(values)} values for the {len(names)} fields {', '.join(names)}")
    found = []
    for name, field, item in zip(names, fields, values):
        try:
            found.append(field(item))
        except Refused as refused:
            raise refused.within(name) from None
    return tuple(found)
