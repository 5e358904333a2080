"""Times and durations of states, as the core takes them.

Owns: the time to live, the clock, the times of timers: aware datetimes and Arrow's timestamps as numbers, and back.
Does not own: what they are used for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.misfit import Misfit
from fastchangelog.fit.typed import Typed
from fastchangelog.fit.values import value_fit
from fastchangelog.options import parse_duration

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, Duration

__all__ = ["clock_millis", "datetime_of", "TIME", "many_times", "micros_of", "one_time", "ttl_millis"]

TIME = pa.timestamp("us", tz="UTC")
_TIMES = Typed("time", TIME)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def ttl_millis(ttl: Duration | None) -> int | None:
    """A time to live in milliseconds.

    >>> ttl_millis("10s"), ttl_millis(None)
    (10000, None)
    """
    if ttl is None:
        return None
    millis = parse_duration("ttl", ttl) // timedelta(milliseconds=1)
    if millis < 1:
        raise InvalidArgumentError(f"`ttl` = {ttl!r} is too short; give a millisecond or more, or leave it out")
    return millis


def clock_millis(clock: Callable[[], float] | None) -> Callable[[], int] | None:
    """A clock that gives milliseconds, of one that gives seconds.

    >>> now = clock_millis(lambda: 1.5)
    >>> now and now()
    1500
    """
    return None if clock is None else partial(_millis, clock)


def _millis(clock: Callable[[], float]) -> int:
    return round(clock() * 1000)


def micros_of(time: datetime) -> int:
    """An aware datetime in microseconds since the epoch.

    >>> micros_of(datetime(1970, 1, 2, tzinfo=timezone.utc))
    86400000000
    """
    try:
        micros = value_fit(TIME).convert(time)
    except Misfit as misfit:
        raise InvalidArgumentError(f"a time: {misfit}") from None
    if micros is None:
        raise InvalidArgumentError(f"{time!r} is no time; give an aware datetime, such as datetime.now(timezone.utc)")
    return int(micros)


def datetime_of(micros: int) -> datetime:
    """The inverse of `micros_of`, in UTC.

    >>> datetime_of(86_400_000_000).isoformat()
    '1970-01-02T00:00:00+00:00'
    """
    return _EPOCH + timedelta(microseconds=micros)


def one_time(time: datetime) -> pa.Array:
    """An array of one time."""
    return pa.array([micros_of(time)], TIME)


def many_times(times: ArrowArrayLike, typed: Typed = _TIMES) -> pa.Array:
    """An array of times. Numbers, texts, nulls and naive times are none.

    >>> many_times([datetime(1970, 1, 2, tzinfo=timezone.utc)]).type
    TimestampType(timestamp[us, tz=UTC])
    """
    found = typed.many(times)
    if found.null_count:
        raise InvalidArgumentError(f"{typed.what}s: a time is null; leave its key out")
    return found
