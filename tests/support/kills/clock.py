"""A stateful processor of frames that is killed, with states that end and timers by the clock, and a model of it.

Owns: a processor that begins from an initial state, random rows for it, what must come out of them. Does not own: the
query around it (`kinds`), kills, event time (`ledger`).

Its answers follow from the order of batches alone: what a TTL of a millisecond has written in one batch has ended in
the next, and a timer for a millisecond later fires there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog import _internal
from support.model import Model, States

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


class ClockModel:
    """What the processor must answer, and random rows for it. Times are numbers of batches."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        #: What lasts, and what expires with its batch.
        self._kept, self._brief = Model(), Model()
        for key, n in INITIAL:
            self._kept.of(key).update((n, 0))
            self._kept.of(key).put(0, n)
            self._brief.of(key).append(n, expires=1)
            if n % 200 == 0:
                self._kept.of(key).timers.add(0)

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
        answer += [self._fire(key, states) for key, states, _ in self._kept.fire(self._kept.now)]
        self._kept.now = self._brief.now = self._kept.now + 1
        return answer

    def snapshot(self) -> dict[Any, Any]:
        """Every entry that a batch leaves to the next one."""
        return self._kept.snapshot("total", "", "slots", "$timers")

    def _take(self, key: str | None, values: list[int]) -> list[Any]:
        kept, brief, after = self._kept.of(key), self._brief.of(key), self._kept.now + 1
        for v in values:
            n, s = kept.held or (0, 0)
            kept.update((n + 1, s + v))
            kept.put(v % _SLOTS, kept.mapped.get(v % _SLOTS, 0) + v)
            brief.update(v, expires=after)
            brief.append(v, expires=after)
            if v % 3 == 0:
                kept.timers.add(after)
        return self._answer(key, False, None)

    def _fire(self, key: str | None, kept: States) -> list[Any]:
        answer = self._answer(key, True, self._brief.of(key).held)
        n, s = kept.held
        kept.remove(n % _SLOTS)
        kept.update((n + 1, s))
        if n % 2:
            kept.timers.add(self._kept.now + 1)
        return answer

    def _answer(self, key: str | None, fired: bool, last: int | None) -> list[Any]:
        kept, shown = self._kept.of(key), None if last is None else (last,)
        return [key, fired, *kept.held, f"{shown} {self._brief.of(key).listed} {sorted(kept.mapped.items())}"]
