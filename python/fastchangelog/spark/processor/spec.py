"""What a processor's run is given: the driver's decisions, and the shape of chunks.

Owns: `ProcessorSpec`. Does not own: sessions and codecs (`fastchangelog._internal`), the protocol of chunks
(`vectorised.chunks`), where they come from (Spark's operator, a batch DataFrame, a test), how they are used (`run`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.task import OTHER_THREAD
from fastchangelog.vectorised.chunks import GroupedRows, RowChunkLike

__all__ = [
    "GroupedRows",
    "ProcessorSpec",
    "QueryInfo",
    "RowChunkLike",
    "TimeMode",
    "no_initial_rows",
]

TimeMode = Literal["none", "processingtime", "eventtime"]


@dataclasses.dataclass(frozen=True)
class ProcessorSpec:
    """A user's processor and its types.

    Chunks have the key's columns first, in their wire form (`wire.to_wire` with `key=True`), then the columns of
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
    #: `spark.sql.execution.arrow.maxBytesPerBatch`: bytes of a frame.
    max_bytes: int = 2**31 - 1
    #: `spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype`: whole numbers with nulls stay whole numbers.
    integers_with_na: bool = False
    #: `spark.sql.ansi.enabled`: an aggregate that overflows is an error.
    ansi: bool = True
    #: `spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled`: whole numbers for decimals.
    decimals_of_integers: bool = False


@dataclasses.dataclass(frozen=True)
class QueryInfo:
    """What `getQueryInfo` answers, with the methods of Spark's own class of that name."""

    query_id: str
    run_id: str
    #: None in a job of a thread that does not know its batch.
    batch_id: int | None

    def getQueryId(self) -> str:
        """The id of the query, the same after each restart."""
        return self.query_id

    def getRunId(self) -> str:
        """The id of this run of the query."""
        return self.run_id

    def getBatchId(self) -> int:
        """The number of the batch."""
        if self.batch_id is None:
            raise InvalidArgumentError(f"the number of the batch is unknown: {OTHER_THREAD}")
        return self.batch_id


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
