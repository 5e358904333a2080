"""Requests of a collection: how many at once, and which may run beside each other.

Owns: the bound on requests, the groups of deletions. Does not own: the order of deletions (`gc.plan`), the requests
themselves (`gc.collector`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastchangelog.gc.plan import Entry

__all__ = ["in_groups", "in_parallel"]

#: Requests at once: reads of manifests and deletions only wait for the store.
_PARALLEL = 16
#: Requests that may begin before all earlier ones have succeeded.
_MAX_QUEUED = 8 * _PARALLEL

S = TypeVar("S")
T = TypeVar("T")


def in_parallel(do: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """The results in order, of a few at a time. After an error no further one begins, so
    that an unavailable store does not get a hundred thousand requests."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for start in range(0, len(items), _MAX_QUEUED):
            yield from pool.map(do, items[start : start + _MAX_QUEUED])


def in_groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Runs of one kind, notes one by one: a group is deleted before the next begins."""
    groups: list[list[Entry]] = []
    for entry in entries:
        if groups and entry.kind != "note" and groups[-1][-1].kind == entry.kind:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups
