"""Timers of a vectorised processor.

Owns: registering and deleting for many keys, what `on_timer` is given, and calls of it in which a key comes once.
Does not own: which timers are due (`due_timers`), where timers are stored (the session).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fastchangelog.embedded.arrow import many_of
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.vectorised.due_timers import DueTimers, Timer, encoded_times
from fastchangelog.vectorised.keys import BatchKeys
from fastchangelog.vectorised.session import DELETE, PUT, SessionLike
from fastchangelog.vectorised.state import send

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike

__all__ = ["TimerChanges", "Timers", "one_for_each_key"]

_TIME = pa.timestamp("us", "UTC")
#: Timers of one change that are Python's objects at once.
_NOTICED = 16_384


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


class TimerChanges:
    """Registers and deletes timers of the keys in work. Reads nothing."""

    def __init__(self, keys: BatchKeys, time_mode: str) -> None:
        self._keys, self._mode = keys, time_mode
        self._session: SessionLike | None = None
        self._id = -1
        self._due: DueTimers | None = None

    def bind(self, session: SessionLike, state_id: int) -> None:
        """Gives the timers their place in the session."""
        self._session, self._id = session, state_id

    def begin_firing(self, due: DueTimers) -> None:
        """From here on, `due` hears of each change before it is sent."""
        self._due = due

    def register(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Registers one timer for each key."""
        self._change("register_timers()", keys, times, is_there=True)

    def delete(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Deletes one timer of each key."""
        self._change("delete_timers()", keys, times, is_there=False)

    def fired(self, timers: Sequence[Timer]) -> None:
        """Deletes timers that user code has seen."""
        assert self._session is not None
        keys = pa.array([key for _, key in timers], pa.binary())
        self._send(np.full(len(timers), DELETE), keys, np.array([time for time, _ in timers], np.int64))

    def _change(self, what: str, keys: ArrowArrayLike, times: ArrowArrayLike, *, is_there: bool) -> None:
        if self._mode == "none":
            raise InvalidArgumentError(f'{what} needs a clock; call with timeMode="processingtime" or "eventtime"')
        encoded = self._keys.encoded(what, keys)
        given = many_of(f"{what}: times", times, _TIME)
        if len(given) != len(encoded):
            raise InvalidArgumentError(f"{what}: {len(encoded)} keys and {len(given)} times; give one for each")
        if given.null_count:
            raise InvalidArgumentError(f"{what}: a time is null; leave its key out")
        # Timers have milliseconds. None is early: parts of one count as a whole.
        millis = -(-np.asarray(given.cast(pa.int64())) // 1000)
        due = self._due
        if due is not None:
            for start in range(0, len(millis), _NOTICED):
                part = enumerate(millis[start : start + _NOTICED].tolist(), start)
                near = [((time, encoded[i].as_py()), is_there) for i, time in part if due.may_be_ahead(time)]
                if near:
                    due.notice(near)
        self._send(np.full(len(millis), PUT if is_there else DELETE), encoded, millis)

    def _send(self, ops: Any, keys: pa.BinaryArray, times: Any) -> None:
        assert self._session is not None
        send(self._session, self._id, ops, keys, encoded_times(times), None, None)


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
    return pa.array(millis * 1000, pa.int64()).cast(_TIME)
