"""Rows of a batch in chunks of whole keys.

Owns: the shape of a chunk and of what makes chunks, and the order of rows by key.
Does not own: sorting the rows of a shard (the Rust grouper), what user code sees of them (`batch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["GroupedRows", "RowChunkLike", "by_key"]


class RowChunkLike(Protocol):
    """Rows of whole keys in the order of their canonical bytes, or a part of one key; `_internal.RowChunk` is one."""

    @property
    def rows(self) -> pa.RecordBatch:
        """All columns, the key first."""

    @property
    def keys(self) -> pa.BinaryArray:
        """The distinct keys."""

    @property
    def offsets(self) -> pa.Int64Array:
        """The rows of key `i` are `offsets[i]` to `offsets[i + 1]`."""

    @property
    def continues(self) -> bool:
        """The first key is the last one of the chunk before."""

    @property
    def more(self) -> bool:
        """The last key goes on in the next chunk."""


class GroupedRows(Protocol):
    """All rows of a batch, sorted by key; `_internal.RowGrouper` is one."""

    def finish(self, chunk_rows: int, chunk_bytes: int) -> Iterable[RowChunkLike]:
        """The rows in chunks of about so many rows and bytes at most."""


def by_key(encoded: pa.BinaryArray) -> tuple[pa.Array, Any, Any]:
    """The order by keys, in which equal ones keep theirs, the first row of each key in it, and offsets of keys.

    >>> [part.tolist() for part in by_key(pa.array([b"b", b"a", b"b"]))[1:]]
    [[0, 1], [0, 1, 3]]
    """
    order = pc.sort_indices(encoded)  # a stable sort
    ordered = encoded.take(order)
    changes = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.concatenate([np.ones(min(len(ordered), 1), bool), np.asarray(changes, bool)]))
    return order, starts, np.append(starts, len(ordered))
