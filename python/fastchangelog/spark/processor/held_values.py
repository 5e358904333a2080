"""Values that user code has yielded and may change before they are converted.

Owns: which types have such values, a copy that later changes do not reach, and the approximate size of a value.
Does not own: when output is converted (`rows.output`, `frames.output`).

PySpark converts a value as soon as it is yielded, or before the next call. Here many rows are converted at once. If a
processor yields a list and then fills it further, the row must hold the list as it was.
"""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql import types as T

__all__ = ["held", "held_bytes", "is_changeable"]

_FIXED = (int, float, str, bytes, bool, type(None))
_LISTS = (list, set, frozenset, collections.deque)
#: Of more elements than these some stand for all.
_MEASURED = 16


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


def held_bytes(value: Any) -> int:
    """About the bytes of a value.

    >>> held_bytes(5), held_bytes("ten bytes."), held_bytes(["ten bytes."] * 1000)
    (8, 10, 18000)
    """
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.nbytes
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, (tuple, np.ndarray, *_LISTS)):
        items = value
    else:
        return 8
    count = len(items)
    some = [held_bytes(item) + 8 for item in itertools.islice(items, 0, None, max(count // _MEASURED, 1))]
    return sum(some) * count // max(len(some), 1)


def _held_row(row: Row) -> Row:
    copy: Row = tuple.__new__(Row, map(held, row))
    names = getattr(row, "__fields__", None)
    if names is not None:
        copy.__fields__ = names
    return copy
