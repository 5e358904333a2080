"""`read_state`: the state of a query at one of its batches, as a DataFrame.

Owns: the entry point, its checks, the plan: one task for each shard.
Does not own: reading checkpoints (`checkpoints.handles`), which handles (`checkpoints.state_handles`), reading a shard
(`scan`), columns (`columns`, `aggregates.stored`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from fastchangelog import _internal
from fastchangelog.catalog import TIMERS, CatalogState, is_processor, states_of
from fastchangelog.checkpoints.state_handles import choose_state, newest_schema
from fastchangelog.errors import InvalidArgumentError, StateNotFoundError
from fastchangelog.hidden import Hidden
from fastchangelog.options import existing_folder
from fastchangelog.spark import internals, settings
from fastchangelog.spark.aggregates.stored import labelled_rows, stored_spec
from fastchangelog.spark.checkpoint.files import query_checkpoints
from fastchangelog.spark.reading.columns import StateColumns
from fastchangelog.spark.reading.scan import aggregate_rows, processor_rows
from fastchangelog.spark.task import ArrowFunction
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fastchangelog.hidden import HiddenOptions
    from fastchangelog.types import Options, PathLike, StorageOptions

__all__ = ["read_state"]

_PARTITION = T.StructField("partition_id", T.IntegerType())


def read_state(
    spark: SparkSession,
    checkpoint: PathLike,
    state: PathLike | None = None,
    name: str = "default",
    batch: int | None = None,
    variable: str | None = None,
    *,
    options: Options | None = None,
    storage_options: StorageOptions | None = None,
) -> DataFrame:
    """The state of a streaming query after one of its batches, whether the query runs or not.

    What Spark's `statestore` source is for Spark's own operators, for those of `grouped`. Any batch can be read that
    the checkpoint retains (`spark.sql.streaming.minBatchesToRetain`). The batch is chosen when this is called; its
    state is read, one task for each shard, whenever the DataFrame is. A running query is not disturbed.

    Of a processor (`transformWithState`), names and shapes are those of Spark's source. Keys and values are structs of
    the declared columns:

    | state | columns |
    |---|---|
    | value | `key`, `value`, `partition_id` |
    | list | `key`, `list_element`, `partition_id`: a row for each element |
    | map | `key`, `user_map_key`, `user_map_value`, `partition_id`: a row for each entry |
    | timers | `key`, `expiration_timestamp_ms`, `partition_id`: a row for each timer |

    In a state with a TTL, `value`, `list_element` or `user_map_value` is a struct of `value` and `ttlExpirationMs`, and
    what had ended at the time of the batch is left out.

    Of an aggregation: the keys (`key`, or `key_1`, `key_2` …), the results under the names of their expressions, such
    as `sum(price)`, and `partition_id`. The state does not have the names that the query gives them. Windows are shown
    by their end; session windows by start and end, behind the other keys.

    Args:
        spark: The session that reads.
        checkpoint: The query's `checkpointLocation`.
        state: The folder that `grouped` was given; by default the Spark conf `spark.fastchangelog.state`.
        name: The name that `grouped` was given.
        batch: By default the newest that committed.
        variable: Of a processor, the state as it was declared, or `"$timers"`; it may be left out if there is only one
            state.
        options: Those of `grouped` that reading needs; `worker_memory` is the memory of a task.
        storage_options: As `grouped` takes them.

    Returns:
        A DataFrame in no particular order; elements of a list follow each other in theirs.

    Raises:
        InvalidArgumentError: There is no such batch, name or variable, and the message says which there are; or the
            state is one of Spark's own operators.
        StateNotFoundError: The checkpoint or the state is not there, or objects of the batch were deleted.

    Example:
        >>> read_state(spark, checkpoint, state=folder, variable="sessions", batch=41).show()  # doctest: +SKIP
    """
    hidden = Hidden(storage_options)
    del storage_options
    location = os.fspath(checkpoint)
    if not isinstance(location, str) or not location.strip():
        raise InvalidArgumentError("read_state() takes the query's checkpointLocation, a text or a path")
    settings.check_platform(spark)
    root = existing_folder(settings.given_root(spark, state))
    gathered = settings.read_options(spark, options)
    storage = settings.storage_options(spark, root, hidden)
    checkpoints = query_checkpoints(spark, root, settings.resolve(storage))
    query, chosen, operators = checkpoints.handles(location, batch)
    found = choose_state(
        _internal.ObjectFolder(root, gathered, settings.resolve(storage).show()),
        location,
        query,
        chosen,
        operators,
        name,
        argument="name=",
        remedy="their state is still in that savepoint; read a batch after they had some",
    )
    if found.missing:
        raise StateNotFoundError(
            f"batch {chosen} of {location} needs {len(found.missing)} objects that are not in "
            f"{root}/{query}/{found.name} any more, {found.missing[0]} among them: they were deleted, by a sweep that "
            "did not know this checkpoint or by hand; read a newer batch, or restore them from a backup"
        )
    internals.run_this_interpreter(spark)
    handles = tuple(sorted(found.handles.items()))
    where = (root, query, found.name)
    schema = newest_schema(found.handles)
    if not is_processor(schema):
        if variable is not None:
            raise InvalidArgumentError(
                f"variable={variable!r}: the state `{found.name}` holds aggregates, which have no variables; leave it "
                "out"
            )
        spec, results = stored_spec(json.loads(schema))
        reader = _Reader(where, handles, gathered, storage, aggregates=(spec, results))
        fields = from_arrow_schema(results, prefer_timestamp_ntz=True).fields
        return _read(spark, reader, T.StructType([*fields, _PARTITION]))
    picked = _picked(states_of(schema), variable, found.name)
    columns = StateColumns.of(picked)
    now = checkpoints.time_of(location, chosen)
    reader = _Reader(where, handles, gathered, storage, variable=(picked.name, columns, now))
    rows = _read(spark, reader, T.StructType([*columns.wire().fields, _PARTITION]))
    typed = [wire.from_wire(F.col(f.name), f.dataType).alias(f.name) for f in columns.spark().fields]
    return rows.select(*typed, _PARTITION.name)


def _read(spark: SparkSession, reader: _Reader, columns: T.StructType) -> DataFrame:
    """One task for each shard: a range of as many partitions as numbers."""
    shards = len(reader.handles)
    return spark.range(0, shards, 1, shards).mapInArrow(reader, columns)


def _picked(states: Sequence[CatalogState], variable: str | None, name: str) -> CatalogState:
    """The state that the caller means."""
    own = [state for state in states if state.kind != "timers"]
    known = ", ".join(f"{state.name} ({state.kind})" for state in own) or "no states of its own"
    if len(own) < len(states):
        known += f", and timers as {TIMERS}"
    if variable is None:
        few = own or states
        if not few:
            raise StateNotFoundError(f"the processor of the state `{name}` has declared no states and no timers")
        if len(few) > 1:
            raise InvalidArgumentError(f"the processor of the state `{name}` has {known}; say which one with variable=")
        return few[0]
    for state in states:
        if state.name == variable:
            return state
    raise InvalidArgumentError(
        f"variable={variable!r}: the processor of the state `{name}` has {known}; give one of these, as it was declared"
    )


class _Reader(ArrowFunction):
    """The function for `mapInArrow`: the row of a shard's number becomes the rows of the shard."""

    def __init__(
        self,
        folder: tuple[str, str, str],
        handles: tuple[tuple[int, str], ...],
        options: Mapping[str, str],
        storage_options: HiddenOptions,
        *,
        aggregates: tuple[str, pa.Schema] | None = None,
        variable: tuple[str, StateColumns, int] | None = None,
    ) -> None:
        self.handles = handles
        self._folder = folder
        self._options = options
        self._storage_options = storage_options
        self._aggregates = aggregates
        self._variable = variable

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                partition, handle = self.handles[number]
                for rows in self._rows(handle):
                    yield _with_partition(rows, partition)

    def _rows(self, handle: str) -> Iterator[pa.RecordBatch]:
        given: Any = (self._options, self._storage_options)
        if self._aggregates is not None:
            spec, results = self._aggregates
            for batch in aggregate_rows(self._folder, handle, spec, *given):
                yield labelled_rows(batch, results)
        if self._variable is not None:
            variable, columns, now = self._variable
            yield from processor_rows(self._folder, handle, variable, columns, now, *given)


def _with_partition(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    column = pa.array(np.full(rows.num_rows, partition, np.int32))
    schema = rows.schema.append(pa.field(_PARTITION.name, pa.int32()))
    return pa.RecordBatch.from_arrays([*rows.columns, column], schema=schema)
