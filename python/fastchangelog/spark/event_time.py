"""Event time in Spark's stateful operator: a call of each shard in each batch, and the mark of late rows.

Owns: the one Spark timer of a shard in event time mode, and which watermark makes a row late.
Does not own: what a shard does with its watermarks (`aggregates.event_time`, `processor.operator`).

Spark calls a shard without rows only if a timer of it is due. So each shard has one that is always due: it alternates
between two times, since Spark deletes a fired timer after the handler. A shard keeps the watermark of each batch: rows
are late by that of the batch before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastchangelog.spark import task

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues

__all__ = ["call_in_each_batch", "call_in_next_batch", "late_mark"]

#: The two times of a shard's timer. The watermark is never less than 0.
_EVERY_BATCH = (-1, -2)
#: With "false" Spark takes the current watermark for the mark of late rows, and not the one of the batch before.
_SEVERAL_OPERATORS = "spark.sql.streaming.statefulOperator.allowMultiple"


def call_in_each_batch(handle: Any) -> None:
    """From the next batch on Spark calls the shard, which has not been called before."""
    handle.registerTimer(_EVERY_BATCH[0])


def call_in_next_batch(handle: Any, fired: int) -> None:
    """After the timer of time `fired` Spark calls the shard again in the next batch."""
    handle.registerTimer(sum(_EVERY_BATCH) - fired)


def late_mark(before: int | None, times: TimerValues) -> int:
    """The time in milliseconds up to which rows are late; `before` is the watermark of the batch before."""
    if task.local_property(_SEVERAL_OPERATORS) == "false":
        return times.getCurrentWatermarkInMs()
    return before or 0
