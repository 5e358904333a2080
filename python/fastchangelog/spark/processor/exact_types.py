"""The types in which Spark itself writes columns to Arrow and takes them back, beside the wire form.

Owns: the Arrow types of rows that come to a processor and of its output, and the conversion of an output in its wire
form, whose values it does not look at.
Does not own: the wire form (`wire_types`), the conversion of what user code yields (`output_rows`, `output_frames`).

In the wire form a map is a list of its entries, and fields whose names differ in case alone have numbers. Both have the
same buffers in either form.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark import wire_types

__all__ = ["exact_columns", "exact_schema"]


class _NullKey(Exception):
    """A map has a key that is null."""


def exact_schema(struct: T.StructType, what: str) -> pa.Schema:
    """The Arrow schema of columns as Spark has them, with timestamps in UTC; `what` says in an error which they are."""
    return pa.schema([pa.field(f.name, _type(f.dataType, f"{what} {f.name}"), f.nullable) for f in struct.fields])


def exact_columns(batch: pa.RecordBatch, output: T.StructType) -> list[pa.Array]:
    """The columns of a batch in its wire form, in the types of `exact_schema`."""
    columns = []
    for column, field in zip(batch.columns, output.fields, strict=True):
        try:
            columns.append(_exact(column, field.dataType))
        except _NullKey:
            raise InvalidArgumentError(f"output column `{field.name}`: a key of a map is null") from None
    return columns


def _type(dtype: T.DataType, what: str) -> pa.DataType:
    if isinstance(dtype, T.NullType):
        return pa.null()
    if isinstance(dtype, T.ArrayType):
        return pa.list_(pa.field("element", _type(dtype.elementType, what), dtype.containsNull))
    if isinstance(dtype, T.MapType):
        key = pa.field("key", _type(dtype.keyType, what), False)
        return pa.map_(key, pa.field("value", _type(dtype.valueType, what), dtype.valueContainsNull))
    if isinstance(dtype, T.StructType):
        return pa.struct([pa.field(f.name, _type(f.dataType, what), f.nullable) for f in dtype.fields])
    if isinstance(dtype, T.UserDefinedType):
        return _type(dtype.sqlType(), what)
    if isinstance(dtype, T.VariantType):
        return pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
    if isinstance(dtype, T.YearMonthIntervalType):
        raise UnsupportedError(
            f"{what} is of type {dtype.simpleString()}, which PySpark hands to no Python code; "
            "cast it, for example to int"
        )
    return wire_types.arrow_type(wire_types.wire_type(dtype, what))


def _exact(array: pa.Array, dtype: T.DataType) -> pa.Array:
    if wire_types.is_unchanged(dtype):
        return array
    target = _type(dtype, "the output")
    if isinstance(dtype, T.NullType):
        return pa.nulls(len(array))
    if isinstance(dtype, T.StructType):
        fields = [_exact(child, f.dataType) for child, f in zip(_children(array), dtype.fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())
    if isinstance(dtype, T.ArrayType):
        items = _exact(array.values, dtype.elementType)
    else:
        assert isinstance(dtype, T.MapType)
        key, value = _children(array.values)
        if key.null_count:  # Arrow ends the process
            raise _NullKey
        entries = [_exact(key, dtype.keyType), _exact(value, dtype.valueType)]
        items = pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field])
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, [items])


def _children(array: pa.StructArray) -> list[pa.Array]:
    """The fields of a struct, without its own nulls."""
    return [array.field(i) for i in range(array.type.num_fields)]
