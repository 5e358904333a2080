"""The content of a folder of states or savepoints, local or remote, for `inspect`.

Owns: telling queries' states, embedded states and savepoints apart by their names, and adding up objects and bytes.
Does not own: the listing (the core's store), a savepoint's description (`savepoints`), output (`cli.output`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fastchangelog import _internal
from fastchangelog.layout import (
    CHECKPOINT_LOG,
    CREATES,
    OWN_PREFIX,
    PROBE,
    SAVEPOINT_CLAIM,
    SAVEPOINT_MANIFEST,
    SAVEPOINT_PART,
    STATE_FOLDERS,
)

__all__ = ["KINDS", "Item", "is_one", "survey"]

KINDS = STATE_FOLDERS
"""Kinds of objects in a state's folder."""

_FOLDERS = (*KINDS, SAVEPOINT_PART, CHECKPOINT_LOG, PROBE)


@dataclasses.dataclass
class Item:
    """One state or savepoint."""

    kind: str
    """`query`, `state` or `savepoint`."""
    folder: str
    """Relative to the listed folder; empty for that folder itself."""
    objects: dict[str, int] = dataclasses.field(default_factory=dict)
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return sum(self.sizes.values())

    @property
    def count(self) -> int:
        """Number of objects."""
        return sum(self.objects.values())


def survey(folder: _internal.ObjectFolder) -> tuple[list[Item], dict[str, str]]:
    """The states and savepoints under `folder`, by name; and what can be neither read nor named there, each with the
    reason."""
    listed, foreign = folder.survey("")
    return _items((name, size) for name, size, _ in listed), foreign


def is_one(found: Sequence[Item]) -> bool:
    """True if the listed folder belongs to one state, or to one query, whose states have a folder each in it.

    >>> is_one([Item("state", "")]), is_one([Item("query", "default")]), is_one([Item("state", "default")])
    (True, True, False)
    """
    return all(not item.folder or (item.kind == "query" and "/" not in item.folder) for item in found)


def _items(listed: Iterable[tuple[str, int]]) -> list[Item]:
    found: dict[str, Item] = {}
    for name, size in listed:
        parts = name.split("/")
        if _internal.object_type(parts[-1]) == CREATES:
            continue
        if parts[-1].startswith(OWN_PREFIX):
            folder_name, kind = "/".join(parts[:-1]), "note"
        elif len(parts) > 1 and parts[-2] in _FOLDERS:
            folder_name, kind = "/".join(parts[:-2]), parts[-2]
        else:
            continue
        item = found.setdefault(folder_name, Item("query", folder_name))
        if parts[-1] == SAVEPOINT_MANIFEST:
            item.kind = "savepoint"
        elif kind == CHECKPOINT_LOG:
            item.kind = "state"
        elif (kind == SAVEPOINT_PART or parts[-1] == SAVEPOINT_CLAIM) and item.kind == "query":
            item.kind = "unfinished savepoint"
        item.objects[kind] = item.objects.get(kind, 0) + 1
        item.sizes[kind] = item.sizes.get(kind, 0) + size
    return sorted(found.values(), key=lambda item: item.folder)
