"""Rows of a chunk as user code of the pandas API has them.

Owns: the frames and the keys of a chunk, with the dtypes that PySpark gives.
Does not own: Rows (`rows.input`), which rows belong to which call (`feed`), the session's zone (`types.zones`).

PySpark rebuilds frames from rows of Python values: all whole numbers are `int64`, all others `float64` (PySpark 4.0
keeps their width), a null makes whole numbers `float64` and booleans objects; timestamps are naive `datetime64[ns]`
in the session's zone; arrays are ndarrays, structs and maps dicts. There a null in the rows of one key also changes
the frames of its neighbours; here a frame depends on its own rows alone, and a key keeps its type.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import versions
from fastchangelog.spark.types.atomic import INTEGERS
from fastchangelog.spark.types.columns import (
    Values,
    hashable,
    is_hashable,
    list_slices,
    lists_of,
    maps_of,
    of_column,
    structs_of,
)
from fastchangelog.spark.types.values import row_values
from fastchangelog.spark.types.walk import contains
from fastchangelog.spark.types.zones import local_times

__all__ = ["FrameMaker", "FrameParts", "Frames", "key_values"]

_INTEGERS = tuple(INTEGERS)
#: What arrays have that needs more than Arrow's own conversion.
_AS_OBJECTS = (T.StructType, T.MapType, T.TimestampType, T.TimestampNTZType, T.VariantType)
_WHOLE = (*_INTEGERS, T.YearMonthIntervalType)
_TO_PANDAS = {"date_as_object": True, "coerce_temporal_nanoseconds": True, "integer_object_nulls": True}
#: Rows of one key that wait for a frame to become full.
_WAITING_BYTES = 16 * 1024 * 1024
_NO_LIMIT = 2**31 - 1
#: What 64 bits of nanoseconds hold.
_MOST_MICROS = (2**63 - 1) // 1000

#: pandas has no public way to rows of a frame without copies and checks.
_HAS_MANAGERS = hasattr(pd.DataFrame, "_from_mgr") and hasattr(pd.DataFrame()._mgr, "get_slice")


def _labels(names: Sequence[str]) -> list[str]:
    """The columns' labels.

    >>> _labels(["k", "a b", "class", "k"])
    ['k', '_1', '_2', '_3']
    """
    if not versions.HAS_FRAMES_OF_TUPLES:
        return list(names)
    seen: set[str] = set()
    labels = []
    for i, name in enumerate(names):
        is_name = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_") and name not in seen
        labels.append(name if is_name else f"_{i}")
        seen.add(name)
    return labels


class Frames:
    """The frames of one chunk."""

    def __init__(self, labels: Sequence[str], columns: Sequence[Any]) -> None:
        self._index = pd.Index(labels)
        self._columns = columns
        self._whole: pd.DataFrame | None = None
        if all(isinstance(column, np.ndarray) for column in columns):
            self._whole = _frame(self._index, columns)

    def frame(self, start: int, end: int) -> pd.DataFrame:
        """A frame of some rows that no other frame has."""
        if self._whole is not None:
            return _cut(self._whole, start, end)
        cut = [c[start:end] if isinstance(c, np.ndarray) else c.cut(start, end) for c in self._columns]
        return _frame(self._index, cut)


def _cut(whole: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """Some rows of a frame, with an index of their own. They share the memory of the whole where pandas lets them."""
    if not _HAS_MANAGERS:
        return whole.iloc[start:end].reset_index(drop=True)
    # As `iloc` and `reset_index` do it, in a quarter of their time: one such call for each key counts.
    manager = whole._mgr.get_slice(slice(start, end), axis=1)
    manager.axes[1] = pd.RangeIndex(end - start)
    return pd.DataFrame._from_mgr(manager, manager.axes)


def _frame(labels: pd.Index, columns: Sequence[np.ndarray[Any, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = labels
    return frame


class _WithNulls:
    """A column of numbers or booleans whose dtype depends on whether the rows of a frame have nulls."""

    def __init__(self, values: np.ndarray[Any, Any], with_nulls: np.ndarray[Any, Any], is_null: Any) -> None:
        self._values = values
        self._with_nulls = with_nulls
        self._is_null = is_null

    def cut(self, start: int, end: int) -> np.ndarray[Any, Any]:
        return (self._with_nulls if self._is_null[start:end].any() else self._values)[start:end]


class FrameMaker:
    """Makes frames of a schema from columns in their wire form."""

    def __init__(
        self, struct: T.StructType, columns: Sequence[int], timezone: str, *, integers_with_na: bool = False
    ) -> None:
        self._columns = columns
        self._labels = _labels(struct.names)
        self._make = [
            of_column(
                f,
                _integers_with_na
                if integers_with_na and isinstance(f.dataType, _INTEGERS)
                else _column(f.dataType, timezone),
            )
            for f in struct.fields
        ]

    def frames(self, batch: pa.RecordBatch) -> Frames:
        """What makes frames of the rows of a batch."""
        return Frames(self._labels, [make(batch.column(i)) for make, i in zip(self._make, self._columns)])


class FrameParts:
    """Frames of the pandas API, each of at most `max_records` rows, and of `max_bytes` by the mean of a chunk."""

    def __init__(self, maker: FrameMaker, max_records: int, max_bytes: int = _NO_LIMIT) -> None:
        self._maker = maker
        self._most_records = self._most = max_records if max_records > 0 else _NO_LIMIT
        self._most_bytes = max_bytes
        self._frames = Frames([], [])

    def load(self, batch: pa.RecordBatch) -> None:
        """See `feed.Parts`."""
        self._frames = self._maker.frames(batch)
        self._bound(batch)

    def _bound(self, batch: pa.RecordBatch) -> None:
        """Sets how many rows a frame has at most. As in PySpark the row that reaches the bound is in the frame."""
        if self._most_bytes < _NO_LIMIT and batch.num_rows:
            each = max(batch.nbytes / batch.num_rows, 1)
            self._most = min(self._most_records, math.ceil(self._most_bytes / each))

    def part(self, start: int, end: int) -> Iterator[Any]:
        """See `feed.Parts`."""
        if end - start <= self._most:
            return map(self._frames.frame, (start,), (end,))
        starts = range(start, end, self._most)
        return map(self._frames.frame, starts, [min(begin + self._most, end) for begin in starts])

    def joined(self, batches: Iterator[pa.RecordBatch]) -> Generator[Any, None, None]:
        """See `feed.Parts`."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            self._bound(batch)
            while batch.num_rows:
                taken = batch.slice(0, max(self._most - rows, 1))
                batch = batch.slice(taken.num_rows)
                waiting.append(taken)
                rows += taken.num_rows
                size += taken.nbytes
                if rows >= self._most or size >= _WAITING_BYTES:
                    yield self._frame(waiting)
                    waiting, rows, size = [], 0, 0
        if waiting:
            yield self._frame(waiting)

    def _frame(self, batches: list[pa.RecordBatch]) -> Any:
        table = pa.Table.from_batches(batches).combine_chunks()
        batch = table.to_batches(max_chunksize=table.num_rows)[0]
        return self._maker.frames(batch).frame(0, batch.num_rows)


def key_values(dtype: T.DataType, timezone: str) -> Values:
    """What makes parts of keys: scalars of Python, None for null."""
    return _spans if isinstance(dtype, T.DayTimeIntervalType) else _objects(dtype, timezone, in_value=True)


def _column(dtype: T.DataType, timezone: str) -> Callable[[pa.Array], Any]:
    """What makes of a column an array whose slices are columns of frames, or something with `cut`."""
    if isinstance(dtype, _WHOLE):
        return _whole_numbers
    if isinstance(dtype, (T.FloatType, T.DoubleType)):
        return lambda array: _widened(array, pa.float64()).to_numpy(zero_copy_only=False)
    if isinstance(dtype, T.BooleanType):
        return _booleans
    if isinstance(dtype, (T.TimestampType, T.TimestampNTZType)):
        return lambda array: _naive(array, timezone).to_numpy(zero_copy_only=False)
    if isinstance(dtype, T.DayTimeIntervalType):
        return lambda array: _nanoseconds(array).to_numpy(zero_copy_only=False)
    if isinstance(dtype, (T.StringType, T.BinaryType)):
        return lambda array: array.to_numpy(zero_copy_only=False)
    values = _objects(dtype, timezone)
    return lambda array: _object_array(values(array))


def _object_array(values: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _whole_numbers(array: pa.Array) -> Any:
    def as_floats(values: np.ndarray[Any, Any], is_null: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        floats = values.astype(np.float64)
        floats[is_null] = np.nan
        return floats

    return _nullable(_widened(array, pa.int64()), 0, as_floats)


def _widened(array: pa.Array, widest: pa.DataType) -> pa.Array:
    """Numbers as wide as this PySpark has them in frames."""
    return array.cast(widest) if versions.HAS_FRAMES_OF_TUPLES else array


def _integers_with_na(array: pa.Array) -> Any:
    """Whole numbers of their own width, which a null leaves whole: then they are objects, with NA among them."""
    return _nullable(
        array,
        0,
        lambda values, is_null: _object_array([pd.NA if null else value for null, value in zip(is_null, values)]),
    )


def _booleans(array: pa.Array) -> Any:
    return _nullable(array, False, lambda *_: _object_array(array.to_pylist()))


def _nullable(array: pa.Array, zero: Any, with_nulls: Callable[[Any, Any], np.ndarray[Any, Any]]) -> Any:
    """The values of a column; if there are nulls, `with_nulls` gives those of frames that have some."""
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False)
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    values = array.fill_null(zero).to_numpy(zero_copy_only=False)
    return _WithNulls(values, with_nulls(values, is_null), is_null)


def _naive(array: pa.Array, timezone: str) -> pa.Array:
    """Timestamps without a zone, of nanoseconds."""
    if array.type.tz is not None:
        array = local_times(array, timezone)
    try:
        return array.cast(pa.timestamp("ns"))
    except pa.ArrowInvalid:
        time = array.filter(pc.greater(pc.abs(array.cast(pa.int64())), _MOST_MICROS))[0]
        raise InvalidArgumentError(
            f"the timestamp {time.cast(pa.string())} does not fit into a frame, whose datetime64[ns] ends in 1677 and "
            "in 2262: use transformWithState(), whose Rows hold it, or cast the column to string or to bigint before"
        ) from None


def _nanoseconds(array: pa.Array) -> pa.Array:
    """Intervals of nanoseconds."""
    try:
        return array.cast(pa.duration("ns"))
    except pa.ArrowInvalid:
        raise InvalidArgumentError(
            "an interval of more than 292 years does not fit into a frame, whose timedelta64[ns] ends there: use "
            "transformWithState(), whose Rows hold it, or cast the column to string before"
        ) from None


def _arrays(array: pa.Array) -> list[Any]:
    """Arrays of numbers or booleans as ndarrays, of objects where there are nulls."""
    flat = array.flatten()
    if flat.null_count == 0:
        return array.to_pandas(**_TO_PANDAS).tolist()  # type: ignore[no-any-return]

    def part(start: int, end: int) -> np.ndarray[Any, Any]:
        elements = flat.slice(start, end - start)
        if elements.null_count:
            return _object_array(elements.to_pylist())
        return elements.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    is_null = array.is_null().to_pylist()
    return [None if null else part(*place) for null, place in zip(is_null, list_slices(array))]


def _times(array: pa.Array) -> list[Any]:
    return list(pd.Series(array.to_numpy(zero_copy_only=False)))


def _times_or_none(array: pa.Array) -> list[Any]:
    return [None if time is pd.NaT else time for time in _times(array)]


def _with_hashable_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {hashable(key): value for key, value in pairs}


def _variants(array: pa.Array) -> list[Any]:
    values = array.to_pylist()
    return [None if value is None else T.VariantVal(value["value"], value["metadata"]) for value in values]


def _spans(array: pa.Array) -> list[Any]:
    return _times_or_none(_nanoseconds(array))


def _objects(dtype: T.DataType, timezone: str, *, in_value: bool = False) -> Values:
    """Values of a column of objects. With `in_value` they are parts of structs, maps or keys: in an array that is a
    column of its own a null time is NaT, elsewhere it is None."""
    if isinstance(dtype, T.UserDefinedType):
        return _objects(dtype.sqlType(), timezone, in_value=in_value)
    if isinstance(dtype, T.ArrayType):
        if isinstance(dtype.elementType, (*_WHOLE, T.BooleanType)):
            return _arrays
        if not contains(dtype, lambda part: isinstance(part, _AS_OBJECTS)):
            return lambda array: array.to_pandas(**_TO_PANDAS).tolist()
        if isinstance(dtype.elementType, (T.TimestampType, T.TimestampNTZType)) and not in_value:
            return lists_of(lambda array: _times(_naive(array, timezone)), np.array)
        return lists_of(_objects(dtype.elementType, timezone, in_value=in_value), np.array)
    if isinstance(dtype, T.MapType):
        key, value = (_objects(part, timezone, in_value=True) for part in (dtype.keyType, dtype.valueType))
        return maps_of(key, value, dict if is_hashable(dtype.keyType) else _with_hashable_keys)
    if isinstance(dtype, T.StructType):
        names = dtype.names
        fields = [_objects(f.dataType, timezone, in_value=True) for f in dtype.fields]
        return structs_of(fields, lambda row: dict(zip(names, row)))
    if isinstance(dtype, (T.TimestampType, T.TimestampNTZType)):
        return lambda array: _times_or_none(_naive(array, timezone))
    if isinstance(dtype, T.VariantType):
        return _variants
    return row_values(dtype, timezone)
