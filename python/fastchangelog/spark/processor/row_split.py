"""The map side of a stateful processor: rows become payloads as they are, one Arrow stream per shard and flush.

Owns: the function that Spark runs in `mapInArrow`, and the heartbeats.
Does not own: hashing and buffering (the Rust splitter), the schema of payload rows and the split of an aggregation
(`split`), which columns travel (`stream`).

Spark calls its operator per key; here a shard is a key. A heartbeat, an empty payload, makes Spark call the operator
for a shard without rows: otherwise the shard could neither keep the previous batch's watermark nor take its part of a
savepoint or of the initial state. The first batch of a run calls all shards, so that all of them get the states that
`init` declares: a savepoint needs shards with the same states.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.spark.split import PayloadSplit, Splitting, shaped
from fastchangelog.spark.task import is_first_of_run, is_first_partition

__all__ = ["RowSplit"]


class RowSplit(PayloadSplit):
    """The split of a processor: whole rows. The first `keys` columns of `input` are the key."""

    def __init__(
        self,
        keys: int,
        input: pa.Schema,
        options: Mapping[str, str],
        payload_bytes: int,
        partitions: int,
        *,
        streaming: bool,
        heartbeats: bool,
    ):
        super().__init__(options, payload_bytes, partitions, streaming=streaming)
        self._keys = keys
        self._input = input
        self._heartbeats = heartbeats

    def _splitter(self, shards: int, groups: int, payload_bytes: int, row_bytes: int | None) -> Splitting:
        splitter = _internal.RowSplitter(self._keys, self._input, shards, groups, payload_bytes, row_bytes)
        return lambda batch: splitter.push(shaped(batch, self._input)), splitter.finish

    def _opens_all_shards(self) -> bool:
        return self._streaming and is_first_partition() and (self._heartbeats or is_first_of_run())
