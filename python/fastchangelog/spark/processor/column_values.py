"""Columns of Arrow as lists of Python values, a column at a time.

Owns: the two Python forms of each Spark type's wire form: as a row of PySpark's Row API has it (`row_values`), and the
exact one that states are kept in (`exact_values`); the border that names the column of a value that has no such form.
Does not own: the zone of timestamps (`session_zones`), rows (`input_rows`), what user code sees of a state and what it
may put there (`state_values`).

| type | `row_values`, as PySpark | `exact_values`: hashable, equal exactly if the value is |
|---|---|---|
| struct, map, array | dict, list of pairs, list | tuple of fields, tuple of pairs, tuple |
| timestamp, timestamp_ntz | aware `datetime` in the session's zone, naive one | microseconds |
| day-time interval, time | `timedelta`, `time` | microseconds, `time` |
| all others | the same: `int`, `float`, `str`, `bytes`, `bool`, `date`, `Decimal`, months, None | |
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.processor.row_class import row_class
from fastchangelog.spark.processor.session_zones import zone_of

__all__ = [
    "FAILURES",
    "NAN",
    "Values",
    "exact_values",
    "has_floats",
    "hashable",
    "is_hashable",
    "list_slices",
    "lists_of",
    "maps_of",
    "not_given",
    "of_column",
    "row_values",
    "structs_of",
]

#: The values of a column, in order, None for null.
Values = Callable[[pa.Array], list[Any]]

#: The one NaN of `exact_values`: it is identical to itself, so that tuples with it compare equal.
NAN = math.nan

# What date can hold, in days since the epoch, and datetime in microseconds.
_FIRST_DAY = -719_162
_LAST_DAY = 2_932_896
_FIRST = -62_135_596_800_000_000
_LAST = 253_402_300_799_999_999


FAILURES = (pa.ArrowException, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, OSError)
"""What a conversion of values may raise."""
_Made = TypeVar("_Made")


def of_column(
    field: T.StructField, make: Callable[[pa.Array], _Made], what: str = "column"
) -> Callable[[pa.Array], _Made]:
    """`make` for a column of user data: an error names the column, and says what helps."""

    def checked(array: pa.Array) -> _Made:
        try:
            return make(array)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{what} `{field.name}`: {error}") from None
        except FAILURES as error:
            raise not_given(what, field, error) from error

    return checked


def not_given(what: str, field: T.StructField, error: Exception) -> InvalidArgumentError:
    """The error for values that have no Python form."""
    return InvalidArgumentError(
        f"{what} `{field.name}` of type {field.dataType.simpleString()} has values that cannot be given to user code "
        f"({type(error).__name__}: {' '.join(str(error).split())}); cast it before, for example to string"
    )


def is_hashable(dtype: T.DataType) -> bool:
    """True if values of the type can be keys of a dict in each of their Python forms."""
    return not isinstance(dtype, (T.ArrayType, T.MapType, T.StructType))


def hashable(value: Any) -> Any:
    """A value as a dict can have it for a key: lists and arrays as tuples, structs as Rows.

    >>> hashable({"a": 1, "l": [1, [2]]})
    Row(a=1, l=(1, (2,)))
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return row_class(list(value))([hashable(item) for item in value.values()])
    if isinstance(value, T.Row):
        return row_class(value.__fields__)([hashable(item) for item in value])
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    return bytes(value) if isinstance(value, bytearray) else value


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """The list with None where the array is null."""
    for i in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[i] = None
    return values


def _numbers(array: pa.Array) -> list[Any]:
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    zero = pa.scalar(False if pa.types.is_boolean(array.type) else 0, array.type)
    return _with_nulls(array.fill_null(zero).to_numpy(zero_copy_only=False).tolist(), array)


def _floats(array: pa.Array) -> list[Any]:
    numbers = (array.fill_null(0.0) if array.null_count else array).to_numpy(zero_copy_only=False)
    values = numbers.tolist()
    for i in np.flatnonzero(np.isnan(numbers)).tolist():
        values[i] = NAN
    return _with_nulls(values, array) if array.null_count else values


def _integers(array: pa.Array) -> list[Any]:
    """Timestamps and durations as their integers."""
    return _numbers(array.view(pa.int64()))


def _objects(array: pa.Array) -> list[Any]:
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _python(array: pa.Array) -> list[Any]:
    return array.to_pylist()  # type: ignore[no-any-return]


def _beyond(array: pa.Array, is_beyond: np.ndarray[Any, Any]) -> InvalidArgumentError:
    """The error for the first of some dates or times that Python does not have."""
    first = array.slice(int(np.flatnonzero(is_beyond)[0]), 1).cast(pa.string())[0]
    return InvalidArgumentError(
        f"Python has no {first}, its years are 1 to 9999: cast the column to string or to bigint before"
    )


def _dates(array: pa.Array) -> list[Any]:
    days = array.fill_null(pa.scalar(datetime.date(1970, 1, 1))) if array.null_count else array
    numbers = days.view(pa.int32()).to_numpy(zero_copy_only=False)
    if len(numbers) and not (numbers.min() >= _FIRST_DAY and numbers.max() <= _LAST_DAY):
        raise _beyond(array, (numbers < _FIRST_DAY) | (numbers > _LAST_DAY))
    values = numbers.astype("datetime64[D]").tolist()
    return _with_nulls(values, array) if array.null_count else values


def _micros(array: pa.Array) -> np.ndarray[Any, Any]:
    """Timestamps as microseconds, all within what `datetime` holds; 0 for null."""
    numbers = array.view(pa.int64())
    numbers = (numbers.fill_null(0) if array.null_count else numbers).to_numpy(zero_copy_only=False)
    if len(numbers) and not (numbers.min() >= _FIRST and numbers.max() <= _LAST):
        raise _beyond(array, (numbers < _FIRST) | (numbers > _LAST))
    return numbers  # type: ignore[no-any-return]


def _naive(array: pa.Array) -> list[Any]:
    """Timestamps of microseconds as naive `datetime`s of UTC."""
    values = _micros(array).view("datetime64[us]").tolist()
    return _with_nulls(values, array) if array.null_count else values


def _aware(timezone: str) -> Values:
    is_utc = timezone == "UTC"

    def values(array: pa.Array) -> list[Any]:
        zone = zone_of(timezone)
        # A sum takes a quarter of the time of `replace`.
        after_epoch = datetime.datetime(1970, 1, 1, tzinfo=zone if is_utc else datetime.timezone.utc).__add__
        found = list(map(after_epoch, _micros(array).view("timedelta64[us]").tolist()))
        if not is_utc:
            try:
                found = [value.astimezone(zone) for value in found]
            except OverflowError:
                raise _beyond(array, np.array([_is_beyond(value, zone) for value in found])) from None
        return _with_nulls(found, array) if array.null_count else found

    return values


def _is_beyond(time: datetime.datetime, zone: datetime.tzinfo) -> bool:
    try:
        time.astimezone(zone)
    except OverflowError:
        return True
    return False


def list_slices(array: pa.Array) -> list[tuple[int, int]]:
    """For each list of a list array, where its elements are in `array.flatten()`."""
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    return list(zip((ends - lengths).tolist(), ends.tolist()))


def lists_of(element: Values, sequence: Callable[[Any], Any]) -> Values:
    """Values of a list column: `sequence` of the list of each one's elements."""

    def values(array: pa.Array) -> list[Any]:
        flat = element(array.flatten())
        found = [sequence(flat[start:end]) for start, end in list_slices(array)]
        return _with_nulls(found, array) if array.null_count else found

    return values


def maps_of(key: Values, value: Values, make: Callable[[Any], Any]) -> Values:
    """Values of a map column, or of a map's wire form, a list of structs: `make` of the list of each one's pairs."""
    as_lists = lists_of(structs_of([key, value], tuple), make)

    def values(array: pa.Array) -> list[Any]:
        if not isinstance(array, pa.MapArray):
            return as_lists(array)
        offsets = array.offsets.to_pylist()
        start, length = offsets[0], offsets[-1] - offsets[0]
        pairs = list(zip(key(array.keys.slice(start, length)), value(array.items.slice(start, length))))
        found = [make(pairs[a - start : b - start]) for a, b in itertools.pairwise(offsets)]
        return _with_nulls(found, array) if array.null_count else found

    return values


def structs_of(fields: Sequence[Values], make: Callable[[tuple[Any, ...]], Any]) -> Values:
    """Values of a struct column: `make` of the tuple of each one's fields."""

    def values(array: pa.Array) -> list[Any]:
        columns = [field(column) for field, column in zip(fields, array.flatten())]
        rows = list(zip(*columns)) if columns else [()] * len(array)
        found = rows if make is tuple else [make(row) for row in rows]
        return _with_nulls(found, array) if array.null_count else found

    return values


_EXACT_SCALARS: dict[type[T.DataType], Values] = {
    T.FloatType: _floats,
    T.DoubleType: _floats,
    T.TimestampType: _integers,
    T.TimestampNTZType: _integers,
    T.DayTimeIntervalType: _integers,
}
_SCALARS: dict[type[T.DataType], Values] = {
    T.BooleanType: _numbers,
    T.ByteType: _numbers,
    T.ShortType: _numbers,
    T.IntegerType: _numbers,
    T.LongType: _numbers,
    T.FloatType: _numbers,
    T.DoubleType: _numbers,
    T.StringType: _objects,
    T.CharType: _objects,
    T.VarcharType: _objects,
    T.BinaryType: _objects,
    T.DateType: _dates,
    T.TimestampNTZType: _naive,
    T.YearMonthIntervalType: _numbers,
    T.NullType: _python,
}


def row_values(dtype: T.DataType, timezone: str) -> Values:
    """What turns a column in its wire form into values as rows have them."""
    if isinstance(dtype, T.ArrayType):
        return lists_of(row_values(dtype.elementType, timezone), list)
    if isinstance(dtype, T.MapType):
        return maps_of(row_values(dtype.keyType, timezone), row_values(dtype.valueType, timezone), list)
    if isinstance(dtype, T.StructType):
        names = dtype.names
        return structs_of([row_values(f.dataType, timezone) for f in dtype.fields], lambda row: dict(zip(names, row)))
    if isinstance(dtype, T.TimestampType):
        return _aware(timezone)
    if isinstance(dtype, T.UserDefinedType):
        return row_values(dtype.sqlType(), timezone)
    return _SCALARS.get(type(dtype), _python)


def exact_values(dtype: T.DataType) -> Values:
    """What turns a column in its wire form into the exact values that states are kept in."""
    if isinstance(dtype, T.ArrayType):
        return lists_of(exact_values(dtype.elementType), tuple)
    if isinstance(dtype, T.MapType):
        return maps_of(exact_values(dtype.keyType), exact_values(dtype.valueType), tuple)
    if isinstance(dtype, T.StructType):
        return structs_of([exact_values(f.dataType) for f in dtype.fields], tuple)
    return _EXACT_SCALARS.get(type(dtype)) or _SCALARS.get(type(dtype), _python)


def has_floats(dtype: T.DataType) -> bool:
    """True if there is a floating-point number anywhere in the type."""
    if isinstance(dtype, T.StructType):
        return any(has_floats(f.dataType) for f in dtype.fields)
    if isinstance(dtype, T.ArrayType):
        return has_floats(dtype.elementType)
    if isinstance(dtype, T.MapType):
        return has_floats(dtype.keyType) or has_floats(dtype.valueType)
    return isinstance(dtype, (T.FloatType, T.DoubleType))
