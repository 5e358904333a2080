"""The source of a savepoint: a batch of a query's checkpoint, and the root of its state.

Owns: the source's parts, the connection to its store.
Does not own: reading checkpoints (`spark.checkpoint.handles`), the assignment of handles to states
(`spark.checkpoint.state_handles`), the Spark session (a parameter), savepoints (the core).
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.hidden import Hidden
from fastchangelog.options import existing_folder, gather_options, gather_storage_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FoundHandles",
    "ProgressReport",
    "StateSource",
    "absolute_uri",
    "find_handles",
    "savepoint_folder",
    "scratch_folder",
    "storage_options_of",
]

ProgressReport: TypeAlias = "Callable[[int, int], object]"
"""Called now and then with the bytes that are done, and all bytes."""

Session: TypeAlias = "Callable[[], AbstractContextManager[Callable[[], SparkSession]]]"


@contextmanager
def active_session() -> Iterator[Callable[[], SparkSession]]:
    """The active Spark session of this thread."""
    from pyspark.sql import SparkSession

    yield SparkSession.active


@dataclasses.dataclass(frozen=True)
class StateSource:
    """A batch of a query's checkpoint, and the root of its state."""

    checkpoint: str
    root: str
    name: str | None = None
    batch: int | None = None
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    session: Session = dataclasses.field(default=active_session, repr=False, compare=False)
    """Provides the Spark session that reads the checkpoint."""


@dataclasses.dataclass(frozen=True)
class FoundHandles:
    """The handles of one batch of one state."""

    query: str
    name: str
    batch: int
    planned_millis: int
    """When the batch was planned: the processing time of its processors."""
    handles: tuple[str, ...]
    uri: str


def find_handles(source: StateSource) -> FoundHandles:
    """The handles of all shards of the batch, with the state they belong to."""
    try:
        from fastchangelog.spark.checkpoint.handles import SparkCheckpoints
        from fastchangelog.spark.checkpoint.state_handles import choose_state
    except ImportError as error:
        raise InvalidArgumentError(f"only Spark can read a checkpoint: {error}") from None
    uri = existing_folder(source.root)
    root = _internal.ObjectFolder(uri, {}, storage_options_of(uri, source).show())
    with source.session() as session:
        checkpoints = SparkCheckpoints(session)
        query, batch, operators = checkpoints.handles(source.checkpoint, source.batch)
        planned = checkpoints.time_of(source.checkpoint, batch)
    found = choose_state(
        root,
        source.checkpoint,
        query,
        batch,
        operators,
        source.name,
        argument="--name",
        remedy="choose a batch after they had some",
    )
    handles = tuple(handle for _, handle in sorted(found.handles.items()))
    return FoundHandles(query, found.name, batch, planned, handles, root.child(f"{query}/{found.name}").uri)


def storage_options_of(uri: str, source: StateSource) -> Hidden[dict[str, str]]:
    """Options of the store of `uri`."""
    return Hidden(gather_storage_options(uri, source.storage_options, source.conf))


def savepoint_folder(uri: str, source: StateSource) -> _internal.SavepointFolder:
    """The folder at `uri`, connected."""
    return _internal.SavepointFolder(uri, gather_options(conf=source.conf), storage_options_of(uri, source).show())


def absolute_uri(uri: str) -> str:
    """The URI, or the absolute path of a local folder."""
    return uri if "://" in uri else os.path.abspath(uri)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """An empty local folder, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="fastchangelog-", ignore_cleanup_errors=True) as folder:
        yield folder
