"""Values that user code has yielded and may change before they are converted.

Owns: which types have such values, and a copy that later changes do not reach.
Does not own: when output is converted (`output_rows`, `output_frames`).

PySpark converts what a call yields while it yields it, or before the next call. Here output is converted many rows at
once. A list that a processor keeps, yields and goes on to fill must be in a row as it was then.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql import types as T

__all__ = ["held", "is_changeable"]

_FIXED = (int, float, str, bytes, bool, type(None))
_LISTS = (list, set, frozenset, collections.deque)


def is_changeable(dtype: T.DataType) -> bool:
    """True if values of the type may be objects that can be changed.

    >>> is_changeable(T.ArrayType(T.LongType())), is_changeable(T.StringType())
    (True, False)
    """
    return isinstance(dtype, (T.ArrayType, T.MapType, T.StructType, T.BinaryType))


def held(value: Any) -> Any:
    """The value as it is now, with copies of all that can be changed.

    >>> items = [1]
    >>> row = held(Row(k="a", items=items))
    >>> items.append(2)
    >>> row
    Row(k='a', items=[1])
    """
    if type(value) in _FIXED:
        return value
    if isinstance(value, tuple):
        return _held_row(value) if isinstance(value, Row) else tuple(map(held, value))
    if isinstance(value, _LISTS):
        return list(map(held, value))
    if isinstance(value, dict):
        return {key: held(item) for key, item in value.items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return list(map(held, value)) if value.dtype == object else value.copy()
    return value


def _held_row(row: Row) -> Row:
    copy: Row = tuple.__new__(Row, map(held, row))
    names = getattr(row, "__fields__", None)
    if names is not None:
        copy.__fields__ = names
    return copy
