"""Dates and times of Python, numpy and pandas as Arrow's numbers: the same values, or an error.

Owns: which values are dates, moments, clock times, durations and times of a day, and their exact numbers.
Does not own: all other values, and what a null is (`values`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import numpy as np

from fastchangelog.fit.misfit import Misfit, shown

__all__ = ["LAST_MICROS", "clock_time", "duration", "exact_date", "moment", "time_of_day"]

_EPOCH = datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=timezone.utc)
_MICRO = timedelta(microseconds=1)
#: The first and the last microsecond that a datetime of Python has.
LAST_MICROS = ((datetime.min - _EPOCH) // _MICRO, (datetime.max - _EPOCH) // _MICRO)
#: How many microseconds a unit has; nanoseconds are apart.
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}

Convert = Callable[[Any], Any]


def exact_date(value: Any) -> date:
    """A date of Python or numpy; the date of a datetime is not all of it."""
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] == "D":
        value = value.item()
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    lost = "; give its date()" if isinstance(value, datetime) else ""
    raise Misfit(f"{shown(value)} is no date{lost}")


def _in_unit(value: object, unit: str, micros: int, nanos: int) -> int:
    """A number of microseconds and nanoseconds in another unit."""
    if unit == "ns":
        return micros * 1000 + nanos
    found, rest = divmod(micros, _UNITS[unit])
    if rest or nanos:
        raise Misfit(f"{shown(value)} is finer than a unit of `{unit}`")
    return found


def _of_numpy(value: np.datetime64 | np.timedelta64, kind: str) -> tuple[int, int]:
    """A time or a difference of times in microseconds and nanoseconds."""
    if np.datetime_data(value.dtype)[0] == "ns":
        return divmod(int(value.astype(np.int64)), 1000)
    try:
        micros = value.astype(f"{kind}[us]")
        if np.datetime_data(value.dtype)[0] != "generic" and micros.astype(value.dtype) == value == micros:
            return int(micros.astype(np.int64)), 0
    except TypeError:  # of months
        pass
    raise Misfit(f"{shown(value)} is no number of microseconds")


def _of_datetime(value: datetime, epoch: datetime) -> tuple[int, int]:
    nanos = getattr(value, "nanosecond", 0)  # of pandas
    exact: datetime = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
    return (exact - epoch) // _MICRO, nanos


def _in_years(value: object, micros: int) -> None:
    if not LAST_MICROS[0] <= micros <= LAST_MICROS[1]:
        raise Misfit(f"{shown(value)} is beyond the years 1 to 9999")


def moment(unit: str) -> Convert:
    """Aware datetimes, as numbers of a unit since the epoch."""

    def convert(value: Any) -> int:
        if type(value) is datetime and value.tzinfo is timezone.utc and unit == "us":  # most of all
            return (value - _UTC_EPOCH) // _MICRO
        if isinstance(value, np.datetime64) or (isinstance(value, datetime) and value.utcoffset() is None):
            raise Misfit(f"{shown(value)} has no time zone; give an aware datetime, such as datetime.now(timezone.utc)")
        if not isinstance(value, datetime):
            raise Misfit(f"{shown(value)} is no time; give an aware datetime, such as datetime.now(timezone.utc)")
        micros, nanos = _of_datetime(value, _UTC_EPOCH)
        _in_years(value, micros)
        return _in_unit(value, unit, micros, nanos)

    return convert


def clock_time(unit: str) -> Convert:
    """Naive datetimes, as numbers of a unit since the epoch."""

    def convert(value: Any) -> int:
        if isinstance(value, datetime):
            if value.utcoffset() is not None:
                raise Misfit(
                    f"{shown(value)} has a time zone, and the type has none; declare `timestamp`, or take the zone off"
                )
            micros, nanos = _of_datetime(value.replace(tzinfo=None), _EPOCH)
        elif isinstance(value, np.datetime64):
            if np.datetime_data(value.dtype)[0] in ("Y", "M", "W", "D"):
                raise Misfit(f"{shown(value)} is a date")
            micros, nanos = _of_numpy(value, "datetime64")
            _in_years(value, micros)
        else:
            raise Misfit(f"{shown(value)} is no datetime")
        return _in_unit(value, unit, micros, nanos)

    return convert


def duration(unit: str) -> Convert:
    """Differences of times, as numbers of a unit."""

    def convert(value: Any) -> int:
        if isinstance(value, timedelta):
            micros, nanos = value // _MICRO, getattr(value, "nanoseconds", 0)  # of pandas
        elif isinstance(value, np.timedelta64):
            micros, nanos = _of_numpy(value, "timedelta64")
        else:
            raise Misfit(f"{shown(value)} is no timedelta")
        return _in_unit(value, unit, int(micros), nanos)

    return convert


def time_of_day(unit: str) -> Convert:
    """Times of a day, as numbers of a unit since midnight."""

    def convert(value: Any) -> int:
        if not isinstance(value, time):
            raise Misfit(f"{shown(value)} is no time of a day")
        if value.tzinfo is not None:
            raise Misfit(f"{shown(value)} has a time zone, which the type has not")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return _in_unit(value, unit, seconds * 1_000_000 + value.microsecond, 0)

    return convert
