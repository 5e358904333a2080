"""A batch DataFrame: the same sessions at the state server, after a plain shuffle.

Owns: the function that Spark runs in `mapInArrow` on a batch DataFrame's payloads: one session per shard, no state.
Does not own: the sessions of a stream (`operator`), which shard a row belongs to (`split`).

A batch has no state to restore or to commit, so it needs neither Spark's stateful operator nor the settings of a state
store. Spark passes the payloads sorted by shard: one session is open at a time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pyarrow as pa

from fastchangelog.server import open_session
from fastchangelog.spark import task
from fastchangelog.spark.aggregates.operator import labelled
from fastchangelog.spark.shard_task import OperatorConfig, batch_request, by_shard

__all__ = ["BatchOperator"]


class BatchOperator(task.ArrowFunction):
    """The function for `mapInArrow` after the shuffle: picklable, the same for every task."""

    def __init__(self, planned: OperatorConfig):
        self._operator = planned
        #: Stands in for the query id, which a batch DataFrame does not have.
        self._query = f"batch-{uuid.uuid4()}"

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for shard_id, payloads in by_shard(_payloads(batches)):
            yield from self._answers(shard_id, (payload for _, payload in payloads))
        task.freeze_modules("batch")

    def _answers(self, shard_id: int, payloads: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
        planned = self._operator
        request = json.dumps(batch_request(planned, shard_id, self._query))
        session = open_session(request, planned.options, planned.confs)
        try:
            for payload in payloads:
                session.merge(payload)
            for batch in session.finish():
                yield pa.RecordBatch.from_arrays(labelled(batch, planned.output), schema=planned.output)
            session.commit()
        finally:
            session.close()


def _payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        for shard_id, payload in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            yield shard_id, payload.as_py()
