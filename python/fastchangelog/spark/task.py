"""Facts about the Spark task that runs this code.

Owns: reading task properties; which query, run and batch the task belongs to; the base of functions that tasks run; the
check that driver and worker run one version; what happens when a worker unpickles a task; freezing a worker's modules.
Does not own: what the properties must be (`settings`), who writes the query's settings (`internals_queries`) and the
tags of jobs (`connect_batches`).

Spark's own properties of a query are those of the thread that starts a job: a thread that a user starts has none, or
those of another query or batch, and a user may set them. So the settings of the query's session come first, and Spark's
own properties count where they do not contradict them.

Over Spark Connect the jobs of a function of `foreachBatch` are operations of a client: they have neither the properties
of the query nor, before Spark 4.3, the settings of its session. A tag of the job has what they must know.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, raise_one_line
from fastchangelog.spark.worker_socket import acknowledge

__all__ = [
    "BATCH",
    "BATCH_ID",
    "CHECKPOINT",
    "FIRST_BATCH",
    "OTHER_THREAD",
    "QUERY",
    "QUERY_ID",
    "RUN",
    "RUN_ID",
    "TAGS",
    "ArrowFunction",
    "TaskQuery",
    "VersionChecked",
    "freeze_modules",
    "is_first",
    "is_first_of_run",
    "is_first_partition",
    "local_property",
    "tag_of",
    "this_query",
]

#: Settings of a query's own session, which its tasks read as properties. Spark passes those that begin with `spark.`.
QUERY = "spark.sql.fastchangelog.query"
RUN = "spark.sql.fastchangelog.run"
#: The first batch of the run.
FIRST_BATCH = "spark.sql.fastchangelog.firstBatch"
#: The location of the query's checkpoint, as Spark resolves it.
CHECKPOINT = "spark.sql.fastchangelog.checkpoint"
#: The batch that a function of `foreachBatch` has in hand.
BATCH = "spark.sql.fastchangelog.batch"

#: Spark's own properties, of the thread that starts a job.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
#: The id of a query's run, which Spark takes for the name of its jobs, as long as the user gives them no other.
RUN_ID = "spark.jobGroup.id"
#: The tags of a job, with commas between them.
TAGS = "spark.job.tags"
_TAG = "fastchangelog?"

#: What to do where a job comes from a thread that knows nothing of the query.
OTHER_THREAD = (
    "the job was started by another thread than the one in which Spark runs foreachBatch, and a job of an RDD has no "
    "other source of them: call batch.persist() and batch.count() before threads use the batch, or start them as "
    "pyspark.InheritableThread, or through pyspark.inheritable_thread_target, in each batch anew"
)

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Of runs that this worker has seen, the batch that it saw first.
_first_batches: dict[str, int] = {}
_MOST_RUNS = 256


@dataclasses.dataclass(frozen=True)
class TaskQuery:
    """The query that a task belongs to."""

    #: None outside of a query, as far as the task can see.
    query: str | None
    run: str | None
    #: None if it is unknown: the thread that started the job has none, or that of another query.
    batch: int | None
    #: The first batch of the run; None if it is unknown.
    first_batch: int | None


def local_property(name: str) -> str | None:
    """A property that Spark or a tag of the job gave to this task; None if unset, or outside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    tags = context.getLocalProperty(TAGS)
    # A query that a function of `foreachBatch` has started inherits the tags, and has properties of its own.
    if tags is not None and _TAG in tags and context.getLocalProperty(QUERY_ID) is None:
        told = _told(tags)
        if name in told:
            return told[name]
    return context.getLocalProperty(name)


def tag_of(properties: Mapping[str, str]) -> str:
    """The tag that gives properties to the tasks of a job.

    >>> tag_of({BATCH: "7", "a": "1,2"})
    'fastchangelog?spark.sql.fastchangelog.batch=7&a=1%2C2'
    >>> _told("spark-session-1," + tag_of({BATCH: "7", "a": "1,2"}) + ",another")
    {'spark.sql.fastchangelog.batch': '7', 'a': '1,2'}
    """
    return _TAG + urllib.parse.urlencode(properties)


@functools.lru_cache(maxsize=16)
def _told(tags: str) -> dict[str, str]:
    """What the tag among these gives. Spark puts words of its own before it."""
    text = tags.partition(_TAG)[2].partition(",")[0]
    return dict(urllib.parse.parse_qsl(text))


def this_query() -> TaskQuery:
    """The query, run and batch of this task."""
    own = local_property(QUERY_ID)
    query = local_property(QUERY) or own
    run = local_property(RUN)
    if run is None:
        jobs = local_property(RUN_ID)
        run = jobs if jobs is not None and _UUID.fullmatch(jobs) else None
    first = _number(local_property(FIRST_BATCH))
    batch = _number(local_property(BATCH))
    if batch is None and own == query:
        batch = _number(local_property(BATCH_ID))
    if batch is not None and first is not None and batch < first:
        batch = None  # of a thread that is older than the run
    return TaskQuery(query, run, batch, first)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def is_first_partition() -> bool:
    """True in one task of each stage."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.partitionId() == 0


def is_first() -> bool:
    """True in one task of a query's first batch, and of a batch that is unknown."""
    return is_first_partition() and this_query().batch in (0, None)


def is_first_of_run() -> bool:
    """True in the first batch of a query's run, also where a task is tried again, and in a batch that is unknown.

    Where the first batch of the run is unknown, a worker that comes later cannot tell: it takes the first batch that it
    sees for the first one of the run.
    """
    this = this_query()
    if this.batch is None or (this.first_batch is None and this.run is None):
        return True
    if this.first_batch is not None:
        return this.batch == this.first_batch
    if len(_first_batches) > _MOST_RUNS:
        _first_batches.clear()
    return _first_batches.setdefault(this.run or "", this.batch) == this.batch


class VersionChecked:
    """Base of objects that the driver pickles for workers: a worker with another version refuses to unpickle them.

    Unpickled in a worker, it makes the JVM send the task's rows without delay (`worker_socket`).
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, _VERSION: _internal.__version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        acknowledge()
        driver = state.get(_VERSION)
        if driver != _internal.__version__:
            raise InvalidArgumentError(
                f"two fastchangelog versions in one cluster: the driver has {driver}, this worker has "
                f"{_internal.__version__}; install one version on the driver and on every executor"
            )
        self.__dict__.update({name: value for name, value in state.items() if name != _VERSION})


_VERSION = "fastchangelog version"


class ArrowFunction(VersionChecked):
    """Base of functions for `mapInArrow`: picklable, the same for every task; their errors are one line."""

    _raise: Callable[[Exception], NoReturn] = staticmethod(raise_one_line)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._run(batches)
        except Exception as error:
            self._raise(error)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


_frozen: set[str] = set()


def freeze_modules(kind: str) -> None:
    """Calls `gc.freeze()` once for each kind of task, so that Python's collector skips the worker's modules.

    PySpark's daemon runs a full collection in a worker after each task. With pandas and pyarrow loaded it visits some
    hundred thousand objects that live as long as the process, and takes a core from the tasks of the next stage.
    """
    if kind not in _frozen:
        _frozen.add(kind)
        gc.collect()
        gc.freeze()
