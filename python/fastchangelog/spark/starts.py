"""Checks when a query starts: an aggregation in an output mode other than update, one operator twice, or the
checkpoint of Spark's own operator is refused.

Owns: the check of a starting query, its messages, and the refusal in the query's tasks.
Does not own: how a starting query is observed (`internals`).

Spark checks the output mode of its own aggregates on the driver when a query starts, but not the mode of the stateful
operator that this package uses. What the rows of a stateful processor mean is the processor's own: as in Spark, they go
to a sink of any mode. A listener of the session sees the query before its first batch. A listener cannot
fail the query, so it writes the reason into the query's settings, and each task of the split fails before it reads a
row.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import internals, metrics, moved_checkpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["REFUSAL", "check_task", "refusal_reason", "watch"]

_log = logging.getLogger("fastchangelog.spark")

#: The setting of a refused query. Spark passes settings that begin with `spark.` to tasks.
REFUSAL = "spark.sql.fastchangelog.refusal"
#: The one state that our operators keep in Spark's state store.
STATE = "handle"


def watch(spark: SparkSession) -> None:
    """Checks each query of this session when it starts; logs a warning where Spark does not show it."""
    if not internals.watch_starts(spark, refusal_reason, REFUSAL, moved_checkpoints.repair):
        _log.warning(
            "Spark Connect does not show the output mode of a query: write the result of grouped() with "
            'outputMode("update"); append, the default, would write a key again each time that it changes. '
            "foreachBatch fails there: Connect runs what it does with a batch outside of the query"
        )


def refusal_reason(query: internals.StartingQuery) -> str | None:
    """The reason to refuse this query; None if it may run.

    >>> refusal_reason(internals.StartingQuery("update", ("fastchangelog.default", "a metric of the user")))
    >>> refusal_reason(internals.StartingQuery("append", ("fastchangelog.default",)))[:51]
    'the query writes the result of grouped() in append '
    """
    names = [name.removeprefix(metrics.PREFIX) for name in query.observed if name.startswith(metrics.PREFIX)]
    if not names:
        return None
    if query.output_mode != "update" and any(
        metrics.COLUMN in query.reads.get(metrics.observed_name(name), {metrics.COLUMN}) for name in names
    ):
        return (
            f"the query writes the result of grouped() in {query.output_mode} mode, which would take each change of a "
            'key for a new row: write it with outputMode("update")'
        )
    name, times = collections.Counter(names).most_common(1)[0]
    if times > 1:
        return (
            f"the operator {name!r} is {times} times in the query's plan, as in a union or a join of one result of "
            "grouped() with itself, and all of them would share one state: use its result once, in foreachBatch for "
            "instance, or build each with grouped(…, name=…) of its own"
        )
    return _foreign_state(len(names), query.stored)


def _foreign_state(operators: int, stored: Sequence[frozenset[str]]) -> str | None:
    """The reason to refuse a checkpoint of Spark's operator, which says nothing itself and would begin without state.

    >>> _foreign_state(1, [frozenset({"handle"})])
    >>> _foreign_state(1, [frozenset({"total", "seen"})])[:75]
    "the checkpoint holds the states seen, total of Spark's own operator, which "
    """
    foreign = [states for states in stored if states != {STATE}]
    if not foreign or operators <= len(stored) - len(foreign):
        return None
    return (
        f"the checkpoint holds the states {', '.join(sorted(foreign[0]))} of Spark's own operator, which grouped() "
        "does not read: it would begin with empty states. Start it with a new checkpoint, or keep the query on Spark's "
        "operator"
    )


def check_task(property_of: Callable[[str], str | None]) -> None:
    """Fails the task of a query that was refused at its start."""
    reason = property_of(REFUSAL)
    if reason is not None:
        raise InvalidArgumentError(reason)
