"""A stateful processor that is killed, and a model in plain Python of all that it answers and keeps.

Owns: a processor with each kind of state and with timers by event time, random rows for it, what must come out of them.
Does not own: the query around it (`kinds`), kills.

Its answers follow from its rows alone: timers go by the watermark, which goes by the rows. No TTL: that goes by the
clock.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog import _internal

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


@dataclasses.dataclass
class _Account:
    """What is kept for a key."""

    total: tuple[int, int] | None = None
    recent: list[int] = dataclasses.field(default_factory=list)
    slots: dict[int, int] = dataclasses.field(default_factory=dict)
    timers: set[int] = dataclasses.field(default_factory=set)

    def said(self) -> str:
        return f"{self.recent} {sorted(self.slots.items())} {sorted(self.timers)}"


class LedgerModel:
    """What the processor must answer and keep, and random rows for it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._accounts: dict[str | None, _Account] = {}
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

    def touches(self) -> list[Row]:
        """One row for every key that there is."""
        return [(key, self._random.randint(-99, 99), None) for key in sorted(self._accounts, key=repr)]

    def apply(self, rows: list[Row]) -> list[list[Any]]:
        """Adds a batch; what must come out of it."""
        mine: dict[str | None, list[Row]] = {}
        for row in rows:
            if row[2] is None or _millis(row[2]) > self._mark:
                mine.setdefault(row[0], []).append(row)
        answer = [self._take(key, group) for key, group in mine.items()]
        for key, account in self._accounts.items():
            for time in sorted(time for time in account.timers if time <= self._watermark):
                answer.append(self._fire(key, account, time))
                account.timers.discard(time)
        times = [_millis(ts) for _, _, ts in rows if ts is not None]
        self._mark = self._watermark
        self._watermark = max([self._watermark, *(time - DELAY_SECONDS * 1000 for time in times)])
        return answer

    def moved(self) -> None:
        """A new query goes on from here; it has seen no times."""
        self._watermark = self._mark = 0

    def snapshot(self) -> dict[Any, Any]:
        """Every entry of every state."""
        found: dict[Any, Any] = {}
        for key, account in self._accounts.items():
            found.update({} if account.total is None else {("total", key): account.total})
            found.update({("recent", key): list(account.recent)} if account.recent else {})
            found.update({("slots", key, slot): s for slot, s in account.slots.items()})
            found.update({("$timers", key, time): None for time in account.timers})
        return found

    def _take(self, key: str | None, rows: list[Row]) -> list[Any]:
        account = self._accounts.setdefault(key, _Account())
        for _, v, ts in rows:
            n, s = account.total or (0, 0)
            account.total = (n + 1, s + v)
            account.recent.append(v)
            slot = v % _SLOTS
            if v % 7 == 0:
                account.slots.pop(slot, None)
            else:
                account.slots[slot] = account.slots.get(slot, 0) + v
            if ts is not None:
                account.timers.add(_millis(ts) + _LATER)
        if len(account.recent) > _MOST:
            account.recent = account.recent[-_KEPT:]
        assert account.total is not None
        return [key, None, *account.total, account.said()]

    def _fire(self, key: str | None, account: _Account, time: int) -> list[Any]:
        n, s = account.total or (0, 0)
        answer = [key, time, n, s, account.said()]
        second = time // 1000
        if second % 3 == 0:
            account.total = None
            account.slots = {}
        else:
            account.total = (n + 1, s)
            account.slots[_SLOTS] = second
        account.recent = [] if second % 2 == 0 else [*account.recent, second, n]
        if second % 5 == 0:
            account.timers.add(time + _AGAIN)
        if second % 7 == 0 and account.timers:
            account.timers.discard(max(account.timers))
        return answer


def _millis(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(milliseconds=1)
