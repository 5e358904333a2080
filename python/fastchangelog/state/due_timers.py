"""Which timers are due, in which order, and times as the session takes them.

Owns: `DueTimers`, for processors of rows and vectorised ones; the file that holds timers beyond what memory may.
Does not own: calls of user code, registering and deleting (`timers`, `spark.processor.states.timers`), which
folder has room for the file (the caller).

Which timers fire is settled before the first handler runs: those that are due then, ascending by time. One that a
handler deletes fires all the same. One that a handler registers fires in a later batch, however early its time.
"""

from __future__ import annotations

import contextlib
import heapq
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fastchangelog import _internal

__all__ = ["DueTimers", "Timer", "encoded_times"]

#: A timer: time, key.
Timer = tuple[int, bytes]

#: Bytes of changed timers that are kept in memory, and what one takes there beside its key.
_KEPT_BYTES = 8 * 1024 * 1024
_TIMER_BYTES = 256

_PAGE = pa.schema([("time", pa.int64()), ("key", pa.binary())])


def encoded_times(times: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]) -> pa.BinaryArray:
    """Times as the session takes them: eight bytes each, big endian."""
    offsets = np.arange(0, 8 * len(times) + 1, 8, dtype=np.int32)
    data = np.array(times, ">i8").tobytes()
    return pa.Array.from_buffers(pa.binary(), len(times), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class DueTimers:
    """The timers that were due when this was made, ascending, in pages; whatever is changed in between.

    The session lists what is there now, after the last timer of the page before. So what was registered since is left
    out of it, and what was deleted since is put back. Of more changes than memory may hold none are kept: all timers
    that are still to come are written to a file before they are changed, and pages are read from there.

    `folder` names where the file goes; it has no name there, and is gone with the process or after `close`.
    """

    def __init__(
        self, session: _internal.StateSession, until: int, page: int, folder: Callable[[], str] = tempfile.gettempdir
    ) -> None:
        self._session = session
        self._until = until
        self._page = page
        self._folder = folder
        self._last: Timer | None = None
        self._ended = False
        #: Timers that were registered since, and are therefore not due.
        self._new: set[Timer] = set()
        #: Timers that were deleted since, and are due all the same: a heap, and the same as a set.
        self._deleted: list[Timer] = []
        self._is_deleted: set[Timer] = set()
        self._files = contextlib.ExitStack()
        self._spilled: pa.RecordBatchReader | None = None

    def next_page(self) -> list[Timer]:
        """The next timers; none at the end."""
        if self._spilled is None:
            return self._listed_page()
        page = next(self._spilled, None)
        return [] if page is None else list(zip(*(column.to_pylist() for column in page.columns)))

    def close(self) -> None:
        """Removes the file."""
        self._files.close()

    def may_be_ahead(self, time: int) -> bool:
        """False if a change of a timer of this time does not matter to those that are still to come."""
        return self._spilled is None and time <= self._until and (self._last is None or time >= self._last[0])

    def notice(self, changes: list[tuple[Timer, bool]]) -> None:
        """Hears of timers that are about to be registered (True) or deleted (False)."""
        ahead = [(timer, is_there) for timer, is_there in changes if self._is_ahead(timer)]
        if not ahead:
            return
        each = _TIMER_BYTES + sum(len(key) for (_, key), _ in ahead) // len(ahead)
        if each * (len(self._new) + len(self._deleted) + len(ahead)) > _KEPT_BYTES:
            self._spill()
            return
        keys = list(dict.fromkeys(key for (_, key), _ in ahead))
        changed = {timer for timer, _ in ahead}
        there: set[Timer] = set()
        at = 0
        while at < len(keys):
            times = self._session.timers_of(pa.array(keys[at:], pa.binary())).to_pylist()
            there |= changed.intersection((time, key) for key, found in zip(keys[at:], times) for time in found)
            at += len(times)
        for timer, is_there in ahead:
            was_due = timer in there and timer not in self._new
            if is_there and not was_due and timer not in self._is_deleted:
                self._new.add(timer)
            elif not is_there and was_due and timer not in self._is_deleted:
                heapq.heappush(self._deleted, timer)
                self._is_deleted.add(timer)
            elif not is_there:
                self._new.discard(timer)

    def _is_ahead(self, timer: Timer) -> bool:
        return timer[0] <= self._until and (self._last is None or timer > self._last)

    def _listed_page(self) -> list[Timer]:
        found: list[Timer] = []
        while not found and not (self._ended and not self._deleted):
            times, keys, more = self._session.due_timers(self._until, self._last, self._page)
            listed = list(zip(times.to_pylist(), keys.to_pylist()))
            self._ended = not more
            found = [timer for timer in listed if timer not in self._new]
            deleted = []
            while self._deleted and (self._ended or self._deleted[0] <= listed[-1]):
                deleted.append(heapq.heappop(self._deleted))
            if deleted:
                self._is_deleted.difference_update(deleted)
                found = sorted({*found, *deleted})
            self._last = max([*listed[-1:], *found[-1:]], default=self._last)
            if self._new:
                self._new = {timer for timer in self._new if self._is_ahead(timer)}
        return found

    def _spill(self) -> None:
        """Writes all timers that are still to come to the file."""
        file = tempfile.TemporaryFile(prefix="fastchangelog-", dir=self._folder())  # noqa: SIM115 (until `close`)
        self._files.enter_context(file)
        with pa.ipc.new_stream(file, _PAGE) as stream:
            while page := self._listed_page():
                stream.write_batch(pa.record_batch([*zip(*page)], schema=_PAGE))
        file.seek(0)
        self._spilled = pa.ipc.open_stream(file)
