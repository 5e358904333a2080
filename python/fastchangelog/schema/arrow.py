"""Types of keys and values, as users write them, in Arrow's terms.

Owns: reading DDL texts, PySpark types and Arrow types into one Arrow type each.
Does not own: the grammar of texts (`schema.ddl`), which types can be kept (the core says so), data.

A text without field names (``"long"``) is a plain type; one with names (``"n long, last timestamp"``) is a struct.
Comments, and what a text or a PySpark type says of nulls, are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.schema.ddl import (
    DAY_TIME,
    YEAR_MONTH,
    DdlError,
    DdlType,
    UnknownTypeError,
    decimal_parameters,
    numbers,
    read_schema,
)

if TYPE_CHECKING:
    from fastchangelog.types import DataTypeLike

__all__ = ["arrow_type"]

_FLAT: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
}


def arrow_type(what: str, schema: DataTypeLike) -> pa.DataType:
    """The Arrow type of a DDL text, of a PySpark type, or of an Arrow type or schema; ``what`` is for messages.

    >>> arrow_type("key", "long")
    DataType(int64)
    >>> arrow_type("value", "n long, tags array<string>")
    StructType(struct<n: int64, tags: list<element: string>>)
    >>> arrow_type("value", "n lnog")
    Traceback (most recent call last):
    fastchangelog.errors.InvalidArgumentError: value: unknown type `lnog` in `n lnog`
    """
    if isinstance(schema, pa.DataType):
        return schema
    if isinstance(schema, pa.Schema):
        return pa.struct(list(schema))
    if hasattr(schema, "simpleString"):  # PySpark's types, without importing PySpark
        schema = _text_of(schema)
    if not isinstance(schema, str):
        raise InvalidArgumentError(
            f'{what}: a {type(schema).__name__} is no schema; write "long" or "n long, last timestamp", or give a '
            "PySpark or Arrow type"
        )
    if not schema.strip():
        raise InvalidArgumentError(f"{what}: the schema is empty")
    try:
        return _arrow(read_schema(schema))
    except DdlError as error:
        raise InvalidArgumentError(f"{what}: {error} in `{schema}`") from None


def _text_of(dtype: Any) -> str:
    """The text of a PySpark type: its `simpleString`, with the names of fields in quotes."""
    if hasattr(dtype, "fields"):
        fields = ("`" + field.name.replace("`", "``") + "`:" + _text_of(field.dataType) for field in dtype.fields)
        return f"struct<{','.join(fields)}>"
    if hasattr(dtype, "elementType"):
        return f"array<{_text_of(dtype.elementType)}>"
    if hasattr(dtype, "keyType"):
        return f"map<{_text_of(dtype.keyType)},{_text_of(dtype.valueType)}>"
    return str(dtype.simpleString())


def _arrow(dtype: DdlType) -> pa.DataType:
    parts = [pa.field(part.name, _arrow(part.type)) for part in dtype.parts]
    if dtype.name == "struct":
        return _struct(parts)
    if dtype.name == "array":
        return pa.list_(parts[0])
    if dtype.name == "map":
        return pa.map_(parts[0].type, parts[1].type)
    if dtype.name == "decimal":
        return pa.decimal128(*decimal_parameters(dtype))
    if dtype.name == "interval" and dtype.parameters:
        return _interval(dtype)
    if dtype.name == "time":
        return _time(dtype)
    if dtype.name not in _FLAT:
        raise UnknownTypeError(dtype.name)
    numbers(dtype, 0, 0)
    return _FLAT[dtype.name]


def _struct(fields: list[pa.Field]) -> pa.DataType:
    if not fields:
        raise DdlError("a struct has no field")
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise DdlError(f"duplicate field `{name}`")
    return pa.struct(fields)


def _time(dtype: DdlType) -> pa.DataType:
    """Spark's `time` and `time(6)` are nanoseconds in Arrow; the core writes a unit, as in `time(us)`."""
    unit = "".join(dtype.parameters).lower()
    if unit not in ("us", "ns"):
        numbers(dtype, 0, 1)
        unit = "ns"
    return pa.time64(unit)


def _interval(dtype: DdlType) -> pa.DataType:
    """`interval day to second` and its parts are one Arrow type."""
    if all(unit in DAY_TIME for unit in dtype.parameters):
        return pa.duration("us")
    start, end = dtype.parameters
    text = f"interval {start}" if start == end else f"interval {start} to {end}"
    if all(unit in YEAR_MONTH for unit in dtype.parameters):
        raise DdlError(f"there is no Arrow type in Python for `{text}` (count the months in an int)")
    raise UnknownTypeError(text)
