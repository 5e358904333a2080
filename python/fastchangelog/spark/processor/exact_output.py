"""Output of a processor in the types that Spark writes to Arrow, from its wire form.

Owns: the Arrow types of Spark's types without a wire form, and the conversion of columns to them, without their values.
Does not own: the wire form (`wire_types`), the conversion of what user code yields (`output_rows`, `output_frames`).

In the wire form a map is a list of its entries, and fields whose names differ in case alone have numbers. Both have the
same buffers in either form.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import wire_types

__all__ = ["exact_columns", "exact_schema"]


def exact_schema(output: T.StructType) -> pa.Schema:
    """The Arrow schema of an output as Spark takes it, with timestamps in UTC."""
    return pa.schema([pa.field(f.name, _type(f.dataType, f.name), f.nullable) for f in output.fields])


def exact_columns(batch: pa.RecordBatch, output: T.StructType) -> list[pa.Array]:
    """The columns of a batch in its wire form, in the types of `exact_schema`."""
    return [_exact(column, f.dataType, f.name) for column, f in zip(batch.columns, output.fields, strict=True)]


def _type(dtype: T.DataType, column: str) -> pa.DataType:
    if isinstance(dtype, T.YearMonthIntervalType):
        raise InvalidArgumentError(
            f"the output column {column} is of type {dtype.simpleString()}, which PySpark takes from no Python code; "
            "yield months as an int"
        )
    if isinstance(dtype, T.NullType):
        return pa.null()
    if isinstance(dtype, T.ArrayType):
        return pa.list_(pa.field("element", _type(dtype.elementType, column), dtype.containsNull))
    if isinstance(dtype, T.MapType):
        key = pa.field("key", _type(dtype.keyType, column), False)
        return pa.map_(key, pa.field("value", _type(dtype.valueType, column), dtype.valueContainsNull))
    if isinstance(dtype, T.StructType):
        return pa.struct([pa.field(f.name, _type(f.dataType, column), f.nullable) for f in dtype.fields])
    return wire_types.arrow_type(dtype)


def _exact(array: pa.Array, dtype: T.DataType, column: str) -> pa.Array:
    if wire_types.is_unchanged(dtype):
        return array
    target = _type(dtype, column)
    if isinstance(dtype, T.NullType):
        return pa.nulls(len(array))
    if isinstance(dtype, T.StructType):
        fields = [_exact(child, f.dataType, column) for child, f in zip(_children(array), dtype.fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=array.is_null())
    if isinstance(dtype, T.ArrayType):
        items = _exact(array.values, dtype.elementType, column)
    else:
        assert isinstance(dtype, T.MapType)
        key, value = _children(array.values)
        entries = [_exact(key, dtype.keyType, column), _exact(value, dtype.valueType, column)]
        items = pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field])
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, [items])


def _children(array: pa.StructArray) -> list[pa.Array]:
    """The fields of a struct, without its own nulls."""
    return [array.field(i) for i in range(array.type.num_fields)]
