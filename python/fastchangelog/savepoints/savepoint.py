"""Taking a savepoint of a query's state, and describing one.

Owns: the two calls for a query. Does not own: savepoints (the core), the source (`savepoints.source`).
"""

from __future__ import annotations

import json
from typing import Any

from fastchangelog import _internal
from fastchangelog.layout import SAVEPOINT_MANIFEST
from fastchangelog.options import existing_folder
from fastchangelog.savepoints.source import (
    ProgressReport,
    StateSource,
    absolute_uri,
    find_handles,
    savepoint_folder,
    scratch_folder,
    storage_options_of,
)

__all__ = ["is_savepoint", "read_savepoint", "take_savepoint"]


def take_savepoint(source: StateSource, to: str, format: str, report: ProgressReport | None = None) -> dict[str, Any]:
    """Takes a savepoint of one batch; the query may run meanwhile. Returns its description and its `uri`."""
    found = find_handles(source)
    state, target = savepoint_folder(found.uri, source), savepoint_folder(absolute_uri(to), source)
    with scratch_folder() as scratch:
        said = state.take(found.handles, target, format, found.query, found.name, found.batch, scratch, report)
    return {"uri": target.uri, **json.loads(said)}


def is_savepoint(uri: str, source: StateSource) -> bool:
    """True if the folder holds a savepoint's manifest."""
    folder = _internal.ObjectFolder(existing_folder(uri), {}, storage_options_of(uri, source).show())
    return folder.read(SAVEPOINT_MANIFEST) is not None


def read_savepoint(uri: str, source: StateSource) -> dict[str, Any]:
    """A savepoint's description."""
    said: dict[str, Any] = json.loads(savepoint_folder(existing_folder(uri), source).read())
    return {"uri": uri, **said}
