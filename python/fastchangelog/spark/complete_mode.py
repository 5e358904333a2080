"""Queries in complete mode: Spark's check of their start makes room for our aggregation.

Owns: which queries have such an operator, the setting while one of them starts, the refusal of limits.
Does not own: the methods that start a query (`internals_writers`), what the operator returns (`aggregates`).

Spark lets a query start in complete mode only if it sees an aggregate of its own in the plan; ours is a stateful
processor to it. So while such a query starts, and for it alone, Spark's check of unsupported operations is off. Of a
limit behind it Spark would keep a state, as in append mode, so that is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark import internals, internals_queries, internals_writers, metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["allow"]

_log = logging.getLogger("fastchangelog.spark")

_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
#: The ids of sessions with such an operator.
_sessions: set[str] = set()
_lock = threading.Lock()


def allow(spark: SparkSession) -> None:
    """Lets queries of this session start in complete mode with our operator in that mode."""
    if internals.is_connect(spark):
        if str(spark.conf.get(_CHECK, "true")).lower() != "false":
            raise UnsupportedError(
                "output_mode='complete' over Spark Connect needs a setting, since Spark does not know this aggregation "
                f'for one: spark.conf.set("{_CHECK}", "false")'
            )
        return
    _sessions.add(internals.session_id(spark))
    internals_writers.divert_starts(around=_unchecked)


def _unchecked(frame: DataFrame, start: Callable[[], Any]) -> Any:
    spark = frame.sparkSession
    if internals.session_id(spark) not in _sessions or not _has_complete(frame):
        return start()
    if internals_queries.has_limit(frame):
        raise InvalidArgumentError(
            "behind grouped(…, output_mode='complete') is a limit, which Spark would count over all batches, since it "
            "does not know this aggregation for one: write the whole result, and take the limit in foreachBatch"
        )
    with _lock:
        before = spark.conf.get(_CHECK, None)
        spark.conf.set(_CHECK, "false")
        try:
            return start()
        finally:
            spark.conf.unset(_CHECK) if before is None else spark.conf.set(_CHECK, before)


def _has_complete(frame: DataFrame) -> bool:
    try:
        columns = internals_queries.observed_columns(frame)
    except Exception as error:  # of a PySpark with other plans: Spark's check stays on
        _log.debug("cannot see whether a query has an operator in complete mode: %s", error)
        return False
    return any(metrics.output_mode_of(column) == "complete" for column in columns)
