"""Checks when a query starts. Refused are: an aggregation in an output mode other than its own, aggregates of groups
that change (but ours of ours in update mode), one operator twice, a checkpoint of the other operator, Spark's or ours.
A checkpoint in S3 that Spark writes slowly gets a line in the log.

Owns: the check of a starting query, its messages, and the refusal in the query's tasks.
Does not own: how a starting query is observed, and how one of Spark's operators fails (`internals_queries`).

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
from typing import TYPE_CHECKING, Any

from fastchangelog.checkpoints.s3_settings import PACKAGE, is_in_s3, missing_settings
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import connect_batches, internals, metrics
from fastchangelog.spark.checkpoint import moved as moved_checkpoints
from fastchangelog.spark.internals_queries import StartingQuery, Watch, watch_starts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["REFUSAL", "check_task", "notice", "our_operators", "refusal_reason", "watch"]

_log = logging.getLogger("fastchangelog.spark")

#: The setting of a refused query. Spark passes settings that begin with `spark.` to tasks.
REFUSAL = "spark.sql.fastchangelog.refusal"
#: The one state that our operators keep in Spark's state store.
STATE = "handle"
#: What our operators have kept by that name, and the key that they group by.
_FIELDS = ("handle", "watermark", "timer")
_KEY = "shard"

#: What is told of each query that starts in a session, by the session's id.
_notices: dict[str, Callable[[StartingQuery], None]] = {}


def watch(spark: SparkSession) -> None:
    """Checks each query of this session when it starts; logs a warning where Spark does not show it."""

    def check(query: StartingQuery) -> str | None:
        reason = refusal_reason(query)
        told = _notices.get(internals.session_id(spark))
        if reason is None and told is not None:
            told(query)
        return reason

    watched = Watch(moved_checkpoints.repair, _advise, check, REFUSAL, metrics.PREFIX, STATE, _is_ours)
    if not watch_starts(spark, watched):
        connect_batches.follow(spark)
        _log.warning(
            "Spark Connect does not show the output mode of a query: write the result of grouped() with "
            'outputMode("update"); append, the default, would write a key again each time that it changes'
        )


def notice(spark: SparkSession, told: Callable[[StartingQuery], None] | None) -> None:
    """From here on `told` is called with each query that starts in this watched session and is not refused."""
    session = internals.session_id(spark)
    if told is None:
        _notices.pop(session, None)
    else:
        _notices[session] = told


def our_operators(query: StartingQuery) -> list[str]:
    """The names of our operators in a query's plan, each as often as it is there."""
    return [name.removeprefix(metrics.PREFIX) for name in query.observed if name.startswith(metrics.PREFIX)]


def refusal_reason(query: StartingQuery) -> str | None:
    """The reason to refuse this query; None if it may run.

    >>> refusal_reason(StartingQuery("update", ("fastchangelog.default", "a metric of the user")))
    >>> refusal_reason(StartingQuery("append", ("fastchangelog.default",)))[:51]
    'the query writes the result of grouped() in append '
    """
    names = our_operators(query)
    if not names:
        return _our_state(query, 0)
    modes = {name: _mode_of(query, name) for name in names}
    for wanted in modes.values():
        if wanted not in (None, query.output_mode):
            return _other_mode(query.output_mode, wanted)
    aggregations = {"", *(metrics.observed_name(name) for name, mode in modes.items() if mode is not None)}
    for pair in query.followed:
        # Of ours in update mode each change is a row of its own, which the second one is there to count.
        counts_changes = all(pair) and query.output_mode == "update"
        if any(pair) and not counts_changes and aggregations.issuperset(pair):
            return _followed(query.output_mode)
    name, times = collections.Counter(names).most_common(1)[0]
    if times > 1:
        return (
            f"the operator {name!r} is {times} times in the query's plan, as in a union or a join of one result of "
            "grouped() with itself, and all of them would share one state: use its result once, in foreachBatch for "
            "instance, or build each with grouped(…, name=…) of its own"
        )
    return _foreign_state(len(names), query.stored) or _our_state(query, len(names))


def _mode_of(query: StartingQuery, name: str) -> str | None:
    """The output mode of our aggregation; None of a processor, and of distinct rows."""
    columns = query.reads.get(metrics.observed_name(name), {metrics.COLUMN})
    return next(filter(None, map(metrics.output_mode_of, columns)), None)


def _other_mode(found: str, wanted: str) -> str:
    if wanted == "update":
        return (
            f"the query writes the result of grouped() in {found} mode, which would take each change of a key for a "
            'new row: write it with outputMode("update"), or group by windows with output_mode="append"'
        )
    return (
        f"the query writes the result of grouped(…, output_mode={wanted!r}) in {found} mode: write it with "
        f'outputMode("{wanted}")'
    )


def _followed(mode: str) -> str:
    return (
        f"the groups that an aggregate returns in {mode} mode go into another stateful operator, which would count a "
        "group as often as it changes (Spark refuses this of its own aggregates, too): group by windows with "
        'output_mode="append", or go on in a query of its own'
    )


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


def _our_state(query: StartingQuery, operators: int) -> str | None:
    """The reason to refuse a checkpoint of ours for Spark's operator, which says nothing either.

    >>> ours = frozenset({"handle"})
    >>> _our_state(StartingQuery("update", (), {}, (ours,), stored_ours=1, processors=1), 0)[:74]
    "the checkpoint holds the state of fastchangelog's operator, but the query "
    >>> _our_state(StartingQuery("update", (), {}, (ours,), stored_ours=1, processors=1), 1)
    """
    if query.stored_ours <= operators or query.processors <= operators:
        return None
    return (
        "the checkpoint holds the state of fastchangelog's operator, but the query runs Spark's own in its place, "
        "which would begin with empty states. Build the query as it was, with grouped() or after accelerate(); where a "
        "call stays on Spark's operator, a warning says which of its settings or types changed. Or start it with a new "
        "checkpoint"
    )


def _advise(checkpoint: str, setting: Callable[[str], str | None]) -> None:
    """Logs what would make Spark write this checkpoint faster."""
    missing = missing_settings(setting) if is_in_s3(checkpoint) else []
    if missing:
        _log.warning(
            "Spark writes the checkpoint %s slower than it could: set %s (package %s; see docs/deploying.md)",
            checkpoint,
            ", ".join(map(str, missing)),
            PACKAGE,
        )


def _is_ours(key: Any, value: Any) -> bool:
    """True if a state named `STATE` has the types that ours have."""
    names = tuple(value.names)
    return tuple(key.names) == (_KEY,) and names == _FIELDS[: len(names)] and key[0].dataType.typeName() == "integer"


def check_task(property_of: Callable[[str], str | None]) -> None:
    """Fails the task of a query that was refused at its start."""
    reason = property_of(REFUSAL)
    if reason is not None:
        raise InvalidArgumentError(reason)
