"""When to materialize: a pure decision, with the time and the log's size as parameters.

Owns: the decision (time, bytes, ratio, number of change sets, time of a replay), the pauses after failures, the speed
of a replay.
Does not own: the loop that follows it (`periodic`), what a materialization is (the core).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.options import option_texts, parse_duration, parse_size

if TYPE_CHECKING:
    from fastchangelog.types import Duration, Options, Size

__all__ = ["MaterializationPolicy", "Progress", "option_texts_of", "replay_speed"]

MIN_RATIO_BYTES = 1 << 20
"""Bytes of log below which the ratio is ignored: their replay takes milliseconds, and a state of ten keys would
otherwise be materialized with every batch."""

RETRY_PAUSE = timedelta(seconds=10)
"""Pause after the first failure before bytes of log may start another run; doubles with each consecutive failure.
Without it every poll would start a new upload of the whole state to a store that is down."""

FAILED_PAUSE = timedelta(seconds=30)
"""Longest pause after the job was failed: a restarted job should not wait for a store that works again."""

SKIP_PAUSE = timedelta(seconds=1)
"""Pause after a run that found nothing to do."""

REPLAY_BYTES_PER_SECOND = 20e6
"""Assumed speed of a replay until this process has replayed enough to measure it."""

MIN_MEASURED_BYTES = 8 << 20
"""Bytes that must have been replayed before the measured speed is used."""

NEVER = timedelta(days=36_500)
"""How options, which have no word for it, say that a time is never reached."""

NO_BYTES = 1 << 62
"""How options say that a number of bytes is never reached."""

_DEFAULTS = {name.removeprefix("materialization_"): default for name, default, *_ in _internal.options_table()}
"""The default of each attribute, which is that of its option."""


def option_texts_of(policy: MaterializationPolicy | None, options: Options | None) -> dict[str, str]:
    """The texts of `options` and of the argument `materialization=`, which must not say the same.

    >>> option_texts_of(MaterializationPolicy(), {"materialization_segments": 9})
    Traceback (most recent call last):
    fastchangelog.errors.InvalidArgumentError: materialization= and the option `materialization_segments` say the \
same; give one of them
    """
    texts = option_texts(options)
    if policy is None:
        return texts
    if not isinstance(policy, MaterializationPolicy):
        raise InvalidArgumentError(f"materialization= is a {type(policy).__name__}; give a MaterializationPolicy")
    both = sorted(set(texts) & set(policy.to_options()))
    if both:
        raise InvalidArgumentError(f"materialization= and the option `{both[0]}` say the same; give one of them")
    return {**texts, **policy.to_options()}


def replay_speed(metrics: Mapping[str, int]) -> float:
    """Bytes per second that this process replays.

    >>> replay_speed({"replay_bytes": 100 << 20, "replay_micros": 2_000_000}) / (1 << 20)
    50.0
    """
    replayed, micros = metrics.get("replay_bytes", 0), metrics.get("replay_micros", 0)
    return replayed * 1e6 / micros if replayed >= MIN_MEASURED_BYTES and micros > 0 else REPLAY_BYTES_PER_SECOND


@dataclass(frozen=True)
class Progress:
    """The log since the last snapshot."""

    log_bytes: int = 0
    state_bytes: int = 0
    segments: int = 0
    """Change sets of the log."""
    replay_seconds: float = 0.0
    """Estimated time to replay them."""


@dataclass(frozen=True)
class MaterializationPolicy:
    """When to materialize, and how many consecutive failures are tolerated.

    A run starts as soon as one of the bounds is reached. `open_state` and `grouped` accept a policy as
    ``materialization=``. The attributes `interval`, `log_bytes`, `log_ratio` and `segments` are also options,
    ``materialization_interval`` and so on.

    Attributes:
        interval: Time from the end of one run to the start of the next, 10 minutes by default; None = never by time
            alone.
        log_bytes: Bytes of log since the snapshot, 256 MiB by default; None = never by this one.
        log_ratio: Bytes of log for each byte of state, 4 by default; None = never by this one.
        max_failures: Failures in a row that are tolerated, 3 by default; one more fails the job.
        segments: Change sets since the snapshot, each a request of a restore, 1,000 by default; None = never by this
            one.
        replay_time: Estimated time of a replay, 30 seconds by default; None = never by this one.

    Raises:
        InvalidArgumentError: A bound is no duration, no size, or not above zero.

    Example:
        >>> import fastchangelog as fc
        >>> fc.MaterializationPolicy(interval="5m", log_bytes="64MiB").interval
        datetime.timedelta(seconds=300)
    """

    interval: Duration | None = _DEFAULTS["interval"]
    log_bytes: Size | None = _DEFAULTS["log_bytes"]
    log_ratio: float | None = float(_DEFAULTS["log_ratio"])
    max_failures: int = int(_DEFAULTS["max_failures"])
    segments: int | None = int(_DEFAULTS["segments"])
    replay_time: Duration | None = _DEFAULTS["replay_time"]

    def __post_init__(self) -> None:
        if self.interval is not None:
            interval = parse_duration("interval", self.interval)
            if interval <= timedelta(0):
                raise InvalidArgumentError("`interval` must be longer than zero; None turns the timer off")
            object.__setattr__(self, "interval", interval)
        if self.log_bytes is not None:
            object.__setattr__(self, "log_bytes", parse_size("log_bytes", self.log_bytes))
            if self._bytes <= 0:
                raise InvalidArgumentError("`log_bytes` must be above zero; None turns it off")
        if self.log_ratio is not None and not self.log_ratio > 0:
            raise InvalidArgumentError("`log_ratio` must be above zero; None turns it off")
        if self.max_failures < 0:
            raise InvalidArgumentError("`max_failures` must not be negative")
        if self.segments is not None and self.segments <= 0:
            raise InvalidArgumentError("`segments` must be above zero; None turns it off")
        if self.replay_time is not None:
            replay_time = parse_duration("replay_time", self.replay_time)
            if replay_time <= timedelta(0):
                raise InvalidArgumentError("`replay_time` must be longer than zero; None turns it off")
            object.__setattr__(self, "replay_time", replay_time)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> MaterializationPolicy:
        """The policy of `materialization_…` options; missing ones have their default.

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

    def to_options(self) -> dict[str, str]:
        """The `materialization_…` options of this policy: what `from_options` reads.

        >>> MaterializationPolicy(interval=None, log_ratio=None).to_options()["materialization_log_ratio"]
        '0'
        """
        return option_texts(
            {
                "materialization_interval": NEVER if self.interval is None else self.interval,
                "materialization_log_bytes": NO_BYTES if self.log_bytes is None else self.log_bytes,
                "materialization_log_ratio": self.log_ratio or 0,
                "materialization_max_failures": self.max_failures,
                "materialization_segments": self.segments or 0,
                "materialization_replay_time": NEVER if self.replay_time is None else self.replay_time,
            }
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
        # Never longer than the delay by time, which a failed job shortens.
        return min(RETRY_PAUSE.total_seconds() * 2.0 ** min(failures - 1, 10), self.delay(failures))

    def wants(self, progress: Progress) -> bool:
        """True when the log alone requires a run, whatever the time."""
        if progress.log_bytes >= self._bytes:
            return True
        if self.segments is not None and progress.segments >= self.segments:
            return True
        if isinstance(self.replay_time, timedelta) and progress.replay_seconds >= self.replay_time.total_seconds():
            return True
        if self.log_ratio is None or progress.log_bytes < MIN_RATIO_BYTES:
            return False
        return progress.log_bytes >= self.log_ratio * progress.state_bytes
