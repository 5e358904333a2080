"""Keys that differ in the sign of a zero alone: two for Spark's operator, one for a processor here.

Owns: finding such keys in what the core reads.
Does not own: the refusal (`imported`), Spark's own search, where its source reads.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog.spark.checkpoint.stored_rows import CoreRows

__all__ = ["key_of_both_zeros"]


def key_of_both_zeros(rows: CoreRows) -> str | None:
    """The values of a key that is there with 0.0 and with -0.0; None if there is none.

    Two passes over the keys, of which the second is needed only if a key has -0.0; memory holds those keys.
    """
    negative = {key for batch in rows.all_batches() for key in _keys(batch.filter(_has_negative_zero(batch.column(0))))}
    if not negative:
        return None
    found = Counter(key for batch in rows.all_batches() for key in _keys(batch) if key in negative)
    twice = next((key for key, count in found.items() if count > 1), None)
    return None if twice is None else ", ".join(str(value) for value in _flat(twice))


def _keys(batch: pa.RecordBatch) -> list[Any]:
    """Keys as values that are equal where the keys are: for Python, 0.0 is -0.0."""
    return [_frozen(key) for key in batch.column(0).to_pylist()]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(_frozen(part) for part in value.values())
    if isinstance(value, list):
        return tuple(_frozen(part) for part in value)
    return "NaN" if value != value else value


def _flat(value: Any) -> list[Any]:
    return [part for whole in value for part in _flat(whole)] if isinstance(value, tuple) else [value]


def _has_negative_zero(column: pa.Array) -> pa.Array:
    """For each value whether -0.0 is anywhere in it."""
    if pa.types.is_struct(column.type):
        parts = [_has_negative_zero(part) for part in column.flatten()]
        return pa.array(np.any([part.to_numpy(zero_copy_only=False) for part in parts], axis=0))
    found = np.zeros(len(column), bool)
    if pa.types.is_list(column.type):
        parents = pc.list_parent_indices(column).to_numpy()
        found[parents[_has_negative_zero(column.flatten()).to_numpy(zero_copy_only=False)]] = True
    elif pa.types.is_floating(column.type):
        values = column.fill_null(1).to_numpy(zero_copy_only=False)
        found = np.signbit(values) & (values == 0)
    return pa.array(found)
