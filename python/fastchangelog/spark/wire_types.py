"""Conversion of Spark types to the types used on the wire, between Spark and the state server.

Owns: the wire form of each Spark type (Arrow without maps, year-month intervals and session time zones), and the Spark
expressions that convert a column to it and back.
Does not own: the Arrow bytes (Spark and the Rust core), which types an aggregate accepts (the Rust core).

A map in a key is sent as its entries sorted by key, which also makes equal maps equal; Spark's own `groupBy` sorts them
too. Every other type is sent unchanged, if Arrow and PySpark's Arrow conversion support it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import UnsupportedError
from fastchangelog.spark import versions

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "arrow_schema",
    "arrow_type",
    "from_wire",
    "has_numbered_fields",
    "is_collated",
    "is_unchanged",
    "result_column",
    "to_wire",
    "wire_type",
]

_FLAT: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.CharType: pa.string(),
    T.VarcharType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
}
if versions.HAS_TIME_TYPE:
    _FLAT[T.TimeType] = pa.time64("ns")


def is_collated(dtype: T.DataType) -> bool:
    """True if a string anywhere in the type has a collation other than Spark's default, bytes."""
    if isinstance(dtype, T.StringType):
        return getattr(dtype, "collation", "UTF8_BINARY") != "UTF8_BINARY"
    if isinstance(dtype, T.ArrayType):
        return is_collated(dtype.elementType)
    if isinstance(dtype, T.MapType):
        return is_collated(dtype.keyType) or is_collated(dtype.valueType)
    return isinstance(dtype, T.StructType) and any(is_collated(f.dataType) for f in dtype.fields)


def wire_type(dtype: T.DataType, what: str) -> T.DataType:
    """The Spark type of `dtype` on the wire; `what` names the column in the error for an unsupported type."""
    if isinstance(dtype, T.MapType):
        entry = T.StructType(
            [
                T.StructField("key", wire_type(dtype.keyType, what), False),
                T.StructField("value", wire_type(dtype.valueType, what), dtype.valueContainsNull),
            ]
        )
        return T.ArrayType(entry, False)
    if isinstance(dtype, T.ArrayType):
        return T.ArrayType(wire_type(dtype.elementType, what), dtype.containsNull)
    if isinstance(dtype, T.StructType):
        names = _unique_names(dtype)
        return T.StructType(
            [
                T.StructField(n, wire_type(f.dataType, what), f.nullable)
                for n, f in zip(names, dtype.fields, strict=True)
            ]
        )
    if isinstance(dtype, T.YearMonthIntervalType):
        return T.IntegerType()
    if isinstance(dtype, T.NullType):
        return T.BooleanType()
    if isinstance(dtype, T.DecimalType) or type(dtype) in _FLAT:
        return dtype
    raise UnsupportedError(
        f"{what} has the type {dtype.simpleString()}, which fastchangelog cannot keep; cast it, for example to string"
    )


def _unique_names(struct: T.StructType) -> list[str]:
    names = [f.name for f in struct.fields]
    lower = {n.lower() for n in names}
    return names if len(lower) == len(names) else [f"_{i}" for i in range(len(names))]


def has_numbered_fields(struct: T.StructType) -> bool:
    """True if the fields have numbers for names on the wire, since case alone tells some of their names apart, or
    nothing does."""
    return _unique_names(struct) != struct.names


def is_unchanged(dtype: T.DataType) -> bool:
    """True if a column of this type travels as it is."""
    if isinstance(dtype, (T.MapType, T.YearMonthIntervalType, T.NullType)):
        return False
    if isinstance(dtype, T.ArrayType):
        return is_unchanged(dtype.elementType)
    if isinstance(dtype, T.StructType):
        return _unique_names(dtype) == [f.name for f in dtype.fields] and all(
            is_unchanged(f.dataType) for f in dtype.fields
        )
    return True


def to_wire(column: Column, dtype: T.DataType, *, key: bool) -> Column:
    """Converts `column` of type `dtype` to `wire_type(dtype)`; `key` sorts the entries of maps."""
    if is_unchanged(dtype):
        return column
    if isinstance(dtype, T.NullType):
        return column.cast("boolean")
    if isinstance(dtype, T.YearMonthIntervalType):
        return column.cast("interval month").cast("int")
    if isinstance(dtype, T.ArrayType):
        return F.transform(column, lambda e: to_wire(e, dtype.elementType, key=key))
    if isinstance(dtype, T.MapType):
        entries = F.transform(
            F.map_entries(column),
            lambda e: F.struct(
                to_wire(e.getField("key"), dtype.keyType, key=key).alias("key"),
                to_wire(e.getField("value"), dtype.valueType, key=key).alias("value"),
            ),
        )
        return F.sort_array(entries) if key else entries
    assert isinstance(dtype, T.StructType)
    names = _unique_names(dtype)
    plain = T.StructType([T.StructField(n, f.dataType, f.nullable) for n, f in zip(names, dtype.fields, strict=True)])
    source = column if names == [f.name for f in dtype.fields] else column.cast(plain)
    fields = [to_wire(source.getField(f.name), f.dataType, key=key).alias(f.name) for f in plain.fields]
    return F.when(column.isNotNull(), F.struct(*fields))


def from_wire(column: Column, dtype: T.DataType) -> Column:
    """The inverse of `to_wire`: an expression of type `dtype` from a `column` in its wire form."""
    if is_unchanged(dtype):
        return column
    if isinstance(dtype, T.NullType):
        return F.lit(None)
    if isinstance(dtype, T.YearMonthIntervalType):
        return F.make_ym_interval(F.lit(0), column).cast(dtype)
    if isinstance(dtype, T.ArrayType):
        return F.transform(column, lambda e: from_wire(e, dtype.elementType))
    if isinstance(dtype, T.MapType):
        pair = F.transform(
            column,
            lambda e: F.struct(
                from_wire(e.getField("key"), dtype.keyType).alias("key"),
                from_wire(e.getField("value"), dtype.valueType).alias("value"),
            ),
        )
        return F.map_from_entries(column if is_unchanged(dtype.keyType) and is_unchanged(dtype.valueType) else pair)
    assert isinstance(dtype, T.StructType)
    names = _unique_names(dtype)
    fields = [from_wire(column.getField(n), f.dataType).alias(n) for n, f in zip(names, dtype.fields, strict=True)]
    rebuilt = F.when(column.isNotNull(), F.struct(*fields))
    return rebuilt if names == [f.name for f in dtype.fields] else rebuilt.cast(_nullable(dtype))


def result_column(on_wire: Column, field: T.StructField) -> Column:
    """A column of a result from its wire form, with the name, the metadata and the nullability of `field`."""
    column = from_wire(on_wire, field.dataType)
    if not field.nullable and (default := _default(field.dataType)) is not None:
        column = F.coalesce(column, default)  # it is never null, and Spark's schema should say so
    metadata = {k: v for k, v in field.metadata.items() if not k.startswith("spark.")}
    return column.alias(field.name, metadata=metadata) if metadata else column.alias(field.name)


def _default(dtype: T.DataType) -> Column | None:
    if isinstance(dtype, T.NumericType):
        return F.lit(0).cast(dtype)
    if isinstance(dtype, T.BooleanType):
        return F.lit(False)
    return F.lit("") if dtype == T.StringType() else None


def _nullable(dtype: T.DataType) -> T.DataType:
    """The type with nulls allowed everywhere: Spark casts no field to one that excludes them."""
    if isinstance(dtype, T.ArrayType):
        return T.ArrayType(_nullable(dtype.elementType))
    if isinstance(dtype, T.MapType):
        return T.MapType(_nullable(dtype.keyType), _nullable(dtype.valueType))
    if isinstance(dtype, T.StructType):
        return T.StructType([T.StructField(f.name, _nullable(f.dataType)) for f in dtype.fields])
    return dtype


def arrow_type(dtype: T.DataType) -> pa.DataType:
    """The Arrow type of a wire type, as Spark writes it, but with timestamps in UTC."""
    if isinstance(dtype, T.DecimalType):
        return pa.decimal128(dtype.precision, dtype.scale)
    if isinstance(dtype, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(dtype.elementType), dtype.containsNull))
    if isinstance(dtype, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in dtype.fields])
    return _FLAT[type(dtype)]


def arrow_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema of columns in their wire form. Top-level fields are nullable: the data decides what is null."""
    return pa.schema([pa.field(f.name, arrow_type(f.dataType), True) for f in struct.fields])
