"""The Arrow types in which Spark itself hands over columns and takes them back.

Owns: the Arrow types of rows that come to a processor and of its output, and the conversion of an output in its wire
form, whose values it does not look at.
Does not own: the wire form (`wire`), the conversion of what user code yields (`processor.rows`, `processor.frames`).

In the wire form a map is a list of its entries, and fields whose names differ in case alone have numbers. Both have the
same buffers in either form.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark.types.wire import arrow_type, is_unchanged, wire_type

__all__ = ["spark_columns", "spark_schema"]


class _NullKey(Exception):
    """A map has a key that is null."""


def spark_schema(struct: T.StructType, what: str) -> pa.Schema:
    """The Arrow schema of columns as Spark has them, with timestamps in UTC; `what` says in an error which they are."""
    return pa.schema([pa.field(f.name, _type(f.dataType, f"{what} {f.name}"), f.nullable) for f in struct.fields])


def spark_columns(batch: pa.RecordBatch, output: T.StructType) -> list[pa.Array]:
    """The columns of a batch in its wire form, in the types of `spark_schema`."""
    columns = []
    for column, field in zip(batch.columns, output.fields, strict=True):
        try:
            columns.append(_column(column, field.dataType))
        except _NullKey:
            raise InvalidArgumentError(f"output column `{field.name}`: a key of a map is null") from None
    return columns


def _type(dtype: T.DataType, what: str) -> pa.DataType:
    def leaf(dtype: T.DataType) -> pa.DataType:
        if isinstance(dtype, T.NullType):
            return pa.null()
        if isinstance(dtype, T.UserDefinedType):
            return _type(dtype.sqlType(), what)
        if isinstance(dtype, T.VariantType):
            return pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
        if isinstance(dtype, T.YearMonthIntervalType):
            raise UnsupportedError(
                f"{what} is of type {dtype.simpleString()}, which PySpark hands to no Python code; "
                "cast it, for example to int"
            )
        return arrow_type(wire_type(dtype, what))

    return arrow_type(dtype, leaf)


def _column(array: pa.Array, dtype: T.DataType) -> pa.Array:
    if is_unchanged(dtype):
        return array
    target = _type(dtype, "the output")
    if isinstance(dtype, T.NullType):
        return pa.nulls(len(array))
    if isinstance(dtype, T.StructType):
        fields = [_column(child, f.dataType) for child, f in zip(_children(array), dtype.fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())
    if isinstance(dtype, T.ArrayType):
        items = _column(array.values, dtype.elementType)
    else:
        assert isinstance(dtype, T.MapType)
        key, value = _children(array.values)
        if key.null_count:  # Arrow ends the process
            raise _NullKey
        entries = [_column(key, dtype.keyType), _column(value, dtype.valueType)]
        items = pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field])
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, [items])


def _children(array: pa.StructArray) -> list[pa.Array]:
    """The fields of a struct, without its own nulls."""
    return [array.field(i) for i in range(array.type.num_fields)]
