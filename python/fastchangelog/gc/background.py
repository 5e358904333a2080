"""Sweeps in the background: when each state is swept, on one thread, and what came of it.

Owns: the schedule, the thread, the outcome of a sweep.
Does not own: which states there are, the connection to their stores, logs and metrics (the callers: the state server
and embedded states), the sweep itself (`gc.collector`), its bounds (`gc.pace`).

A sweep may be stopped or killed at any request: the next one, here or elsewhere, goes on. The thread is a daemon, so
that no process waits for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

from fastchangelog.errors import FastChangelogError
from fastchangelog.gc.pace import Pace
from fastchangelog.gc.report import FolderReport
from fastchangelog.options import default_option, seconds_option

__all__ = ["BackgroundSweeper", "Outcome", "Sweepable", "pause_of"]

#: Seconds after a state appears until its first sweep, at most: the start of a query has better things to do.
_FIRST = 60.0
#: Seconds that `stop` waits for a request that is under way.
_PATIENCE = 0.5
#: Added to the nice value of the thread, where the system has one for each thread.
_NICE = 10


@dataclasses.dataclass(frozen=True)
class Sweepable:
    """A state, or all states of a query under one root, that this process sweeps."""

    key: str
    """For the schedule and the log."""
    interval: float
    """Seconds between two sweeps."""
    sweep: Callable[[Pace], Sequence[FolderReport]] = dataclasses.field(compare=False)


@dataclasses.dataclass
class _Record:
    """What the sweeper knows of one `Sweepable`."""

    due: float
    doubt: str | None = None
    waiting: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One sweep of a `Sweepable`."""

    key: str
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    """Over all that this process sweeps: unreachable objects that wait for their grace period."""
    requests: int = 0
    seconds: float = 0.0
    doubt: str | None = None
    """Why something was kept as a whole."""
    is_news: bool = True
    """False if the sweep before had the same doubt: the log has it already."""

    def counts(self) -> tuple[int, int, int, int, bool]:
        """For the metrics: the arguments of `count_sweep`."""
        return self.deleted, self.deleted_bytes, self.waiting, self.requests, self.doubt is not None

    def fields(self) -> dict[str, str]:
        """For a log line."""
        numbers = {"deleted": self.deleted, "deleted_bytes": self.deleted_bytes, "waiting": self.waiting}
        told = {name: str(value) for name, value in {**numbers, "requests": self.requests}.items()}
        doubt = {"kept_because": self.doubt} if self.doubt is not None else {}
        return {"state": self.key, **told, "seconds": f"{self.seconds:.1f}", **doubt}


def sweep_interval(options: Mapping[str, str]) -> float | None:
    """Seconds between two sweeps of a state with these options; None if it is not swept in the background.

    >>> sweep_interval({}), sweep_interval({"sweep_interval": "10m"}), sweep_interval({"sweep": "off"})
    (3600.0, 600.0, None)
    """
    if options.get("sweep", default_option("sweep")).strip().lower() == "off":
        return None
    return seconds_option(options, "sweep_interval")


def pause_of(interval: float) -> float:
    """Seconds since a sweep by another process that make the next one idle.

    >>> pause_of(3600.0)
    1800.0
    """
    return interval / 2


class BackgroundSweeper:
    """Sweeps what `states` gives, one after another, each once in its interval."""

    def __init__(
        self,
        states: Callable[[], Sequence[Sweepable]],
        done: Callable[[Outcome], None],
        *,
        beat: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`beat`: seconds between looks for new states; None if `states` gives the same ones always."""
        self._states = states
        self._done = done
        self._beat = beat
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self.stopped = threading.Event()

    def start(self) -> bool:
        """Starts the thread; False if the system refuses one, which must end neither a query nor a program."""
        thread = threading.Thread(target=self._run, name="fcl-sweep", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def stop(self) -> None:
        """Ends the thread after the request that is under way, and waits for that a moment."""
        if os.getpid() != self._pid:  # a forked child has no such thread, and perhaps a lock that it held
            return
        self.stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def poll(self) -> float | None:
        """Sweeps what is due; seconds until the next is, None if there is nothing to sweep."""
        states = {state.key: state for state in self._states()}
        self._records = {key: record for key, record in self._records.items() if key in states}
        for key, state in states.items():
            record = self._records.setdefault(key, _Record(self._clock() + _first_wait(state)))
            if self._clock() >= record.due and not self.stopped.is_set():
                self._sweep(state, record)
                record.due = self._clock() + state.interval
        return min((record.due - self._clock() for record in self._records.values()), default=None)

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        wait: float | None = 0.0
        while not self.stopped.wait(wait):
            wait = self.poll()
            if self._beat is not None:
                wait = self._beat if wait is None else min(wait, self._beat)
            wait = None if wait is None else max(0.05, wait)

    def _sweep(self, state: Sweepable, record: _Record) -> None:
        pace, started = Pace(self.stopped), self._clock()
        reports: Sequence[FolderReport] = ()
        doubt: str | None = None
        try:
            reports = state.sweep(pace)
        except FastChangelogError as error:
            doubt = _told(error)
        except Exception as error:  # a fault of ours must not end the sweeps of other states
            doubt = f"internal error: {type(error).__name__}: {_told(error)}"
        if self.stopped.is_set() or not (reports or doubt):
            return
        doubt = doubt or next((report.kept_because for report in reports if report.kept_because), None)
        is_news, record.doubt = doubt != record.doubt, doubt
        record.waiting = sum(len(report.waiting) for report in reports)
        deleted = [entry for report in reports for entry in report.deleted]
        outcome = Outcome(
            state.key,
            len(deleted),
            sum(entry.size for entry in deleted),
            sum(record.waiting for record in self._records.values()),
            pace.requests,
            self._clock() - started,
            doubt,
            is_news,
        )
        with contextlib.suppress(FastChangelogError):  # the state was closed meanwhile
            self._done(outcome)


def _told(error: Exception) -> str:
    return str(error)


def _first_wait(state: Sweepable) -> float:
    """Seconds until the first sweep. Servers of one application that start together need not sweep together."""
    jitter = zlib.crc32(f"{os.getpid()} {state.key}".encode()) / 2**32
    return min(_FIRST, state.interval) * (0.5 + jitter / 2)
