"""Columns of Arrow as lists of Python values, a column at a time.

Owns: what makes values of a column, for each kind of column; the error that names the column of a value that has no
Python form.
Does not own: which of these a Spark type has (`atomic`, `values`), the zone of timestamps (`zones`).
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
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.zones import zone_of

__all__ = [
    "FAILURES",
    "NAN",
    "Values",
    "aware",
    "dates",
    "floats",
    "hashable",
    "integers",
    "is_hashable",
    "list_slices",
    "lists_of",
    "maps_of",
    "naive",
    "not_given",
    "numbers",
    "objects",
    "of_column",
    "python",
    "structs_of",
    "with_nulls",
]

#: The values of a column, in order, None for null.
Values = Callable[[pa.Array], list[Any]]

#: The one NaN of exact values: it is identical to itself, so that tuples with it compare equal.
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


def with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """The list with None where the array is null."""
    if array.null_count:
        for i in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[i] = None
    return values


def numbers(array: pa.Array) -> list[Any]:
    """Numbers and booleans."""
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    zero = pa.scalar(False if pa.types.is_boolean(array.type) else 0, array.type)
    return with_nulls(array.fill_null(zero).to_numpy(zero_copy_only=False).tolist(), array)


def floats(array: pa.Array) -> list[Any]:
    """Floating-point numbers, each NaN as `NAN`."""
    numbers = (array.fill_null(0.0) if array.null_count else array).to_numpy(zero_copy_only=False)
    values = numbers.tolist()
    for i in np.flatnonzero(np.isnan(numbers)).tolist():
        values[i] = NAN
    return with_nulls(values, array)


def integers(array: pa.Array) -> list[Any]:
    """Timestamps and durations as their integers."""
    return numbers(array.view(pa.int64()))


def objects(array: pa.Array) -> list[Any]:
    """Texts and binaries."""
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def python(array: pa.Array) -> list[Any]:
    """What Arrow itself makes of the column."""
    return array.to_pylist()  # type: ignore[no-any-return]


def _beyond(array: pa.Array, is_beyond: np.ndarray[Any, Any]) -> InvalidArgumentError:
    """The error for the first of some dates or times that Python does not have."""
    first = array.slice(int(np.flatnonzero(is_beyond)[0]), 1).cast(pa.string())[0]
    return InvalidArgumentError(
        f"Python has no {first}, its years are 1 to 9999: cast the column to string or to bigint before"
    )


def dates(array: pa.Array) -> list[Any]:
    """Dates, all within the years of Python."""
    days = array.fill_null(pa.scalar(datetime.date(1970, 1, 1))) if array.null_count else array
    numbers = days.view(pa.int32()).to_numpy(zero_copy_only=False)
    if len(numbers) and not (numbers.min() >= _FIRST_DAY and numbers.max() <= _LAST_DAY):
        raise _beyond(array, (numbers < _FIRST_DAY) | (numbers > _LAST_DAY))
    values = numbers.astype("datetime64[D]").tolist()
    return with_nulls(values, array)


def _micros(array: pa.Array) -> np.ndarray[Any, Any]:
    """Timestamps as microseconds, all within what `datetime` holds; 0 for null."""
    numbers = array.view(pa.int64())
    numbers = (numbers.fill_null(0) if array.null_count else numbers).to_numpy(zero_copy_only=False)
    if len(numbers) and not (numbers.min() >= _FIRST and numbers.max() <= _LAST):
        raise _beyond(array, (numbers < _FIRST) | (numbers > _LAST))
    return numbers  # type: ignore[no-any-return]


def naive(array: pa.Array) -> list[Any]:
    """Timestamps of microseconds as naive `datetime`s of UTC."""
    values = _micros(array).view("datetime64[us]").tolist()
    return with_nulls(values, array)


def aware(timezone: str) -> Values:
    """Timestamps of microseconds as `datetime`s of this zone."""
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
        return with_nulls(found, array)

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
        return with_nulls(found, array)

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
        return with_nulls(found, array)

    return values


def structs_of(fields: Sequence[Values], make: Callable[[tuple[Any, ...]], Any]) -> Values:
    """Values of a struct column: `make` of the tuple of each one's fields."""

    def values(array: pa.Array) -> list[Any]:
        columns = [field(column) for field, column in zip(fields, array.flatten())]
        rows = list(zip(*columns)) if columns else [()] * len(array)
        found = rows if make is tuple else [make(row) for row in rows]
        return with_nulls(found, array)

    return values
