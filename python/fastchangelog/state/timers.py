"""Timers: times by key, in order.

Owns: Python's view of them: registration, removal, an iterator of what is due; their calls in a session.
Does not own: how timers are stored (the core), how times are written (`times`), which timers of a session are due
(`due_timers`), opening a state (`embedded.state`), what a timer does (the program).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import Typed, batch_size_of
from fastchangelog.state.due_timers import DueTimers, Timer, encoded_times
from fastchangelog.state.in_session import InSession, one_each
from fastchangelog.state.keys import BatchKeys
from fastchangelog.state.session import DELETE, PUT
from fastchangelog.state.times import TIME, datetime_of, many_times, micros_of, one_time
from fastchangelog.state.vector import Columns

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike

__all__ = ["TimerState", "TimersInSession", "VectorTimers"]

#: Timers of one change that are Python's objects at once.
_NOTICED = 16_384


class TimersInSession(InSession):
    """The calls of timers, as `_internal.TimerState` has them, of changes alone. Reads nothing."""

    _due: DueTimers | None = None

    def begin_firing(self, due: DueTimers) -> None:
        """From here on, `due` hears of each change before it is sent."""
        self._due = due

    def register(self, keys: pa.BinaryArray, times: pa.TimestampArray) -> None:
        """Registers timers."""
        self._change(keys, times, is_there=True)

    def delete(self, keys: pa.BinaryArray, times: pa.TimestampArray) -> None:
        """Removes timers."""
        self._change(keys, times, is_there=False)

    def fired(self, timers: Sequence[Timer]) -> None:
        """Removes timers that user code has seen."""
        keys = pa.array([key for _, key in timers], pa.binary())
        self._send(DELETE, keys, encoded_times([time for time, _ in timers]))

    def _change(self, keys: pa.BinaryArray, times: pa.TimestampArray, *, is_there: bool) -> None:
        # Timers have milliseconds. None is early: parts of one count as a whole.
        millis = -(-np.asarray(times.cast(pa.int64())) // 1000)
        due = self._due
        if due is not None:
            for start in range(0, len(millis), _NOTICED):
                part = enumerate(millis[start : start + _NOTICED].tolist(), start)
                near = [((time, keys[i].as_py()), is_there) for i, time in part if due.may_be_ahead(time)]
                if near:
                    due.notice(near)
        self._send(PUT if is_there else DELETE, keys, encoded_times(millis))


class VectorTimers:
    """Timers of the keys in work of a vectorised processor; user code has them as methods of `Context`."""

    def __init__(self, keys: BatchKeys, time_mode: str) -> None:
        self._keys, self._mode = keys, time_mode
        self.calls = TimersInSession()
        """The timers in the session."""

    def register(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Registers one timer for each key."""
        self.calls.register(*self._given("register_timers()", keys, times))

    def delete(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Removes one timer of each key."""
        self.calls.delete(*self._given("delete_timers()", keys, times))

    def _given(
        self, what: str, keys: ArrowArrayLike, times: ArrowArrayLike
    ) -> tuple[pa.BinaryArray, pa.TimestampArray]:
        if self._mode == "none":
            raise InvalidArgumentError(f'{what} needs a clock; call with timeMode="processingtime" or "eventtime"')
        encoded = self._keys.encoded(what, keys)
        return encoded, one_each(what, "times", many_times(times, Columns(f"{what}: time", TIME)), encoded)


class TimerState:
    """Times by key, in order; made by `State.timers`. Any thread may use it.

    A timer is a key and a time: a key may have many, and one that is registered twice is there once. Times are aware
    datetimes, and arrays of ``timestamp[us, UTC]``. Timers are part of the state: they are durable by its checkpoints.

    Nothing runs by itself. The program asks for what is `due`, at a time of its own: the wall clock's, or that of
    its events.

    Example:
        >>> from datetime import datetime, timedelta, timezone
        >>> import fastchangelog as fc
        >>> noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
        >>> with fc.open_state("memory://docs/timers") as st:
        ...     reminders = st.timers("reminders", key="string")
        ...     reminders.register("ann", noon)
        ...     reminders.register_many(["bob", "ann"], [noon, noon + timedelta(hours=1)])
        ...     for batch in reminders.due(noon):
        ...         print(batch["time"][0].as_py().hour, batch["key"].to_pylist())
        ...     print(reminders.next_time() - noon)
        12 ['ann', 'bob']
        1:00:00
    """

    def __init__(self, state: object, native: _internal.TimerState, name: str, schema: pa.Schema) -> None:
        self._state = state  # keeps the state open: an unreferenced state is closed
        self._native = native
        self._keys = Typed("key", schema.field("key").type)
        self.name = name
        """The state's name."""
        self.key_type: pa.DataType = self._keys.type
        """The Arrow type of keys."""

    def register(self, key: KeyLike, time: datetime) -> None:
        """Registers a timer. One that is there already is fine.

        Args:
            key: The key.
            time: When it is due: an aware datetime.

        Raises:
            InvalidArgumentError: Something does not fit the types, or the time is naive.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `delete`.
        """
        self._native.register(self._keys.one(key), one_time(time))

    def register_many(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Registers many timers: all or none.

        Args:
            keys: The keys.
            times: As many times: an Arrow array of timestamps with a time zone, or aware datetimes.

        Raises:
            InvalidArgumentError: Something does not fit the types, is null or naive, or the lengths differ.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see the class.
        """
        self._native.register(self._keys.many(keys), many_times(times))

    def delete(self, key: KeyLike, time: datetime) -> None:
        """Removes a timer. One that is not there is fine.

        Args:
            key: The key.
            time: Its time.

        Raises:
            InvalidArgumentError: As of `register`.

        Example:
            >>> from datetime import datetime, timezone
            >>> import fastchangelog as fc
            >>> first, second = (datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2))
            >>> with fc.open_state("memory://docs/timers/delete") as st:
            ...     reminders = st.timers("reminders", key="string")
            ...     reminders.register("ann", first)
            ...     reminders.register("ann", second)
            ...     reminders.delete("ann", first)
            ...     [time.day for time in reminders.of("ann")]
            [2]
        """
        self._native.delete(self._keys.one(key), one_time(time))

    def delete_many(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Removes many timers: all or none. Those that are not there are fine.

        Args:
            keys: The keys.
            times: As many times, as of `register_many`.

        Raises:
            InvalidArgumentError: As of `register_many`.

        Example:
            >>> from datetime import datetime, timezone
            >>> import fastchangelog as fc
            >>> noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
            >>> with fc.open_state("memory://docs/timers/delete_many") as st:
            ...     reminders = st.timers("reminders", key="string")
            ...     reminders.register_many(["ann", "bob"], [noon, noon])
            ...     reminders.delete_many(["ann", "cid"], [noon, noon])
            ...     [len(times) for times in reminders.of_many(["ann", "bob"])]
            [0, 1]
        """
        self._native.delete(self._keys.many(keys), many_times(times))

    def of(self, key: KeyLike) -> list[datetime]:
        """The times of one key, in their order.

        Args:
            key: The key.

        Returns:
            Aware datetimes, in UTC; an empty list for a key without timers.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example: see `delete`.
        """
        times = self._native.of(self._keys.one(key))[0].values
        return [datetime_of(time) for time in times.cast(pa.int64()).to_pylist()]

    def of_many(self, keys: ArrowArrayLike) -> pa.ListArray:
        """The times of many keys, in their order.

        Args:
            keys: The keys.

        Returns:
            An array of one list for each key, empty for a key without timers.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see `delete_many`.
        """
        return self._native.of(self._keys.many(keys))

    def next_time(self) -> datetime | None:
        """The first time of all timers.

        Returns:
            An aware datetime, in UTC; None if there are no timers.

        Example: see the class.
        """
        time = self._native.next_time()
        return None if time is None else datetime_of(time)

    def due(self, until: datetime, *, batch_size: int = 65_536) -> Iterator[pa.RecordBatch]:
        """What is due, in the order of times, then of keys; it is removed on the way.

        A batch is removed when the next one, or the end, is asked for. So what was not handled is due again: the last
        batch of a loop that was left, and all that the newest checkpoint holds after a crash. A checkpoint in the loop
        holds the timers of the batch that is being handled, with what was changed for it so far; one after the
        loop does not hold any of them.

        Timers may be registered on the way. Those that are due and come behind the batch are in a later one; those
        before it are due the next time. A timer of the batch that is registered once more is removed with it.

        Args:
            until: The last time that is due: an aware datetime.
            batch_size: Most rows of a batch; it has fewer if keys are long.

        Returns:
            An iterator of record batches with the columns ``time`` and ``key``.

        Raises:
            InvalidArgumentError: The time is naive, the batch size is below 1, or the state is read-only; there is
                `scan`.
            RetryableError: Too much was changed since the last checkpoint; take one, and call again.

        Example:
            >>> from datetime import datetime, timedelta, timezone
            >>> import fastchangelog as fc
            >>> noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
            >>> with fc.open_state("memory://docs/timers/due") as st:
            ...     reminders = st.timers("reminders", key="string")
            ...     reminders.register_many(["ann", "bob", "cid"], [noon] * 3)
            ...     for batch in reminders.due(noon, batch_size=2):
            ...         print(batch["key"].to_pylist())
            ...         break
            ...     [batch["key"].to_pylist() for batch in reminders.due(noon)]
            ['ann', 'bob']
            [['ann', 'bob', 'cid']]
        """
        return self._native.due(micros_of(until), batch_size_of(batch_size))

    def scan(
        self, *, start: datetime | None = None, end: datetime | None = None, batch_size: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """Timers in the order of times, then of keys. Nothing is removed.

        Args:
            start: The first time; None begins with the first of all.
            end: One past the last time; None ends with the last of all.
            batch_size: Most rows of a batch.

        Returns:
            An iterator of record batches with the columns ``time`` and ``key``.

        Raises:
            InvalidArgumentError: A time is naive, or the batch size is below 1.

        Example:
            >>> from datetime import datetime, timezone
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/timers/scan") as st:
            ...     reminders = st.timers("reminders", key="string")
            ...     reminders.register("ann", datetime(2026, 1, 1, tzinfo=timezone.utc))
            ...     [batch["key"].to_pylist() for batch in reminders.scan()]
            [['ann']]
        """
        first, last = (None if time is None else micros_of(time) for time in (start, end))
        return self._native.scan(first, last, batch_size_of(batch_size))

    def __repr__(self) -> str:
        return f"TimerState({self.name!r}, key={self.key_type})"
