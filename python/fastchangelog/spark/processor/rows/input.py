"""Rows of a chunk as user code of the Row API has them.

Owns: the Rows and the keys of a chunk, made column by column.
Does not own: values (`types.values`), pandas frames (`frames.input`), which rows belong to which call (`feed`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from fastchangelog.spark.types.columns import Values, of_column
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.values import row_values

__all__ = ["KeyMaker", "RowMaker", "RowParts", "has_nan"]


class RowMaker:
    """Makes Rows of a schema from columns in their wire form."""

    def __init__(self, struct: T.StructType, columns: Sequence[int], timezone: str) -> None:
        self._columns = columns
        self._values = [of_column(f, row_values(f.dataType, timezone)) for f in struct.fields]
        self._row = row_class(struct.names)

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """All rows of a batch."""
        columns = [values(batch.column(i)) for values, i in zip(self._values, self._columns)]
        return list(map(self._row, zip(*columns))) if columns else [self._row(())] * batch.num_rows


class RowParts:
    """Rows of the Row API."""

    def __init__(self, maker: RowMaker) -> None:
        self._maker = maker
        self._rows: list[Row] = []

    def load(self, batch: pa.RecordBatch) -> None:
        """See `feed.Parts`."""
        self._rows = self._maker.rows(batch)

    def part(self, start: int, end: int) -> Iterator[Any]:
        """See `feed.Parts`."""
        return iter(self._rows[start:end])

    def joined(self, batches: Iterator[pa.RecordBatch]) -> Generator[Any, None, None]:
        """See `feed.Parts`."""
        for batch in batches:
            yield from self._maker.rows(batch)


class KeyMaker:
    """Makes the tuples that `handleInputRows` has as keys, for either API."""

    def __init__(
        self, struct: T.StructType, timezone: str, values: Callable[[T.DataType, str], Values] = row_values
    ) -> None:
        self._values = [of_column(f, values(f.dataType, timezone), "key") for f in struct.fields]

    def keys(self, array: pa.StructArray) -> list[tuple[Any, ...]]:
        """Keys from an array of their columns."""
        return list(zip(*[values(column) for values, column in zip(self._values, array.flatten())]))


def has_nan(value: Any) -> bool:
    """True if there is a NaN in a key: Spark's workers then take each row for a group of its own.

    >>> has_nan((1.0, {"x": float("nan")})), has_nan((1.0, "x"))
    (True, False)
    """
    if isinstance(value, (tuple, list)):
        return any(map(has_nan, value))
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    if isinstance(value, np.ndarray):  # an array in a key of the pandas API
        return any(map(has_nan, value.tolist()))
    return value != value  # type: ignore[no-any-return]
