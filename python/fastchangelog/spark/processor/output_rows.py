"""Rows that user code yields, as Arrow batches of the output's schema.

Owns: the conversion of Rows by column, by name; what it refuses, with the column and the row.
Does not own: pandas frames (`output_frames`), when rows are yielded (`run`).

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
from fastchangelog.spark import wire_types
from fastchangelog.spark.processor.held_values import held, held_bytes, is_changeable

__all__ = ["OutputRows", "check_nulls", "forbids_null", "no_null", "no_value", "output_schema"]

#: Rows of the first batch, most rows of one, and the bytes that one aims at.
_FIRST_ROWS = 256
_MOST_ROWS = 8192
_BATCH_BYTES = 4 * 1024 * 1024
#: So many rows are measured at once.
_MEASURED_ROWS = 32
#: What a Row has most of, and is small.
_SMALL = {int, float, bool, type(None)}

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
        #: For the columns that allow no null somewhere.
        self._not_null = [f if forbids_null(f) else None for f in struct.fields]
        #: The rows that were taken; `append` takes one.
        self.pending: list[Any] = []
        keeps = any(is_changeable(f.dataType) for f in struct.fields)
        self.append: Callable[[Any], None] = self._append_held if keeps else self.pending.append
        #: With so many rows a batch may be full.
        self.limit = _MEASURED_ROWS
        self._most_rows = _FIRST_ROWS
        self._measured = self._bytes = 0

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
        return self._measured >= self._most_rows or self._bytes >= _BATCH_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that were taken."""
        rows = list(self.pending)
        self.pending.clear()
        self._measured = self._bytes = 0
        for names, run in itertools.groupby(rows, _names):
            batch = self._batch(list(run), names)
            each = max(batch.nbytes // max(batch.num_rows, 1), 1)  # without columns a batch has no rows
            self._most_rows = max(min(self._most_rows * 4, _MOST_ROWS, _BATCH_BYTES // each), 1)
            self.limit = min(_MEASURED_ROWS, self._most_rows)
            yield batch

    def _batch(self, rows: Sequence[Row], names: Sequence[str]) -> pa.RecordBatch:
        """Rows with these names."""
        width = len(names)
        if set(map(len, rows)) != {width}:
            # A row with fewer values than names: those at the end are missing.
            rows = [tuple(row)[:width] + (None,) * (width - len(row)) for row in rows]  # type: ignore[misc]
        if not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(
                f"the names of a Row are texts, as in Row(n=1); {_cut(repr(rows[0]))} has others"
            )
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
            except _FAILURES as error:
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
            except _FAILURES as reason:
                why = " ".join(str(reason).split())
                return InvalidArgumentError(
                    f"output column `{field.name}` of type {field.type}: {_cut(repr(value))} of {_cut(repr(row))} does "
                    f"not fit: {why}"
                )
        return InvalidArgumentError(
            f"output column `{field.name}` of type {field.type}: {' '.join(str(error).split())}"
        )


def forbids_null(field: T.StructField) -> bool:
    """True if the field, or a part of it, is to hold no null."""
    return not field.nullable or any(map(forbids_null, _parts(field.dataType)))


def check_nulls(array: pa.Array, field: T.StructField, path: str = "") -> None:
    """Refuses a null where the field, or a part of it, allows none: behind Python it is a failure without a name."""
    path = f"{path}.{field.name}" if path else field.name
    if not field.nullable and array.null_count:
        raise ValueError(f"`{path}` allows no null")
    parts = _parts(field.dataType)
    if not any(map(forbids_null, parts)):
        return
    inner = array.drop_null() if array.null_count else array
    if not isinstance(field.dataType, T.StructType):
        inner = inner.flatten()
    columns = [inner] if isinstance(field.dataType, T.ArrayType) else inner.flatten()
    for column, part in zip(columns, parts, strict=True):
        check_nulls(column, part, path)


def _parts(dtype: T.DataType) -> list[T.StructField]:
    if isinstance(dtype, T.StructType):
        return dtype.fields
    if isinstance(dtype, T.ArrayType):
        return [T.StructField("element", dtype.elementType, dtype.containsNull)]
    if isinstance(dtype, T.MapType):
        return [T.StructField("key", dtype.keyType), T.StructField("value", dtype.valueType, dtype.valueContainsNull)]
    return []


def _converted(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [value if value is None else convert(value) for value in values]


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
        return lambda pairs: [(key(no_null(k)), v if v is None else value(v)) for k, v in _pairs(pairs)]
    if isinstance(dtype, T.StructType):
        return _struct_form(dtype)
    return no_value if isinstance(dtype, T.NullType) else None


def _same(value: Any) -> Any:
    return value


def _pairs(value: Any) -> Any:
    """The entries of a map; a Row inside of a row is one, as in PySpark."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        value = value.asDict()
    return value.items() if isinstance(value, dict) else value


def no_null(key: Any) -> Any:
    """The key of a map, or an error: with a null key Arrow ends the process."""
    if key is None:
        raise ValueError("a key of a map is null")
    return key


def no_value(value: Any) -> None:
    """What becomes of a value in a `void` column: a null of pandas, or an error."""
    if type(value).__name__ != "NAType" and value == value:
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
