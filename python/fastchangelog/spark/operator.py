"""The stateful operator: one small value per shard in Spark's state, everything else at the state server.

Owns: one session inside a Spark task: handle in, payloads to the server, rows to Spark, handle out.
Does not own: the state (the server), which handle is committed (Spark), the metrics' meaning (`metrics`).

The initial state of a new query becomes a version of its own before the first batch: its payloads come in a session of
their own, whose results are not given to the query: they are no news. The batch begins with the handle of that version.

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
import functools
import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog import _internal
from fastchangelog.errors import InternalError, InvalidArgumentError, raise_one_line
from fastchangelog.hidden import Hidden
from fastchangelog.server import open_session
from fastchangelog.spark import metrics, settings, task
from fastchangelog.spark.frames import frame
from fastchangelog.spark.lost_states import open_or_explain
from fastchangelog.spark.renewal import CredentialRenewal, credentials, request_text
from fastchangelog.spark.shard_ids import shard_of_id

if TYPE_CHECKING:
    from fastchangelog.hidden import HiddenOptions

__all__ = [
    "METRICS_TYPE",
    "NO_FIRST_BATCH",
    "OperatorConfig",
    "ShardProcessor",
    "Stopwatch",
    "batch_number",
    "batch_request",
    "labelled",
    "open_request",
    "run_once",
]

#: Of an initial state that no row of the query's first batch has come with.
NO_FIRST_BATCH = (
    "the query's first batch has no input for this operator, so Spark does not let it take the initial state: start "
    "the query when its source has rows"
)
_ON_CONNECT = (
    "Spark Connect runs what foreachBatch does with a batch outside of the query; write the result of grouped() to a "
    "sink that Spark itself fills, such as Kafka, or run the query in a classic session"
)
#: The batch of a version that the first batch begins with.
_BEFORE_THE_FIRST = -1
_HANDLE = T.StructType([T.StructField("handle", T.StringType())])
METRICS_TYPE = pa.list_(pa.int64())


@dataclasses.dataclass(frozen=True)
class OperatorConfig(task.VersionChecked):
    """The driver's decisions, sent to every task."""

    #: Of an aggregation; a stateful processor has none.
    spec: str
    root: str
    name: str
    output: pa.Schema
    options: Mapping[str, str]
    storage_options: Mapping[str, Any] | HiddenOptions = dataclasses.field(repr=False)
    partitions: int
    #: Spark's memory settings, which determine the server's budget.
    confs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The query is started over Spark Connect.
    connect: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.storage_options, Hidden):
            object.__setattr__(self, "storage_options", Hidden(self.storage_options))


class ShardProcessor(StatefulProcessor):
    """The `StatefulProcessor` that Spark runs for a shard."""

    def __init__(self, operator: OperatorConfig):
        self._operator = operator

    def init(self, handle: Any) -> None:
        # Also called once on the driver before the query starts, only to learn the state's schema.
        self._handle = handle.getValueState("handle", _HANDLE)
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
            yield from self._run(int(key[0]), rows)
        except Exception as error:
            raise_one_line(error)

    def close(self) -> None:
        """Ends the task. A session ends with its batch; an initial state that is left here has found no batch."""
        left, self._initial = self._initial, {}
        for session in left.values():
            session.close()
        if left:
            raise InvalidArgumentError(NO_FIRST_BATCH)

    def _run(self, shard_id: int, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        operator = self._operator
        settings.check_task(task.local_property)
        run_once(self._ran, shard_id)
        stored = self._handle.get()
        handle = None if stored is None else stored[0]
        initial = self._initial.pop(shard_id, None)
        if initial is not None:
            handle = initial.commit()
        clock = Stopwatch()
        _internal.failpoint("operator.open")
        storage, expires = settings.resolve_with_expiry(operator.storage_options)
        request = {**open_request(operator, shard_id, handle), **credentials(storage, expires)}
        with CredentialRenewal(request, expires, lambda: settings.resolve_with_expiry(operator.storage_options)):
            handle = yield from self._session(request, rows, clock)
        self._handle.update((handle,))
        _internal.failpoint("operator.stored")
        task.freeze_modules("operator")

    def _session(
        self, request: Mapping[str, Any], rows: Iterator[pd.DataFrame], clock: Stopwatch
    ) -> Generator[pd.DataFrame, None, str]:
        """Yields the rows of one session, then a row of metrics; returns the handle."""
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
            names = [*operator.output.names, metrics.COLUMN]
            for batch in session.finish():
                columns = labelled(batch, operator.output)
                yield frame([*columns, pa.nulls(batch.num_rows, METRICS_TYPE)], names)
            clock.lap("finish_micros")
            _internal.failpoint("operator.rows-yielded")
            handle, counted = session.commit()
            clock.lap("commit_micros")
            _internal.failpoint("operator.committed")
        finally:
            session.close()
        numbers = metrics.OF_AGGREGATION.row({**counted, **clock.laps, "shards": 1})
        nothing = [pa.nulls(1, field.type) for field in operator.output]
        yield frame([*nothing, pa.array([numbers], METRICS_TYPE)], names)
        return handle


class _InitialSession:
    """The session that makes the initial state of a shard its first version."""

    def __init__(self, operator: OperatorConfig, shard_id: int):
        storage, expires = settings.resolve_with_expiry(operator.storage_options)
        request = {
            **open_request(operator, shard_id, None),
            **credentials(storage, expires),
            "batch": _BEFORE_THE_FIRST,
        }
        resolve = functools.partial(settings.resolve_with_expiry, operator.storage_options)
        with contextlib.ExitStack() as opened:
            opened.enter_context(CredentialRenewal(request, expires, resolve))
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
            handle, _ = self._session.commit()
        return handle

    def close(self) -> None:
        """Ends the session; an abort unless it was committed."""
        self._exit.close()


def open_request(operator: OperatorConfig, shard_id: int, handle: str | None) -> dict[str, Any]:
    """The open request of a session for the task that runs this, without credentials."""
    this = task.this_query()
    if this.query is None:
        why = _ON_CONNECT if operator.connect else task.OTHER_THREAD
        raise InvalidArgumentError(f"this task belongs to no streaming query, so its state has no place: {why}")
    batch = batch_number(this.batch, handle)
    return _request(operator, shard_id, query_id=this.query, batch=batch, handle=handle, ephemeral=False)


def batch_number(batch: int | None, handle: str | None) -> int:
    """The number of a batch that begins with `handle`; where it is unknown, one that is possible.

    Spark hands back handles of earlier batches only, so that any later number keeps the order of versions.
    """
    if handle is None:
        return batch or 0
    before = int(json.loads(_internal.handle_json(handle))["batch"])
    if batch is None:
        return before + 1
    if batch <= before:
        raise InvalidArgumentError(
            f"batch {batch} was handed the state of batch {before}, which a later batch has: either the query goes on "
            "from a checkpoint that was changed, then restart it from an unchanged one; or the job was started by a "
            f"thread that still has the properties of batch {batch}: {task.OTHER_THREAD}"
        )
    return batch


def run_once(ran: set[int], shard_id: int) -> None:
    """Refuses a second run of a shard in one task: its handle would be that of the first, which Spark may discard."""
    if shard_id in ran:
        raise InternalError(f"Spark called the operator twice for the shard {shard_id} in one task; please report it")
    ran.add(shard_id)


def batch_request(operator: OperatorConfig, shard_id: int, query: str) -> dict[str, Any]:
    """The open request of a session over a batch DataFrame: nothing is read or written, so it needs no credentials."""
    nothing: dict[str, Any] = {"batch": 0, "handle": None, "storage_options": {}}
    return _request(operator, shard_id, query_id=query, ephemeral=True, **nothing)


def _request(operator: OperatorConfig, shard_id: int, **session: Any) -> dict[str, Any]:
    shards = settings.partitions_of_task(task.local_property, operator.partitions)
    return {
        "root": operator.root,
        "name": operator.name,
        "shard": shard_of_id(shard_id, shards),
        "shards": shards,
        "spec": operator.spec,
        "options": dict(operator.options),
        **session,
    }


def labelled(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """The columns of a result batch with the types of `schema`."""
    if batch.num_columns != len(schema):
        raise InternalError(f"the state server answered {batch.num_columns} columns where {len(schema)} were asked for")
    # Strings arrive as binaries: Spark's need not be UTF-8, so their bytes get the type string without a check.
    return [c if c.type == f.type else c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)]


class Stopwatch:
    """Microseconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, int] = {}
        self._last = time.monotonic_ns()

    def lap(self, name: str) -> None:
        """Ends the lap `name`; a later one of the same name counts instead."""
        now = time.monotonic_ns()
        self.laps[name] = (now - self._last) // 1000
        self._last = now
