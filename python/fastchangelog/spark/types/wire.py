"""The wire form of Spark's types: what travels between Spark and the state server.

Owns: the wire form of each type (Arrow without maps, year-month intervals and session time zones), and the Spark
expressions that convert a column to it and back.
Does not own: the Arrow types of atomic types (`atomic`), the Arrow bytes (Spark and the Rust core), which types an
aggregate accepts (the Rust core).

A map in a key is sent as its entries, sorted by key: equal maps become equal bytes, and Spark's own `groupBy` sorts
them too. Any other type is sent unchanged, if Arrow and PySpark's Arrow conversion support it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import UnsupportedError
from fastchangelog.spark.types.atomic import atomic
from fastchangelog.spark.types.ddl import PLAIN
from fastchangelog.spark.types.walk import contains, fold, nullable

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "arrow_schema",
    "arrow_type",
    "from_wire",
    "has_numbered_fields",
    "is_collated",
    "is_unchanged",
    "named",
    "result_column",
    "spark_type",
    "stored_schema",
    "to_wire",
    "wire_schema",
    "wire_type",
]

#: Arrow types of the wire and the Spark types that they come from; of strings the plain one.
_OF_ARROW: dict[pa.DataType, T.DataType] = {
    found.arrow: dtype
    for dtype in (*PLAIN.values(), T.StringType(), T.DayTimeIntervalType())
    if (found := atomic(dtype)) is not None and found.wire is None
}


def is_collated(dtype: T.DataType) -> bool:
    """True if a string anywhere in the type has a collation other than Spark's default, bytes."""
    return contains(
        dtype,
        lambda part: isinstance(part, T.StringType) and getattr(part, "collation", "UTF8_BINARY") != "UTF8_BINARY",
    )


def wire_type(dtype: T.DataType, what: str) -> T.DataType:
    """The Spark type of `dtype` on the wire; `what` names the column in the error for an unsupported type."""

    def leaf(dtype: T.DataType) -> T.DataType:
        found = atomic(dtype)
        if found is None:
            raise UnsupportedError(
                f"{what} has the type {dtype.simpleString()}, which fastchangelog cannot keep; cast it, for example to "
                "string"
            )
        return found.wire or dtype

    def entries(dtype: T.MapType, key: T.DataType, value: T.DataType) -> T.DataType:
        entry = [T.StructField("key", key, False), T.StructField("value", value, dtype.valueContainsNull)]
        return T.ArrayType(T.StructType(entry), False)

    def struct(dtype: T.StructType, made: list[T.DataType]) -> T.DataType:
        fields = zip(_unique_names(dtype), made, dtype.fields, strict=True)
        return T.StructType([T.StructField(name, part, field.nullable) for name, part, field in fields])

    return fold(dtype, leaf, lambda array, element: T.ArrayType(element, array.containsNull), entries, struct)


def _unique_names(struct: T.StructType) -> list[str]:
    names = struct.names
    lower = {n.lower() for n in names}
    return names if len(lower) == len(names) else [f"_{i}" for i in range(len(names))]


def has_numbered_fields(struct: T.StructType) -> bool:
    """True if the fields have numbers for names on the wire, since case alone tells some of their names apart, or
    nothing does."""
    return _unique_names(struct) != struct.names


def is_unchanged(dtype: T.DataType) -> bool:
    """True if a column of this type travels as it is."""
    return not contains(dtype, _changes)


def _changes(dtype: T.DataType) -> bool:
    if isinstance(dtype, T.StructType):
        return has_numbered_fields(dtype)
    found = atomic(dtype)
    return isinstance(dtype, T.MapType) or (found is not None and found.wire is not None)


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
    source = column if names == dtype.names else column.cast(plain)
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
    # Spark casts no field to a type that excludes nulls.
    return rebuilt if names == dtype.names else rebuilt.cast(nullable(dtype))


def result_column(on_wire: Column, field: T.StructField) -> Column:
    """A column of a result from its wire form, with the name, the metadata and the nullability of `field`."""
    column = from_wire(on_wire, field.dataType)
    if not field.nullable and (default := _default(field.dataType)) is not None:
        column = F.coalesce(column, default)  # it is never null, and Spark's schema should say so
    return named(column, field)


def named(column: Column, field: T.StructField) -> Column:
    """The column with the name and the metadata of `field`."""
    metadata = {k: v for k, v in field.metadata.items() if not k.startswith("spark.")}
    return column.alias(field.name, metadata=metadata) if metadata else column.alias(field.name)


def _default(dtype: T.DataType) -> Column | None:
    if isinstance(dtype, T.NumericType):
        return F.lit(0).cast(dtype)
    if isinstance(dtype, T.BooleanType):
        return F.lit(False)
    if isinstance(dtype, T.ArrayType):
        return F.array().cast(dtype)
    return F.lit("") if dtype == T.StringType() else None


def _wire_arrow(dtype: T.DataType) -> pa.DataType:
    found = atomic(dtype)
    assert found is not None, f"{dtype} is on no wire"
    return found.arrow


def arrow_type(dtype: T.DataType, leaf: Callable[[T.DataType], pa.DataType] = _wire_arrow) -> pa.DataType:
    """The Arrow type of a wire type, as Spark writes it, but with timestamps in UTC; `leaf` is for atomic types."""

    def map(dtype: T.MapType, key: pa.DataType, value: pa.DataType) -> pa.DataType:
        return pa.map_(pa.field("key", key, False), pa.field("value", value, dtype.valueContainsNull))

    def struct(dtype: T.StructType, made: list[pa.DataType]) -> pa.DataType:
        fields = zip(_unique_names(dtype), made, dtype.fields, strict=True)
        return pa.struct([pa.field(name, part, field.nullable) for name, part, field in fields])

    return fold(dtype, leaf, lambda a, e: pa.list_(pa.field("element", e, a.containsNull)), map, struct)


def arrow_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema of columns in their wire form. Top-level fields are nullable: the data decides what is null."""
    return pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in struct.fields])


def wire_schema(columns: T.DataType, what: str) -> pa.Schema:
    """The Arrow schema of the wire form of columns; `what` names them in the error for an unsupported type."""
    wired = wire_type(columns, what)
    assert isinstance(wired, T.StructType)
    return arrow_schema(wired)


def stored_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema of columns as Spark keeps them in its own state: as on the wire, but maps are maps, and the type
    of nothing is null.

    >>> stored_schema(T.StructType([T.StructField("m", T.MapType(T.LongType(), T.NullType()))]))
    m: map<int64, null>
      child 0, entries: struct<key: int64 not null, value: null> not null
          child 0, key: int64 not null
          child 1, value: null
    """

    def leaf(dtype: T.DataType) -> pa.DataType:
        return pa.null() if isinstance(dtype, T.NullType) else _wire_arrow(dtype)

    fields = zip(_unique_names(struct), struct.fields, strict=True)
    return pa.schema([pa.field(name, arrow_type(field.dataType, leaf)) for name, field in fields])


def spark_type(dtype: pa.DataType, what: str, path: str) -> T.DataType:
    """The Spark type whose wire form has this Arrow type; of lists of structs it is the array, not the map.

    >>> spark_type(pa.list_(pa.int64()), "state `s`", "f").simpleString()
    'array<bigint>'
    """
    if pa.types.is_struct(dtype):
        return T.StructType([T.StructField(f.name, spark_type(f.type, what, f"{path}.{f.name}")) for f in dtype])
    if pa.types.is_list(dtype):
        return T.ArrayType(spark_type(dtype.value_type, what, f"{path}[]"))
    if pa.types.is_decimal128(dtype):
        return T.DecimalType(dtype.precision, dtype.scale)
    if dtype not in _OF_ARROW:
        raise UnsupportedError(
            f"{what}: field `{path}` has the type {dtype}, which a vectorised state does not keep; "
            "keep it in another form, a map for example as an array of structs"
        )
    return _OF_ARROW[dtype]
