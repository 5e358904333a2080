"""Aggregates and deduplication of an accelerated session of Spark Connect: ours in the place of Spark's when a query
starts.

Owns: whether the operator of such a query is taken, and what is said about it.
Does not own: the plan (`internals_connect`), our operators (`grouped_stream`, `deduplicate`), queries of classic
sessions (`accelerated_queries`).

The server analyses a plan, and shows its client no more than a schema. So an operator is taken only where it is the
only one of a plan that is known from the sink to the source: then nothing depends on what Spark would refuse behind it,
or put below the watermark.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark import internals_connect, internals_plans
from fastchangelog.spark.accelerated_operators import (
    AGGREGATES,
    DEDUPLICATION,
    WINDOWS,
    Given,
    Stays,
    deduplicated,
    first_line,
    free_name,
    kept_by_us,
    names_in,
    of_spark,
)
from fastchangelog.spark.aggregates.analyse import analyse
from fastchangelog.spark.aggregates.plan import aggregated
from fastchangelog.spark.grouped_stream import GroupedStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fastchangelog.spark.internals_connect import ConnectStart, OnlyOperator

__all__ = ["accelerated"]

_log = logging.getLogger("fastchangelog.spark")

_MARKS = {"spark.timeWindow", "spark.sessionWindow"}


def accelerated(start: ConnectStart, given: Given) -> DataFrame:
    """The frame that a starting query writes, with our operator in the place of Spark's if it can be taken."""
    if not internals_connect.has_operators(start.frame):
        return start.frame
    found = internals_connect.only_operator(start.frame)
    if found is None:
        _log.info(
            "the operators of a query stay with Spark: over Spark Connect, an aggregate or a deduplication runs on "
            "fastchangelog if it is the only one of its query, not in SQL, and reads a source"
        )
        return start.frame
    shown = "the aggregate" if found.kind == "Aggregate" else "the deduplication"
    ours: list[bool] = []
    try:
        ours = kept_by_us(start.frame.sparkSession, start.checkpoint, given)
        if ours and not all(ours):
            raise of_spark(start.checkpoint or "")
        name = free_name(names_in(start.frame))
        result = _ours(found, start, given, name, is_free=not ours)
        if _columns(result) != _columns(found.frame):
            raise UnsupportedError(f"its columns would be {result.columns}")
        frame = internals_plans.replaced(start.frame, found.frame, result)
    except Stays as reason:
        _log.info("%s stays on Spark's operator: %s", shown, reason)
        return start.frame
    except Exception as error:
        if ours and all(ours):
            raise InvalidArgumentError(
                f"the checkpoint {start.checkpoint} holds the state of fastchangelog's operator, but {shown} would "
                f"stay on Spark's, which does not find it: {first_line(error)}. Undo that, or start with a new "
                "checkpoint"
            ) from error
        _log.warning("%s stays on Spark's operator: %s", shown, first_line(error))
        return start.frame
    _log.info("%s runs on fastchangelog, under the name %s", shown, name)
    return frame


def _columns(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def _ours(found: OnlyOperator, start: ConnectStart, given: Given, name: str, *, is_free: bool) -> DataFrame:
    """The result of our operator; `is_free` means that it may stay with Spark."""

    def choose(kind: str, windows: tuple[int, int] | None = None) -> None:
        reason = given.refusal(start.frame.sparkSession, kind, start.output_mode, windows)
        if reason is not None and is_free:
            raise Stays(reason)

    if not found.child.isStreaming:
        raise Stays("it reads no stream")
    if start.output_mode == "complete":
        raise Stays("Spark Connect does not start complete mode without an aggregate of Spark's")
    if found.kind != "Aggregate":
        choose(DEDUPLICATION)
        within = found.is_within_watermark
        return deduplicated(given, found.child, found.columns, name, is_within_watermark=within)
    mode = start.output_mode
    analysed = analyse(found.child, found.keys, found.calls, {}, "append" if mode == "append" else "update")
    keys, windows = analysed.keys.fields, analysed.keys.windows
    has_windows = any(not _MARKS.isdisjoint(key.metadata) for key in keys)
    # Before the session gets the settings that ours needs.
    choose(WINDOWS if has_windows else AGGREGATES, None if windows is None else (windows.size, windows.slide))
    stream = GroupedStream(
        found.child,
        found.keys,
        given.state,
        name,
        None,
        given.materialization,
        given.options,
        given.storage_options,
        mode,
    )
    return aggregated(stream.grouping, analysed)
