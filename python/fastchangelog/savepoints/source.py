"""The source of a savepoint: a batch of a query's checkpoint, and the root of its state.

Owns: the source's parts, the connection to its store.
Does not own: reading checkpoints (`checkpoints.handles`), the assignment of handles to states
(`checkpoints.state_handles`), the Spark session (a parameter), savepoints (the core).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from fastchangelog import _internal
from fastchangelog.checkpoints.handles import QueryCheckpoints
from fastchangelog.checkpoints.locations import default_file_system
from fastchangelog.checkpoints.state_handles import choose_state
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.hidden import Hidden
from fastchangelog.options import existing_folder, gather_options, gather_storage_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fastchangelog.checkpoints.files import CheckpointFiles

__all__ = [
    "FoundHandles",
    "ProgressReport",
    "StateSource",
    "absolute_uri",
    "command_checkpoints",
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
    uri = existing_folder(source.root)
    root = _internal.ObjectFolder(uri, {}, storage_options_of(uri, source).show())
    with source.session() as session:
        checkpoints = command_checkpoints(session, uri, source.storage_options, source.conf)
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


def command_checkpoints(
    session: Callable[[], SparkSession], root: str, storage_options: Mapping[str, str], conf: Mapping[str, str]
) -> QueryCheckpoints:
    """The reader of checkpoints for a command; Spark is started for those that the core does not read."""
    return QueryCheckpoints(
        by_spark(session),
        default_fs=default_file_system(conf),
        root=root,
        storage_options=Hidden(storage_options),
        conf=Hidden(conf),
    )


def by_spark(session: Callable[[], SparkSession]) -> Callable[[str], CheckpointFiles]:
    """Opens locations through Spark, where PySpark is installed."""

    @functools.cache
    def opener() -> Callable[[str], CheckpointFiles]:
        from fastchangelog.spark.checkpoint.files import files_by_spark

        return files_by_spark(session)

    def open_files(location: str) -> CheckpointFiles:
        try:
            return opener()(location)
        except ImportError as error:
            raise InvalidArgumentError(
                f"only Spark can read {location}, where file://, s3://, gs:// and az:// need no Spark: {error}; "
                "install fastchangelog[spark]"
            ) from None

    return open_files


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
