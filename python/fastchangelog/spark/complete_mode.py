"""Queries in complete mode: Spark's check of their start makes room for our aggregation.

Owns: which operators are in complete mode, and the setting while a query with one of them starts.
Does not own: the methods that start a query (`internals_writers`), what the operator returns (`aggregates`).

Spark lets a query start in complete mode only if it sees an aggregate of its own in the plan; ours is a stateful
processor to it. So while such a query starts, and for it alone, Spark's check of unsupported operations is off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import UnsupportedError
from fastchangelog.spark import internals, internals_writers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["allow"]

_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
#: By the id of a session, the names under which operators in complete mode are observed.
_operators: dict[str, set[str]] = {}
_lock = threading.Lock()


def allow(spark: SparkSession, observed: str) -> None:
    """Lets queries of this session start in complete mode with the operator that is observed under this name."""
    if internals.is_connect(spark):
        if str(spark.conf.get(_CHECK, "true")).lower() != "false":
            raise UnsupportedError(
                "output_mode='complete' over Spark Connect needs a setting, since Spark does not know this aggregation "
                f'for one: spark.conf.set("{_CHECK}", "false")'
            )
        return
    with _lock:
        _operators.setdefault(internals.session_id(spark), set()).add(observed)
    internals_writers.divert_starts(around=_unchecked)


def _unchecked(frame: DataFrame, start: Callable[[], Any]) -> Any:
    spark = frame.sparkSession
    known = _operators.get(internals.session_id(spark))
    if not known or known.isdisjoint(internals.observed_names(frame)):
        return start()
    with _lock:
        before = spark.conf.get(_CHECK, None)
        spark.conf.set(_CHECK, "false")
        try:
            return start()
        finally:
            spark.conf.unset(_CHECK) if before is None else spark.conf.set(_CHECK, before)
