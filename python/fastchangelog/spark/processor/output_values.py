"""What Rows and frames have in common when user code yields them.

Owns: the output's schema, how large a batch becomes, one walk from values of Python to those that Arrow takes, and what
is refused of all of them: nulls where none is allowed, and values in a `void` column.
Does not own: Rows (`rows.output`), pandas frames (`frames.output`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.spark.processor.held_values import is_changeable
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.scalars import Convert
from fastchangelog.spark.types.values import same
from fastchangelog.spark.types.walk import fold, parts

__all__ = ["BATCH_BYTES", "Convert", "Output", "check_nulls", "cut", "form_of", "no_value", "output_schema"]

#: Rows of the first batch, most rows of one, and the bytes that one aims at.
_FIRST_ROWS = 256
_MOST_ROWS = 8192
BATCH_BYTES = 4 * 1024 * 1024


def output_schema(struct: T.StructType) -> pa.Schema:
    """The Arrow schema of an output in its wire form."""
    return wire.wire_schema(struct, "the output")


class Output:
    """What user code has yielded and is no batch yet."""

    def __init__(self, struct: T.StructType) -> None:
        self._names: list[str] = struct.names
        self._schema = output_schema(struct)
        #: For the columns that allow no null somewhere.
        self._not_null = [f if forbids_null(f) else None for f in struct.fields]
        #: Whether a value of a column may be changed after it was yielded.
        self._is_changeable = [is_changeable(f.dataType) for f in struct.fields]
        #: What was taken: Rows, or for each frame its columns in the order of the schema.
        self.pending: list[Any] = []
        self._most_rows = _FIRST_ROWS
        self._bytes = 0

    def _adapt(self, batch: pa.RecordBatch) -> None:
        """Sets the most rows of the next batch, by the bytes of this one."""
        each = max(batch.nbytes // max(batch.num_rows, 1), 1)  # without columns a batch has no rows
        self._most_rows = max(min(self._most_rows * 4, _MOST_ROWS, BATCH_BYTES // each), 1)


def forbids_null(field: T.StructField) -> bool:
    """True if the field, or a part of it, is to hold no null."""
    return not field.nullable or any(map(forbids_null, parts(field.dataType)))


def check_nulls(array: pa.Array, field: T.StructField, path: str = "") -> None:
    """Refuses a null where the field, or a part of it, allows none: behind Python it is a failure without a name."""
    path = f"{path}.{field.name}" if path else field.name
    if not field.nullable and array.null_count:
        raise ValueError(f"`{path}` allows no null")
    inner_fields = parts(field.dataType)
    if not any(map(forbids_null, inner_fields)):
        return
    inner = array.drop_null() if array.null_count else array
    if not isinstance(field.dataType, T.StructType):
        inner = inner.flatten()
    columns = [inner] if isinstance(field.dataType, T.ArrayType) else inner.flatten()
    for column, part in zip(columns, inner_fields, strict=True):
        check_nulls(column, part, path)


def no_null(key: Any) -> Any:
    """The key of a map, or an error: with a null key Arrow ends the process."""
    if key is None:
        raise ValueError("a key of a map is null")
    return key


def no_value(value: Any) -> None:
    """What becomes of a value in a `void` column: a null of pandas, or an error."""
    if type(value).__name__ != "NAType" and value == value:
        raise ValueError("a void column holds nulls alone")


def cut(text: str) -> str:
    """The text of a value as errors show it."""
    text = " ".join(text.split()) if "\n" in text else text  # of a frame or an array
    return text if len(text) <= 200 else f"{text[:197]}..."


def form_of(
    dtype: T.DataType,
    atomic: Callable[[T.DataType], Convert | None],
    array: Convert | None,
    pairs: Callable[[Any], Any],
    fields: Callable[[Any, Sequence[str]], Sequence[Any]],
) -> Convert | None:
    """What turns a value into one that Arrow takes for the wire form of the type; None if nothing is to do.

    Args:
        dtype: The type.
        atomic: The same for atomic types.
        array: For an array whose elements stay as they are.
        pairs: The entries of a value of a map.
        fields: The fields of a value of a struct, by their names.
    """

    def of_array(_: T.ArrayType, element: Convert | None) -> Convert | None:
        return array if element is None else lambda items: [x if x is None else element(x) for x in items]

    def of_map(_: T.MapType, key: Convert | None, value: Convert | None) -> Convert:
        to_key, to_value = key or same, value or same
        return lambda given: [(to_key(no_null(k)), v if v is None else to_value(v)) for k, v in pairs(given)]

    def of_struct(dtype: T.StructType, made: list[Convert | None]) -> Convert:
        names, converts = dtype.names, [convert or same for convert in made]
        return lambda given: tuple([x if x is None else to(x) for to, x in zip(converts, fields(given, names))])

    return fold(dtype, atomic, of_array, of_map, of_struct)
