"""Rows that user code yields, as Arrow batches of the output's schema.

Owns: the conversion of Rows by column, by name; what it refuses, with the column and the row.
Does not own: pandas frames (`output_frames`), when rows are yielded (`run`).

As in PySpark: fields are taken by name, a missing one is null, one that the schema does not have is dropped; Rows
inside of Rows too. Values are converted as Arrow converts Python's, so that 1.0 is a `bigint` and "1" is none; naive
timestamps are taken as UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import wire_types
from fastchangelog.spark.processor.held_values import held, is_changeable

__all__ = ["OutputRows", "no_value", "output_schema"]

#: Rows of the first batch, most rows of one, and the bytes that one aims at.
_FIRST_ROWS = 256
_MOST_ROWS = 8192
_BATCH_BYTES = 4 * 1024 * 1024

_FAILURES = (pa.ArrowException, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


def output_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema of an output in its wire form."""
    wire = wire_types.wire_type(struct, "the output")
    assert isinstance(wire, T.StructType)
    return wire_types.arrow_schema(wire)


class OutputRows:
    """Collects Rows, and gives batches of them."""

    def __init__(self, struct: T.StructType) -> None:
        self._names: list[str] = struct.names
        self._schema = output_schema(struct)
        self._convert = [_python_form(f.dataType) for f in struct.fields]
        #: The rows that were taken; `append` takes one.
        self.pending: list[Any] = []
        keeps = any(is_changeable(f.dataType) for f in struct.fields)
        self.append: Callable[[Any], None] = self._append_held if keeps else self.pending.append
        #: With so many rows a batch is full.
        self.limit = _FIRST_ROWS

    def _append_held(self, row: Any) -> None:
        self.pending.append(held(row))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that were taken."""
        rows = list(self.pending)
        self.pending.clear()
        start = 0
        while start < len(rows):
            names = _names(rows[start])
            end = start + 1
            while end < len(rows) and _names(rows[end]) == names:
                end += 1
            batch = self._batch(rows[start:end], names)
            start = end
            each = max(batch.nbytes // batch.num_rows, 1)
            self.limit = max(min(self.limit * 4, _MOST_ROWS, _BATCH_BYTES // each), 1)
            yield batch

    def _batch(self, rows: Sequence[Row], names: Sequence[str]) -> pa.RecordBatch:
        """Rows with these names."""
        width = len(names)
        if any(len(row) != width for row in rows):
            # A row with fewer values than names: those at the end are missing.
            rows = [tuple(row)[:width] + (None,) * (width - len(row)) for row in rows]  # type: ignore[misc]
        columns = list(zip(*rows)) if width else []
        # Of fields of one name the last counts, as in `asDict`.
        places = {name: i for i, name in enumerate(names)}
        arrays = []
        for field, name, convert in zip(self._schema, self._names, self._convert):
            place = places.get(name)
            if place is None:
                arrays.append(pa.nulls(len(rows), field.type))
                continue
            values: Sequence[Any] = columns[place]
            try:
                if convert is not None:
                    values = [value if value is None else convert(value) for value in values]
                arrays.append(pa.array(values, field.type))
            except _FAILURES as error:
                raise self._refused(field, convert, rows, columns[place], error) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _refused(
        self,
        field: pa.Field,
        convert: Callable[[Any], Any] | None,
        rows: Sequence[Row],
        values: Sequence[Any],
        error: Exception,
    ) -> InvalidArgumentError:
        """The error that names the first row whose value is refused."""
        for row, value in zip(rows, values):
            try:
                pa.array([value if convert is None or value is None else convert(value)], field.type)
            except _FAILURES as reason:
                why = " ".join(str(reason).split())
                return InvalidArgumentError(
                    f"output column `{field.name}` of type {field.type}: {_cut(repr(value))} of {_cut(repr(row))} does "
                    f"not fit: {why}"
                )
        return InvalidArgumentError(
            f"output column `{field.name}` of type {field.type}: {' '.join(str(error).split())}"
        )


def _cut(text: str) -> str:
    text = " ".join(text.split()) if "\n" in text else text  # of a frame or an array
    return text if len(text) <= 200 else f"{text[:197]}..."


def _names(row: Any) -> Any:
    """The names of a Row's fields."""
    try:
        names = row.__fields__
    except AttributeError:
        names = None
    if names is None or not isinstance(row, Row):
        raise InvalidArgumentError(
            f"a processor of transformWithState yields Rows with names, such as Row(n=1), not {_cut(repr(row))} "
            f"({type(row).__name__})"
        )
    return names


def _python_form(dtype: T.DataType) -> Callable[[Any], Any] | None:
    """What turns a value into one that Arrow takes for the wire form of the type; None if nothing is to do."""
    if isinstance(dtype, T.ArrayType):
        element = _python_form(dtype.elementType)
        if element is None:
            return None
        return lambda items: [x if x is None else element(x) for x in items]
    if isinstance(dtype, T.MapType):
        key, value = _python_form(dtype.keyType) or _same, _python_form(dtype.valueType) or _same
        return lambda pairs: [
            (key(k), v if v is None else value(v)) for k, v in (pairs.items() if isinstance(pairs, dict) else pairs)
        ]
    if isinstance(dtype, T.StructType):
        return _struct_form(dtype)
    return no_value if isinstance(dtype, T.NullType) else None


def _same(value: Any) -> Any:
    return value


def no_value(value: Any) -> None:
    """What becomes of a value in a `void` column: a NaN, which is pandas' null, or an error."""
    if value == value:
        raise ValueError("a void column holds nulls alone")


def _struct_form(dtype: T.StructType) -> Callable[[Any], Any]:
    names = dtype.names
    fields = [_python_form(f.dataType) or _same for f in dtype.fields]

    def convert(value: Any) -> Any:
        if isinstance(value, Row) and hasattr(value, "__fields__"):
            value = value.asDict()
        if isinstance(value, dict):
            value = [value.get(name) for name in names]
        elif not isinstance(value, tuple) or len(value) != len(names):
            raise ValueError(f"a struct of {', '.join(names)} is a Row, a dict or a tuple of {len(names)} values")
        return tuple([x if x is None else field(x) for field, x in zip(fields, value)])

    return convert
