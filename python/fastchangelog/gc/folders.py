"""What a listing of a root shows: the folders of states, and everything else.

Owns: telling states of queries, embedded states and foreign objects apart by their names.
Does not own: listing (`gc.collector`), the names inside a state's folder (the core).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastchangelog import _internal
from fastchangelog.gc import checkpoint_log
from fastchangelog.gc.plan import Entry
from fastchangelog.layout import CREATES

__all__ = ["foreign_entries", "is_of_a_root", "states_below"]


def foreign_entries(found: Mapping[str, str]) -> tuple[Entry, ...]:
    """Foreign entries that can be neither read nor named."""
    return tuple(Entry(name, 0, 0.0, None, why) for name, why in sorted(found.items()))


def is_of_a_root(name: str) -> bool:
    """True for the note that a root's store creates objects conditionally: it belongs to no state, and stays."""
    return _internal.object_type(name.rpartition("/")[2]) == CREATES


def states_below(listed: Sequence[tuple[str, int, float]]) -> tuple[list[str], list[str], tuple[Entry, ...]]:
    """The folders of queries' states under a root, those of embedded states at any depth, and the objects in none."""
    states = {found for name, _, _ in listed if (found := checkpoint_log.state_of(name)) is not None}
    by_folder: dict[str, list[tuple[str, int, float]]] = {}
    outside = []
    for name, size, modified in listed:
        parts = name.split("/")
        if states and any("/".join(parts[:depth]) in states for depth in range(1, len(parts))):
            continue
        if len(parts) > 2:
            by_folder.setdefault("/".join(parts[:2]), []).append(("/".join(parts[2:]), size, modified))
        else:
            outside.append(Entry(name, size, modified, None))
    folders = set()
    for folder, rows in by_folder.items():
        if any(_internal.object_type(name) for name, _, _ in rows):
            folders.add(folder)
        else:
            outside += [Entry(f"{folder}/{name}", size, modified, None) for name, size, modified in rows]
    return sorted(folders), sorted(states), tuple(outside)
