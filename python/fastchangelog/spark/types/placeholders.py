"""Values for the row of metrics in the columns of a user's result.

Owns: one value of any Arrow type for a column that may not hold null.
Does not own: the row of metrics (`metrics`), which is dropped before the user sees it.

The result keeps the schema that the user gave, so Spark's generated code does not test a column for null that must not
hold any. A time is the last one that Spark knows: in the column of event time an early one would be taken for late.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa

__all__ = ["placeholder"]

_LAST = datetime.datetime(9999, 12, 31)


def placeholder(field: pa.Field) -> pa.Array:
    """One value of the field's type: null if it may be, else any.

    >>> placeholder(pa.field("x", pa.int64(), nullable=False)).to_pylist()
    [0]
    """
    return pa.nulls(1, field.type) if field.nullable else pa.array([_value(field.type)], field.type)


def _value(type: pa.DataType) -> Any:
    if pa.types.is_struct(type):
        return {f.name: None if f.nullable else _value(f.type) for f in type}
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type):
        return []
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return ""
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return b""
    if pa.types.is_timestamp(type):
        return _LAST if type.tz is None else _LAST.replace(tzinfo=datetime.timezone.utc)
    if pa.types.is_date(type):
        return _LAST.date()
    if pa.types.is_time(type):
        return _LAST.time()
    if pa.types.is_duration(type):
        return datetime.timedelta(0)
    if pa.types.is_decimal(type):
        return decimal.Decimal(0)
    if pa.types.is_boolean(type):
        return False
    return 0
