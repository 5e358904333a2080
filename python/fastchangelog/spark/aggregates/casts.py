"""Types of arguments and results, as Spark's analysis resolves them.

Owns: the casts that Spark puts around arguments, the types of results. Does not own: which kinds a function takes
(`function_table`), refusals (`analyse`), the wire form of types (`types.wire`).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.spark import versions
from fastchangelog.spark.types.walk import nullable

__all__ = ["as_spark_reads_it", "result_type"]

_INTERVALS = (T.DayTimeIntervalType, T.YearMonthIntervalType)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType, *((T.TimeType,) if versions.HAS_TIME_TYPE else ()))
_MEASURED = (T.NumericType, *_TIMES, *_INTERVALS)


def as_spark_reads_it(kind: str, arg: Column, dtype: T.DataType) -> tuple[Column, T.DataType]:
    """The argument with the cast that Spark's analysis puts around it, and no more of it than is needed."""
    if kind in ("quantity", "double") and not isinstance(dtype, (T.NumericType, *_INTERVALS)):
        return arg.cast("double"), T.DoubleType()
    if kind == "measured" and not isinstance(dtype, _MEASURED):
        return arg.cast("double"), T.DoubleType()
    if kind == "integer" and isinstance(dtype, T.NullType):
        return arg.cast("int"), T.IntegerType()
    if kind == "text" and not isinstance(dtype, (T.StringType, T.BinaryType)):
        return arg.cast("string"), T.StringType()
    if kind == "percentages":
        wanted = T.ArrayType(T.DoubleType()) if isinstance(dtype, T.ArrayType) else T.DoubleType()
        return arg.cast(wanted), wanted
    if kind == "boolean" and not isinstance(dtype, T.BooleanType):
        return arg.cast("boolean"), T.BooleanType()
    if kind == "presence" and not isinstance(dtype, (T.NumericType, T.BooleanType)):
        return F.when(arg.isNotNull(), F.lit(True)), T.BooleanType()
    return arg, dtype


def result_type(function: str, dtype: T.DataType) -> T.DataType:
    """The type of a result that Spark declares as `dtype`. Before 4.3 it declares elements that are never null, and yet
    makes null of a percentile with too many digits for its decimal."""
    return nullable(dtype) if function == "percentile_approx" else dtype
