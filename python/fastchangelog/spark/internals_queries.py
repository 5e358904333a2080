"""Private parts of PySpark's streaming queries: their start, the facts that their tasks are told, and the functions of
`foreachBatch`.

Owns: the listener of starting queries, the settings that name a query, its run, its checkpoint and its batch in the
query's own session, the check that a function of `foreachBatch` has read its batch to the end.
Does not own: all other private parts of PySpark (`internals`), those of Spark Connect (`internals_connect`), which
queries are refused (`starts`), how tasks read the settings (`task`).
Tested per Spark version.

A job's local properties are those of the thread that starts it. A query has a session of its own, whose settings Spark
passes to the tasks of each SQL action, whatever its thread: so the listener writes into it what tasks must know. The
number of the batch changes, so it is written before each call of a function of `foreachBatch`, where alone jobs can
come from other threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import task
from fastchangelog.spark.internals import (
    is_connect,
    is_observe,
    items_of,
    kind_of,
    plan_nodes,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StartingQuery", "Watch", "has_limit", "observed_columns", "watch_starts"]

_log = logging.getLogger("fastchangelog.spark")

#: Of the plan's nodes and of the names of operators in a checkpoint: Spark's operator, which ours runs in, too.
_PROCESSOR_NODE = "TransformWithState"
_PROCESSOR_NAME = "transformWithState"
#: Kinds of nodes that aggregate, and those that Spark lets follow an aggregate in append mode alone.
_AGGREGATES = ("Aggregate", "Distinct")
_STATEFUL = (*_AGGREGATES, "DeduplicateWithinWatermark", "FlatMapGroups", "Join")
#: With "false" Spark lets them follow each other in any output mode.
_CHECKS_ORDER = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
#: Kinds of nodes that leave out rows by their number.
LIMITS = ("GlobalLimit", "LocalLimit", "Offset", "Tail")
#: The attribute of PySpark's object for a function of `foreachBatch` that says that its function is followed.
_FOLLOWED = "_fastchangelog_followed"
#: The class that Spark makes its managers of checkpoint files of.
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@dataclasses.dataclass(frozen=True)
class StartingQuery:
    """A streaming query before its first batch."""

    #: "append", "update" or "complete".
    output_mode: str
    #: The names of all `observe` nodes in its plan, each as often as the plan runs it.
    observed: tuple[str, ...]
    #: The columns that the metrics of each of them read.
    reads: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    #: Names of the states, not timers, of each `transformWithState` in the checkpoint, as of the last batch.
    stored: tuple[frozenset[str], ...] = ()
    #: How many of those are operators of this package, by the types of what they keep; by their names alone where the
    #: plan runs as many.
    stored_ours: int = 0
    #: How many times its plan runs `transformWithState`, for our operators or as Spark's own.
    processors: int = 0
    #: Pairs of names of `observe` nodes: the rows of the second go into the first. An operator of Spark's has the name
    #: "". None in append mode, or if Spark is told to allow it.
    followed: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Watch:
    """What is done with the queries that start in a session, and how our operators are known."""

    #: Is given the checkpoint of each query of ours first.
    prepare: Callable[[str], object]
    #: Is given the checkpoint of each query of ours that may run, and a way to read its settings.
    advise: Callable[[str, Callable[[str], str | None]], object]
    #: Gives the reason to refuse a query, or None.
    check: Callable[[StartingQuery], str | None]
    #: The setting that a reason becomes.
    refusal: str
    #: Of the names under which the metrics of our operators appear.
    prefix: str
    #: The one state that our operators keep.
    state: str
    #: Tells by the types of key and value whether such a state is ours.
    is_ours: Callable[[Any, Any], bool]


def watch_starts(spark: SparkSession, watch: Watch) -> bool:
    """Calls `prepare` and `check` for each query of this session before its first batch; registers once per session.

    A reason that it returns becomes the setting `refusal` of that query alone, which its tasks read as a local
    property. False where Spark shows neither plan nor output mode (Spark Connect).
    """
    if is_connect(spark):
        return False
    if spark in _watched:
        return True
    from pyspark import java_gateway

    session: Any = spark
    start_callbacks: Callable[[Any], None] = java_gateway.ensure_callback_server_started
    start_callbacks(session.sparkContext._gateway)
    wrapper = session.sparkContext._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
    session._jsparkSession.streams().addListener(wrapper(_StartListener(session, watch)))
    _watched.add(spark)
    return True


_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()


class _StartListener:
    """A listener that the JVM calls on the query's own thread, which waits for it before it plans a batch.

    PySpark's own would decode each progress, which is not needed here.
    """

    def __init__(self, spark: Any, watch: Watch):
        self._spark = spark
        self._watch = watch

    def onQueryStarted(self, event: Any) -> None:
        try:
            execution = self._spark._jsparkSession.streams().get(event.id()).streamingQuery()
            logs = _Logs(execution)
            _name_query(execution, logs)
            self._judge(execution, logs)
        except Exception as error:  # the JVM would only log it
            _log.warning(
                "cannot see the output mode and the plan of the query %s (%s: %s): make sure that it is written with "
                'outputMode("update") and has each grouped() once',
                event.id().toString(),
                type(error).__name__,
                str(error).partition("\n")[0],
            )

    def _judge(self, execution: Any, logs: _Logs) -> None:
        mode = str(execution.outputMode().toString()).lower()
        found, processors = _observed(execution.analyzedPlan())
        if not processors:
            found = []  # none of them is of our operators
        names = tuple(name for name, _ in found)
        ours_run = sum(name.startswith(self._watch.prefix) for name in names)
        if ours_run:
            self._watch.prepare(str(execution.resolvedCheckpointRoot()))
        stored, ours = _stored(self._spark, execution, logs.committed, ours_run, self._watch) if processors else ((), 0)
        if ours_run:
            _follow_functions(self._spark, execution)
        followed: tuple[tuple[str, str], ...] = ()
        if ours_run and mode != "append" and str(_setting(execution, _CHECKS_ORDER)).lower() != "false":
            followed = tuple(_followed_nodes(execution.analyzedPlan()))
        reason = self._watch.check(StartingQuery(mode, names, dict(found), stored, ours, processors, followed))
        if reason is None and ours_run:
            self._watch.advise(str(execution.resolvedCheckpointRoot()), functools.partial(_setting, execution))
        if reason is not None:
            conf = execution.sparkSessionForStream().conf()
            conf.set(self._watch.refusal, reason)
            # Spark's own operator does not ask for the refusal: its first batch cannot be planned without such a class,
            # and Spark's error shows this text, in a line of its own, for its name.
            kind = InvalidArgumentError
            conf.set(_FILE_MANAGER, f"\n{kind.__module__}.{kind.__name__}: {reason}\n")

    def onQueryProgress(self, event: Any) -> None:
        """Not used."""

    def onQueryIdle(self, event: Any) -> None:
        """Not used."""

    def onQueryTerminated(self, event: Any) -> None:
        _running.pop(str(event.runId().toString()), None)

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _setting(execution: Any, name: str) -> str | None:
    """A setting of the query's own session; one of Hadoop's may come from Hadoop's own files."""
    hadoop = name.removeprefix("spark.hadoop.")
    state = execution.sparkSessionForStream().sessionState()
    found = state.newHadoopConf().get(hadoop) if hadoop != name else state.conf().getConfString(name, None)
    return None if found is None else str(found)


class _Logs:
    """The newest entries of a query's logs. In a bucket each look costs several requests, so it is had once."""

    def __init__(self, execution: Any):
        self._execution = execution

    @functools.cached_property
    def planned(self) -> int | None:
        """The newest planned batch."""
        return _latest(self._execution.offsetLog())

    @functools.cached_property
    def committed(self) -> int | None:
        """The newest committed batch."""
        return _latest(self._execution.commitLog())


def _latest(log: Any) -> int | None:
    found = log.getLatestBatchId()
    return None if found.isEmpty() else int(found.get())


def _name_query(execution: Any, logs: _Logs) -> None:
    """Writes what tasks must know of the query into its own session."""
    conf = execution.sparkSessionForStream().conf()
    conf.unset(task.BATCH)  # of a query whose function of `foreachBatch` starts this one
    conf.unset(task.CHECKPOINT)
    conf.set(task.QUERY, str(execution.id().toString()))
    conf.set(task.RUN, str(execution.runId().toString()))
    conf.set(task.CHECKPOINT, str(execution.resolvedCheckpointRoot()))
    try:
        conf.set(task.FIRST_BATCH, str(_first_batch(logs)))
    except Exception as error:  # then a worker takes the first batch that it sees for the first one
        _log.debug("cannot see the first batch of a query's run: %s", error)


def _first_batch(logs: _Logs) -> int:
    """The first batch of the run: the one that was planned and not committed, if there is one, else the next."""
    return 0 if logs.planned is None else logs.planned + (logs.committed == logs.planned)


def observed_columns(frame: Any) -> set[str]:
    """The columns that the metrics of `observe` nodes read in the plan of a classic frame."""
    found, _ = _observed(frame._jdf.queryExecution().analyzed())
    return {column for _, columns in found for column in columns}


def has_limit(frame: Any) -> bool:
    """True if rows of a stream are limited in the plan of a classic frame."""
    nodes = plan_nodes(frame._jdf.queryExecution().analyzed())
    return any(kind_of(node) in LIMITS and node.isStreaming() for node in nodes)


def _observed(plan: Any) -> tuple[list[tuple[str, frozenset[str]]], int]:
    """The names of `observe` nodes in a plan with the columns that they read, and the number of processors in it."""
    found, processors = [], 0
    for node in plan_nodes(plan):
        if is_observe(node):
            columns = items_of(node.references().toSeq())
            found.append((str(node.name()), frozenset(str(column.name()) for column in columns)))
        processors += kind_of(node).startswith(_PROCESSOR_NODE)
    return found, processors


def _followed_nodes(plan: Any) -> Iterator[tuple[str, str]]:
    """See `StartingQuery.followed`."""
    tables: dict[int, Any] = {}
    for node in plan_nodes(plan, tables):
        if is_observe(node) or _is_stateful(node, _STATEFUL):
            for inner in (inner for child in items_of(node.children()) for inner in plan_nodes(child, tables)):
                if is_observe(inner) or _is_stateful(inner, _AGGREGATES):
                    yield _name_of(node), _name_of(inner)


def _is_stateful(node: Any, kinds: tuple[str, ...]) -> bool:
    """True for an operator of Spark's of these kinds; a join with a batch frame keeps no state."""
    return kind_of(node).startswith(kinds) and all(child.isStreaming() for child in items_of(node.children()))


def _name_of(node: Any) -> str:
    return str(node.name()) if is_observe(node) else ""


def _stored(
    spark: Any, execution: Any, last: int | None, ours_run: int, watch: Watch
) -> tuple[tuple[frozenset[str], ...], int]:
    """See `StartingQuery.stored` and `stored_ours`, after the batch `last`. What a batch planned and did not commit
    does not count.

    The types of what is stored are read only if more operators could be ours than the `ours_run` of the plan: by its
    names, a state of ours that our operator takes over is ours. To read them takes many requests to a bucket.
    """
    if last is None:
        return (), 0
    jvm = spark.sparkContext._jvm.org.apache.spark
    conf = jvm.util.SerializableConfiguration(execution.sparkSessionForStream().sessionState().newHadoopConf())
    source = jvm.sql.execution.datasources.v2.state.metadata
    reader = source.StateMetadataPartitionReader(execution.resolvedCheckpointRoot(), conf, last)
    stored, candidates = [], []
    for operator in reader.allOperatorStateMetadata():
        if str(operator.operatorInfo().operatorName()).startswith(_PROCESSOR_NAME):
            states = json.loads(operator.operatorPropertiesJson()).get("stateVariables", [])
            names = (state["stateName"] for state in states)
            stored.append(frozenset(name for name in names if not name.startswith("$")))  # Spark's own: of timers
            if stored[-1] == {watch.state}:
                candidates.append(int(operator.operatorInfo().operatorId()))
    if len(candidates) <= ours_run:
        return tuple(stored), len(candidates)
    return tuple(stored), sum(_has_our_types(spark, execution, number, watch) for number in candidates)


def _has_our_types(spark: Any, execution: Any, number: int, watch: Watch) -> bool:
    """True where it cannot be seen: another state of that one name is less likely than a path with odd letters."""
    reader = spark.read.format("statestore").option("path", str(execution.resolvedCheckpointRoot()))
    try:
        schema = reader.option("operatorId", number).option("stateVarName", watch.state).load().schema
        return watch.is_ours(schema["key"].dataType, schema["value"].dataType)
    except Exception as error:
        _log.debug("cannot read the types of a state: %s", error)
        return True


# Functions of `foreachBatch`: PySpark's callback server holds an object for each, which the JVM calls with each batch.

#: The queries with our operators, by the id of their run.
_running: dict[str, _Running] = {}


def _follow_functions(spark: Any, execution: Any) -> None:
    """Makes a function of `foreachBatch` name its batch before it runs, and be checked after it."""
    try:
        pool = spark.sparkContext._gateway.gateway_property.pool
        with pool.lock:
            objects = list(pool.dict.values())
    except AttributeError as error:
        _log.debug("cannot follow functions of foreachBatch: %s", error)
        return
    _running[str(execution.runId().toString())] = _Running(execution)
    for given in objects:
        if type(given).__name__ == "ForeachBatchFunction" and _FOLLOWED not in vars(given):
            given.func = _followed(given.func)
            setattr(given, _FOLLOWED, True)


def _followed(function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    @functools.wraps(function)
    def call(batch: DataFrame, number: int) -> None:
        query = _running.get(batch.sparkSession.conf.get(task.RUN, None) or "")
        if query is None:
            function(batch, number)
            return
        conf = batch.sparkSession.conf
        conf.set(task.BATCH, str(number))
        try:
            function(batch, number)
        finally:
            # Spark begins the next batch by making the session's settings properties of the query's thread: jobs of
            # RDDs would find this batch there.
            conf.unset(task.BATCH)
        query.check_read(number)

    return call


class _Running:
    """A running query."""

    def __init__(self, execution: Any):
        self._execution = execution
        #: The way from the root of a batch's plan to each of its processors: the same in all batches.
        self._paths: list[list[int]] | None = None

    def check_read(self, number: int) -> None:
        """Raises unless each partition of the batch was read to its end: only then Spark keeps its state."""
        if not all(_is_complete(operator) for operator in self._operators()):
            raise InvalidArgumentError(
                f"the result was not read to its end in batch {number}: Spark keeps the state of a partition once its "
                "last row was read, and limit, show, take, head, isEmpty and first stop before; in the function of "
                "foreachBatch call batch.persist() and batch.count() first, or write the whole batch"
            )

    def _operators(self) -> list[Any]:
        try:
            root = self._execution.lastExecution().executedPlan()
            if self._paths is not None:
                found = [functools.reduce(_child, path, root) for path in self._paths]
                if all(_is_processor(node) for node in found):
                    return found
            self._paths = [path for node, path in _with_paths(root, []) if _is_processor(node)]
            return [functools.reduce(_child, path, root) for path in self._paths]
        except Exception as error:  # of a PySpark with other plans: Spark itself fails the batch
            _log.debug("cannot see whether a batch was read to its end: %s", error)
            return []


def _child(node: Any, number: int) -> Any:
    return node.children().apply(number)


def _is_processor(node: Any) -> bool:
    return kind_of(node).startswith(_PROCESSOR_NODE)


def _with_paths(node: Any, path: list[int]) -> Iterator[tuple[Any, list[int]]]:
    yield node, path
    for number, child in enumerate(items_of(node.children())):
        yield from _with_paths(child, [*path, number])


def _is_complete(operator: Any) -> bool:
    """False if Spark, asked for the ids of the partitions' new states, says that there are too few of them."""
    try:
        operator.getStateStoreCheckpointInfo()
    except Exception as error:
        thrown = getattr(error, "java_exception", None)
        with contextlib.suppress(Exception):
            return thrown is None or str(thrown.getClass().getName()) != "java.lang.AssertionError"
    return True
