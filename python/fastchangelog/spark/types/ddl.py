"""Schemas as texts: what users write for their states, and what catalogs keep.

Owns: Spark's DDL of columns ⇄ Spark's types, without a JVM: workers have none.
Does not own: the grammar (`schema.ddl`), which types a state can keep (`wire`), Arrow types of DDL texts
(`schema.arrow`).

A text is a list of columns, as Spark's `parseTableSchema` takes it: ``n long, `last seen` timestamp not null``.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T

from fastchangelog.schema.ddl import (
    DAY_TIME,
    YEAR_MONTH,
    DdlError,
    DdlField,
    DdlType,
    UnknownTypeError,
    decimal_parameters,
    numbers,
    read_columns,
)
from fastchangelog.spark import versions
from fastchangelog.spark.types.walk import fold

__all__ = ["PLAIN", "ddl_text", "parse_ddl"]

#: Types without parameters, by name.
PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "variant": T.VariantType(),
    "void": T.NullType(),
}

_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def parse_ddl(text: str) -> T.StructType:
    """The columns of a DDL text; errors as Spark's own for it.

    >>> parse_ddl("n long, tags array<string> not null").simpleString()
    'struct<n:bigint,tags:array<string>>'
    >>> parse_ddl("n lnog")
    Traceback (most recent call last):
    pyspark.errors.exceptions.base.PySparkRuntimeError: Error parsing string schema: [UNSUPPORTED_DATATYPE] \
Unsupported data type "LNOG" in `n lnog`. SQLSTATE: 0A000
    """
    try:
        return _struct(read_columns(text).parts)
    except UnknownTypeError as error:
        why, state = f'[UNSUPPORTED_DATATYPE] Unsupported data type "{error.name.upper()}"', "0A000"
    except DdlError as error:
        why, state = f"[PARSE_SYNTAX_ERROR] Syntax error: {error}", "42601"
    raise PySparkRuntimeError(f"Error parsing string schema: {why} in `{text}`. SQLSTATE: {state}")


def ddl_text(struct: T.StructType) -> str:
    """The text that `parse_ddl` reads the same columns from.

    >>> ddl_text(T.StructType([T.StructField("n", T.LongType()), T.StructField("a b", T.StringType(), False)]))
    'n bigint, `a b` string not null'
    """
    return ", ".join(f"{_name(f.name)} {_type_text(f.dataType)}{_null(f)}" for f in struct.fields)


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _null(field: T.StructField) -> str:
    return "" if field.nullable else " not null"


def _type_text(dtype: T.DataType) -> str:
    def struct(dtype: T.StructType, made: list[str]) -> str:
        fields = [f"{_name(f.name)}:{text}{_null(f)}" for f, text in zip(dtype.fields, made, strict=True)]
        return f"struct<{','.join(fields)}>"

    return fold(
        dtype, lambda leaf: leaf.simpleString(), lambda _, e: f"array<{e}>", lambda _, k, v: f"map<{k},{v}>", struct
    )


def _struct(fields: tuple[DdlField, ...]) -> T.StructType:
    return T.StructType([T.StructField(field.name, _spark(field.type), field.nullable) for field in fields])


def _spark(dtype: DdlType) -> T.DataType:
    name = dtype.name
    if name == "struct":
        return _struct(dtype.parts)
    if name == "array":
        return T.ArrayType(_spark(dtype.parts[0].type))
    if name == "map":
        return T.MapType(_spark(dtype.parts[0].type), _spark(dtype.parts[1].type))
    if name == "string":
        return T.StringType(*dtype.parameters)
    if name == "decimal":
        return T.DecimalType(*decimal_parameters(dtype))
    if name == "char":
        return T.CharType(*numbers(dtype, 1, 1))
    if name == "varchar":
        return T.VarcharType(*numbers(dtype, 1, 1))
    if name == "interval":
        return _interval(dtype)
    if name == "time" and versions.HAS_TIME_TYPE:
        return T.TimeType(*numbers(dtype, 0, 1))
    if name in ("geometry", "geography") and versions.HAS_SPATIAL_TYPES:
        make = T.GeometryType if name == "geometry" else T.GeographyType
        return make("ANY" if [word.lower() for word in dtype.parameters] == ["any"] else numbers(dtype, 1, 1)[0])
    if name not in PLAIN:
        raise UnknownTypeError(name)
    numbers(dtype, 0, 0)
    return PLAIN[name]


def _interval(dtype: DdlType) -> T.DataType:
    if not dtype.parameters:
        return T.CalendarIntervalType()
    start, end = dtype.parameters
    for units, make in ((DAY_TIME, T.DayTimeIntervalType), (YEAR_MONTH, T.YearMonthIntervalType)):
        if start in units and end in units:
            return make(units.index(start), units.index(end))
    raise UnknownTypeError(f"interval {start} to {end}")
