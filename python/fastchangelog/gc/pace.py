"""Bounds on the requests of a sweep in the background, which must not disturb the work beside it.

Owns: how many requests run at once and follow each other, how many objects a listing may hold, the end of a sweep that
is to stop.
Does not own: the requests (`gc.collector`), when sweeps run (`gc.background`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fastchangelog.errors import ClosedError

__all__ = ["MOST_OBJECTS", "Pace", "PacedFolder"]

MOST_OBJECTS = 200_000
"""Objects of a query's states or of an embedded state that a background sweep takes into memory: some 100 MB."""

_AT_ONCE = 2
_PER_SECOND = 50.0


class Pace:
    """Counts the requests of one sweep, and holds them back. After `stopped` is set each one is a `ClosedError`."""

    def __init__(self, stopped: threading.Event, per_second: float = _PER_SECOND) -> None:
        self.requests = 0
        self._stopped = stopped
        self._step = 1.0 / per_second
        self._lock = threading.Lock()
        self._next = time.monotonic()
        self._free = threading.Semaphore(_AT_ONCE)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Around a request: waits for its turn."""
        with self._free:
            with self._lock:
                now = time.monotonic()
                turn = max(now, self._next)
                self._next = turn + self._step
                self.requests += 1
            if self._stopped.wait(turn - now):
                raise ClosedError("the sweep was stopped with its process or its state")
            yield


class _Folder(Protocol):
    """The part of `_internal.ObjectFolder` that is needed here."""

    def child(self, folder: str) -> _Folder: ...

    def list(self, prefix: str) -> Sequence[tuple[str, int, float]]: ...

    def survey(
        self, prefix: str, most: int | None = None
    ) -> tuple[Sequence[tuple[str, int, float]], Mapping[str, str]]: ...

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, data: bytes) -> None: ...

    def delete(self, name: str) -> None: ...


class PacedFolder:
    """A `collector.StateFolder` whose requests keep to a pace."""

    def __init__(self, folder: _Folder, pace: Pace) -> None:
        self._folder = folder
        self._pace = pace

    def child(self, folder: str) -> PacedFolder:
        """See `collector.StateFolder`."""
        return PacedFolder(self._folder.child(folder), self._pace)

    def list(self, prefix: str) -> Sequence[tuple[str, int, float]]:
        """See `collector.StateFolder`."""
        with self._pace.request():
            return self._folder.list(prefix)

    def survey(self, prefix: str) -> tuple[Sequence[tuple[str, int, float]], Mapping[str, str]]:
        """See `collector.StateFolder`. More than `MOST_OBJECTS` are an error."""
        with self._pace.request():
            return self._folder.survey(prefix, MOST_OBJECTS)

    def read(self, name: str) -> bytes | None:
        """See `collector.StateFolder`."""
        with self._pace.request():
            return self._folder.read(name)

    def write(self, name: str, data: bytes) -> None:
        """See `collector.StateFolder`."""
        with self._pace.request():
            self._folder.write(name, data)

    def delete(self, name: str) -> None:
        """See `collector.StateFolder`."""
        with self._pace.request():
            self._folder.delete(name)
