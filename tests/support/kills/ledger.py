"""A stateful processor that is killed, and a model in plain Python of all that it answers and keeps.

Owns: a processor with each kind of state and with timers by event time, random rows for it, what must come out of them.
Does not own: the query around it (`kinds`), kills.

Its answers follow from its rows alone: timers go by the watermark, which goes by the rows. No TTL: that goes by the
clock.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog import _internal
from support.model import Model, States

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
OUTPUT = "k string, fired bigint, n bigint, s bigint, said string"
DELAY_SECONDS = 10
#: The names of its states, and of its timers.
STATES = ("total", "recent", "slots", "$timers")

Row = tuple[str | None, int, dt.datetime | None]
"""Key, v, ts."""

_NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_SLOTS = 5
_MOST, _KEPT = 12, 4
_LATER, _AGAIN = 5_000, 60_000


class Ledger(StatefulProcessor):
    """Sums, latest values and sums by slot of a key; each row sets a timer, each timer changes all of them."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, s long")
        self.recent = handle.getListState("recent", "v long")
        self.slots = handle.getMapState("slots", "slot long", "s long")

    def handleInputRows(self, key: Any, rows: Iterator[SparkRow], timerValues: Any) -> Iterator[SparkRow]:
        n, s = self.total.get() or (0, 0)
        for row in rows:
            n, s = n + 1, s + row.v
            self.recent.appendValue((row.v,))
            slot = (row.v % _SLOTS,)
            if row.v % 7 == 0:
                self.slots.removeKey(slot)
            else:
                before = self.slots.getValue(slot)
                self.slots.updateValue(slot, ((before[0] if before else 0) + row.v,))
            if row.ts is not None:
                self.handle.registerTimer(round(row.ts.timestamp()) * 1000 + _LATER)
            _internal.failpoint("user.rows")
        self.total.update((n, s))
        recent = list(self.recent.get())
        if len(recent) > _MOST:
            self.recent.put(recent[-_KEPT:])
        yield SparkRow(k=key[0], fired=None, n=n, s=s, said=self._said())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[SparkRow]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        n, s = self.total.get() or (0, 0)
        said = self._said()
        second = time // 1000
        if second % 3 == 0:
            self.total.clear()
            self.slots.clear()
        else:
            self.total.update((n + 1, s))
            self.slots.updateValue((_SLOTS,), (second,))
        if second % 2 == 0:
            self.recent.clear()
        else:
            self.recent.appendList([(second,), (n,)])
        if second % 5 == 0:
            self.handle.registerTimer(time + _AGAIN)
        if second % 7 == 0 and (timers := list(self.handle.listTimers())):  # a deleted one that was due fires as well
            self.handle.deleteTimer(max(timers))
        _internal.failpoint("user.timer")
        yield SparkRow(k=key[0], fired=time, n=n, s=s, said=said)

    def close(self) -> None:
        """Nothing to end."""

    def _said(self) -> str:
        recent = [v for (v,) in self.recent.get()]
        slots = sorted((slot, s) for (slot,), (s,) in self.slots.iterator())
        return f"{recent} {slots} {sorted(self.handle.listTimers())}"


class LedgerModel:
    """What the processor must answer and keep, and random rows for it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._states = Model()
        self._batch = 0
        #: The watermark of the next batch, and the time up to which its rows are late: in milliseconds.
        self._watermark = self._mark = 0

    def batch(self, keys: int, count: int) -> list[Row]:
        """So many rows of so many keys and null: some are late, some have no time."""
        rng = self._random
        names = [None, *(f"key-{i}" for i in range(keys))]
        self._batch += 1
        rows: list[Row] = []
        for _ in range(count):
            after = dt.timedelta(seconds=10 * self._batch + rng.randrange(-25, 10))
            rows.append((rng.choice(names), rng.randint(-99, 99), None if rng.random() < 0.05 else _NOON + after))
        return rows

    def touches(self) -> list[list[Row]]:
        """A batch with one row for every key that there is."""
        return [[(key, self._random.randint(-99, 99), None) for key in sorted(self._states.keys, key=repr)]]

    def apply(self, rows: list[Row]) -> list[list[Any]]:
        """Adds a batch; what must come out of it."""
        mine: dict[str | None, list[Row]] = {}
        for row in rows:
            if row[2] is None or _millis(row[2]) > self._mark:
                mine.setdefault(row[0], []).append(row)
        answer = [self._take(key, group) for key, group in mine.items()]
        answer += [self._fire(key, states, time) for key, states, time in self._states.fire(self._watermark)]
        times = [_millis(ts) for _, _, ts in rows if ts is not None]
        self._mark = self._watermark
        self._watermark = max([self._watermark, *(time - DELAY_SECONDS * 1000 for time in times)])
        return answer

    def moved(self) -> None:
        """A new query goes on from here; it has seen no times."""
        self._watermark = self._mark = 0

    def snapshot(self) -> dict[Any, Any]:
        """Every entry of every state."""
        return self._states.snapshot(*STATES)

    def _take(self, key: str | None, rows: list[Row]) -> list[Any]:
        states = self._states.of(key)
        for _, v, ts in rows:
            n, s = states.held or (0, 0)
            states.update((n + 1, s + v))
            states.append(v)
            slot = v % _SLOTS
            if v % 7 == 0:
                states.remove(slot)
            else:
                states.put(slot, states.mapped.get(slot, 0) + v)
            if ts is not None:
                states.timers.add(_millis(ts) + _LATER)
        if len(states.elements) > _MOST:
            states.replace(*states.listed[-_KEPT:])
        return [key, None, *states.held, _said(states)]

    def _fire(self, key: str | None, states: States, time: int) -> list[Any]:
        n, s = states.held or (0, 0)
        answer = [key, time, n, s, _said(states)]
        second = time // 1000
        if second % 3 == 0:
            states.clear()
            states.entries.clear()
        else:
            states.update((n + 1, s))
            states.put(_SLOTS, second)
        if second % 2 == 0:
            states.replace()
        else:
            states.append(second, n)
        if second % 5 == 0:
            states.timers.add(time + _AGAIN)
        if second % 7 == 0 and states.timers:
            states.timers.discard(max(states.timers))
        return answer


def _said(states: States) -> str:
    return f"{states.listed} {sorted(states.mapped.items())} {sorted(states.timers)}"


def _millis(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(milliseconds=1)
