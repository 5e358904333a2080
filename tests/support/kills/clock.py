"""A stateful processor of frames that is killed, with states that end and timers by the clock, and a model of it.

Owns: a processor that begins from an initial state, random rows for it, what must come out of them. Does not own: the
query around it (`kinds`), kills, event time (`ledger`).

Its answers follow from the order of batches alone: what a TTL of a millisecond has written in one batch has ended in
the next, and a timer for a millisecond later fires there.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog import _internal

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = "k string, fired boolean, n bigint, s bigint, said string"
INITIAL_SCHEMA = "k string, n bigint"
#: Of the first keys of the batches, and of one without rows.
INITIAL = [*((f"key-{n}", 100 * n) for n in range(10)), ("none", 7)]

Row = tuple[str | None, int]
"""Key, v."""

_SLOTS = 5
_DAY = 86_400_000


class Clocked(StatefulProcessor):
    """Sums in all, by slot, and of one batch; some rows set a timer, each timer changes all of them."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, s long", _DAY)
        self.slots = handle.getMapState("slots", "slot long", "s long", _DAY)
        self.last = handle.getValueState("last", "v long", 1)
        self.recent = handle.getListState("recent", "v long", 1)

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        n = int(initialState["n"].iloc[0])
        self.total.update((n, 0))
        self.slots.updateValue((0,), (n,))
        self.recent.appendValue((n,))
        _internal.failpoint("user.initial")
        if n % 200 == 0:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, s = self.total.get() or (0, 0)
        before = self.last.get()
        for v in sorted(int(v) for frame in rows for v in frame["v"]):
            n, s = n + 1, s + v
            slot = (v % _SLOTS,)
            self.slots.updateValue(slot, ((self.slots.getValue(slot) or (0,))[0] + v,))
            self.recent.appendValue((v,))
            self.last.update((v,))
            if v % 3 == 0:
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            _internal.failpoint("user.rows")
        self.total.update((n, s))
        yield self._answer(key, False, before)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield self._answer(key, True, self.last.get())
        n, s = self.total.get() or (0, 0)
        self.total.update((n + 1, s))
        self.slots.removeKey((n % _SLOTS,))
        self.last.update((n,))
        if n % 2:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        _internal.failpoint("user.timer")

    def close(self) -> None:
        """Nothing to end."""

    def _answer(self, key: Any, fired: bool, last: Any) -> pd.DataFrame:
        n, s = self.total.get()
        slots = sorted((slot, s) for (slot,), (s,) in self.slots.iterator())
        said = f"{last} {[v for (v,) in self.recent.get()]} {slots}"
        return pd.DataFrame({"k": [key[0]], "fired": [fired], "n": [n], "s": [s], "said": [said]})


@dataclasses.dataclass
class _Account:
    """What is kept for a key; `last` and `recent` are of this batch."""

    n: int = 0
    s: int = 0
    slots: dict[int, int] = dataclasses.field(default_factory=dict)
    last: int | None = None
    recent: list[int] = dataclasses.field(default_factory=list)
    #: A timer is due in this batch; in the next one.
    is_due: bool = False
    is_next: bool = False

    def answer(self, key: str | None, fired: bool, last: int | None) -> list[Any]:
        shown = None if last is None else (last,)
        return [key, fired, self.n, self.s, f"{shown} {self.recent} {sorted(self.slots.items())}"]


class ClockModel:
    """What the processor must answer, and random rows for it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._accounts: dict[str | None, _Account] = {
            key: _Account(n=n, slots={0: n}, recent=[n], is_due=n % 200 == 0) for key, n in INITIAL
        }

    def batch(self, keys: int, count: int) -> list[Row]:
        """So many random rows of so many keys and null."""
        names = [None, *(f"key-{i}" for i in range(keys))]
        return [(self._random.choice(names), self._random.randint(-99, 99)) for _ in range(count)]

    def apply(self, rows: list[Row]) -> list[list[Any]]:
        """Adds a batch; what must come out of it."""
        mine: dict[str | None, list[int]] = {}
        for k, v in rows:
            mine.setdefault(k, []).append(v)
        answer = [self._take(key, sorted(values)) for key, values in mine.items()]
        answer += [self._fire(key, account) for key, account in self._accounts.items() if account.is_due]
        for account in self._accounts.values():
            account.is_due, account.is_next = account.is_next, False
            account.last, account.recent = None, []
        return answer

    def snapshot(self) -> dict[Any, Any]:
        """Every entry that a batch leaves to the next one."""
        found: dict[Any, Any] = {("total", key): (account.n, account.s) for key, account in self._accounts.items()}
        for key, account in self._accounts.items():
            found.update({("slots", key, slot): s for slot, s in account.slots.items()})
        return found

    def _take(self, key: str | None, values: list[int]) -> list[Any]:
        account = self._accounts.setdefault(key, _Account())
        for v in values:
            account.n, account.s, account.last = account.n + 1, account.s + v, v
            account.slots[v % _SLOTS] = account.slots.get(v % _SLOTS, 0) + v
            account.recent.append(v)
            account.is_next |= v % 3 == 0
        return account.answer(key, False, None)

    def _fire(self, key: str | None, account: _Account) -> list[Any]:
        answer = account.answer(key, True, account.last)
        account.slots.pop(account.n % _SLOTS, None)
        account.is_next |= bool(account.n % 2)
        account.n += 1
        return answer
