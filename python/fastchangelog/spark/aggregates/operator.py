"""The stateful operator: one small value per shard in Spark's state, everything else at the state server.

Owns: one session of an aggregation inside a Spark task: handle in, payloads to the server, rows to Spark, handle out.
Does not own: the state (the server), which handle is committed (Spark), the metrics' meaning (`metrics`).

The initial state of a new query becomes a version before the first batch: its payloads get their own session, whose
results are not emitted, since they are nothing new. The batch begins with the handle of that version.

Order, and why:
1. read the handle that Spark committed last for this shard;
2. open a session at the executor's server for it and forward the payloads;
3. hand the result rows to Spark while the server makes the change set durable;
4. commit: the server returns the new handle when the store has acknowledged;
5. after the last row, store the new handle in Spark's state. Spark commits it only if it commits the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog import _internal
from fastchangelog.errors import InternalError, InvalidArgumentError, raise_one_line
from fastchangelog.server import open_session
from fastchangelog.spark import metrics, settings, task
from fastchangelog.spark.lost_states import open_or_explain
from fastchangelog.spark.renewal import request_text
from fastchangelog.spark.shard_task import (
    METRICS_TYPE,
    NO_FIRST_BATCH,
    OperatorConfig,
    Stopwatch,
    renewed_request,
    run_once,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ShardProcessor", "labelled"]

#: The batch of a version that the first batch begins with.
_BEFORE_THE_FIRST = -1
_HANDLE = T.StructType([T.StructField("handle", T.StringType())])


class ShardProcessor(StatefulProcessor):
    """The `StatefulProcessor` that Spark runs for a shard."""

    def __init__(self, operator: OperatorConfig, counted: metrics.Reported = metrics.OF_AGGREGATION):
        self._operator = operator
        self._counted = counted

    def init(self, handle: Any) -> None:
        # Also called once on the driver before the query starts, only to learn the state's schema.
        self._handle = self._state(handle)
        self._ran: set[int] = set()
        self._initial: dict[int, _InitialSession] = {}

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        try:
            shard_id = int(key[0])
            if shard_id not in self._initial:
                settings.check_task(task.local_property)
                self._initial[shard_id] = _InitialSession(self._operator, shard_id)
            self._initial[shard_id].merge(initialState["payload"])
        except Exception as error:
            raise_one_line(error)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        try:
            yield from self._run(int(key[0]), rows, timerValues)
        except Exception as error:
            raise_one_line(error)

    def close(self) -> None:
        """Ends the task. A session ends with its batch; an initial state that is left here has found no batch."""
        left, self._initial = self._initial, {}
        for session in left.values():
            session.close()
        if left:
            raise InvalidArgumentError(NO_FIRST_BATCH)

    def _state(self, handle: Any) -> Any:
        """What Spark keeps for a shard; its first field is the handle."""
        return handle.getValueState("handle", _HANDLE)

    def _run(self, shard_id: int, rows: Iterator[pd.DataFrame], times: Any) -> Iterator[pd.DataFrame]:
        settings.check_task(task.local_property)
        run_once(self._ran, shard_id)
        stored = self._handle.get()
        handle, _ = yield from self._version(shard_id, None if stored is None else stored[0], rows)
        self._handle.update((handle,))
        _internal.failpoint("operator.stored")
        task.freeze_modules("operator")

    def _version(
        self, shard_id: int, handle: str | None, rows: Iterator[pd.DataFrame], **requested: Any
    ) -> Generator[pd.DataFrame, None, tuple[str, int | None]]:
        """Yields the rows of a session on top of `handle`; returns what it commits, as `_session` does."""
        initial = self._initial.pop(shard_id, None)
        if initial is not None:
            handle = initial.commit()
        clock = Stopwatch()
        _internal.failpoint("operator.open")
        with renewed_request(self._operator, shard_id, handle, **requested) as request:
            return (yield from self._session(request, rows, clock))

    def _session(
        self, request: Mapping[str, Any], rows: Iterator[pd.DataFrame], clock: Stopwatch
    ) -> Generator[pd.DataFrame, None, tuple[str, int | None]]:
        """Yields the rows of one session, then a row of metrics; returns the handle, and the time in microseconds
        before which none of its groups closes, if it has watermarks."""
        from fastchangelog.spark.frames import frame  # not above: see the header of `frames`

        operator = self._operator
        session = open_or_explain(open_session, request, operator.options, operator.confs)
        try:
            clock.lap("open_micros")
            _internal.failpoint("operator.opened")
            for payloads in rows:
                for payload in payloads["payload"]:
                    if payload:  # an empty one only opens the shard, see `split`
                        session.merge(payload)
            _internal.failpoint("operator.merged")
            names = [*operator.output.names, self._counted.column]
            for batch in session.finish():
                columns = labelled(batch, operator.output)
                yield frame([*columns, pa.nulls(batch.num_rows, METRICS_TYPE)], names)
            clock.lap("finish_micros")
            _internal.failpoint("operator.rows-yielded")
            handle, counted, next_close = session.commit()
            clock.lap("commit_micros")
            _internal.failpoint("operator.committed")
        finally:
            session.close()
        numbers = self._counted.row({**counted, **clock.laps, "shards": 1})
        nothing = [pa.nulls(1, field.type) for field in operator.output]
        yield frame([*nothing, pa.array([numbers], METRICS_TYPE)], names)
        return handle, next_close


class _InitialSession:
    """The session that makes the initial state of a shard its first version."""

    def __init__(self, operator: OperatorConfig, shard_id: int):
        operator = dataclasses.replace(operator, spec=operator.initial_spec or operator.spec)
        with contextlib.ExitStack() as opened:
            request = opened.enter_context(renewed_request(operator, shard_id, None, batch=_BEFORE_THE_FIRST))
            self._session = open_session(request_text(request).show(), operator.options, operator.confs)
            opened.callback(self._session.close)
            self._exit = opened.pop_all()

    def merge(self, payloads: Iterable[bytes]) -> None:
        """Takes payloads of accumulators."""
        for payload in payloads:
            self._session.merge(payload)

    def commit(self) -> str:
        """Waits until the version is durable, and gives its handle."""
        with self._exit:
            for _ in self._session.finish():
                pass
            handle, _, _ = self._session.commit()
        return handle

    def close(self) -> None:
        """Ends the session; an abort unless it was committed."""
        self._exit.close()


def labelled(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """The columns of a result batch with the types of `schema`."""
    if batch.num_columns != len(schema):
        raise InternalError(f"the state server answered {batch.num_columns} columns, but {len(schema)} were requested")
    # Strings arrive as binaries: Spark's need not be UTF-8, so their bytes get the type string without a check.
    return [c if c.type == f.type else c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)]
