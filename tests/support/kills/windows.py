"""Windows over distinct rows that are killed: two stateful operators in a row, in append mode.

Owns: what Spark runs, random rows, and a model of late rows, duplicates and closed windows. Does not own: files and
batches (`answers`), what is killed (`run`).
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])

_DELAY, _SIZE, _SLIDE = 10, 12, 4
_EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
#: Seconds of event time from batch to batch.
_STEP = 5

#: Names of the states.
CLOSING, DISTINCT = "default", "distinct"

Row = tuple[Any, ...]
"""Key, time, value."""


def windowed(stream: DataFrame, operators: Any) -> DataFrame:
    """Counts and sums of distinct keys and values by sliding windows."""
    marked = stream.withWatermark("ts", f"{_DELAY} seconds")
    once = operators.distinct(marked, ["k", "v"], DISTINCT)
    window = F.window("ts", f"{_SIZE} seconds", f"{_SLIDE} seconds")
    closed = operators(once, window, "k", output_mode="append").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    return closed.select(F.unix_seconds("window.end").alias("end"), "k", "n", "total")  # type: ignore[no-any-return]


class WindowModel:
    """The states of both operators, and random rows for them. Every batch has rows."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._batch = 0
        #: Batches that have other keys than those before them.
        self._others = 0
        #: Of the batch before, of this batch, and of the next one.
        self._marks = (0.0, 0.0, 0.0)
        self._expiries: dict[tuple[Any, int], float] = {}
        self._windows: dict[tuple[int, Any], list[int]] = {}

    def batch(self, keys: int, count: int) -> list[Row]:
        """So many random rows of so many keys and null."""
        self._batch += 1
        first, name = (0, f"other-{self._batch}") if self._others else (-1, "key")
        self._others = max(0, self._others - 1)
        return [self._row(name, self._random.randrange(first, keys)) for _ in range(count)]

    def _row(self, name: str, number: int) -> Row:
        key = None if number < 0 else f"{name}-{number}"
        seconds = self._batch * _STEP + self._random.uniform(-3 * _DELAY, _STEP)
        return key, _EPOCH + dt.timedelta(seconds=round(seconds, 3)), self._random.randrange(9)

    def touches(self) -> list[list[Row]]:
        """Two batches that close every window: the watermark of the second is that of the first one's row."""
        ends = [end for end, _ in self._windows]
        last = _EPOCH + dt.timedelta(seconds=self._batch * _STEP)
        last = max([last, *(dt.datetime.fromtimestamp(end, dt.timezone.utc) for end in ends)])
        return [[("touch", last + dt.timedelta(seconds=s * _DELAY), 0)] for s in (2, 3)]

    def moved(self) -> None:
        """A new query goes on from here; it has seen no times.

        Its first two batches find rows that have expired and wait for their removal, so these batches have other keys.
        """
        self._marks = (0.0, 0.0, 0.0)
        self._others = 2

    def apply(self, rows: list[Row]) -> list[list[Any]]:
        """Adds a batch; the windows that it closes."""
        late, before, closed = self._marks[0], self._marks[0], self._marks[1]
        for key, time, value in rows:
            at = time.timestamp()
            if at <= late:
                continue
            if self._expiries.get((key, value), float("-inf")) > before:
                continue
            self._expiries[key, value] = at + _DELAY
            self._count(key, at, value, late)
        self._expiries = {key: expiry for key, expiry in self._expiries.items() if expiry > closed}
        done = [window for window in self._windows if window[0] <= closed]
        answer = [[end, key, *self._windows.pop((end, key))] for end, key in done]
        newest = max(time.timestamp() for _, time, _ in rows)
        following = max(self._marks[2], int(newest * 1000) / 1000 - _DELAY)
        self._marks = (closed, following, following)
        return answer

    def _count(self, key: Any, at: float, value: int, late: float) -> None:
        end = int(at // _SLIDE) * _SLIDE + _SIZE
        while end > at:
            if end > late:
                group = self._windows.setdefault((end, key), [0, 0])
                group[0] += 1
                group[1] += value
            end -= _SLIDE

    def snapshot(self) -> dict[Any, Any]:
        """The windows that are open, and when distinct rows expire."""
        windows = {(CLOSING, *window): tuple(group) for window, group in self._windows.items()}
        return windows | {(DISTINCT, *row): expiry for row, expiry in self._expiries.items()}
