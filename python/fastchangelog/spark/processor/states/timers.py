"""Timers: registered by the key in work, fired after all rows.

Owns: the timers of the keys in work (`TimerCache`), the order in which they are listed, and of those that are due at
one time.
Does not own: which timers are due, in which order (`fastchangelog.state.due_timers`), calls of user code (`run`),
where timers are stored (the session; they are written like entries of a map whose key is the time).

A timer that a handler registers for the time that is firing goes with the fired one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.catalog import TIMERS
from fastchangelog.errors import ArgumentTypeError, InvalidArgumentError
from fastchangelog.spark.processor.spark_errors import DATA_PROCESSED, INITIALIZED, spark_error, time_mode_name
from fastchangelog.spark.processor.spec import TimeMode
from fastchangelog.spark.processor.states.cache import DELETE, PUT, CachedState, Scope
from fastchangelog.spark.processor.states.order import number_bytes, spark_places
from fastchangelog.spark.types.state_type import StateType
from fastchangelog.state.due_timers import DueTimers, Timer, encoded_times

__all__ = ["TIMERS", "DueTimers", "TimerCache", "TimerOrder", "encoded_times"]

_KEYS_AHEAD = 256
_FIRST, _LAST = -(2**63), 2**63 - 1


class TimerOrder:
    """Puts timers of one time in the order of Spark's store, as far as they are in one page."""

    def __init__(self, key: T.StructType) -> None:
        self._places = spark_places(key)

    def __call__(
        self, page: list[Timer], keys: pa.BinaryArray, decoded: pa.StructArray
    ) -> tuple[list[Timer], pa.BinaryArray, pa.StructArray]:
        """A page of due timers, ascending by time, with its keys: the same, the keys as they come in the page."""
        times = np.array([time for time, _ in page], np.int64)
        if self._places is None or len(keys) == 1 or not (times[1:] == times[:-1]).any():
            return page, keys, decoded
        places = self._places(decoded)
        if len(keys) == len(page):  # one timer of each key
            order = np.lexsort((places, times))
            numbers = pa.array(order)
            return [page[i] for i in order.tolist()], keys.take(numbers), decoded.take(numbers)
        place = dict(zip(keys.to_pylist(), places.tolist()))
        order = np.lexsort((np.array([place[key] for _, key in page], np.int64), times))
        page = [page[i] for i in order.tolist()]
        number = {key: i for i, key in enumerate(place)}
        taken = pa.array([number[key] for key in dict.fromkeys(key for _, key in page)], pa.int64())
        return page, keys.take(taken), decoded.take(taken)


class TimerCache(CachedState):
    """Timers of the keys of the scope. Registering and deleting read nothing."""

    kind = "timer"

    def __init__(self, scope: Scope, mode: TimeMode) -> None:
        CachedState.__init__(self, TIMERS, scope, StateType(T.StructType([T.StructField("at", T.LongType())]), TIMERS))
        self._mode = mode
        #: For each key its changed times: True = registered, False = deleted.
        self._changed: dict[int, dict[int, bool]] = {}
        self._due: DueTimers | None = None
        self._first = self._end = 0
        self._times: list[list[int]] = []

    def register(self, time: Any) -> None:
        """Registers a timer of the key in work."""
        self._change("register_timer", "register timer", time, True)

    def delete(self, time: Any) -> None:
        """Deletes a timer of the key in work."""
        self._change("delete_timer", "deleting timer", time, False)

    def fired(self, time: int) -> None:
        """Deletes the timer of the key in work that its handler has seen."""
        at = self._scope.at
        assert at is not None
        self._changed.setdefault(at, {})[time] = False

    def listed(self) -> Iterator[int]:
        """Times of the key in work in the order of Spark's store, as they are at the first `next`."""
        at = self._checked("list_timers", "listing timers")
        if not self._first <= at < self._end:
            self._times = self.session.timers_of(self._scope.keys.slice(at, _KEYS_AHEAD)).to_pylist()
            self._first, self._end = at, at + len(self._times)
        times = self._times[at - self._first]
        changed = self._changed.get(at)
        if changed:
            kept = [time for time in times if time not in changed]
            times = kept + [time for time, is_there in changed.items() if is_there]
        yield from sorted(times, key=number_bytes)

    def open(self, count: int) -> None:
        """See `CachedState`."""
        self._changed = {}
        self._pending = 0
        self._first = self._end = 0

    def _write_changes(self) -> None:
        """See `CachedState`."""
        changes = [(at, time, is_there) for at, times in self._changed.items() for time, is_there in times.items()]
        self.open(0)
        if not changes:
            return
        due = self._due
        if due is not None:
            near = [change for change in changes if due.may_be_ahead(change[1])]
            if near:
                keys = self._scope.keys.to_pylist()
                due.notice([((time, keys[at]), is_there) for at, time, is_there in near])
        places = [at for at, _, _ in changes]
        ops = pa.array([PUT if is_there else DELETE for _, _, is_there in changes], pa.uint8())
        self._send(ops, places, encoded_times([time for _, time, _ in changes]), None)

    def begin_firing(self, due: DueTimers) -> None:
        """From here on, `due` hears of each change before it is sent."""
        self._due = due

    def _change(self, operation: str, doing: str, time: Any, is_there: bool) -> None:
        at = self._checked(operation, doing)
        try:
            number = operator.index(time)
        except TypeError:
            if not (isinstance(time, float) and time.is_integer()):
                raise _no_time(operation, time) from None
            number = int(time)
        if isinstance(time, bool):
            raise _no_time(operation, time)
        if not _FIRST <= number <= _LAST:
            raise InvalidArgumentError(f"{operation}: {time!r} is beyond what a timer can hold, 64 bits")
        times = self._changed.get(at)
        if times is None:
            times = self._changed[at] = {}
        times[number] = is_there
        self._count(1)

    def _checked(self, operation: str, doing: str) -> int:
        if self._mode == "none":
            raise spark_error(
                doing,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                "timers need timeMode ProcessingTime or EventTime",
                operation=operation,
                mode=time_mode_name(self._mode),
            )
        at, phase = self._scope.at, self._scope.phase
        if at is None or phase not in (INITIALIZED, DATA_PROCESSED):
            raise spark_error(
                doing,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                "a timer belongs to a key: use it where Spark hands one over, as in handleInputRows",
                operation=operation,
                state=phase,
            )
        return at


def _no_time(operation: str, time: object) -> ArgumentTypeError:
    return ArgumentTypeError(f"{operation}: {time!r} is no time; give milliseconds since the epoch as an int")
