"""Spark's atomic types, one row each.

Owns: for each of them its Arrow type on the wire, what makes Python values of a column, what a state takes, and what is
seen of it.
Does not own: the functions behind that (`columns`, `scalars`), types with parts (`wire`, `values`), what depends on
the session's zone (`values`), texts (`ddl`).

The exact values of a state are hashable, and equal exactly if the stored values are.

| type | values of rows, as PySpark | exact values |
|---|---|---|
| timestamp, timestamp_ntz | aware `datetime` in the session's zone, naive one | microseconds |
| day-time interval, time | `timedelta`, `time` | microseconds, `time` |
| all others | the same: `int`, `float`, `str`, `bytes`, `bool`, `date`, `Decimal`, months, None | |
"""

from __future__ import annotations

import dataclasses
import datetime

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.spark import versions
from fastchangelog.spark.types import columns, scalars
from fastchangelog.spark.types.columns import Values
from fastchangelog.spark.types.scalars import Convert

__all__ = ["INTEGERS", "TEXTS", "UTC_EPOCH", "Atomic", "atomic"]

UTC_EPOCH = datetime.datetime(1970, 1, 1)
#: Whole numbers with their bits, the smallest first.
INTEGERS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
TEXTS = (T.StringType, T.CharType, T.VarcharType)


@dataclasses.dataclass(frozen=True)
class Atomic:
    """What there is of an atomic type."""

    #: On the wire, as Spark writes it, but timestamps in UTC.
    arrow: pa.DataType
    #: What user code may put into a state.
    accepted: Convert
    #: A column as values of rows; of timestamps those depend on the session's zone.
    row: Values = columns.python
    #: The same as exact values; None: as in rows.
    exact: Values | None = None
    #: An exact value as user code sees it; None: as it is. Of timestamps it depends on a zone.
    shown: Convert | None = None
    #: The type that it has on the wire, if that is another one.
    wire: T.DataType | None = None


def _naive(micros: int) -> datetime.datetime:
    return UTC_EPOCH + datetime.timedelta(microseconds=micros)


_TEXT = Atomic(pa.string(), scalars.string, columns.objects)
_ATOMIC: dict[type[T.DataType], Atomic] = {
    T.BooleanType: Atomic(pa.bool_(), scalars.boolean, columns.numbers),
    **{
        dtype: Atomic(getattr(pa, f"int{bits}")(), scalars.integer(dtype(), bits), columns.numbers)
        for dtype, bits in INTEGERS.items()
    },
    T.FloatType: Atomic(pa.float32(), scalars.float_, columns.numbers, columns.floats),
    T.DoubleType: Atomic(pa.float64(), scalars.double, columns.numbers, columns.floats),
    **dict.fromkeys(TEXTS, _TEXT),
    T.BinaryType: Atomic(pa.binary(), scalars.binary, columns.objects, shown=None if versions.HAS_BYTES else bytearray),
    T.DateType: Atomic(pa.date32(), scalars.date, columns.dates),
    T.TimestampType: Atomic(pa.timestamp("us", "UTC"), scalars.timestamp, exact=columns.integers),
    T.TimestampNTZType: Atomic(
        pa.timestamp("us"), scalars.timestamp_ntz, columns.naive, columns.integers, shown=_naive
    ),
    T.DayTimeIntervalType: Atomic(
        pa.duration("us"),
        scalars.interval,
        exact=columns.integers,
        shown=lambda micros: datetime.timedelta(microseconds=micros),
    ),
    T.NullType: Atomic(pa.bool_(), scalars.nothing, wire=T.BooleanType()),
}
if versions.HAS_TIME_TYPE:
    _ATOMIC[T.TimeType] = Atomic(pa.time64("ns"), scalars.time_of_day)


def atomic(dtype: T.DataType) -> Atomic | None:
    """What there is of the type; None for a type that has no wire form, and for one that is not atomic."""
    if isinstance(dtype, T.DecimalType):
        return Atomic(pa.decimal128(dtype.precision, dtype.scale), scalars.decimals(dtype))
    if isinstance(dtype, T.YearMonthIntervalType):
        return Atomic(pa.int32(), scalars.integer(dtype, 32), columns.numbers, wire=T.IntegerType())
    return _ATOMIC.get(type(dtype))
