"""Rows that user code yields, as Arrow batches of the output's schema.

Owns: the conversion of Rows by column, by name; what it refuses, with the column and the row.
Does not own: pandas frames (`frames.output`), when rows are yielded (`run`).

As in PySpark: fields are taken by name, a missing one is null, one that the schema does not have is dropped; Rows
inside of Rows too. Values are converted as Arrow converts Python's, so that 1.0 is a `bigint` and "1" is none; naive
timestamps are taken as UTC.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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

__all__ = ["OutputRows"]

#: So many rows are measured at once.
_MEASURED_ROWS = 32
#: What a Row has most of, and is small.
_SMALL = {int, float, bool, type(None)}


class OutputRows(Output):
    """Collects Rows, and gives batches of them."""

    def __init__(self, struct: T.StructType) -> None:
        super().__init__(struct)
        self._convert = [_python_form(f.dataType) for f in struct.fields]
        #: Takes a row.
        self.append: Callable[[Any], None] = self._append_held if any(self._is_changeable) else self.pending.append
        #: With so many rows a batch may be full.
        self.limit = _MEASURED_ROWS
        self._measured = 0

    def _append_held(self, row: Any) -> None:
        self.pending.append(held(row))

    def is_full(self) -> bool:
        """True if the rows that were taken are a batch. If not, the next time to ask is when there are `limit`."""
        rows = self.pending[self._measured :]
        self._measured = len(self.pending)
        try:
            values = itertools.chain.from_iterable(rows)
            large = [value for value in values if value.__class__ not in _SMALL]
            self._bytes += sum([len(value) if value.__class__ is str else held_bytes(value) for value in large])
        except TypeError:
            return True  # one of them is no Row, and `flush` says so
        self.limit = min(self._measured + _MEASURED_ROWS, self._most_rows)
        return self._measured >= self._most_rows or self._bytes >= BATCH_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that were taken."""
        rows = list(self.pending)
        self.pending.clear()
        self._measured = self._bytes = 0
        for names, run in itertools.groupby(rows, _names):
            batch = self._batch(list(run), names)
            self._adapt(batch)
            self.limit = min(_MEASURED_ROWS, self._most_rows)
            yield batch

    def _batch(self, rows: Sequence[Row], names: Sequence[str]) -> pa.RecordBatch:
        """Rows with these names."""
        width = len(names)
        if set(map(len, rows)) != {width}:
            # A row with fewer values than names: those at the end are missing.
            rows = [tuple(row)[:width] + (None,) * (width - len(row)) for row in rows]  # type: ignore[misc]
        if not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(f"the names of a Row are texts, as in Row(n=1); {cut(repr(rows[0]))} has others")
        columns = list(zip(*rows)) if width else []
        # Of fields of one name the last counts, as in `asDict`.
        places = {name: i for i, name in enumerate(names)}
        arrays = []
        for field, name, convert, not_null in zip(self._schema, self._names, self._convert, self._not_null):
            place = places.get(name)
            values: Sequence[Any] = [None] * len(rows) if place is None else columns[place]
            try:
                if place is None:
                    array = pa.nulls(len(rows), field.type)
                else:
                    array = pa.array(values if convert is None else _converted(convert, values), field.type)
                if not_null is not None:
                    check_nulls(array, not_null)
            except FAILURES as error:
                raise self._refused(field, not_null, convert, rows, values, error) from None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _refused(
        self,
        field: pa.Field,
        not_null: T.StructField | None,
        convert: Callable[[Any], Any] | None,
        rows: Sequence[Row],
        values: Sequence[Any],
        error: Exception,
    ) -> InvalidArgumentError:
        """The error that names the first row whose value is refused."""
        for row, value in zip(rows, values):
            try:
                array = pa.array([value if convert is None or value is None else convert(value)], field.type)
                if not_null is not None:
                    check_nulls(array, not_null)
            except FAILURES as reason:
                why = " ".join(str(reason).split())
                return InvalidArgumentError(
                    f"output column `{field.name}` of type {field.type}: {cut(repr(value))} of {cut(repr(row))} does "
                    f"not fit: {why}"
                )
        return InvalidArgumentError(
            f"output column `{field.name}` of type {field.type}: {' '.join(str(error).split())}"
        )


def _converted(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [value if value is None else convert(value) for value in values]


def _names(row: Any) -> Any:
    """The names of a Row's fields."""
    try:
        names = row.__fields__
    except AttributeError:
        names = None
    if names is None or not isinstance(row, Row):
        raise InvalidArgumentError(
            f"a processor of transformWithState yields Rows with names, such as Row(n=1), not {cut(repr(row))} "
            f"({type(row).__name__})"
        )
    return names


def _python_form(dtype: T.DataType) -> Convert | None:
    """What turns a value into one that Arrow takes for the wire form of the type; None if nothing is to do."""
    return form_of(dtype, lambda part: no_value if isinstance(part, T.NullType) else None, None, _pairs, _fields)


def _pairs(value: Any) -> Any:
    """The entries of a map; a Row inside of a row is one, as in PySpark."""
    value = _as_dict(value)
    return value.items() if isinstance(value, dict) else value


def _fields(value: Any, names: Sequence[str]) -> Sequence[Any]:
    value = _as_dict(value)
    if isinstance(value, dict):
        return [value.get(name) for name in names]
    if not isinstance(value, tuple) or len(value) != len(names):
        raise ValueError(f"a struct of {', '.join(names)} is a Row, a dict or a tuple of {len(names)} values")
    return value


def _as_dict(value: Any) -> Any:
    return value.asDict() if isinstance(value, Row) and hasattr(value, "__fields__") else value
