"""Accumulators from the state of Spark's own aggregation, as the core reads it in the tasks of a job.

Owns: the conversion of Spark's columns to those of accumulators, and the function that runs it.
Does not own: which column is which accumulator's (`seed`), reading rows (`checkpoint.stored_rows`), payloads (`split`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog import _internal
from fastchangelog.spark.checkpoint.stored_rows import CoreRows
from fastchangelog.spark.task import ArrowFunction

if TYPE_CHECKING:
    from fastchangelog.spark.split import PayloadSplit

__all__ = ["StoredSplit", "Taken"]

#: Larger whole numbers are not all doubles.
_EXACT = 2.0**53


@dataclasses.dataclass(frozen=True)
class Collected:
    """Values in bytes of Spark's own."""

    #: The fields of the rows in them.
    fields: pa.Schema
    #: The type of the column that they make.
    type: pa.DataType
    #: Which field of values with counts is taken; None for values alone.
    field: int | None = None

    def of(self, column: pa.Array) -> pa.Array:
        """Lists of the values."""
        found = _internal.spark_collected(column, self.fields, self.field is not None)
        values = found.values if self.field is None else found.values.field(self.field)
        wanted = self.type.value_type
        if pa.types.is_list(values.type) and pa.types.is_binary(wanted):  # bytes one by one
            values = pa.Array.from_buffers(
                pa.binary(), len(values), [None, values.buffers()[1], values.values.buffers()[1]], offset=values.offset
            )
        elif pa.types.is_nested(wanted) or (pa.types.is_integer(values.type) and pa.types.is_floating(wanted)):
            # Fields without names, and the bits of numbers.
            values = values.view(wanted)
        return pa.ListArray.from_arrays(found.offsets, values)


@dataclasses.dataclass(frozen=True)
class Taken:
    """What is taken of a column of Spark's value."""

    at: int
    #: The decimal of which the column has the digits without the point; None: the column as it is.
    digits_of: pa.DataType | None = None
    #: Whether it is null, and not the column itself.
    is_null: bool = False
    #: Whether it is not null, and not the column itself.
    is_set: bool = False
    #: The values that its bytes hold, and not the column itself.
    collected: Collected | None = None
    #: So many columns from it on are words of one accumulator; 0: one column is.
    words: int = 0

    def of(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The column of an accumulator."""
        column = columns[self.at]
        if self.collected is not None:
            return self.collected.of(column)
        if self.words:
            return _joined_words(columns[self.at : self.at + self.words])
        if self.is_null:
            return column.is_null()
        if self.is_set:
            return column.is_valid()
        return column if self.digits_of is None else _decimals(column, self.digits_of)


def _joined_words(columns: Sequence[pa.Array]) -> pa.Array:
    """The words of each row, one after the other.

    >>> _joined_words([pa.array([1, 2]), pa.array([3, 4])])[0].as_py()[::8]
    b'\\x01\\x03'
    """
    words = np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1).astype("<i8")
    width = pa.binary(words.shape[1] * 8)
    return pa.Array.from_buffers(width, len(words), [None, pa.py_buffer(words.tobytes())]).cast(pa.binary())


def _decimals(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Decimals from their digits without the point, in whole numbers or in doubles.

    >>> _decimals(pa.array([125, None]), pa.decimal128(17, 2))[0].as_py()
    Decimal('1.25')
    >>> _decimals(pa.array([-125.0, 1e22]), pa.decimal128(27, 2)).to_pylist()
    [Decimal('-1.25'), Decimal('100000000000000000000.00')]
    """
    digits = pa.decimal128(38, 0)
    if pa.types.is_floating(column.type):
        known = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        if np.all(np.abs(known) < _EXACT):
            column = pc.if_else(column.is_valid(), pa.array(known.astype(np.int64)), None)
        else:  # Spark takes the digits that a double is written with
            column = pa.array([None if x is None else Decimal(repr(x)).quantize(1) for x in column.to_pylist()], digits)
    whole = column.cast(digits)
    moved = pa.Array.from_buffers(pa.decimal128(38, dtype.scale), len(whole), whole.buffers(), offset=whole.offset)
    return moved.cast(dtype)


class StoredSplit(ArrowFunction):
    """The function for `mapInArrow` over numbers of partitions: payloads of the accumulators in them."""

    def __init__(
        self,
        rows: CoreRows,
        keys: Sequence[tuple[int, str | None]],
        taken: Sequence[Taken],
        split: PayloadSplit,
        keys_in_value: int = 0,
    ):
        """`keys`: each column in which the state keeps a key, or a field of one; `keys_in_value` as of `StoredRows`."""
        self._rows = rows
        self._keys_in_value = keys_in_value
        self._keys = tuple(keys)
        self._taken = tuple(taken)
        self._split = split

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = self._rows.state.opened(batches)
        return self._split(self._accumulators(batch) for state in opened for batch in self._rows.batches(state))

    def _accumulators(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, values = batch.column(0).flatten(), batch.column(1).flatten()
        if self._keys_in_value:
            keys, values = values[: self._keys_in_value], values[self._keys_in_value :]
        kept = [keys[i] if field is None else pc.struct_field(keys[i], field) for i, field in self._keys]
        columns = [*kept, *(taken.of(values) for taken in self._taken)]
        return pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])
