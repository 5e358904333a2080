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

    `keys` is the schema of the first columns in their wire form. The others travel with the types that Spark writes.
    """

    def __init__(
        self,
        keys: pa.Schema,
        options: Mapping[str, str],
        payload_bytes: int,
        partitions: int,
        *,
        heartbeats: bool,
        first_heartbeat: bool,
    ):
        self._keys = keys
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
        splitter: _internal.RowSplitter | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            schema = self._schema(batch.schema)
            if splitter is None:
                groups = self._max_parallelism or _internal.default_max_parallelism(shards)
                row_bytes = settings.payload_row_bytes(local_property, pyspark.__version__)
                splitter = _internal.RowSplitter(
                    len(self._keys), schema, shards, groups, self._payload_bytes, row_bytes
                )
            yield from payload_rows(splitter.push(shaped(batch, schema)), ids)
        if (self._heartbeats and is_first_partition()) or (self._first_heartbeat and is_first()):
            yield from payload_rows([(shard, b"") for shard in range(shards)], ids)
        _internal.failpoint("split.finish")
        if splitter is not None:
            yield from payload_rows(splitter.finish(), ids)
        freeze_modules("split")

    def _schema(self, found: pa.Schema) -> pa.Schema:
        """The schema of payloads: keys with exactly their wire types, all else as Spark wrote it.

        Columns have numbers for names: users' names may repeat, and Spark's metadata is of no use behind the split.
        """
        types = [field.type for field in self._keys] + [field.type for field in list(found)[len(self._keys) :]]
        return pa.schema([pa.field(str(i), type) for i, type in enumerate(types)])
