"""The map side: rows become payloads, one Arrow stream per shard and flush.

Owns: what all functions that Spark runs in `mapInArrow` to make payloads have in common; the schema of payload rows,
the schema of batches for Rust.
Does not own: those functions (`aggregates.split`, `aggregates.seed`, `processor.row_split`); grouping, hashing and
buffering (the Rust splitter); which task gets which shard (Spark's shuffle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.spark import settings, starts, versions
from fastchangelog.spark.shard_ids import shard_ids
from fastchangelog.spark.task import ArrowFunction, freeze_modules, local_property

__all__ = [
    "WATERMARK_DELAY",
    "PayloadSplit",
    "Splitting",
    "payload_rows",
    "payload_type",
    "shaped",
    "watermark_of",
]

WATERMARK_DELAY = "spark.watermarkDelayMs"

#: Payloads of shards. Of a splitter: what takes a batch, and what ends it.
_Payloads: TypeAlias = list[tuple[int, bytes]]
Splitting: TypeAlias = tuple[Callable[[pa.RecordBatch], _Payloads], Callable[[], _Payloads]]

_PAYLOAD = pa.schema([("shard", pa.int32()), ("payload", pa.binary()), ("event_time", pa.timestamp("us"))])


def payload_type(watermark_millis: int | None) -> T.StructType:
    """The schema of payload rows. `event_time` is always null, so that Spark drops no payload as late; it carries
    the input's watermark delay, so that watermarks go on behind the split."""
    metadata = None if watermark_millis is None else {WATERMARK_DELAY: watermark_millis}
    return T.StructType(
        [
            T.StructField("shard", T.IntegerType()),
            T.StructField("payload", T.BinaryType()),
            T.StructField("event_time", T.TimestampNTZType(), True, metadata),
        ]
    )


def watermark_of(schema: T.StructType) -> int | None:
    """The delay of the input's watermark, which Spark keeps in the metadata of its event time column."""
    delays = [f.metadata[WATERMARK_DELAY] for f in schema.fields if WATERMARK_DELAY in f.metadata]
    return int(delays[0]) if delays else None


class PayloadSplit(ArrowFunction):
    """Base of the functions for `mapInArrow` that make payloads: picklable, the same for every task."""

    def __init__(self, options: Mapping[str, str], payload_bytes: int, partitions: int, *, streaming: bool = False):
        self._max_parallelism = settings.count_option(options, "max_parallelism")
        self._payload_bytes = payload_bytes
        self._partitions = partitions
        self._streaming = streaming

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        starts.check_task(local_property)
        if self._streaming:  # else rows would go to the shards of another number of partitions
            settings.check_settings(local_property)
        shards = settings.partitions_of_task(local_property, self._partitions)
        groups = self._max_parallelism or _internal.default_max_parallelism(shards)
        row_bytes = settings.payload_row_bytes(local_property, versions.PYSPARK)
        push, finish = self._splitter(shards, groups, self._payload_bytes, row_bytes)
        ids = shard_ids(shards)
        for batch in batches:
            if batch.num_rows:
                yield from payload_rows(push(batch), ids)
        if self._opens_all_shards():
            yield from payload_rows([(shard, b"") for shard in range(shards)], ids)
        _internal.failpoint("split.finish")
        yield from payload_rows(finish(), ids)
        freeze_modules("split")

    def _splitter(self, shards: int, groups: int, payload_bytes: int, row_bytes: int | None) -> Splitting:
        """What takes the batches of a task, and what ends them."""
        raise NotImplementedError

    def _opens_all_shards(self) -> bool:
        """True if this task sends each shard an empty payload, so that Spark calls also those without rows."""
        return False


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema: Spark's own has the session's time zone, and other names."""
    columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def payload_rows(payloads: _Payloads, ids: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
    """Payload rows for Spark; `ids` are the ids of the shards."""
    # One row a batch: payloads are large, and Spark keeps a whole batch in memory on both sides.
    for shard, payload in payloads:
        yield pa.RecordBatch.from_arrays(
            [pa.array([ids[shard]], pa.int32()), pa.array([payload], pa.binary()), pa.nulls(1, _PAYLOAD.field(2).type)],
            schema=_PAYLOAD,
        )
