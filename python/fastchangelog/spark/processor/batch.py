"""A processor over a batch DataFrame: the same run per shard, after a plain shuffle, over a state that ends with it.

Owns: the function that Spark runs in `mapInArrow` on a batch DataFrame's payloads, and the columns that it reads.
Does not own: the sessions of a stream (`operator`), how the user's code runs (`run`).

A batch has no state to restore or to commit, so it needs neither Spark's stateful operator nor the settings of a state
store. Spark passes the payloads sorted by shard, those of the initial state first: one session is open at a time.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import TimerValues

from fastchangelog.server import open_state_session
from fastchangelog.spark import settings, task
from fastchangelog.spark.processor.operator import ProcessorConfig, at_runtime, raise_from_task
from fastchangelog.spark.processor.payloads import Payloads
from fastchangelog.spark.processor.run import run_batch
from fastchangelog.spark.processor.spec import ProcessorSpec, no_initial_rows
from fastchangelog.spark.shard_task import batch_request, by_shard
from fastchangelog.spark.types.spark_arrow import spark_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T

__all__ = ["BatchProcessor", "in_batch"]

_pickler: Any = CloudPickleSerializer
#: The shard's id, whether the payload is of the initial state, the payload, the time of the query.
_Row: TypeAlias = tuple[int, bool, bytes, int]


def in_batch(
    payloads: DataFrame, initial: DataFrame | None, config: ProcessorConfig, output: T.StructType
) -> DataFrame:
    """The result of a batch DataFrame: all payloads of a shard reach one task, one shard after the other."""
    rows = payloads.select("shard", F.lit(False).alias("initial"), "payload")
    if initial is not None:
        rows = rows.unionByName(initial.select("shard", F.lit(True).alias("initial"), "payload"))
    rows = rows.withColumn("now", F.unix_millis(F.current_timestamp()))  # one time for all tasks of the query
    ordered = rows.repartition("shard").sortWithinPartitions("shard", F.col("initial").desc())
    return ordered.mapInArrow(BatchProcessor(config), output)


class BatchProcessor(task.ArrowFunction):
    """The function for `mapInArrow` after the shuffle: picklable, the same for every task."""

    _raise = staticmethod(raise_from_task)

    def __init__(self, config: ProcessorConfig):
        self._config = config
        #: Each shard has an instance of its own, as each task of Spark's operator has: a task may have several shards.
        self._processor = _pickler().dumps(config.run.processor)
        #: Stands in for the query id, which a batch DataFrame does not have.
        self._query = f"batch-{uuid.uuid4()}"

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for shard_id, rows in by_shard(_rows(batches)):
            spec = dataclasses.replace(at_runtime(self._config.run), processor=_pickler().loads(self._processor))
            yield from self._answers(shard_id, rows, spec)
        task.freeze_modules("batch")

    def _answers(self, shard_id: int, rows: Iterator[_Row], spec: ProcessorSpec) -> Iterator[pa.RecordBatch]:
        planned = self._config.operator
        memory = settings.size_option(planned.options, "worker_memory")
        keys = len(spec.key.fields)
        data = Payloads(keys, self._config.input, memory // 2)
        initial = Payloads(keys, self._config.initial or self._config.input, memory // 2)
        now = 0
        for _, is_initial, payload, time in rows:
            (initial if is_initial else data).push(payload)
            now = time  # the same in all rows
        first = initial.grouped() or no_initial_rows(spec)
        times = TimerValues(-1, -1) if spec.time_mode == "none" else TimerValues(now, -1)
        request = {**batch_request(planned, shard_id, self._query), "operator": "processor"}
        session = open_state_session(json.dumps(request), planned.options, planned.confs)
        try:
            schema = planned.output
            for batch in run_batch(spec, session, data.grouped(), times, first):
                yield pa.RecordBatch.from_arrays(spark_columns(batch, spec.output), schema=schema)
        finally:
            session.close()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        shards, initials = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        times = batch.column(3).to_pylist()
        for shard_id, initial, payload, now in zip(shards, initials, batch.column(2), times, strict=True):
            yield shard_id, initial, payload.as_py(), now
