"""Frames that user code yields, as Arrow batches of the output's schema.

Owns: the conversion of pandas frames by column, by name or by place; what it refuses, with the column and the row.
Does not own: Rows (`rows.output`), when frames are yielded (`run`), the session's zone (`types.zones`).

As in PySpark: columns are taken by name if a label is a string, else by place; columns that the schema does not have
are dropped; NaN and NaT are null; naive timestamps are in the session's zone; a value of another type is cast if the
cast is safe. Frames are collected, and columns of many frames converted at once where their dtypes agree; a processor
may change a frame as soon as it has yielded it.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.processor.held_values import held, held_bytes
from fastchangelog.spark.processor.output_values import (
    BATCH_BYTES,
    Convert,
    Output,
    check_nulls,
    cut,
    form_of,
    no_value,
)
from fastchangelog.spark.types.columns import FAILURES
from fastchangelog.spark.types.zones import pandas_zone

__all__ = ["OutputFrames"]

_MOST_FRAMES = 1024
#: Dtypes whose columns are joined before they are converted: joining changes no value of them.
_JOINED = "biufOmM"

#: pandas has no public way to the array of a column without a Series around it.
_HAS_COLUMN_ARRAYS = hasattr(pd.DataFrame, "_get_column_array")

#: A column of one frame.
_Column: TypeAlias = "np.ndarray[Any, Any] | pd.Series"


class OutputFrames(Output):
    """Collects frames, and gives batches of their rows."""

    def __init__(
        self,
        struct: T.StructType,
        timezone: str,
        *,
        by_name: bool = True,
        safe: bool = True,
        decimals_of_integers: bool = False,
    ) -> None:
        super().__init__(struct)
        self._has_unique_names = len(set(self._names)) == len(self._names)
        self._convert = [
            _decimals
            if decimals_of_integers and isinstance(f.dataType, T.DecimalType)
            else _converter(f.dataType, timezone)
            for f in struct.fields
        ]
        self._by_name = by_name
        self._safe = safe
        #: With so many frames a batch may be full.
        self.limit = 1
        self._rows = 0

    def append(self, frame: Any) -> None:
        """Takes a frame. If it makes a batch full, the caller flushes before user code goes on."""
        columns = self._columns(frame)
        if columns is None:
            return
        self._rows += len(frame)
        self._bytes += sum(map(_column_bytes, columns))
        if self.is_full():
            self.pending.append(list(columns))
        else:
            self.pending.append([_held(column, deep) for column, deep in zip(columns, self._is_changeable)])

    def is_full(self) -> bool:
        """True if the frames that were taken are a batch."""
        return self._rows >= self._most_rows or self._bytes >= BATCH_BYTES or len(self.pending) >= _MOST_FRAMES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the frames that were taken."""
        frames: list[list[_Column]] = list(self.pending)
        self.pending.clear()
        self._rows = self._bytes = 0
        if frames:
            arrays = [self._array(i, [columns[i] for columns in frames]) for i in range(len(self._schema))]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            self._adapt(batch)
            yield batch

    def _columns(self, frame: Any) -> Sequence[_Column] | None:
        """The columns of a frame that the schema has, in its order; None for a frame without rows."""
        if not isinstance(frame, pd.DataFrame):
            raise InvalidArgumentError(
                f"a processor of transformWithStateInPandas yields pandas frames, not {cut(repr(frame))} "
                f"({type(frame).__name__})"
            )
        if len(frame) == 0:
            return None
        labels = frame.columns.tolist()
        if labels == self._names and self._has_unique_names:
            return [_column(frame, i) for i in range(len(labels))]
        if len(labels) == 0:
            return [pd.Series([None] * len(frame), dtype=object)] * len(self._names)
        if self._by_name and any(isinstance(label, str) for label in labels):
            missing = [name for name in self._names if name not in labels]
            if missing:
                raise InvalidArgumentError(
                    f"a frame of the output has the columns {', '.join(map(str, labels))}; {', '.join(missing)} of the "
                    "schema is missing"
                )
            twice = [name for name in self._names if labels.count(name) > 1]
            if twice:
                raise InvalidArgumentError(f"a frame of the output has several columns {twice[0]}; keep one of them")
            return [_column(frame, labels.index(name)) for name in self._names]
        if len(labels) < len(self._names):
            raise InvalidArgumentError(
                f"a frame of the output has {len(labels)} columns, but the schema has {len(self._names)}; yield the "
                "columns of the schema"
            )
        return [_column(frame, i) for i in range(len(self._names))]

    def _array(self, place: int, columns: Sequence[_Column]) -> pa.Array:
        """One column of all frames."""
        field = self._schema.field(place)
        # Decimals become floats by way of the digits of all of a column: those of each frame count alone.
        kinds = "biufmM" if pa.types.is_floating(field.type) else _JOINED
        joined = _joined(columns, kinds)
        try:
            arrays = [self._converted(place, field.type, series) for series in joined]
        except FAILURES:
            # What is one column for Arrow may be several for pandas: each frame for itself, as PySpark converts them.
            arrays = [self._checked(place, field, _series(column)) for column in columns]
        array = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
        not_null = self._not_null[place]
        if not_null is not None:
            try:
                check_nulls(array, not_null)
            except ValueError as error:
                row = _row_with_null(array, not_null, map(len, columns))
                raise InvalidArgumentError(f"output column {error}, and row {row} of a frame has one there") from None
        return array

    def _checked(self, place: int, field: pa.Field, series: pd.Series) -> pa.Array:
        try:
            return self._converted(place, field.type, series)
        except FAILURES as error:
            raise self._refused(place, field, series, error) from None

    def _converted(self, place: int, target: pa.DataType, series: pd.Series) -> pa.Array:
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.dtype.categories.dtype)
        convert = self._convert[place]
        if convert is not None:
            series = convert(series)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        try:
            array = pa.Array.from_pandas(series, mask=mask, type=target, safe=self._safe)
        except pa.ArrowInvalid:
            array = pa.Array.from_pandas(series, mask=mask)
            if isinstance(array, pa.ChunkedArray):
                array = array.combine_chunks()
            array = array.cast(target, safe=self._safe)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        return array

    def _refused(self, place: int, field: pa.Field, series: pd.Series, error: Exception) -> InvalidArgumentError:
        """The error that names the first value that is refused."""
        why, value, where = error, None, ""
        for i in range(len(series)):
            one = series.iloc[i : i + 1]
            try:
                self._converted(place, field.type, one)
            except FAILURES as reason:
                why, value, where = reason, one.tolist()[0], f"row {i} of a frame: "
                break
        shown = f"{cut(repr(value))} " if value is not None else ""
        return InvalidArgumentError(
            f"output column `{field.name}` of type {field.type}: {where}{shown}of dtype {series.dtype} does not fit: "
            f"{' '.join(str(why).split())}"
        )


def _row_with_null(array: pa.Array, field: T.StructField, sizes: Iterable[int]) -> int:
    """In which row of its frame `check_nulls` finds the first null; `sizes` are those of the frames."""
    for size in sizes:
        for row in range(size):
            try:
                check_nulls(array.slice(row, 1), field)
            except ValueError:
                return row
        array = array.slice(size)
    raise AssertionError("no null")


def _column(frame: pd.DataFrame, place: int) -> _Column:
    """A column of a frame: its ndarray, if it has one, for a new frame's Series takes thirty microseconds to make."""
    values = frame._get_column_array(place) if _HAS_COLUMN_ARRAYS else None
    return values if isinstance(values, np.ndarray) else frame.iloc[:, place]


def _held(column: _Column, deep: bool) -> _Column:
    """The column as it is now; `deep` if its values may be changed, too."""
    if isinstance(column, pd.Series):
        if not isinstance(column.dtype, np.dtype):
            return column.copy()
        column = column.to_numpy()
    values = np.array(column)
    if deep and values.dtype == object:
        for i, value in enumerate(values):
            values[i] = held(value)
    return values


def _column_bytes(column: _Column) -> int:
    values = column.to_numpy() if column.dtype == object and isinstance(column, pd.Series) else column
    return held_bytes(values) if values.dtype == object else int(values.nbytes)


def _series(column: _Column) -> pd.Series:
    # With the dtype: without it pandas makes times of a column of objects, which are of another zone.
    return pd.Series(column, dtype=column.dtype, copy=False) if isinstance(column, np.ndarray) else column


def _joined(columns: Sequence[_Column], kinds: str) -> list[pd.Series]:
    """Columns of one dtype, of one of these kinds, as one column."""
    dtype = columns[0].dtype
    if (
        len(columns) > 1
        and isinstance(dtype, np.dtype)
        and dtype.kind in kinds
        and all(c.dtype == dtype for c in columns)
    ):
        parts = [column if isinstance(column, np.ndarray) else column.to_numpy() for column in columns]
        return [_series(np.concatenate(parts))]
    return list(map(_series, columns))


def _converter(dtype: T.DataType, timezone: str) -> Callable[[pd.Series], pd.Series] | None:
    """What prepares a column for Arrow; None if nothing is to do."""
    if isinstance(dtype, T.TimestampType):
        return lambda series: _localized(series, timezone)

    def leaf(part: T.DataType) -> Convert | None:
        if isinstance(part, T.TimestampType):
            return lambda value: _localized_value(value, timezone)
        return no_value if isinstance(part, T.NullType) else None

    convert = form_of(dtype, leaf, list, _pairs, _fields)
    if convert is None:
        return None
    return lambda series: series.apply(lambda value: None if value is None else convert(value))


def _decimals(series: pd.Series) -> pd.Series:
    """Whole numbers as decimals, as many digits as they have."""
    if not pd.api.types.is_integer_dtype(series):
        return series
    return pd.Series([None if value is pd.NA else decimal.Decimal(value) for value in series.tolist()], dtype=object)


def _localized(series: pd.Series, timezone: str) -> pd.Series:
    """Naive times as times of the session's zone; ambiguous ones as PySpark takes them, as standard time."""
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        return series.dt.tz_convert("UTC")
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "M":
        return _in_zone(series.dt, timezone, ambiguous=False).dt.tz_convert("UTC")
    return series


def _localized_value(value: Any, timezone: str) -> Any:
    time = pd.Timestamp(value)
    return (_in_zone(time, timezone) if time.tzinfo is None else time).to_pydatetime()


def _in_zone(times: Any, timezone: str, **options: bool) -> Any:
    try:
        return times.tz_localize(pandas_zone(timezone), **options)
    except ValueError:
        raise
    except Exception as error:  # errors of pytz have no class in common with others
        raise ValueError(f"{error} is no time, or two, on the clocks of {timezone}") from None


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value


def _fields(value: Any, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        value = tuple(value)
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise ValueError(f"a struct of {', '.join(names)} is a dict, a Row or a tuple of {len(names)} values")
    return value
