"""Reading and checking every byte of a savepoint, or of the objects that one batch of a checkpoint needs.

Owns: the results. Does not own: the checks (the core), the source (`savepoints.source`).
"""

from __future__ import annotations

import json
from typing import Any

from fastchangelog.options import existing_folder
from fastchangelog.savepoints.source import (
    ProgressReport,
    StateSource,
    find_handles,
    savepoint_folder,
    scratch_folder,
)

__all__ = ["verify_checkpoint", "verify_savepoint"]


def verify_savepoint(uri: str, source: StateSource, report: ProgressReport | None = None) -> dict[str, Any]:
    """Reads every byte of a savepoint; `damaged` lists objects that differ from the written ones."""
    folder = savepoint_folder(existing_folder(uri), source)
    with scratch_folder() as scratch:
        said, damaged = folder.verify(scratch, report)
    found = json.loads(said)
    return {
        "uri": uri,
        "objects": len(found["files"]),
        "bytes": found["stored_bytes"],
        "keys": found["keys"],
        "damaged": [{"object": name, "what": what} for name, what in damaged],
    }


def verify_checkpoint(source: StateSource, report: ProgressReport | None = None) -> dict[str, Any]:
    """Reads every byte that one batch of a query's checkpoint needs."""
    found = find_handles(source)
    objects, size, damaged = savepoint_folder(found.uri, source).verify_objects(found.handles, report)
    return {
        "uri": found.uri,
        "batch": found.batch,
        "objects": objects,
        "bytes": size,
        "damaged": [{"object": name, "what": what} for name, what in damaged],
    }
