"""The report of a garbage collection about one folder.

Owns: the fields of the report. Does not own: its display (`cli.sweep`).
"""

from __future__ import annotations

import dataclasses

from fastchangelog.gc.plan import Entry

__all__ = ["FolderReport"]


@dataclasses.dataclass
class FolderReport:
    """One folder: what was kept, what was deleted, and why."""

    folder: str
    """Query and name; of an embedded state, its path under the root."""
    checkpoints: tuple[str, ...]
    orphan: bool
    """True when none of its checkpoints is there."""
    kept_because: str | None
    """Why nothing may be deleted here; None when the folder was collected."""
    deleted: tuple[Entry, ...] = ()
    """Deleted objects; without `delete`, those that would be."""
    waiting: tuple[Entry, ...] = ()
    reachable: tuple[Entry, ...] = ()
    adoptable: tuple[Entry, ...] = ()
    young: tuple[Entry, ...] = ()
    unknown: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    grace: float | None = None
    """The grace period in force, in seconds; None when the folder was not collected."""
    embedded: bool = False
    """True for an embedded state, which has a checkpoint log and no Spark checkpoint."""
