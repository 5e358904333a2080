"""The processors of the comparison: values, maps, lists, timers, TTL, with Rows and with pandas frames; aggregates.

Owns: the processors and their result. Does not own: the data (compare_data), the runs (processor_compare).

Spark's workers import this module, so it needs nothing but PySpark and pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

__all__ = ["OUTPUT", "PROCESSORS"]

OUTPUT = "key string, n long, total double, last long"
_AGGREGATE = "n long, total double, last long"
_HOUR = 3_600_000


class ValueRows(StatefulProcessor):
    """Count, sum and last time of a key."""

    ttl: int | None = None

    def init(self, handle: Any) -> None:
        """Declares the state."""
        self.handle = handle
        self.state = handle.getValueState("aggregate", _AGGREGATE, self.ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Adds the rows; one row for the key."""
        n, total, last = 0, 0.0, 0
        for row in rows:
            n += 1
            total += row.amount
            last = max(last, row.tsl)
        old = self.state.get()
        if old is not None:
            n, total, last = n + old[0], total + old[1], max(last, old[2])
        self.state.update((n, total, last))
        yield Row(key=key[0], n=n, total=total, last=last)

    def close(self) -> None:
        """Nothing to end."""


class ValueFrames(ValueRows):
    """The same with pandas frames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Adds the frames; one row for the key."""
        n, total, last = 0, 0.0, 0
        for frame in rows:
            n += len(frame)
            total += float(frame["amount"].sum())
            last = max(last, int(frame["tsl"].max()))
        old = self.state.get()
        if old is not None:
            n, total, last = n + old[0], total + old[1], max(last, old[2])
        self.state.update((n, total, last))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total], "last": [last]})


class ValueRowsTtl(ValueRows):
    """With a state that ends after an hour."""

    ttl = _HOUR


class ValueFramesTtl(ValueFrames):
    """With a state that ends after an hour."""

    ttl = _HOUR


class TimerRows(ValueRows):
    """A timer for each key and batch, which fires in the next batch."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Adds the rows and sets the timer."""
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """One row for the key."""
        yield Row(key=key[0], n=-1, total=0.0, last=0)


class MapRows(StatefulProcessor):
    """Counts by one of eight buckets."""

    def init(self, handle: Any) -> None:
        """Declares the state."""
        self.state = handle.getMapState("buckets", "bucket long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Adds the rows to their buckets; one row for the key."""
        counts: dict[int, int] = {}
        total, last = 0.0, 0
        for row in rows:
            bucket = int(row.amount) & 7
            counts[bucket] = counts.get(bucket, 0) + 1
            total += row.amount
            last = max(last, row.tsl)
        for bucket, n in counts.items():
            old = self.state.getValue((bucket,))
            self.state.updateValue((bucket,), (n + (old[0] if old else 0),))
        yield Row(key=key[0], n=sum(counts.values()), total=total, last=last)

    def close(self) -> None:
        """Nothing to end."""


class ThreeStates(StatefulProcessor):
    """What `ValueRows` keeps, each part in a state of its own."""

    def init(self, handle: Any) -> None:
        """Declares the states."""
        self.counts = handle.getValueState("counts", "n long")
        self.totals = handle.getValueState("totals", "total double")
        self.times = handle.getValueState("times", "last long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Adds the rows; one row for the key."""
        (n,), (total,), (last,) = self.counts.get() or (0,), self.totals.get() or (0.0,), self.times.get() or (0,)
        for row in rows:
            n, total, last = n + 1, total + row.amount, max(last, row.tsl)
        self.counts.update((n,))
        self.totals.update((total,))
        self.times.update((last,))
        yield Row(key=key[0], n=n, total=total, last=last)

    def close(self) -> None:
        """Nothing to end."""


class ListRows(StatefulProcessor):
    """Keeps each amount."""

    def init(self, handle: Any) -> None:
        """Declares the state."""
        self.state = handle.getListState("amounts", "amount double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Adds the amounts; one row for the key."""
        amounts, last = [], 0
        for row in rows:
            amounts.append((row.amount,))
            last = max(last, row.tsl)
        self.state.appendList(amounts)
        yield Row(key=key[0], n=len(amounts), total=sum(a[0] for a in amounts), last=last)

    def close(self) -> None:
        """Nothing to end."""


def _of(processor: type[StatefulProcessor], time_mode: str = "None") -> Callable[[Any], DataFrame]:
    frames = issubclass(processor, ValueFrames)

    def build(group: Any) -> DataFrame:
        call = group.transformWithStateInPandas if frames else group.transformWithState
        result: DataFrame = call(processor(), OUTPUT, "Update", time_mode)
        return result

    return build


def _aggregates(group: Any) -> DataFrame:
    columns = (F.count("*").alias("n"), F.sum("amount").alias("total"), F.max("tsl").alias("last"))
    result: DataFrame = group.agg(*columns)
    return result


#: name -> what makes the result of Spark's groupBy, or of ours. `agg` is what `value` does, without Python in Spark.
PROCESSORS: dict[str, Callable[[Any], DataFrame]] = {
    "value": _of(ValueRows),
    "map": _of(MapRows),
    "list": _of(ListRows),
    "states": _of(ThreeStates),
    "timers": _of(TimerRows, "ProcessingTime"),
    "ttl": _of(ValueRowsTtl, "ProcessingTime"),
    "pandas": _of(ValueFrames),
    "pandas-ttl": _of(ValueFramesTtl, "ProcessingTime"),
    "agg": _aggregates,
}
