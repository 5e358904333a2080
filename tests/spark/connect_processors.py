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
