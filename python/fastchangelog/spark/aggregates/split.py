"""The map side of an aggregation: rows become accumulators, one Arrow stream per shard and flush.

Owns: the function that Spark runs in `mapInArrow`.
Does not own: what all such functions share (`spark.split`), grouping and buffering (the Rust splitter).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.spark.split import PayloadSplit, Splitting, shaped
from fastchangelog.spark.task import is_first, is_first_partition

__all__ = ["Split"]


class Split(PayloadSplit):
    """The split of an aggregation: accumulators of each task's rows."""

    def __init__(
        self,
        spec: str,
        input: pa.Schema,
        options: Mapping[str, str],
        payload_bytes: int,
        partitions: int,
        *,
        streaming: bool = False,
        opens_all_shards: bool = False,
        heartbeats: bool = False,
    ):
        super().__init__(options, payload_bytes, partitions, streaming=streaming)
        self._spec = spec
        self._input = input
        #: In each batch, since shards without rows return rows, too.
        self._heartbeats = heartbeats
        #: In the first batch, for the parts of a savepoint or of an initial state.
        self._opens = opens_all_shards or bool(options.get("start_from"))

    def _splitter(self, shards: int, groups: int, payload_bytes: int, row_bytes: int | None) -> Splitting:
        splitter = _internal.Splitter(self._spec, shards, groups, payload_bytes, row_bytes)
        return lambda batch: splitter.push(shaped(batch, self._input)), splitter.finish

    def _opens_all_shards(self) -> bool:
        if not self._streaming:
            return False
        return (self._opens and is_first()) or (self._heartbeats and is_first_partition())
