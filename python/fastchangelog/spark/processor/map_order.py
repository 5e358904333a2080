"""The order in which maps are iterated: that of Spark's state store, which programs see though nothing promises it.

Owns: the sort key of a map's keys, the bytes of Spark's `UnsafeRow`.
Does not own: the entries (`map_state`), the order of the store here (the core).

Numbers are compared by their bytes, the lowest first: 1, 2, 256, 3 have the order 256, 1, 2, 3. Texts are compared by
length first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pyspark.sql import types as T

from fastchangelog.spark.processor.state_converters import INTEGERS

__all__ = ["spark_order"]

Order = Callable[[tuple[Any, ...]], bytes]

_FIRST_DAY = 719_163
_NOTHING = bytes(8)


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _decimal(dtype: T.DecimalType) -> Callable[[Any], bytes]:
    return lambda value: _number(int(value.scaleb(dtype.scale)))


#: Types whose values stand in their slot of eight bytes, in their exact form.
_FIXED: dict[type[T.DataType], Callable[[Any], bytes]] = {
    **dict.fromkeys(INTEGERS, _number),
    T.BooleanType: _number,
    T.FloatType: lambda value: struct.pack("<f4x", value),
    T.DoubleType: lambda value: struct.pack("<d", value),
    T.DateType: lambda value: _number(value.toordinal() - _FIRST_DAY),
    T.TimestampType: _number,
    T.TimestampNTZType: _number,
    T.DayTimeIntervalType: _number,
}
_TEXTS: dict[type[T.DataType], Callable[[Any], bytes]] = {
    T.StringType: lambda value: value.encode("utf-8", "surrogatepass"),
    T.CharType: lambda value: value.encode("utf-8", "surrogatepass"),
    T.VarcharType: lambda value: value.encode("utf-8", "surrogatepass"),
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
