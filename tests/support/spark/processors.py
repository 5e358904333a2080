"""Processors for the tests: what users write, and one that does what its rows say.

Owns: the processors. Does not own: how they are run (`processor_harness`), the batches (the tests).

`Script` turns a random stream into random calls: each row holds an operation on a state or a timer, its answer is the
text of what the call gave. So one processor covers each method, and two operators are compared call by call.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from support.spark.lacks import LACKS

SCRIPT_SCHEMA = "k string, i bigint, op string, x bigint, s string, ts timestamp"
SCRIPT_OUTPUT = "k string, i bigint, said string"

VALUE = ("put", "get", "exists", "clear")
LIST = ("append", "extend", "replace", "read", "read part", "has list", "empty list")
MAP = ("set", "look", "contains", "remove", "items", "keys", "values", "has map", "empty map")
TIMERS = ("at", "not at", "timers")
STATES = (*VALUE, *LIST, *MAP)

#: A null, where Spark's own list states hold one.
NUMBER_OR_NULL = 7 if LACKS["nulls in lists"].here else None
#: Spark's own list states give Python's numbers.
GIVES_NUMBERS = not LACKS["nulls in lists"].here
SEED = int(os.environ.get("FASTCHANGELOG_SEED", "16"))
#: The first of the times that scripts draw.
BASE = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)


class Script(StatefulProcessor):
    """Does what its rows say. `ttl` is of all states, None for none."""

    def __init__(self, ttl: int | None = None):
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "x long, s string", self.ttl)
        self.list = handle.getListState("list", "x long, s string", self.ttl)
        self.map = handle.getMapState("map", "x long", "s string", self.ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.i):  # a group's rows have no order of their own
            yield Row(k=key[0], i=row.i, said=repr(plain(self.do(row.op, row.x, row.s, timerValues))))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time, found = expiredTimerInfo.getExpiryTimeInMs(), self.value.get()
        self.list.appendValue((time, "fired"))
        if time % 3 == 0:
            self.value.clear()
        said = f"fired at {time}, watermark {timerValues.getCurrentWatermarkInMs()}, {found}, {sorted(self.timers())}"
        yield Row(k=key[0], i=-1, said=said)

    def timers(self) -> list[int]:
        """The key's timers, ascending: Spark lists them by the bytes of their times."""
        return sorted(self.handle.listTimers())

    def close(self) -> None:
        """Nothing to end."""

    def do(self, op: str, x: int, s: str | None, times: Any) -> Any:
        """One call, and what it gave."""
        calls: dict[str, Any] = {
            "put": lambda: self.value.update((x, s)),
            "get": self.value.get,
            "exists": self.value.exists,
            "clear": self.value.clear,
            "append": lambda: self.list.appendValue((x, s)),
            "extend": lambda: self.list.appendList([(x, s), (x + 1, None)]),
            "replace": lambda: self.list.put([(x, s), (NUMBER_OR_NULL, s)]),
            "read": lambda: list(self.list.get()),
            "read part": lambda: next(iter(self.list.get()), None),
            "has list": self.list.exists,
            "empty list": self.list.clear,
            "set": lambda: self.map.updateValue((x % 4,), (s,)),
            "look": lambda: self.map.getValue((x % 4,)),
            "contains": lambda: self.map.containsKey((x % 4,)),
            "remove": lambda: self.map.removeKey((x % 4,)),
            "items": lambda: sorted(self.map.iterator(), key=repr),
            "keys": lambda: sorted(self.map.keys()),
            "values": lambda: sorted(self.map.values(), key=repr),
            "has map": self.map.exists,
            "empty map": self.map.clear,
            "at": lambda: self.handle.registerTimer(x),
            "not at": lambda: self.handle.deleteTimer(x),
            "timers": self.timers,
            "now": lambda: (times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs()),
            "watermark": times.getCurrentWatermarkInMs,
            # A timer by the clock: due before the next batch, or never in this test.
            "soon": lambda: self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 1),
            "some day": lambda: self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 10**10),
            "how many": lambda: len(self.timers()),
        }
        return calls[op]()


def plain(value: Any) -> Any:
    """What a call gave, with numbers of NumPy as Python's where Spark's own list states give those."""
    if GIVES_NUMBERS:
        return value
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value.item() if hasattr(value, "item") else value


class ScriptInPandas(Script):
    """The same with pandas frames."""

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for row in pd.concat(list(rows)).sort_values("i").itertuples():
            said = repr(plain(self.do(row.op, int(row.x), row.s, timerValues)))
            yield pd.DataFrame({"k": [key[0]], "i": [row.i], "said": [said]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


class ScriptByClock(Script):
    """The same, for processing time: no answer shows the clock."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.list.appendValue((0, "fired"))
        yield Row(k=key[0], i=-1, said=f"fired, {self.value.get()}, {len(self.timers())} left")


def script(seed: int, batches: int, rows: int, ops: tuple[str, ...], base: Any, *, keys: int = 5) -> list[list[Any]]:
    """Random rows of `SCRIPT_SCHEMA`. Event times grow by some 10 seconds a batch; some are late.

    `x` of timers is a time around them; that of all else is small.
    """
    import datetime as dt

    rng, numbers = random.Random(seed), iter(range(10**9))
    out = []
    for batch in range(batches):
        made = []
        for _ in range(rows):
            op = rng.choice(ops)
            second = 10 * batch + rng.randrange(-25, 10)
            at = base + dt.timedelta(seconds=second, milliseconds=rng.randrange(1000))
            aimed = int(base.timestamp() * 1000) + 1000 * (10 * batch + rng.randrange(-30, 30))
            x = aimed if op in TIMERS else rng.randrange(50)
            text = rng.choice(["a", "ä", "", None, "long enough to be no inline text"])
            made.append((f"k{rng.randrange(keys)}", next(numbers), op, x, text, at if rng.random() < 0.95 else None))
        out.append(made)
    return out
