"""Types between Spark and the state server: what travels as it is, and what travels in another dress.

Owns: the carried form of each Spark type (Arrow without maps, year-month intervals and session time zones), and the
Spark expressions that put it on and take it off again.
Does not own: the Arrow bytes (Spark and the Rust core), which types an aggregate accepts (the Rust core).

A map key is carried as its entries sorted by key, which is also what makes equal maps equal; Spark's own `groupBy`
sorts them too.  Every other type is carried as it is, if Arrow and PySpark's Arrow conversion know it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["arrow_schema", "arrow_type", "carried_type", "is_collated", "put_on", "take_off"]

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
if hasattr(T, "TimeType"):
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


def carried_type(dtype: T.DataType, what: str) -> T.DataType:
    """The Spark type in which `dtype` travels; `what` names the column in the error for a type that cannot."""
    if isinstance(dtype, T.MapType):
        entry = T.StructType(
            [
                T.StructField("key", carried_type(dtype.keyType, what), False),
                T.StructField("value", carried_type(dtype.valueType, what), dtype.valueContainsNull),
            ]
        )
        return T.ArrayType(entry, False)
    if isinstance(dtype, T.ArrayType):
        return T.ArrayType(carried_type(dtype.elementType, what), dtype.containsNull)
    if isinstance(dtype, T.StructType):
        names = _unique_names(dtype)
        return T.StructType(
            [
                T.StructField(n, carried_type(f.dataType, what), f.nullable)
                for n, f in zip(names, dtype.fields, strict=True)
            ]
        )
    if isinstance(dtype, T.YearMonthIntervalType):
        return T.IntegerType()
    if isinstance(dtype, T.NullType):
        return T.BooleanType()
    if isinstance(dtype, T.DecimalType) or type(dtype) in _FLAT:
        return dtype
    raise InvalidArgument(
        f"{what} has the type {dtype.simpleString()}, which fastchangelog cannot keep; cast it, for example to string"
    )


def _unique_names(struct: T.StructType) -> list[str]:
    names = [f.name for f in struct.fields]
    lower = {n.lower() for n in names}
    return names if len(lower) == len(names) else [f"_{i}" for i in range(len(names))]


def _as_is(dtype: T.DataType) -> bool:
    if isinstance(dtype, (T.MapType, T.YearMonthIntervalType, T.NullType)):
        return False
    if isinstance(dtype, T.ArrayType):
        return _as_is(dtype.elementType)
    if isinstance(dtype, T.StructType):
        return _unique_names(dtype) == [f.name for f in dtype.fields] and all(_as_is(f.dataType) for f in dtype.fields)
    return True


def put_on(column: Column, dtype: T.DataType, *, key: bool) -> Column:
    """`column` of type `dtype` as an expression of `carried_type(dtype)`; `key` sorts the entries of maps."""
    if _as_is(dtype):
        return column
    if isinstance(dtype, T.NullType):
        return column.cast("boolean")
    if isinstance(dtype, T.YearMonthIntervalType):
        return column.cast("interval month").cast("int")
    if isinstance(dtype, T.ArrayType):
        return F.transform(column, lambda e: put_on(e, dtype.elementType, key=key))
    if isinstance(dtype, T.MapType):
        entries = F.transform(
            F.map_entries(column),
            lambda e: F.struct(
                put_on(e.getField("key"), dtype.keyType, key=key).alias("key"),
                put_on(e.getField("value"), dtype.valueType, key=key).alias("value"),
            ),
        )
        return F.sort_array(entries) if key else entries
    assert isinstance(dtype, T.StructType)
    names = _unique_names(dtype)
    plain = T.StructType([T.StructField(n, f.dataType, f.nullable) for n, f in zip(names, dtype.fields, strict=True)])
    source = column if names == [f.name for f in dtype.fields] else column.cast(plain)
    fields = [put_on(source.getField(f.name), f.dataType, key=key).alias(f.name) for f in plain.fields]
    return F.when(column.isNotNull(), F.struct(*fields))


def take_off(column: Column, dtype: T.DataType) -> Column:
    """The inverse of `put_on`: an expression of type `dtype` from a carried `column`."""
    if _as_is(dtype):
        return column
    if isinstance(dtype, T.NullType):
        return F.lit(None)
    if isinstance(dtype, T.YearMonthIntervalType):
        return F.make_ym_interval(F.lit(0), column).cast(dtype)
    if isinstance(dtype, T.ArrayType):
        return F.transform(column, lambda e: take_off(e, dtype.elementType))
    if isinstance(dtype, T.MapType):
        pair = F.transform(
            column,
            lambda e: F.struct(
                take_off(e.getField("key"), dtype.keyType).alias("key"),
                take_off(e.getField("value"), dtype.valueType).alias("value"),
            ),
        )
        return F.map_from_entries(column if _as_is(dtype.keyType) and _as_is(dtype.valueType) else pair)
    assert isinstance(dtype, T.StructType)
    names = _unique_names(dtype)
    fields = [take_off(column.getField(n), f.dataType).alias(n) for n, f in zip(names, dtype.fields, strict=True)]
    rebuilt = F.when(column.isNotNull(), F.struct(*fields))
    return rebuilt if names == [f.name for f in dtype.fields] else rebuilt.cast(_nullable(dtype))


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
    """The Arrow type of a carried type, as Spark writes it, but with timestamps in UTC."""
    if isinstance(dtype, T.DecimalType):
        return pa.decimal128(dtype.precision, dtype.scale)
    if isinstance(dtype, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(dtype.elementType), dtype.containsNull))
    if isinstance(dtype, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in dtype.fields])
    return _FLAT[type(dtype)]


def arrow_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema of carried columns.  Top-level fields are nullable: what is null is decided by the data."""
    return pa.schema([pa.field(f.name, arrow_type(f.dataType), True) for f in struct.fields])
