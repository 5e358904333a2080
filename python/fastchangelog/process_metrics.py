"""`fastchangelog.metrics()`: one snapshot of the counters of this process and of its state server.

Owns: the sum over sources. Does not own: the counters. They are for people: correctness never depends on them.

Not called `metrics`: an imported submodule of that name would replace the function `fastchangelog.metrics`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from weakref import WeakSet

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError
from fastchangelog.server.paths import ServerPaths

__all__ = ["metrics"]


class Source:
    """Counters of an engine of this process, for as long as the engine holds this object."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self.read = read


_sources: WeakSet[Source] = WeakSet()


def register(read: Callable[[], Mapping[str, int]]) -> Source:
    """Adds `read` to the snapshot for as long as the returned object lives."""
    source = Source(read)
    _sources.add(source)
    return source


def metrics() -> dict[str, int]:
    """All counters by name: those of this process's engines plus those of the executor's state server, if one runs.

    On a driver without either it is empty: in a job, the same numbers are in `StreamingQueryProgress.observedMetrics`.

    >>> metrics()
    {}
    """
    total: Counter[str] = Counter()
    for source in list(_sources):
        total.update(source.read())
    total.update(_of_state_server())
    return dict(sorted(total.items()))


def _of_state_server() -> dict[str, int]:
    paths = ServerPaths.here()
    if not paths.socket.exists():
        return {}
    try:
        found: dict[str, int] = json.loads(_internal.ServerClient(str(paths.socket), timeout_seconds=5.0).metrics())
    except FastChangelogError:
        return {}
    return found
