"""What tasks of an aggregation and of a processor do alike for a shard.

Owns: the driver's decisions that each task gets, the open request of a session, the number of its batch, the clock of
its metrics.
Does not own: what is done in a session (`aggregates.operator`, `processor.operator`), which shard a row belongs to
(`split`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import operator as operators
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.errors import InternalError, InvalidArgumentError
from fastchangelog.hidden import Hidden
from fastchangelog.options import refuse_secrets
from fastchangelog.spark import settings, task
from fastchangelog.spark.renewal import CredentialRenewal, credentials
from fastchangelog.spark.shard_ids import shard_of_id

if TYPE_CHECKING:
    from fastchangelog.hidden import HiddenOptions

__all__ = [
    "KEPT",
    "Kept",
    "METRICS_TYPE",
    "NO_FIRST_BATCH",
    "OperatorConfig",
    "Stopwatch",
    "batch_number",
    "batch_request",
    "by_shard",
    "checkpoint_location",
    "open_request",
    "renewed_request",
    "run_once",
]

#: The error for an initial state that no row of the query's first batch has come with.
NO_FIRST_BATCH = (
    "the query's first batch has no input for this operator, so Spark does not let it take the initial state: start "
    "the query when its source has rows"
)
_ON_CONNECT = (
    "over Spark Connect a function of foreachBatch does its work outside of the query, and is told of it where "
    "grouped() or accelerate() was called in the session that starts the query; call it there, or write the result to "
    "a sink that Spark itself fills, such as Kafka"
)
METRICS_TYPE = pa.list_(pa.int64())
#: What Spark keeps for a shard of an operator that it calls without rows, too: the handle, under the name that readers
#: of checkpoints look for; the watermark of the last batch in milliseconds; the shard's next timer.
KEPT = T.StructType(
    [
        T.StructField("handle", T.StringType()),
        T.StructField("watermark", T.LongType()),
        T.StructField("timer", T.LongType()),
    ]
)


@dataclasses.dataclass(frozen=True)
class Kept:
    """A value of `KEPT`."""

    handle: str | None = None
    watermark: int | None = None
    #: Processing time: the shard's Spark timer, in milliseconds. Event time: the shard's next timer; of an aggregation
    #: the time in microseconds before which no group closes. None: unknown, or none.
    timer: int | None = None

    @classmethod
    def of(cls, stored: tuple[Any, ...] | None) -> Kept:
        """What Spark keeps for a shard; None before the shard's first batch."""
        return cls() if stored is None else cls(*stored)


_Row = TypeVar("_Row", bound=tuple[Any, ...])


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
    #: The spec of the payloads of an initial state, if it is another one.
    initial_spec: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.storage_options, Hidden):
            object.__setattr__(self, "storage_options", Hidden(self.storage_options))


@contextlib.contextmanager
def renewed_request(
    operator: OperatorConfig, shard_id: int, handle: str | None, /, **more: Any
) -> Iterator[Mapping[str, Any]]:
    """The open request of a session, whose credentials are renewed until this ends."""

    def resolve() -> Any:
        return settings.resolve_with_expiry(operator.storage_options)

    storage, expires = resolve()
    request = {**open_request(operator, shard_id, handle), **credentials(storage, expires), **more}
    with CredentialRenewal(request, expires, resolve):
        yield request


def open_request(operator: OperatorConfig, shard_id: int, handle: str | None) -> dict[str, Any]:
    """The open request of a session for the task that runs this, without credentials."""
    this = task.this_query()
    if this.query is None:
        why = _ON_CONNECT if operator.connect else task.OTHER_THREAD
        raise InvalidArgumentError(f"this task belongs to no streaming query, so its state has no place: {why}")
    batch = batch_number(this.batch, handle)
    checkpoint = checkpoint_location(task.local_property, operator.options)
    return _request(
        operator, shard_id, query_id=this.query, batch=batch, handle=handle, checkpoint=checkpoint, ephemeral=False
    )


def checkpoint_location(property_of: Callable[[str], str | None], options: Mapping[str, str]) -> str:
    """The location of the query's checkpoint, which its state's folder keeps for sweeps; empty if it is unknown.

    A location with a secret in it is kept nowhere.
    """
    location = property_of(task.CHECKPOINT) or options.get("checkpoint_location", "")
    try:
        refuse_secrets("the checkpoint", location)
    except InvalidArgumentError:
        return ""
    return location


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
            f"batch {batch} got the state of batch {before}, which only a later batch may have: if the query's "
            "checkpoint was changed, restart the query from an unchanged one; if a thread that still has the "
            f"properties of batch {batch} started the job: {task.OTHER_THREAD}"
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


def by_shard(rows: Iterator[_Row]) -> Iterator[tuple[int, Iterator[_Row]]]:
    """The rows of each shard, whose id is the first field: all of them come one after another."""
    done: set[int] = set()
    for shard_id, part in itertools.groupby(rows, operators.itemgetter(0)):
        if shard_id in done:
            raise InternalError(f"the payloads of shard {shard_id} came in two parts; please report it")
        done.add(shard_id)
        yield shard_id, part


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
