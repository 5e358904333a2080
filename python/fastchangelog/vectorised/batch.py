"""The rows of whole keys, as a vectorised processor gets them.

Owns: `Batch`, and joining a key that goes on over several chunks.
Does not own: sorting rows by key (the Rust grouper), states and aggregates (`fastchangelog.state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.functions import Aggregate
from fastchangelog.state.aggregates import Aggregates
from fastchangelog.vectorised.chunks import RowChunkLike

__all__ = ["Batch", "whole_keys"]


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

    def __init__(
        self, keys: pa.StructArray, rows: pa.RecordBatch, offsets: pa.Int64Array, *, ansi: bool = True
    ) -> None:
        self.keys = keys
        """The distinct keys, structs of the grouping columns."""
        self.rows = rows
        """The rows, key by key; those of one key in the order in which they arrived."""
        self.offsets = offsets
        """The rows of key ``i`` are those from ``offsets[i]`` to before ``offsets[i + 1]``."""
        self._ansi = ansi

    @property
    def row_keys(self) -> pa.StructArray:
        """The key of each row.

        Example:
            >>> import pyarrow as pa
            >>> rows = pa.RecordBatch.from_pydict({"k": ["a", "a"]})
            >>> Batch(pa.array([{"k": "a"}]), rows, pa.array([0, 2], pa.int64())).row_keys.to_pylist()
            [{'k': 'a'}, {'k': 'a'}]
        """
        return self.keys.take(pa.array(self._numbers()))

    def lists(self, column: str) -> pa.ListArray:
        """A column of the rows as one list for each key; nulls are left out.

        Args:
            column: Its name.

        Returns:
            Lists of the values of each key's rows, in their order.

        Raises:
            InvalidArgumentError: There is no such column.

        Example:
            >>> import pyarrow as pa
            >>> keys = pa.array([{"k": "a"}, {"k": "b"}])
            >>> rows = pa.RecordBatch.from_pydict({"k": ["a", "a", "b"], "v": [1, 2, None]})
            >>> Batch(keys, rows, pa.array([0, 2, 3], pa.int64())).lists("v").to_pylist()
            [[1, 2], []]
        """
        if column not in self.rows.schema.names:
            raise InvalidArgumentError(
                f"rows have no column `{column}`; they have: {', '.join(self.rows.schema.names)}"
            )
        values = self.rows[column]
        kept = np.concatenate([[0], np.cumsum(values.is_valid().to_numpy(zero_copy_only=False))])
        return pa.ListArray.from_arrays(pa.array(kept[np.asarray(self.offsets)], pa.int32()), values.drop_null())

    def aggregate(self, **named: Aggregate) -> pa.RecordBatch:
        """Aggregates the rows of each key.

        Results, types, null rules and overflow are those of ``grouped(…).agg(…)``, with the ANSI mode of the session.

        Args:
            **named: Aggregates by the name of their result; any function, with ``where=`` as a text.

        Returns:
            One row for each key, in the order of `keys`; a column for each aggregate.

        Raises:
            InvalidArgumentError: An aggregate does not fit the rows, or a result overflows in ANSI mode.

        Example:
            >>> import pyarrow as pa
            >>> import fastchangelog as fc
            >>> keys = pa.array([{"k": "a"}, {"k": "b"}])
            >>> rows = pa.RecordBatch.from_pydict({"k": ["a", "a", "b"], "v": [1, 2, None]})
            >>> batch = Batch(keys, rows, pa.array([0, 2, 3], pa.int64()))
            >>> batch.aggregate(n=fc.count(), mean=fc.avg("v"), total=fc.sum("v", where="v > 1")).to_pylist()
            [{'n': 2, 'mean': 1.5, 'total': 2}, {'n': 1, 'mean': None, 'total': None}]
        """
        if not named:
            raise InvalidArgumentError("aggregate() takes aggregates by the name of their result, such as n=fc.count()")
        rows = self.rows.to_struct_array()
        results = Aggregates(rows.type, named, ansi=self._ansi).of_groups(len(self.keys), self._numbers(), rows)
        return pa.RecordBatch.from_struct_array(results)

    def _numbers(self) -> Any:
        """The number of each row's key, as an array of numpy."""
        counts = np.diff(np.asarray(self.offsets))
        return np.repeat(np.arange(len(counts), dtype=np.uint32), counts)


def whole_keys(chunks: Iterable[RowChunkLike]) -> Iterator[tuple[pa.BinaryArray, pa.RecordBatch, pa.Int64Array]]:
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
