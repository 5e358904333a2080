"""Private parts of PySpark, which no other file but `internals_plans` uses: the tree of a `Column`, keys of a
`groupBy`, task slots, starting queries, methods of a `GroupedData`.

Owns: everything that touches `_jc`, `_jvm`, `_jdf`, `_jgd`, `_expr`, `_plan`, `_jsparkSession` or `sparkContext`, for
classic PySpark and for Spark Connect; the change of the methods that run a processor.
Does not own: one plan in the place of another (`internals_plans`), which functions are understood (`analyse`), which
queries are refused (`starts`), which calls go to our operator (`acceleration`).
Tested per Spark version; nothing else in the package may use those attributes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from types import FrameType

    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, GroupedData, SparkSession

__all__ = [
    "Call",
    "Diversion",
    "Literal",
    "Star",
    "StartingQuery",
    "call_of",
    "default_file_system",
    "divert_processors",
    "frame_of",
    "function_names",
    "grouping_of",
    "is_connect",
    "is_inside_foreach_batch",
    "is_plain_grouping",
    "is_plain_reference",
    "native_method",
    "observed_names",
    "run_this_interpreter",
    "same",
    "session_id",
    "slots",
    "text_of",
    "watch_starts",
]

_log = logging.getLogger("fastchangelog.spark")


@dataclasses.dataclass(frozen=True)
class Star:
    """The `*` of `count(*)`."""


@dataclasses.dataclass(frozen=True)
class Literal:
    """A constant argument; `column` is the same constant as a `Column`."""

    value: object
    column: Column


@dataclasses.dataclass(frozen=True)
class Call:
    """A function call taken apart: `alias` is None where the user gave none."""

    function: str
    args: tuple[Column | Literal | Star, ...]
    distinct: bool
    alias: str | None


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


#: What takes the call of a method: the grouping, the method's name, the arguments by PySpark's names, and PySpark's own
#: method with these arguments.
Diversion: TypeAlias = "Callable[[GroupedData, str, Mapping[str, Any], Callable[[], DataFrame]], DataFrame]"

#: The methods of a grouping that run a `StatefulProcessor`. PySpark 4.0 has the second only.
PROCESSOR_METHODS = ("transformWithState", "transformWithStateInPandas")
#: The attribute of a method in PySpark's place that holds PySpark's own.
_NATIVE = "_fastchangelog_native"
_diverting = threading.Lock()


def is_connect(thing: Column | DataFrame | SparkSession) -> bool:
    """True for a column, a frame or a session of Spark Connect."""
    return type(thing).__module__.startswith("pyspark.sql.connect")


def default_file_system(spark: SparkSession) -> str:
    """The file system of paths that name none; over Spark Connect as far as the session's settings say it."""
    if is_connect(spark):
        return spark.conf.get("spark.hadoop.fs.defaultFS", None) or "file:///"
    context: Any = spark.sparkContext
    return str(context._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///"))


def call_of(column: Column) -> Call | None:
    """The function call in `column`, through any aliases; None if it is anything else."""
    return _connect_call(column) if is_connect(column) else _classic_call(column)


def function_names(column: Column) -> set[str]:
    """Names of all functions in the expression, at any depth."""
    names: set[str] = set()
    if is_connect(column):
        _connect_names(_expr(column), names)
    else:
        _classic_names(_node(column), names)
    return names


def is_plain_reference(column: Column) -> bool:
    """True if the expression is a column's name and nothing else: evaluating it cannot fail."""
    if is_connect(column):
        return type(_expr(column)).__name__ == "ColumnReference"
    return _kind(_node(column)) == "UnresolvedAttribute"


def same(a: Column, b: Column) -> bool:
    """True if both are certainly the same expression. Texts do not prove it: `x` may be of either side of a join."""
    return a is b or (not is_connect(a) and _equal(a, b))


def frame_of(grouped: GroupedData) -> DataFrame:
    """The frame of PySpark's `groupBy`."""
    frame: DataFrame = grouped._df
    return frame


def grouping_of(grouped: GroupedData) -> tuple[DataFrame, list[Column]]:
    """The frame of PySpark's `groupBy`, and the keys: as Spark's operator takes them, columns of the frame."""
    columns = getattr(grouped, "_grouping_cols", None)
    if columns is None:
        columns = [_grouping_column(key) for key in _items(_classic_grouping(grouped))]
    return frame_of(grouped), list(columns)


def is_plain_grouping(grouped: GroupedData) -> bool:
    """True for a `groupBy`, false for a rollup, a cube, a pivot or grouping sets."""
    kind = getattr(grouped, "_group_type", None)
    return kind == "groupby" if kind is not None else _classic_kind(grouped).endswith("type: GroupBy]")


def native_method(grouped: GroupedData, name: str) -> Callable[..., DataFrame]:
    """PySpark's own method of that name, whether `divert_processors` has put another in its place or not."""
    method = getattr(type(grouped), name)
    return functools.partial(getattr(method, _NATIVE, method), grouped)


def divert_processors(spark: SparkSession, divert: Diversion) -> None:
    """From here on `divert` takes each call of `PROCESSOR_METHODS` in this process, whatever its session.

    The methods of PySpark's class are replaced once, for classic PySpark or for Spark Connect, as the session is.
    """
    kind = type(spark.range(0).groupBy())
    with _diverting:
        for name in PROCESSOR_METHODS:
            native = getattr(kind, name, None)
            if native is not None and not hasattr(native, _NATIVE):
                setattr(kind, name, _diverted(native, divert))


def _diverted(native: Callable[..., DataFrame], divert: Diversion) -> Callable[..., DataFrame]:
    signature = inspect.signature(native)

    @functools.wraps(native)
    def method(self: GroupedData, *args: Any, **kwargs: Any) -> DataFrame:
        own = functools.partial(native, self, *args, **kwargs)
        try:
            _, *given = signature.bind(self, *args, **kwargs).arguments.items()
        except TypeError:
            return own()  # raises PySpark's error
        return divert(self, native.__name__, dict(given), own)

    setattr(method, _NATIVE, native)
    return method


def session_id(spark: SparkSession) -> str:
    """What tells this session from every other: objects of Python that stand for the same session have the same."""
    session: Any = spark
    return str(session.session_id if is_connect(spark) else session._jsparkSession.sessionUUID())


def observed_names(df: DataFrame) -> set[str]:
    """The names of all `observe` nodes in the plan of a frame. Spark Connect does not show those behind a view."""
    frame: Any = df
    if is_connect(df):
        return set(_connect_observed(frame._plan))
    return {name for name, _ in _observed(frame._jdf.queryExecution().analyzed(), {})}


def text_of(column: Column) -> str:
    """The expression as PySpark shows it."""
    text = str(column)
    return text[len("Column<'") : -2] if text.startswith("Column<'") else text


def slots(spark: SparkSession) -> int | None:
    """How many tasks run at once; None with Spark Connect, where it is unknown."""
    context = _context(spark)
    return None if context is None else int(context.defaultParallelism)


def run_this_interpreter(spark: SparkSession) -> None:
    """In local mode, lets Spark's workers run this process's interpreter unless another was asked for.

    PySpark takes whatever `python3` is first in PATH, which need not be the environment that this package is in.
    """
    if os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None) is not None:
        return
    context = _context(spark)
    if context is not None and (context.master or "").startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable
        _log.info("Spark's workers run %s: neither PYSPARK_PYTHON nor spark.pyspark.python is set", sys.executable)


def watch_starts(
    spark: SparkSession, check: Callable[[StartingQuery], str | None], refusal: str, prepare: Callable[[str], object]
) -> bool:
    """Calls `prepare` with the checkpoint of each query of ours in this session, then `check` with each query, before
    its first batch; registers once per session.

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
    session._jsparkSession.streams().addListener(wrapper(_StartListener(session, check, refusal, prepare)))
    _watched.add(spark)
    return True


def _context(spark: SparkSession) -> SparkContext | None:
    """None with Spark Connect, which has none."""
    return None if is_connect(spark) else spark.sparkContext


def _node(column: Any) -> Any:
    return column._jc.node()


def _expr(column: Any) -> Any:
    return column._expr


def _classic_grouping(grouped: Any) -> Any:
    return grouped._jgd.groupingExprs()


def _grouping_column(key: Any) -> Column:
    from pyspark.sql import functions as F

    if _kind(key) == "UnresolvedAttribute":  # perhaps with the name of a table before it
        return F.col(str(key.sql()))
    # An expression that is no column of the frame has a text that no column of the frame has: Spark refuses it, too.
    name = str(key.name()) if _kind(key) in ("AttributeReference", "Alias") else str(key.toString())
    return F.col("`" + name.replace("`", "``") + "`")


def _classic_kind(grouped: Any) -> str:
    return str(grouped._jgd.toString())


def _equal(a: Any, b: Any) -> bool:
    return bool(a._jc.equals(b._jc))


# Classic: a Column wraps a JVM Column, whose node() is a small immutable tree of case classes.


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(seq: Any) -> list[Any]:
    return [seq.apply(i) for i in range(seq.size())]


def _classic_column(node: Any) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn
    from pyspark.sql.utils import get_active_spark_context

    jvm = get_active_spark_context()._jvm
    return ClassicColumn(getattr(jvm, "org.apache.spark.sql.Column")(node))


def _classic_call(column: Column) -> Call | None:
    node, alias = _node(column), None
    while _kind(node) == "Alias":
        names = _items(node.name())
        if alias is None and len(names) == 1:
            alias = str(names[0])
        node = node.child()
    # Spark has functions without an SQL name, such as product, which are internal: their names mean the same.
    if _kind(node) != "UnresolvedFunction" or node.isUserDefinedFunction():
        return None
    args: list[Column | Literal | Star] = []
    for arg in _items(node.arguments()):
        kind = _kind(arg)
        if kind == "UnresolvedStar" and arg.unparsedTarget().isEmpty():
            args.append(Star())
        elif kind == "Literal":
            args.append(Literal(arg.value(), _classic_column(arg)))
        else:
            args.append(_classic_column(arg))
    return Call(str(node.functionName()).lower(), tuple(args), bool(node.isDistinct()), alias)


def _classic_names(node: Any, names: set[str]) -> None:
    if _kind(node) == "UnresolvedFunction":
        names.add(str(node.functionName()).lower())
    if _kind(node) == "SqlExpression":
        names.update(_sql_functions(str(node.expression())))
    for child in _items(node.children()):
        if hasattr(child, "children"):
            _classic_names(child, names)


# Connect: a Column wraps a Python expression.


def _connect_call(column: Column) -> Call | None:
    from pyspark.sql.connect.column import Column as ConnectColumn
    from pyspark.sql.connect.expressions import ColumnAlias, LiteralExpression, UnresolvedFunction, UnresolvedStar

    expr = _expr(column)
    alias = None
    while isinstance(expr, ColumnAlias):
        if alias is None and len(expr._alias) == 1:
            alias = str(expr._alias[0])
        expr = expr._child
    if type(expr) is not UnresolvedFunction:
        return None
    args: list[Column | Literal | Star] = []
    for arg in expr._args:
        if isinstance(arg, UnresolvedStar) and arg._unparsed_target is None:
            args.append(Star())
        elif isinstance(arg, LiteralExpression):
            args.append(Literal(arg._value, ConnectColumn(arg)))
        else:
            args.append(ConnectColumn(arg))
    return Call(expr._name.lower(), tuple(args), bool(expr._is_distinct), alias)


def _connect_names(expr: Any, names: set[str]) -> None:
    from pyspark.sql.connect.expressions import Expression, SQLExpression, UnresolvedFunction

    if isinstance(expr, UnresolvedFunction):
        names.add(expr._name.lower())
    if isinstance(expr, SQLExpression):
        names.update(_sql_functions(expr._expr))
    for value in vars(expr).values():
        for child in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(child, Expression):
                _connect_names(child, names)


def _connect_observed(plan: Any) -> Iterator[str]:
    from pyspark.sql.connect.plan import CollectMetrics, LogicalPlan

    if isinstance(plan, CollectMetrics):
        observation: Any = plan._observation
        yield observation if isinstance(observation, str) else str(observation._name)
    for value in vars(plan).values():
        for child in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(child, LogicalPlan):
                yield from _connect_observed(child)


def _sql_functions(text: str) -> set[str]:
    import re

    return {name.lower() for name in re.findall(r"([A-Za-z_][A-Za-z_0-9]*)\s*\(", text)}


# The start of a query: Spark calls listeners on the query's own thread, which waits for them before it plans a batch.


_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()


class _StartListener:
    """A listener that the JVM calls. PySpark's own would decode each progress, which is not needed here."""

    def __init__(self, spark: Any, check: Callable[..., str | None], refusal: str, prepare: Callable[[str], object]):
        self._spark, self._check, self._refusal, self._prepare = spark, check, refusal, prepare

    def onQueryStarted(self, event: Any) -> None:
        try:
            query = self._spark._jsparkSession.streams().get(event.id())
            execution = query.streamingQuery()
            mode = str(execution.outputMode().toString()).lower()
            found = list(_observed(execution.analyzedPlan(), {}))
            if found:
                self._prepare(str(execution.resolvedCheckpointRoot()))
            stored = tuple(_stored_states(self._spark, execution)) if found else ()
            reason = self._check(StartingQuery(mode, tuple(name for name, _ in found), dict(found), stored))
            if reason is not None:
                execution.sparkSessionForStream().conf().set(self._refusal, reason)
        except Exception as error:  # the JVM would only log it
            _log.warning(
                "cannot see the output mode and the plan of the query %s (%s: %s): make sure that it is written with "
                'outputMode("update") and has each grouped() once',
                event.id().toString(),
                type(error).__name__,
                str(error).partition("\n")[0],
            )

    def onQueryProgress(self, event: Any) -> None:
        """Not used."""

    def onQueryIdle(self, event: Any) -> None:
        """Not used."""

    def onQueryTerminated(self, event: Any) -> None:
        """Not used."""

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _stored_states(spark: Any, execution: Any) -> Iterator[frozenset[str]]:
    """See `StartingQuery.stored`. What a batch planned and did not commit does not count."""
    last = execution.commitLog().getLatestBatchId()
    if last.isEmpty():
        return
    jvm = spark.sparkContext._jvm.org.apache.spark
    conf = jvm.util.SerializableConfiguration(execution.sparkSessionForStream().sessionState().newHadoopConf())
    source = jvm.sql.execution.datasources.v2.state.metadata
    reader = source.StateMetadataPartitionReader(execution.resolvedCheckpointRoot(), conf, last.get())
    for operator in reader.allOperatorStateMetadata():
        if str(operator.operatorInfo().operatorName()).startswith("transformWithState"):
            states = json.loads(operator.operatorPropertiesJson()).get("stateVariables", [])
            names = (state["stateName"] for state in states)
            yield frozenset(name for name in names if not name.startswith("$"))  # Spark's own: of timers


def _observed(plan: Any, tables: dict[int, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    """The names of `observe` nodes in a plan, and the columns that they read; a common table counts each time that it
    is referred to."""
    kind = _kind(plan)
    if kind == "WithCTE":
        tables.update({table.id(): table.child() for table in _items(plan.cteDefs())})
        yield from _observed(plan.plan(), tables)
        return
    if kind == "CTERelationRef" and plan.cteId() in tables:
        yield from _observed(tables[plan.cteId()], tables)
    if kind == "CollectMetrics":
        yield str(plan.name()), frozenset(str(attribute.name()) for attribute in _items(plan.references().toSeq()))
    for child in _items(plan.children()):
        yield from _observed(child, tables)


def is_inside_foreach_batch() -> bool:
    """True if a function of `foreachBatch` is a caller."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == "pyspark.sql.utils" and type(frame.f_locals.get("self")).__name__ == "ForeachBatchFunction":
            return True
        if module == "pyspark.sql.connect.streaming.worker.foreach_batch_worker":
            return True
        frame = frame.f_back
    return False
