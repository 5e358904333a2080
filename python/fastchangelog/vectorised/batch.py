"""The rows of whole keys, as a vectorised processor gets them.

Owns: `Batch`, and joining a key that goes on over several chunks.
Does not own: sorting rows by key (the Rust grouper), states (`value_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError

__all__ = ["Batch", "Chunk", "whole_keys"]


class Batch:
    """One chunk of a shard's micro-batch: all rows of its keys.

    Example:
        >>> import pyarrow as pa
        >>> keys = pa.array([{"k": "a"}, {"k": "b"}])
        >>> rows = pa.RecordBatch.from_pydict({"k": ["a", "a", "b"], "v": [1, 2, 3]})
        >>> batch = Batch(keys, rows, pa.array([0, 2, 3], pa.int64()))
        >>> batch.keys.field("k").to_pylist(), batch.rows["v"].to_pylist(), batch.offsets.to_pylist()
        (['a', 'b'], [1, 2, 3], [0, 2, 3])
    """

    def __init__(self, keys: pa.StructArray, rows: pa.RecordBatch, offsets: pa.Int64Array) -> None:
        self.keys = keys
        """The distinct keys, structs of the grouping columns."""
        self.rows = rows
        """The rows, key by key; those of one key in the order in which they arrived."""
        self.offsets = offsets
        """The rows of key ``i`` are those from ``offsets[i]`` to before ``offsets[i + 1]``."""


class Chunk(Protocol):
    """Rows of whole keys, or a part of one key; `_internal.RowChunk` is one."""

    @property
    def rows(self) -> pa.RecordBatch:
        """All columns, the key first."""

    @property
    def keys(self) -> pa.BinaryArray:
        """The bytes of the distinct keys."""

    @property
    def offsets(self) -> pa.Int64Array:
        """Where the rows of each key begin and end."""

    @property
    def more(self) -> bool:
        """The last key goes on in the next chunk."""


def whole_keys(chunks: Iterable[Chunk]) -> Iterator[tuple[pa.BinaryArray, pa.RecordBatch, pa.Int64Array]]:
    """Keys, rows and offsets of all chunks; the parts of a key are joined."""
    held: list[pa.RecordBatch] = []
    for chunk in chunks:
        keys, rows, offsets = chunk.keys, chunk.rows, np.asarray(chunk.offsets)
        if held and chunk.more and len(keys) == 1:
            held.append(rows)
            continue
        if held:
            before = sum(part.num_rows for part in held)
            rows = _joined([*held, rows])
            offsets = np.concatenate([offsets[:1], offsets[1:] + before])
            held = []
        if chunk.more:
            held = [rows.slice(int(offsets[-2]))]
            rows, keys, offsets = rows.slice(0, int(offsets[-2])), keys[:-1], offsets[:-1]
        if len(keys):
            yield keys, rows, pa.array(offsets, pa.int64())


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    table: Any = pa.Table.from_batches(parts).combine_chunks()
    batches = table.to_batches(max_chunksize=max(table.num_rows, 1))
    if len(batches) != 1:
        raise InvalidArgumentError(
            f"the {table.num_rows} rows of one key have more than 2 GiB in a column; write the processor for "
            "transformWithState(), which reads them one by one"
        )
    return batches[0]
