"""When to materialize: a pure policy and the loop that follows it, with time as a parameter.

Owns: the decision (time, bytes, ratio, number of change sets, time of a replay), how fast a replay is, one run at a
time, what failures in a row mean.
Does not own: what a materialization is (the target's), threads (the run's future brings its own) or waiting (the
owner calls `poll`).

A materialization gives a shard a new base, so that its log before that base need not be replayed, or kept, any more.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from fastchangelog import config
from fastchangelog.errors import ClosedError, InvalidArgument, StoreError

__all__ = ["MaterializationPolicy", "PeriodicMaterializer", "Progress", "Run", "Target", "replay_speed"]

H = TypeVar("H")

RATIO_FLOOR = 1 << 20
"""Bytes of log below which the ratio says nothing: replaying them takes milliseconds, and a state of ten keys would
otherwise be materialized with every batch."""

RETRY_PAUSE = timedelta(seconds=10)
"""Pause after the first failure before bytes of log may start another run; doubles with each failure in a row. Without
it a store that is down would meet a new upload of the whole state at every poll."""

FAILED_PAUSE = timedelta(seconds=30)
"""Longest pause once the job was failed: when the store is healed, a restarted job should not have to wait."""

SKIP_PAUSE = timedelta(seconds=1)
"""Pause after a run that found nothing to do."""

REPLAY_BYTES_PER_SECOND = 20e6
"""What is assumed of a replay before this process has replayed enough to know."""

KNOWN_FROM = 8 << 20
"""Bytes replayed from which on the measured speed is believed."""


def replay_speed(metrics: Mapping[str, int]) -> float:
    """Bytes per second that this process replays.

    >>> replay_speed({"replay_bytes": 100 << 20, "replay_micros": 2_000_000}) / (1 << 20)
    50.0
    """
    replayed, micros = metrics.get("replay_bytes", 0), metrics.get("replay_micros", 0)
    return replayed * 1e6 / micros if replayed >= KNOWN_FROM and micros > 0 else REPLAY_BYTES_PER_SECOND


@dataclass(frozen=True)
class Progress:
    """What has gathered since the last base."""

    log_bytes: int = 0
    state_bytes: int = 0
    segments: int = 0
    """Change sets of the log."""
    replay_seconds: float = 0.0
    """What replaying them would take, as far as that is known."""


@dataclass(frozen=True)
class MaterializationPolicy:
    """When to materialize, and how many failures in a row are borne.

    `interval` counts from the end of one run to the start of the next; None = never by time alone. `log_bytes` and
    `log_ratio` (log to state), `segments` (change sets since the base, each a request of a restore) and `replay_time`
    (what a restore would take to replay them) start a run as soon as one is reached; None = not by this. The failure
    after `max_failures` failures in a row fails the job.

    >>> MaterializationPolicy(interval="5m", log_bytes="64MiB").interval
    datetime.timedelta(seconds=300)
    """

    interval: timedelta | str | None = timedelta(minutes=10)
    log_bytes: int | str | None = 256 << 20
    log_ratio: float | None = 4.0
    max_failures: int = 3
    segments: int | None = 1000
    replay_time: timedelta | str | None = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if self.interval is not None:
            interval = config.duration("interval", self.interval)
            if interval <= timedelta(0):
                raise InvalidArgument("`interval` must be longer than zero; None turns the timer off")
            object.__setattr__(self, "interval", interval)
        if self.log_bytes is not None:
            object.__setattr__(self, "log_bytes", config.size("log_bytes", self.log_bytes))
            if self._bytes <= 0:
                raise InvalidArgument("`log_bytes` must be above zero; None turns it off")
        if self.log_ratio is not None and not self.log_ratio > 0:
            raise InvalidArgument("`log_ratio` must be above zero; None turns it off")
        if self.max_failures < 0:
            raise InvalidArgument("`max_failures` must not be negative")
        if self.segments is not None and self.segments <= 0:
            raise InvalidArgument("`segments` must be above zero; None turns it off")
        if self.replay_time is not None:
            replay_time = config.duration("replay_time", self.replay_time)
            if replay_time <= timedelta(0):
                raise InvalidArgument("`replay_time` must be longer than zero; None turns it off")
            object.__setattr__(self, "replay_time", replay_time)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> MaterializationPolicy:
        """The policy of `materialization_…` options; what is not given has its default.

        >>> MaterializationPolicy.from_options({"materialization_max_failures": "0"}).max_failures
        0
        """
        default = cls()
        return cls(
            interval=options.get("materialization_interval", default.interval),
            log_bytes=options.get("materialization_log_bytes", default.log_bytes),
            log_ratio=float(options.get("materialization_log_ratio", default.log_ratio or 0)) or None,
            max_failures=int(options.get("materialization_max_failures", default.max_failures)),
            segments=int(options.get("materialization_segments", default.segments or 0)) or None,
            replay_time=options.get("materialization_replay_time", default.replay_time),
        )

    @property
    def _seconds(self) -> float:
        return self.interval.total_seconds() if isinstance(self.interval, timedelta) else float("inf")

    @property
    def _bytes(self) -> float:
        return self.log_bytes if isinstance(self.log_bytes, int) else float("inf")

    def first_delay(self, owner: str) -> float:
        """Seconds until an owner's first run by time: a stable part of the interval, so that owners spread."""
        part = zlib.crc32(owner.encode()) / (1 << 32)
        return self._seconds * part if self.interval is not None else self._seconds

    def delay(self, failures: int) -> float:
        """Seconds from the end of a run to the next one by time."""
        if failures > self.max_failures:
            return min(self._seconds, FAILED_PAUSE.total_seconds())
        return self._seconds

    def pause(self, failures: int) -> float:
        """Seconds from the end of a run in which bytes of log start no other."""
        if failures == 0:
            return 0.0
        # Never longer than the wait by time, which a failed job shortens.
        return min(RETRY_PAUSE.total_seconds() * 2.0 ** min(failures - 1, 10), self.delay(failures))

    def wants(self, progress: Progress) -> bool:
        """True when the log alone asks for a run, whatever the time."""
        if progress.log_bytes >= self._bytes:
            return True
        if self.segments is not None and progress.segments >= self.segments:
            return True
        if isinstance(self.replay_time, timedelta) and progress.replay_seconds >= self.replay_time.total_seconds():
            return True
        if self.log_ratio is None or progress.log_bytes < RATIO_FLOOR:
            return False
        return progress.log_bytes >= self.log_ratio * progress.state_bytes


class Run(Protocol[H]):
    """A materialization that has begun. After `run`, exactly one of `complete` and `abort` is called, by the owner."""

    def run(self) -> Future[H]:
        """Starts the part that runs off the owner's thread."""
        ...

    def complete(self, handle: H) -> None:
        """Makes the new base count."""
        ...

    def abort(self, error: BaseException) -> None:
        """Gives up what was made."""
        ...


class Target(Protocol[H]):
    """What can be materialized. It may also have `progress() -> Progress`."""

    def begin(self) -> Run[H] | None:
        """The part that needs the owner's thread; None when nothing changed since the last run."""
        ...


class PeriodicMaterializer(Generic[H]):
    """Drives a target by a policy: one run at a time.

    The owner calls `poll` now and then, always from the same thread; nothing happens in between. Invariants:

    1. at most one run is between `begin` and its `complete` or `abort`;
    2. each run gets exactly one of `complete` and `abort`; what finishes after `close` is ignored, it was aborted;
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
        """`clock` gives seconds; `owner` names the target and decides its place within the first interval."""
        self.policy = policy or MaterializationPolicy()
        self.started = 0
        """Runs that began."""
        self.completed = 0
        """Runs that gave a new base."""
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
        self._asked = False
        self._running: tuple[Run[H], Future[H], float] | None = None
        now = clock()
        self._since = now
        self._fresh = True
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
        """From now on `policy` decides: its interval counts from where that of the one before did."""
        if policy == self.policy:
            return
        self.policy = policy
        wait = policy.first_delay(self._owner) if self._fresh else policy.delay(self.failures_in_a_row)
        self._due = self._since + wait

    def trigger(self) -> None:
        """Asks for a run at the next `poll`, or at the one after the run under way has ended."""
        self._asked = True

    def poll(self) -> None:
        """Ends a run that is done and starts one that is due. Raises `StoreError` when the job must fail.

        What to do about the error: its message has the cause; the next runs are still tried.
        """
        if self._closed:
            return
        failure = self._land()
        if self._running is None and failure is None and self._is_due():
            failure = self._begin()
        if failure is not None and self.failures_in_a_row > self.policy.max_failures:
            raise StoreError(
                f"materialization of {self._owner or 'the state'} failed {self.failures_in_a_row} times in a row, more "
                f"than the option `materialization_max_failures` allows; the last cause: {failure}"
            ) from failure

    def close(self) -> None:
        """Aborts the run under way; nothing starts any more. May be called again."""
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
        if self._asked or now >= self._due:
            return True
        if now < self._not_before:
            return False
        progress = getattr(self._target, "progress", None)
        return progress is not None and self.policy.wants(progress())

    def _begin(self) -> BaseException | None:
        self._asked = False
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

    def _land(self) -> BaseException | None:
        """Takes the outcome of a run that is done; gives its error."""
        if self._running is None or not self._running[1].done():
            return None
        run, future, begun = self._running
        self._running = None
        try:
            run.complete(future.result())
        except (CancelledError, ClosedError) as error:
            # The run was cancelled, or its state was replaced or closed: tried again, not counted.
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
        self._since, self._fresh = now, False
        self._due = now + self.policy.delay(self.failures_in_a_row)
        self._not_before = now + pause
