"""The handles of a batch that belong to one state of a query.

Owns: which operator of a checkpoint has which name, and the errors when there is none.
Does not own: reading checkpoints (`handles`), what is done with the handles (`reading`, `savepoints`).

Spark numbers a query's operators, this library names them. The bucket does not hold the number, so an operator is
identified by its handles: they name objects in the folder of its state.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, StateNotFoundError
from fastchangelog.layout import FOLDER_META

__all__ = ["FoundState", "choose_state", "newest_schema", "objects_of"]


@dataclasses.dataclass(frozen=True)
class FoundState:
    """The state that was asked for, at one batch."""

    name: str
    #: By partition of Spark's operator. Shards without rows have none.
    handles: dict[int, str]
    #: Objects that they name and that are not in the bucket.
    missing: tuple[str, ...]


def choose_state(
    root: _internal.ObjectFolder,
    checkpoint: str,
    query: str,
    batch: int,
    operators: Mapping[int, Mapping[int, str]],
    name: str | None,
    *,
    argument: str,
    remedy: str,
) -> FoundState:
    """The handles of the state `name`, or of the only one.

    Args:
        root: The root of the states of all queries.
        checkpoint: For messages.
        query: The query's id.
        batch: The batch that the handles are of.
        operators: For each operator of the query its handles by partition.
        name: The name that `grouped` was given.
        argument: How a caller says which name it means.
        remedy: What to do while shards have not taken their part of a savepoint.
    """
    names: dict[str, set[str]] = {}
    for path, _, _ in root.list(f"{query}/"):
        found, _, rest = path.removeprefix(f"{query}/").partition("/")
        names.setdefault(found, set()).add(rest)
    if not names:
        raise StateNotFoundError(f"{root.uri} holds no state of the query {query}; give the state= of grouped()")
    chosen = name or next(iter(names))
    if chosen not in names or (name is None and len(names) > 1):
        known = ", ".join(sorted(names))
        raise InvalidArgumentError(f"the query {query} has the states {known}; say which one with {argument}")
    fits = [handles for handles in operators.values() if handles and _objects(handles) & names[chosen]]
    if not fits and len(names) == 1:
        fits = [handles for handles in operators.values() if handles]
    if len(fits) != 1:
        raise StateNotFoundError(
            f"no operator of {checkpoint} has handles in {root.uri}/{query}/{chosen} at batch {batch}; check that "
            "this is the state of that checkpoint, and that none of its objects was deleted"
        )
    _check_started(root.child(f"{query}/{chosen}"), fits[0], remedy)
    return FoundState(chosen, dict(fits[0]), tuple(sorted(_objects(fits[0]) - names[chosen])))


def newest_schema(handles: Mapping[int, str]) -> str:
    """The schema text of the newest handle: a shard without rows keeps that of an older batch."""
    read: list[dict[str, Any]] = [json.loads(_internal.handle_json(text)) for text in handles.values()]
    schema: str = max(read, key=lambda handle: int(handle["batch"]))["schema"]
    return schema


def objects_of(text: str) -> set[str]:
    """Objects that a handle names."""
    handle = json.loads(_internal.handle_json(text))
    found = {str(segment["object"]["name"]) for segment in handle["segments"]}
    if handle["base"]:
        found.add(handle["base"]["manifest"]["name"])
    return found


def _objects(handles: Mapping[int, str]) -> set[str]:
    """Objects that handles name."""
    return set[str]().union(*map(objects_of, handles.values()))


def _check_started(folder: _internal.ObjectFolder, handles: Mapping[int, str], remedy: str) -> None:
    """A shard without a handle is empty, unless it has yet to take its part of a savepoint."""
    shards = json.loads(_internal.handle_json(next(iter(handles.values()))))["shards"]
    if len(handles) == shards:
        return
    data = folder.read(FOLDER_META)
    note = {} if data is None else json.loads(_internal.folder_note_json(f"{folder.uri}/{FOLDER_META}", data))
    if note.get("start_from"):
        raise InvalidArgumentError(
            f"{shards - len(handles)} of {shards} shards of {folder.uri} have not taken their part of the savepoint "
            f"{note['start_from'][0]} yet, because they had no rows; {remedy}"
        )
