"""What a processor's run is given: the driver's decisions, and the shape of sessions and chunks.

Owns: `ProcessorSpec`, and the protocols that a session, a chunk of rows and a codec of a state fulfil.
Does not own: where they come from (Spark's operator, a batch DataFrame, a test), how they are used (`run`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyspark.sql import types as T

__all__ = [
    "Codec",
    "CodecMaker",
    "GroupedRows",
    "ProcessorSpec",
    "QueryInfo",
    "RowChunkLike",
    "SessionLike",
    "TimeMode",
    "no_initial_rows",
]

TimeMode = Literal["none", "processingtime", "eventtime"]


@dataclasses.dataclass(frozen=True)
class ProcessorSpec:
    """A user's processor and its types.

    Chunks have the key's columns first, in their wire form (`wire_types.to_wire` with `key=True`), then the columns of
    rows as Spark writes them to Arrow. Where both have the same form, the column need not be there twice: `columns`
    says where each field of `input` is.
    """

    #: A `StatefulProcessor` of PySpark, or with the api `arrow` a `fastchangelog.Processor`.
    processor: Any
    api: Literal["row", "pandas", "arrow"]
    #: Names and Spark types of the grouping columns.
    key: T.StructType
    #: Rows as user code sees them.
    input: T.StructType
    #: For each field of `input`, its column in the chunks.
    columns: tuple[int, ...]
    output: T.StructType
    output_mode: str = "update"
    time_mode: TimeMode = "none"
    #: The column of the output that carries the event time on; empty = none.
    event_time_column: str = ""
    #: Rows of the initial state as user code sees them, and where their fields are in the chunks of it.
    initial: T.StructType | None = None
    initial_columns: tuple[int, ...] = ()
    #: Spark's session time zone: in it timestamps reach user code, and naive ones of pandas frames are meant.
    timezone: str = "UTC"
    #: `spark.sql.execution.arrow.maxRecordsPerBatch`: rows of a frame; with initial state, rows of a call.
    max_records: int = 10_000
    #: `spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName`.
    columns_by_name: bool = True
    #: `spark.sql.execution.pandas.convertToArrowArraySafely`.
    safe_casts: bool = True


@dataclasses.dataclass(frozen=True)
class QueryInfo:
    """What `getQueryInfo` answers, with the methods of Spark's own class of that name."""

    query_id: str
    run_id: str
    batch_id: int

    def getQueryId(self) -> str:
        """The id of the query, the same after each restart."""
        return self.query_id

    def getRunId(self) -> str:
        """The id of this run of the query."""
        return self.run_id

    def getBatchId(self) -> int:
        """The number of the batch."""
        return self.batch_id


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


class SessionLike(Protocol):
    """A shard's state in one batch; `_internal.StateSession` is one. Types are not known to it: all is bytes."""

    @property
    def catalog(self) -> str:
        """The states of the version that the session began with; empty if there was none."""

    def declare(self, catalog: str, now_millis: int) -> None:
        """The states of this batch, and the time that decides what has expired. Once, first."""

    def get(self, state: int, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Values, null where there are none."""

    def read_entries(
        self, state: int, keys: pa.BinaryArray, max_bytes_per_key: int
    ) -> tuple[pa.ListArray, pa.BooleanArray]:
        """For each key its first entries (`sub`, `value`), and whether there are more.

        They begin after the last `sub` of a map, after the number of elements of a list as eight bytes, big endian, or
        at the start for a key without entries here.
        """

    def read_page(
        self, state: int, key: bytes, after: bytes | None, max_bytes: int
    ) -> tuple[pa.StructArray, bytes | None]:
        """Entries of a key after a cursor, and the cursor of the next ones."""

    def get_entries(self, state: int, keys: pa.BinaryArray, subs: pa.BinaryArray) -> pa.BinaryArray:
        """Values of entries of maps, null where there are none."""

    def write(
        self,
        state: int,
        ops: pa.UInt8Array,
        keys: pa.BinaryArray,
        subs: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        expires_at: int | None = None,
    ) -> None:
        """Changes, in order."""

    def due_timers(
        self, until: int, after: tuple[int, bytes] | None, limit: int
    ) -> tuple[pa.Int64Array, pa.BinaryArray]:
        """Timers up to a time, ascending by time and key."""

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        """The times of each key's timers, ascending."""

    def clear_all(self, state: int) -> None:
        """Removes everything from a state."""


class GroupedRows(Protocol):
    """All rows of a batch, sorted by key; `_internal.RowGrouper` is one."""

    def finish(self, chunk_rows: int, chunk_bytes: int) -> Iterable[RowChunkLike]:
        """The rows in chunks of about so many rows and bytes at most."""


class _NoRows:
    """`GroupedRows` without any."""

    def finish(self, chunk_rows: int, chunk_bytes: int) -> Iterable[RowChunkLike]:
        """See `GroupedRows`."""
        return ()


def no_initial_rows(spec: ProcessorSpec) -> GroupedRows | None:
    """The initial state of a shard that has no rows of it, in the first batch.

    None where it makes no difference: with an initial state, calls of the Row API have at most `max_records` rows in
    the whole first batch.
    """
    return _NoRows() if spec.initial is not None and spec.api == "row" else None


class Codec(Protocol):
    """Keys and values of one state as bytes; `_internal.StateCodec` is one."""

    def encode_keys(self, keys: pa.Array) -> pa.BinaryArray:
        """The canonical bytes of keys."""

    def decode_keys(self, keys: pa.BinaryArray) -> pa.Array:
        """The inverse of `encode_keys`."""

    def encode_values(self, values: pa.Array) -> pa.BinaryArray:
        """The bytes of values, with the number of their schema; null for null."""

    def decode_values(self, values: pa.BinaryArray) -> pa.Array:
        """Values of any schema that the state ever had, as the newest."""


class CodecMaker(Protocol):
    """What makes the codec of a state; `_internal.StateCodec` is one."""

    def __call__(self, key: pa.DataType, value: pa.DataType, versions: Sequence[pa.DataType]) -> Codec:
        """`versions` are all types of values that were ever written, `value` the last of them."""
