"""Facts about the Spark task that runs this code.

Owns: reading task properties; the check that driver and worker run one version; what happens when a worker unpickles a
task; freezing a worker's modules.
Does not own: what the properties must be (`settings`).
"""

from __future__ import annotations

import gc
from typing import Any

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.worker_socket import acknowledge

__all__ = [
    "BATCH_ID",
    "QUERY_ID",
    "RUN_ID",
    "VersionChecked",
    "is_first",
    "is_first_of_run",
    "is_first_partition",
    "local_property",
    "freeze_modules",
]

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
#: The id of a query's run, which Spark takes for the name of its jobs.
RUN_ID = "spark.jobGroup.id"

#: Of runs that this worker has seen, the batch that it saw first.
_first_batches: dict[str, str] = {}
_MOST_RUNS = 256


def local_property(name: str) -> str | None:
    """A property that Spark gave to this task; None if unset, or outside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def is_first_partition() -> bool:
    """True in one task of each stage."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.partitionId() == 0


def is_first() -> bool:
    """True in one task of a query's first batch."""
    return is_first_partition() and local_property(BATCH_ID) == "0"


def is_first_of_run() -> bool:
    """True in the first batch of a query's run, also where a task is tried again.

    A worker that comes later cannot tell: it takes the first batch that it sees for the first one of the run.
    """
    run, batch = local_property(RUN_ID), local_property(BATCH_ID)
    if run is None or batch is None:
        return False
    if len(_first_batches) > _MOST_RUNS:
        _first_batches.clear()
    return _first_batches.setdefault(run, batch) == batch


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
