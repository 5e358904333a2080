"""`accelerate(spark)`: the stateful operators of a session's PySpark code run on ours.

Owns: which sessions are accelerated and with which arguments, their processors, what of those goes back to Spark.
Does not own: how methods of PySpark are replaced (`internals…`), what is unsupported (the code that raises
`UnsupportedError`), the plan (`grouped_stream`, `processor.stream`), aggregates and deduplication
(`accelerated_queries`, `accelerated_connect`), which operators are chosen, and their names (`accelerated_operators`).

A processor is taken when its method is called, an aggregate when its query starts: only then the output mode is known,
and by then SQL text has become a plan, too.

A call of a processor goes back to Spark for one reason alone: an `UnsupportedError`, which says that Spark's operator
does what ours does not. Every other error is the user's, and is raised. A query that would go on from a checkpoint of
ours on Spark's operator is refused when it starts (`starts`), whatever brought it there: that reason, or another
library that has put PySpark's own method back.

An operator gets the first name that none has in its input. Two of them beside each other, as in a union, have the same
one until their frames are combined: then those of the second frame are built anew under other names.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.hidden import Hidden
from fastchangelog.materialization.policy import MaterializationPolicy, option_texts_of
from fastchangelog.spark import (
    accelerated_connect,
    accelerated_queries,
    internals,
    internals_connect,
    internals_plans,
    internals_writers,
    metrics,
    settings,
    starts,
)
from fastchangelog.spark.accelerated_operators import PROCESSORS, Given, choice_of, free_name, names_in
from fastchangelog.spark.grouped_stream import GroupedStream
from fastchangelog.spark.imported_state import ImportedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData, SparkSession

    from fastchangelog.spark.internals_queries import StartingQuery
    from fastchangelog.types import Options, PathLike, StorageOptions

__all__ = ["accelerate"]

_log = logging.getLogger("fastchangelog.spark")

#: The arguments that our operator takes, by PySpark's names.
_ARGUMENTS = frozenset(
    {"statefulProcessor", "outputStructType", "outputMode", "timeMode", "initialState", "eventTimeColumnName"}
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Built:
    """An operator that took the place of Spark's, with what it was made of."""

    given: Given
    group: GroupedData
    method: str
    arguments: Mapping[str, Any]
    name: str
    result: DataFrame


#: By the id of a session.
_accelerated: dict[str, Given] = {}
#: By the id of a session, the newest operators, in the order in which they were built.
_built: dict[str, collections.deque[_Built]] = {}
#: The ids of sessions where a call went back to Spark, which said so.
_went_back: set[str] = set()
#: As many as one query has at most; with each, the plan of its frame stays in memory.
_MOST_BUILT = 256
_lock = threading.Lock()


def accelerate(
    spark: SparkSession,
    state: PathLike | None = None,
    operators: str | Sequence[str] = "auto",
    enabled: bool = True,
    *,
    materialization: MaterializationPolicy | None = None,
    options: Options | None = None,
    storage_options: StorageOptions | None = None,
) -> None:
    """Makes the stateful operators of a session's PySpark code run on fastchangelog; the code stays as it is.

    `df.groupBy(…).transformWithState(…)` is then planned as `grouped(df, …).transformWithState(…)` is. When a query
    starts, its aggregates become those of `grouped(…).agg(…)` and its `dropDuplicates` those of `drop_duplicates`,
    whether they were written in Python or in SQL; over Spark Connect if there is one of them, in Python. The log says
    so for each operator, and why one stays with Spark: for lack of support, by `operators`, or because its checkpoint
    holds Spark's state.

    **A processor needs a new checkpoint**: neither operator reads the state of the other. Errors in its call, and
    exceptions of `init`, stay errors. Processors that were built before stay as they were built.

    It holds for this session alone: not for others, such as `spark.newSession()`, and not for what `foreachBatch` does
    with its batches. Calls of `grouped` are not changed.

    An operator's name is `default`, or `default-2`, `default-3` and so on if its input comes out of other operators of
    fastchangelog, or if it is combined with them, by a union or a join of DataFrames: the first name that none of them
    has. So it is the same whenever the program builds the query anew.

    Args:
        spark: The session, of classic PySpark or of Spark Connect.
        state: A folder that any number of queries may share, such as `"s3://bucket/state"`; by default the Spark conf
            `spark.fastchangelog.state`.
        operators: `"all"`, or a list of `"processors"`, `"windows"`, `"aggregates"` (those without windows) and
            `"deduplication"`. `"auto"` takes those that are not expected to be slower than Spark's: processors,
            deduplication, and windows of which each time is in four or more, or all windows if the session's state
            store was set to RocksDB, but none in complete mode. Aggregates without windows are faster here from some
            hundred thousand keys on; their number is not known at a start.
        enabled: False: the session runs on Spark's operator again.
        materialization: When to make snapshots; by default the options `materialization_…`.
        options: See the reference; each can also be set as the Spark conf `spark.fastchangelog.<option>`.
        storage_options: As for `grouped`.

    Raises:
        InvalidArgumentError: An argument cannot work as it was given; the message says what to change.

    Example:
        >>> fc.spark.accelerate(spark, state="s3://bucket/state")  # doctest: +SKIP
        >>> sessions = clicks.groupBy("user").transformWithState(Sessions(), out, "Update", "None")  # doctest: +SKIP
        >>> fc.spark.accelerate(spark, enabled=False)  # doctest: +SKIP
    """
    if not hasattr(spark, "conf") or not hasattr(spark, "readStream"):
        raise InvalidArgumentError(f"accelerate() takes a SparkSession first, not {type(spark).__name__}")
    hidden = Hidden(storage_options)
    del storage_options
    session = internals.session_id(spark)
    if not enabled:
        with _lock:
            _accelerated.pop(session, None)
            _built.pop(session, None)
            _went_back.discard(session)
        starts.notice(spark, None)
        return
    choice = choice_of(operators)
    root = settings.state_root(spark, state)
    settings.read_options(spark, option_texts_of(materialization, options))
    settings.storage_options(spark, root, hidden)
    with _lock:
        _accelerated[session] = Given(state, choice, materialization, options, hidden)
    internals.divert_processors(spark, _divert)
    internals_plans.divert_combinations(spark, _beside)
    if internals.is_connect(spark):
        internals_connect.replace_frames(_replace_over_connect)
        return
    starts.watch(spark)
    starts.notice(spark, lambda query: _see_start(session, query))
    internals_writers.divert_starts(replace=_replace)


def _replace(start: internals_writers.Start) -> DataFrame:
    """What a starting query writes."""
    given = _accelerated.get(internals.session_id(start.frame.sparkSession)) if _accelerated else None
    return start.frame if given is None else accelerated_queries.accelerated(start, given)


def _replace_over_connect(start: internals_connect.ConnectStart) -> DataFrame:
    given = _accelerated.get(internals.session_id(start.frame.sparkSession)) if _accelerated else None
    return start.frame if given is None else accelerated_connect.accelerated(start, given)


def _see_start(session: str, query: StartingQuery) -> None:
    """Warns of a query on Spark's operator that did not go back to it: its call has not come here."""
    missed = query.processors > len(starts.our_operators(query))
    given = _accelerated.get(session)
    if not missed or given is None or given.choice.refusal(PROCESSORS) is not None or session in _went_back:
        return
    with contextlib.suppress(Warning):  # the query starts all the same
        warnings.warn(
            "a query of an accelerated session runs on Spark's operator: its transformWithState() was not called "
            "through accelerate(), perhaps because another library replaced PySpark's methods; call accelerate() "
            "after that, and build the query again",
            stacklevel=2,
        )


def _divert(
    group: GroupedData, method: str, arguments: Mapping[str, Any], native: Callable[[], DataFrame]
) -> DataFrame:
    """The result of a call: ours, or Spark's where the session is not accelerated or ours does not support it."""
    if not _accelerated:
        return native()
    frame = internals.frame_of(group)
    given = _accelerated.get(internals.session_id(frame.sparkSession))
    if given is None:
        return native()
    shown = f"{method}() of {type(arguments['statefulProcessor']).__name__}"
    unwanted = given.choice.refusal(PROCESSORS)
    if unwanted is not None:
        _log.info("%s stays on Spark's operator: %s", shown, unwanted)
        return native()
    name = free_name(names_in(frame))
    try:
        return _build(group, given, name, method, arguments)
    except UnsupportedError as reason:
        if isinstance(arguments.get("initialState"), (GroupedStream, ImportedState)):
            raise  # Spark's operator does not know them
        _went_back.add(internals.session_id(frame.sparkSession))
        # The call of the user: under it are PySpark's method and this function.
        warnings.warn(f"{shown} stays on Spark's operator: {reason}", stacklevel=3)
        return native()


def _beside(first: DataFrame, second: DataFrame) -> DataFrame:
    """The second frame of a combination, without operators that have the names of those of the first one."""
    session = internals.session_id(second.sparkSession) if _accelerated else None
    if session not in _accelerated:
        return second
    taken, own = names_in(first), names_in(second)
    again = [
        built
        for built in tuple(_built.get(session, ()))
        if metrics.observed_name(built.name) in taken & own and internals_plans.has_plan(second, built.result)
    ]
    names: list[str] = []
    for _ in again:
        names.append(free_name({*taken, *own, *map(metrics.observed_name, names)}))
    # The last one first: behind it there may be others, which are then in its own plan.
    for built, name in zip(reversed(again), reversed(names)):
        result = _build(built.group, built.given, name, built.method, built.arguments)
        second = internals_plans.replaced(second, built.result, result)
    return second


def _build(group: GroupedData, given: Given, name: str, method: str, arguments: Mapping[str, Any]) -> DataFrame:
    """Our operator, which `_beside` may build again."""
    result = _ours(group, given, name, method, arguments)
    if result.isStreaming:
        session = internals.session_id(result.sparkSession)
        with _lock:
            operators = _built.setdefault(session, collections.deque(maxlen=_MOST_BUILT))
            operators.append(_Built(given, group, method, arguments, name, result))
    processor = type(arguments["statefulProcessor"]).__name__
    _log.info("%s() of %s runs on fastchangelog, under the name %s", method, processor, name)
    return result


def _ours(group: GroupedData, given: Given, name: str, method: str, arguments: Mapping[str, Any]) -> DataFrame:
    if not internals.is_plain_grouping(group):
        raise UnsupportedError("a rollup, a cube or a pivot is not supported; group by columns")
    others = sorted(arguments.keys() - _ARGUMENTS)
    if others:
        raise UnsupportedError(f"the argument {others[0]} of this version of PySpark is not supported; leave it out")
    frame, keys = internals.grouping_of(group)
    grouped = GroupedStream(
        frame,
        tuple(keys),
        given.state,
        name,
        None,
        given.materialization,
        given.options,
        given.storage_options,
    )
    result: DataFrame = getattr(grouped, method)(**arguments)
    return result
