"""The loop that follows a materialization policy, with time as a parameter.

Owns: one run at a time, what consecutive failures mean.
Does not own: the policy (`policy`), what a materialization is (the target's), threads (the run's future brings its
own) or waiting (the owner calls `poll`).

A materialization gives a shard a new snapshot, so that its log before that snapshot need not be replayed or kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Generic, Protocol, TypeVar

from fastchangelog.errors import ClosedError, StoreError
from fastchangelog.materialization.policy import SKIP_PAUSE, MaterializationPolicy

__all__ = ["PeriodicMaterializer", "Run", "Target"]

H = TypeVar("H")


class Run(Protocol[H]):
    """A materialization that has begun. After `run`, exactly one of `complete` and `abort` is called, by the owner."""

    def run(self) -> Future[H]:
        """Starts the part that runs off the owner's thread."""
        ...

    def complete(self, handle: H) -> None:
        """Installs the new snapshot."""
        ...

    def abort(self, error: BaseException) -> None:
        """Discards what was made."""
        ...


class Target(Protocol[H]):
    """What can be materialized. It may also have `progress() -> Progress` (`policy.Progress`)."""

    def begin(self) -> Run[H] | None:
        """The part that needs the owner's thread; None when nothing changed since the last run."""
        ...


class PeriodicMaterializer(Generic[H]):
    """Drives a target by a policy: one run at a time.

    The owner calls `poll` now and then, always from the same thread; nothing happens in between. Invariants:

    1. at most one run is between `begin` and its `complete` or `abort`;
    2. each run gets exactly one of `complete` and `abort`; `close` aborts, and a later result is ignored;
    3. a success resets the count of failures; the failure after `max_failures` in a row makes `poll` raise.

    >>> from concurrent.futures import Future
    >>> class Nothing:
    ...     def begin(self): return None
    >>> now = 0.0
    >>> m = PeriodicMaterializer(Nothing(), MaterializationPolicy(interval="10s"), clock=lambda: now)
    >>> now = 10.0
    >>> m.poll()
    >>> (m.started, m.skipped)
    (0, 1)
    """

    def __init__(
        self,
        target: Target[H],
        policy: MaterializationPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        owner: str = "",
    ) -> None:
        """`clock` gives seconds; `owner` names the target; its hash offsets the first run by time."""
        self.policy = policy or MaterializationPolicy()
        self.started = 0
        """Runs that began."""
        self.completed = 0
        """Runs that gave a new snapshot."""
        self.failed = 0
        """Runs that failed, in `begin` or later."""
        self.skipped = 0
        """Times when a run was due and nothing had changed."""
        self.failures_in_a_row = 0
        """Failed runs since the last completed one."""
        self.last_duration = -1.0
        """Seconds that the last completed run took; -1 before the first."""
        self._target = target
        self._clock = clock
        self._owner = owner
        self._closed = False
        self._triggered = False
        self._running: tuple[Run[H], Future[H], float] | None = None
        now = clock()
        self._interval_start = now
        self._first_interval = True
        self._due = now + self.policy.first_delay(owner)
        self._not_before = now

    @property
    def running(self) -> bool:
        """True while a run is under way."""
        return self._running is not None

    @property
    def next_due(self) -> float:
        """When, by the clock, time alone starts the next run."""
        return self._due

    def follow(self, policy: MaterializationPolicy) -> None:
        """Replaces the policy. The interval of the new one starts when that of the former one did."""
        if policy == self.policy:
            return
        self.policy = policy
        wait = policy.first_delay(self._owner) if self._first_interval else policy.delay(self.failures_in_a_row)
        self._due = self._interval_start + wait

    def trigger(self) -> None:
        """Requests a run at the next `poll`, or at the first one after the current run."""
        self._triggered = True

    def poll(self) -> None:
        """Ends a run that is done and starts one that is due. Raises `StoreError` when the job must fail.

        What to do about the error: its message has the cause. Later runs are still tried.
        """
        if self._closed:
            return
        failure = self._collect()
        if self._running is None and failure is None and self._is_due():
            failure = self._begin()
        if failure is not None and self.failures_in_a_row > self.policy.max_failures:
            raise StoreError(
                f"materialization of {self._owner or 'the state'} failed {self.failures_in_a_row} times in a row, more "
                f"than `max_failures` = {self.policy.max_failures} of its MaterializationPolicy allows; "
                f"the last cause: {failure}"
            ) from failure

    def close(self) -> None:
        """Aborts the current run; none starts any more. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._running is not None:
            run, future, _ = self._running
            self._running = None
            future.cancel()
            run.abort(ClosedError("the state was closed while it was materialized"))

    def _is_due(self) -> bool:
        now = self._clock()
        if self._triggered or now >= self._due:
            return True
        if now < self._not_before:
            return False
        progress = getattr(self._target, "progress", None)
        return progress is not None and self.policy.wants(progress())

    def _begin(self) -> BaseException | None:
        self._triggered = False
        begun = self._clock()
        try:
            run = self._target.begin()
        except Exception as error:
            self.started += 1
            return self._failed(error)
        if run is None:
            self.skipped += 1
            self._end(pause=SKIP_PAUSE.total_seconds())
            return None
        self.started += 1
        try:
            future = run.run()
        except Exception as error:
            run.abort(error)
            return self._failed(error)
        self._running = (run, future, begun)
        return None

    def _collect(self) -> BaseException | None:
        """Completes or aborts a run that is done; returns its error."""
        if self._running is None or not self._running[1].done():
            return None
        run, future, begun = self._running
        self._running = None
        try:
            run.complete(future.result())
        except (CancelledError, ClosedError) as error:
            # Cancelled, or its state was replaced or closed: tried again, and not counted as a failure.
            run.abort(error)
            self._end(pause=SKIP_PAUSE.total_seconds())
            return None
        except Exception as error:
            run.abort(error)
            return self._failed(error)
        self.completed += 1
        self.failures_in_a_row = 0
        self.last_duration = self._clock() - begun
        self._end(pause=0.0)
        return None

    def _failed(self, error: BaseException) -> BaseException:
        self.failed += 1
        self.failures_in_a_row += 1
        self._end(pause=self.policy.pause(self.failures_in_a_row))
        return error

    def _end(self, pause: float) -> None:
        now = self._clock()
        self._interval_start, self._first_interval = now, False
        self._due = now + self.policy.delay(self.failures_in_a_row)
        self._not_before = now + pause
