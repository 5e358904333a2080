"""Keys with both zeros among the rows that the core reads.

Owns: the search. Does not own: the refusal of such a state (`spark/test_import_state`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from fastchangelog.spark.checkpoint.stored_rows import CoreRows
from fastchangelog.spark.processor.imported_zeros import key_of_both_zeros

NESTED = pa.struct([("a", pa.float32()), ("b", pa.list_(pa.struct([("c", pa.float64())])))])


class Stored:
    """Rows in two batches."""

    def __init__(self, keys: list[Any], dtype: pa.DataType) -> None:
        middle = len(keys) // 2
        self._parts = [keys[:middle], keys[middle:]]
        self._type = pa.struct([("k", dtype)])

    def all_batches(self) -> Iterator[pa.RecordBatch]:
        """As `CoreRows.all_batches`."""
        for part in self._parts:
            yield pa.RecordBatch.from_arrays([pa.array([{"k": key} for key in part], self._type)], ["key"])


@pytest.mark.parametrize(
    ("keys", "dtype", "shown"),
    [
        ([0.0, 1.0, None, float("nan"), float("nan")], pa.float64(), None),
        ([-0.0, 1.0, None, float("nan")], pa.float64(), None),
        ([-0.0, 1.0, None, 0.0], pa.float64(), "-0.0"),
        ([{"a": 1.0, "b": [{"c": 0.0}]}, {"a": 1.0, "b": [{"c": -0.0}]}], NESTED, "1.0, 0.0"),
        ([{"a": 1.0, "b": [{"c": 0.0}, None]}, {"a": 1.0, "b": [{"c": -0.0}]}, None], NESTED, None),
        ([{"a": -0.0, "b": None}, {"a": 0.0, "b": []}], NESTED, None),
    ],
)
def test_a_key_with_both_zeros_is_found(keys: list[Any], dtype: pa.DataType, shown: str | None) -> None:
    assert key_of_both_zeros(cast("CoreRows", Stored(keys, dtype))) == shown
