"""Processors of `connect_job`, in a module of their own: a program's own classes are pickled by value anyway.

Owns: the processors and their rows. Does not own: how they are run (`connect_job`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor

SCHEMA = "k string, v bigint"
OUTPUT = "k string, n bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 10)]]
TIMED_SCHEMA = "k string, ts timestamp"
TIMED_OUTPUT = "k string, said string"
#: Seconds after noon. The restart is before the last batch, which has a late row.
TIMED_BATCHES = [[("a", 0), ("b", 3)], [("c", 60)], [("a", 49), ("d", 51)], [("e", 300)], [("a", 301), ("late", 100)]]
_DAY = 86_400_000


class Total(StatefulProcessor):
    """The sum of a key's values."""

    column = "v"

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self.total.get()
        n = (before[0] if before else 0) + sum(int(frame[self.column].sum()) for frame in rows)
        self.total.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.total.update((int(initialState["v"].iloc[0]),))

    def close(self) -> None:
        """Nothing to end."""


class TotalOfTotals(Total):
    """Behind another one."""

    column = "n"


class Alarms(StatefulProcessor):
    """A timer for each row, which sets another one; tells what it sees of time and of its timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getListState("fired", "at long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        times = sorted(int(ts.timestamp()) * 1000 for frame in rows for ts in frame["ts"])
        for time in times:
            self.handle.registerTimer(time + 5_000)
        yield self.said(key, times, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        self.fired.appendValue((time,))
        if len(list(self.fired.get())) < 3:
            self.handle.registerTimer(time + 100_000)
        yield self.said(key, time, timerValues)

    def said(self, key: Any, what: Any, times: Any) -> pd.DataFrame:
        """What there is."""
        timers, fired = sorted(self.handle.listTimers()), list(self.fired.get())
        said = f"{what}, watermark {times.getCurrentWatermarkInMs()}, timers {timers}, fired {fired}"
        return pd.DataFrame({"k": [key[0]], "said": [said]})

    def close(self) -> None:
        """Nothing to end."""


class Ending(StatefulProcessor):
    """Each kind of state twice: what one batch writes has ended in the next one, or it has not."""

    def init(self, handle: Any) -> None:
        self.handle, ttls = handle, {"short": 1, "long": _DAY}
        self.values = [handle.getValueState(f"{name} value", "n long", ttl) for name, ttl in ttls.items()]
        self.lists = [handle.getListState(f"{name} list", "n long", ttl) for name, ttl in ttls.items()]
        self.maps = [handle.getMapState(f"{name} map", "k long", "n long", ttl) for name, ttl in ttls.items()]

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        values = sorted(int(v) for frame in rows for v in frame["v"])
        yield self.said(key, values)
        for v in values:
            for value, a_list, a_map in zip(self.values, self.lists, self.maps, strict=True):
                value.update((v,))
                a_list.appendValue((v,))
                a_map.updateValue((v % 3,), (v,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield self.said(key, "fired")

    def said(self, key: Any, what: Any) -> pd.DataFrame:
        """What there is."""
        there = [value.get() for value in self.values], [list(a_list.get()) for a_list in self.lists]
        said = f"{what} {there} {[sorted(a_map.iterator()) for a_map in self.maps]}"
        return pd.DataFrame({"k": [key[0]], "said": [said]})

    def close(self) -> None:
        """Nothing to end."""
