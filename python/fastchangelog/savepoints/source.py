"""The source of a savepoint: a batch of a query's checkpoint, and the root of its state.

Owns: which handles of a checkpoint belong to which state, the connection to its store.
Does not own: reading checkpoints (`spark.checkpoints`), the Spark session (a parameter), savepoints (the core).
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, StateNotFoundError
from fastchangelog.layout import FOLDER_META
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
    handles: tuple[str, ...]
    uri: str


def find_handles(source: StateSource) -> FoundHandles:
    """The handles of all shards of the batch, with the state they belong to."""
    try:
        from fastchangelog.spark.checkpoints import SparkCheckpoints
    except ImportError as error:
        raise InvalidArgumentError(f"a checkpoint is read with Spark: {error}") from None
    uri = existing_folder(source.root)
    root = _internal.ObjectFolder(uri, {}, storage_options_of(uri, source))
    with source.session() as session:
        query, batch, operators = SparkCheckpoints(session).handles(source.checkpoint, source.batch)
    names: dict[str, set[str]] = {}
    for path, _, _ in root.list(f"{query}/"):
        name, _, rest = path.removeprefix(f"{query}/").partition("/")
        names.setdefault(name, set()).add(rest)
    if not names:
        raise StateNotFoundError(f"{source.root} holds no state of the query {query}; give the state= of grouped()")
    name = source.name or next(iter(names))
    if name not in names or (source.name is None and len(names) > 1):
        known = ", ".join(sorted(names))
        raise InvalidArgumentError(f"the query {query} has the states {known}; say which one with --name")
    fits = [handles for handles in operators.values() if handles and _names(handles) & names[name]]
    if not fits and len(names) == 1:
        fits = [handles for handles in operators.values() if handles]
    if len(fits) != 1:
        raise StateNotFoundError(
            f"no operator of {source.checkpoint} has handles in {source.root}/{query}/{name} at batch {batch}; is "
            "this the state of that checkpoint, and were none of its objects deleted?"
        )
    handles = tuple(handle for _, handle in sorted(fits[0].items()))
    _check_started(root.child(f"{query}/{name}"), handles)
    return FoundHandles(query, name, batch, handles, f"{uri.rstrip('/')}/{query}/{name}")


def _names(handles: Mapping[int, str]) -> set[str]:
    """Objects that handles name."""
    found: set[str] = set()
    for text in handles.values():
        handle = json.loads(_internal.handle_json(text))
        found.update(segment["object"]["name"] for segment in handle["segments"])
        if handle["base"]:
            found.add(handle["base"]["manifest"]["name"])
    return found


def _check_started(folder: _internal.ObjectFolder, handles: tuple[str, ...]) -> None:
    """A shard without a handle is empty, unless it has yet to take its part of a savepoint."""
    shards = json.loads(_internal.handle_json(handles[0]))["shards"]
    if len(handles) == shards:
        return
    data = folder.read(FOLDER_META)
    note = {} if data is None else json.loads(_internal.folder_note_json(f"{folder.uri}/{FOLDER_META}", data))
    if note.get("start_from"):
        raise InvalidArgumentError(
            f"{shards - len(handles)} of {shards} shards of {folder.uri} have not taken their part of the savepoint "
            f"{note['start_from'][0]} yet, because they had no rows; take this savepoint after they had some"
        )


def storage_options_of(uri: str, source: StateSource) -> dict[str, str]:
    """Options of the store of `uri`."""
    return gather_storage_options(uri, source.storage_options, source.conf)


def savepoint_folder(uri: str, source: StateSource) -> _internal.SavepointFolder:
    """The folder at `uri`, connected."""
    return _internal.SavepointFolder(uri, gather_options(conf=source.conf), storage_options_of(uri, source))


def absolute_uri(uri: str) -> str:
    """The URI, or the absolute path of a local folder."""
    return uri if "://" in uri else os.path.abspath(uri)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """An empty local folder, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="fastchangelog-", ignore_cleanup_errors=True) as folder:
        yield folder
