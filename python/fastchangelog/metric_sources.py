"""Which objects of this process count something.

Owns: the set of sources, each for as long as its object is open. Does not own: the counters (the core), their sum
(`process_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakSet

from fastchangelog.errors import FastChangelogError

__all__ = ["MetricSource", "read_sources"]


class MetricSource:
    """Counters of one object, for as long as that object holds this one.

    >>> source = MetricSource(lambda: {"checkpoints": 1})
    >>> {"checkpoints": 1} in list(read_sources())
    True
    """

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self.read = read
        _sources.add(self)


_sources: WeakSet[MetricSource] = WeakSet()


def read_sources() -> Iterator[Mapping[str, int]]:
    """The counters of every source. One that is of another process (a fork), or closed meanwhile, is left out."""
    for source in list(_sources):
        try:
            yield source.read()
        except FastChangelogError:
            continue
