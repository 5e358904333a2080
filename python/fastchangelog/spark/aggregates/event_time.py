"""The stateful operator of an aggregation by event time: late groups are left out, and closed groups leave the state.

Owns: the watermarks of a session, and when a shard without rows needs one.
Does not own: a session's steps (`operator`), late and closed groups (the state server), Spark's timers
(`spark.event_time`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastchangelog import _internal
from fastchangelog.errors import raise_one_line
from fastchangelog.spark import event_time, settings, task
from fastchangelog.spark.aggregates.operator import ShardProcessor
from fastchangelog.spark.shard_task import KEPT, Kept, run_once

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

__all__ = ["EventTimeProcessor"]

#: Of a shard that holds no group.
_NEVER = (1 << 63) - 1


class EventTimeProcessor(ShardProcessor):
    """The `StatefulProcessor` that Spark runs for a shard."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self._spark = handle

    def _state(self, handle: Any) -> Any:
        return handle.getValueState("handle", KEPT)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        try:
            event_time.call_in_next_batch(self._spark, expiredTimerInfo.getExpiryTimeInMs())
            shard_id = int(key[0])
            if shard_id not in self._ran:
                settings.check_task(task.local_property)
                yield from self._batch(shard_id, self._kept(), iter(()), timerValues)
        except Exception as error:
            raise_one_line(error)

    def _run(self, shard_id: int, rows: Iterator[pd.DataFrame], times: TimerValues) -> Iterator[pd.DataFrame]:
        settings.check_task(task.local_property)
        run_once(self._ran, shard_id)
        kept = self._kept()
        if kept == Kept():
            event_time.call_in_each_batch(self._spark)
        yield from self._batch(shard_id, kept, rows, times, has_rows=True)

    def _kept(self) -> Kept:
        # Each call of Spark's state takes a millisecond or more.
        return Kept.of(self._handle.get())

    def _batch(
        self,
        shard_id: int,
        kept: Kept,
        rows: Iterator[pd.DataFrame],
        times: TimerValues,
        *,
        has_rows: bool = False,
    ) -> Iterator[pd.DataFrame]:
        watermark = times.getCurrentWatermarkInMs()
        closed = watermark * 1000
        if has_rows or kept.timer is None or kept.timer <= closed:
            marks = {
                "late": event_time.late_mark(kept.watermark, times) * 1000,
                "closed": closed,
                "before": (kept.watermark or 0) * 1000,
                "first": kept.timer,
            }
            handle, next_close = yield from self._version(shard_id, kept.handle, rows, watermarks=marks)
            now = Kept(handle, watermark, _NEVER if next_close is None else next_close)
        else:
            now = dataclasses.replace(kept, watermark=watermark)
        if now != kept:
            self._handle.update(dataclasses.astuple(now))
        _internal.failpoint("operator.stored")
        task.freeze_modules("operator")
