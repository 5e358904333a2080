"""Timers that are due, as a vectorised processor gets them.

Owns: what `on_timer` is given, and calls of it in which a key comes once.
Does not own: which timers are due, registering and deleting them (`fastchangelog.state`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from fastchangelog.state.due_timers import Timer
from fastchangelog.state.times import TIME

__all__ = ["Timers", "one_for_each_key", "shown_times"]


class Timers:
    """Timers that are due: keys, each once, and a time for each.

    Example:
        >>> import pyarrow as pa
        >>> timers = Timers(pa.array([{"k": "a"}]), pa.array([0], pa.timestamp("us", "UTC")))
        >>> timers.keys.field("k").to_pylist(), len(timers)
        (['a'], 1)
    """

    def __init__(self, keys: pa.StructArray, times: pa.TimestampArray) -> None:
        self.keys = keys
        """The keys, structs of the grouping columns."""
        self.times = times
        """For each key, the time for which its timer was registered: ``timestamp[us, UTC]``."""

    def __len__(self) -> int:
        return len(self.keys)


def one_for_each_key(page: Sequence[Timer]) -> Iterator[list[Timer]]:
    """The timers of a page, in parts in which a key comes once; those of a key in their order.

    >>> list(one_for_each_key([(1, b"a"), (2, b"b"), (3, b"a")]))
    [[(1, b'a'), (2, b'b')], [(3, b'a')]]
    """
    parts: list[list[Timer]] = []
    seen: dict[bytes, int] = {}
    for timer in page:
        part = seen[timer[1]] = seen.get(timer[1], -1) + 1
        if part == len(parts):
            parts.append([])
        parts[part].append(timer)
    yield from parts


def shown_times(timers: Sequence[Timer]) -> pa.TimestampArray:
    """The times of timers, as user code sees them."""
    millis = np.array([time for time, _ in timers], np.int64)
    return pa.array(millis * 1000, pa.int64()).cast(TIME)
