"""The order in which maps are iterated, timers of a key are listed, and timers of one time fire.

It is that of Spark's state store, which programs see though nothing promises it.

Owns: the sort key of keys and of times, the bytes of Spark's `UnsafeRow`.
Does not own: the entries (`map`), the timers (`run`), the order of the store here (the core).

Numbers are compared by their bytes, the lowest first: 1, 2, 256, 3 have the order 256, 1, 2, 3. Texts are compared by
length first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from fastchangelog.spark.types.atomic import INTEGERS, TEXTS
from fastchangelog.spark.types.values import exact_values

__all__ = ["number_bytes", "spark_order", "spark_places"]

Order = Callable[[tuple[Any, ...]], bytes]
#: For each key of an array, its place among all of them.
Places = Callable[[pa.StructArray], "np.ndarray[Any, np.dtype[np.int64]]"]

_FIRST_DAY = 719_163
_NOTHING = bytes(8)


def number_bytes(value: int) -> bytes:
    """What whole numbers and times are sorted by.

    >>> sorted([5_000, 10_000, 20_000], key=number_bytes)
    [10000, 20000, 5000]
    """
    return value.to_bytes(8, "little", signed=True)


def _decimal(dtype: T.DecimalType) -> Callable[[Any], bytes]:
    return lambda value: number_bytes(int(value.scaleb(dtype.scale)))


#: Types whose values stand in their slot of eight bytes, in their exact form.
_FIXED: dict[type[T.DataType], Callable[[Any], bytes]] = {
    **dict.fromkeys(INTEGERS, number_bytes),
    T.BooleanType: number_bytes,
    T.FloatType: lambda value: struct.pack("<f4x", value),
    T.DoubleType: lambda value: struct.pack("<d", value),
    T.DateType: lambda value: number_bytes(value.toordinal() - _FIRST_DAY),
    T.TimestampType: number_bytes,
    T.TimestampNTZType: number_bytes,
    T.DayTimeIntervalType: number_bytes,
}
_TEXTS: dict[type[T.DataType], Callable[[Any], bytes]] = {
    **dict.fromkeys(TEXTS, lambda value: value.encode("utf-8", "surrogatepass")),
    T.BinaryType: bytes,
}


def spark_order(key: T.StructType) -> Order | None:
    """What to sort exact keys by; None for types whose order is not known here, such as arrays.

    >>> from pyspark.sql.types import StructType
    >>> sorted([("100",), ("9",), ("10",)], key=spark_order(StructType().add("k", "string")))
    [('9',), ('10',), ('100',)]
    """
    fields: list[tuple[Callable[[Any], bytes], bool]] = []
    for field in key.fields:
        dtype = field.dataType
        if isinstance(dtype, T.DecimalType) and dtype.precision <= 18:
            fields.append((_decimal(dtype), True))
        elif type(dtype) in _FIXED:
            fields.append((_FIXED[type(dtype)], True))
        elif type(dtype) in _TEXTS:
            fields.append((_TEXTS[type(dtype)], False))
        else:
            return None
    null_bytes = 8 * ((len(fields) + 63) // 64)
    start = null_bytes + 8 * len(fields)

    def order(row: tuple[Any, ...]) -> bytes:
        nulls, slots, texts = 0, b"", b""
        for i, ((encode, is_fixed), value) in enumerate(zip(fields, row)):
            if value is None:
                nulls |= 1 << i
                slots += _NOTHING
            elif is_fixed:
                slots += encode(value)
            else:
                text = encode(value)
                slots += struct.pack("<II", len(text), start + len(texts))
                texts += text + bytes(-len(text) % 8)
        return struct.pack("<I", start + len(texts)) + nulls.to_bytes(null_bytes, "little") + slots + texts

    return order


def spark_places(key: T.StructType) -> Places | None:
    """The same for an array of keys; quick for a single text, which most keys are."""
    order = spark_order(key)
    if order is None:
        return None
    if len(key.fields) == 1 and isinstance(key.fields[0].dataType, T.StringType):
        return lambda keys: _ranks(_sorted_texts(keys.field(0)))
    values = [exact_values(f.dataType) for f in key.fields]

    def places(keys: pa.StructArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        rows = zip(*[exact(column) for exact, column in zip(values, keys.flatten())])
        orders = list(map(order, rows))
        return _ranks(np.array(sorted(range(len(orders)), key=orders.__getitem__), np.int64))

    return places


def _ranks(indices: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    ranks = np.empty(len(indices), np.int64)
    ranks[indices] = np.arange(len(indices))
    return ranks


def _sorted_texts(texts: pa.StringArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers of texts in their order."""
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype("<u4")
    sizes = (16 + (lengths + 7) // 8 * 8).astype("<u4")
    table = pa.table(
        {
            "size": sizes.view(">u4").astype(np.int64),
            "is_null": texts.is_null().cast(pa.int8()),
            "length": lengths.view(">u4").astype(np.int64),
            "text": texts.cast(pa.binary()),
        }
    )
    keys = [(name, "ascending") for name in table.column_names]
    return pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)  # type: ignore[no-any-return]
