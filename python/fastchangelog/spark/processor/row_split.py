"""The map side of a stateful processor: rows become payloads as they are, one Arrow stream per shard and flush.

Owns: the function that Spark runs in `mapInArrow`, and the heartbeats.
Does not own: hashing and buffering (the Rust splitter), the schema of payload rows and the split of an aggregation
(`spark.split`), which columns travel (`stream`).

The operator sees what Spark's operator calls per key as calls per shard. An empty payload, a heartbeat, calls it for a
shard without rows: a shard that Spark never calls can neither keep the watermark of the batch before nor take its part
of a savepoint or of the initial state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyspark

from fastchangelog import _internal
from fastchangelog.errors import raise_one_line
from fastchangelog.spark import settings, starts
from fastchangelog.spark.shard_ids import shard_ids
from fastchangelog.spark.split import payload_rows, shaped
from fastchangelog.spark.task import VersionChecked, freeze_modules, is_first, is_first_partition, local_property

__all__ = ["RowSplit"]


class RowSplit(VersionChecked):
    """The function for `mapInArrow`: picklable, the same for every task.

    The first `keys` columns of `input` are the key.
    """

    def __init__(
        self,
        keys: int,
        input: pa.Schema,
        options: Mapping[str, str],
        payload_bytes: int,
        partitions: int,
        *,
        heartbeats: bool,
        first_heartbeat: bool,
    ):
        self._keys = keys
        self._input = input
        self._max_parallelism = int(options.get("max_parallelism", "0"))
        self._payload_bytes = payload_bytes
        self._partitions = partitions
        self._heartbeats = heartbeats
        self._first_heartbeat = first_heartbeat

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._run(batches)
        except Exception as error:
            raise_one_line(error)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        starts.check_task(local_property)
        shards = settings.partitions_of_task(local_property, self._partitions)
        ids = shard_ids(shards)
        groups = self._max_parallelism or _internal.default_max_parallelism(shards)
        row_bytes = settings.payload_row_bytes(local_property, pyspark.__version__)
        splitter = _internal.RowSplitter(self._keys, self._input, shards, groups, self._payload_bytes, row_bytes)
        for batch in batches:
            if batch.num_rows:
                yield from payload_rows(splitter.push(shaped(batch, self._input)), ids)
        if (self._heartbeats and is_first_partition()) or (self._first_heartbeat and is_first()):
            yield from payload_rows([(shard, b"") for shard in range(shards)], ids)
        _internal.failpoint("split.finish")
        yield from payload_rows(splitter.finish(), ids)
        freeze_modules("split")
