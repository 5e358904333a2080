"""Private parts of PySpark, which no other file but its siblings `internals_…` uses: the tree of a `Column`, keys of a
`groupBy`, task slots, the nodes of a plan, methods of a `GroupedData`.

Owns: everything that touches `_jc`, `_jvm`, `_jdf`, `_jgd`, `_expr`, `_plan`, `_jsparkSession` or `sparkContext`, for
classic PySpark and for Spark Connect; the change of the methods that run a processor.
Does not own: one plan in the place of another (`internals_plans`), queries that start and run (`internals_queries`),
which functions are understood (`aggregates.analyse`), which calls go to our operator (`acceleration`).
Tested per Spark version; nothing else in the package may use those attributes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import sys
import threading
import types
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
    "is_diverted",
    "divert_method",
    "is_observe",
    "is_passing_on",
    "items_of",
    "kind_of",
    "native_method",
    "observed_names",
    "own_method",
    "passing_on",
    "plan_nodes",
    "run_this_interpreter",
    "same",
    "session_id",
    "slots",
    "text_of",
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


#: What takes the call of a method: the grouping, the method's name, the arguments by PySpark's names, and PySpark's own
#: method with these arguments.
Diversion: TypeAlias = "Callable[[GroupedData, str, Mapping[str, Any], Callable[[], DataFrame]], DataFrame]"

#: The methods of a grouping that run a `StatefulProcessor`. PySpark 4.0 has the second only.
PROCESSOR_METHODS = ("transformWithState", "transformWithStateInPandas")
#: The attribute of a method in PySpark's place that says so; a wrapper made with `functools.wraps` has it, too.
_MARK = "_fastchangelog_diverted"
_DIVERTED = object()
#: The arguments of those methods, for the case that PySpark's own cannot be found.
_SIGNATURE = inspect.signature(
    lambda self, statefulProcessor, outputStructType, outputMode, timeMode, initialState=None, eventTimeColumnName="": 0
)
#: PySpark's own methods, by class and name.
_own_methods: dict[tuple[type, str], Callable[..., Any]] = {}
#: A wrapper around a wrapper, at most so many.
_MOST_WRAPPERS = 100
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
    return kind_of(_node(column)) == "UnresolvedAttribute"


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
        columns = [_grouping_column(key) for key in items_of(_classic_grouping(grouped))]
    return frame_of(grouped), list(columns)


def is_plain_grouping(grouped: GroupedData) -> bool:
    """True for a `groupBy`, false for a rollup, a cube, a pivot or grouping sets."""
    kind = getattr(grouped, "_group_type", None)
    return kind == "groupby" if kind is not None else _classic_kind(grouped).endswith("type: GroupBy]")


def native_method(grouped: GroupedData, name: str) -> Callable[..., DataFrame]:
    """PySpark's own method of that name, whatever is in its place."""
    own = own_method(type(grouped), name)
    if own is not None:
        return functools.partial(own, grouped)

    def pass_on(*args: Any, **kwargs: Any) -> DataFrame:
        with passing_on(grouped):
            result: DataFrame = getattr(type(grouped), name)(grouped, *args, **kwargs)
            return result

    return pass_on


def own_method(kind: type, name: str) -> Callable[..., Any] | None:
    """PySpark's own method of a class, also where other libraries have put theirs in its place; None if it is hidden.

    A library wraps the method with `functools.wraps`, or changes a subclass of the class that defines it. Where it does
    neither, the method is known if it was asked for before.
    """
    with contextlib.suppress(KeyError):
        return _own_methods[kind, name]
    for base in kind.__mro__:
        method: Any = vars(base).get(name)
        for _ in range(_MOST_WRAPPERS):
            if _is_own(method, name):
                return _own_methods.setdefault((kind, name), method)
            method = getattr(method, "__wrapped__", None)
            if method is None:
                break
    return None


def _is_own(method: Any, name: str) -> bool:
    if not isinstance(method, types.FunctionType) or method.__name__ != name:
        return False
    return str(method.__globals__.get("__name__", "")).startswith("pyspark.")


def divert_processors(spark: SparkSession, divert: Diversion) -> None:
    """From here on `divert` takes each call of `PROCESSOR_METHODS` in this process, whatever its session.

    The methods of PySpark's class are replaced once, for classic PySpark or for Spark Connect, as the session is. What
    another library put in their place before is called where PySpark's own would be.
    """
    kind = type(spark.range(0).groupBy())
    with _diverting:
        for name in PROCESSOR_METHODS:
            there = getattr(kind, name, None)
            if there is not None and not is_diverted(there):
                divert_method(kind, name, _diverted(kind, name, there, divert))


def is_diverted(method: Any) -> bool:
    """True for a method that `divert_method` has put in PySpark's place, or a wrapper of one."""
    return getattr(method, _MARK, None) is _DIVERTED


def divert_method(kind: type, name: str, method: Callable[..., Any]) -> None:
    """Puts `method` in the place of the method of that name."""
    setattr(method, _MARK, _DIVERTED)
    setattr(kind, name, method)


def _diverted(kind: type, name: str, there: Callable[..., DataFrame], divert: Diversion) -> Callable[..., DataFrame]:
    own = own_method(kind, name)
    signature = _SIGNATURE if own is None else inspect.signature(own)

    @functools.wraps(own or there)
    def method(self: GroupedData, *args: Any, **kwargs: Any) -> DataFrame:
        if is_passing_on(self):  # a library's wrapper has called the method that it found, and that is this one
            return (own or there)(self, *args, **kwargs)

        def native() -> DataFrame:
            with passing_on(self):
                return there(self, *args, **kwargs)

        try:
            _, *given = signature.bind(self, *args, **kwargs).arguments.items()
        except TypeError:
            return native()  # raises PySpark's error
        return divert(self, name, dict(given), native)

    return method


class _Passed(threading.local):
    """Objects whose method is being called that was in the place of PySpark's, in this thread."""

    def __init__(self) -> None:
        self.objects: list[object] = []


_passed = _Passed()


@contextlib.contextmanager
def passing_on(thing: object) -> Iterator[None]:
    """While the block runs, methods in PySpark's place pass calls of this object on: they are on their way already."""
    _passed.objects.append(thing)
    try:
        yield
    finally:
        _passed.objects.pop()


def is_passing_on(thing: object) -> bool:
    """True inside a block of `passing_on` for this object, in this thread."""
    return any(passed is thing for passed in _passed.objects)


def session_id(spark: SparkSession) -> str:
    """What tells this session from every other: objects of Python that stand for the same session have the same."""
    session: Any = spark
    return str(session.session_id if is_connect(spark) else session._jsparkSession.sessionUUID())


def observed_names(df: DataFrame) -> set[str]:
    """The names of all `observe` nodes in the plan of a frame. Spark Connect does not show those behind a view."""
    frame: Any = df
    if is_connect(df):
        return set(_connect_observed(frame._plan))
    return {str(node.name()) for node in plan_nodes(frame._jdf.queryExecution().analyzed()) if is_observe(node)}


def plan_nodes(plan: Any, tables: dict[int, Any] | None = None) -> Iterator[Any]:
    """The nodes of a classic plan; a common table counts each time that it is referred to."""
    tables = {} if tables is None else tables
    kind = kind_of(plan)
    if kind == "WithCTE":
        tables.update({table.id(): table.child() for table in items_of(plan.cteDefs())})
        yield from plan_nodes(plan.plan(), tables)
        return
    if kind == "CTERelationRef" and plan.cteId() in tables:
        yield from plan_nodes(tables[plan.cteId()], tables)
    yield plan
    for child in items_of(plan.children()):
        yield from plan_nodes(child, tables)


def is_observe(node: Any) -> bool:
    """True for the node of an `observe`."""
    return kind_of(node) == "CollectMetrics"


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

    if kind_of(key) == "UnresolvedAttribute":  # perhaps with the name of a table before it
        return F.col(str(key.sql()))
    # An expression that is no column of the frame has a text that no column of the frame has: Spark refuses it, too.
    name = str(key.name()) if kind_of(key) in ("AttributeReference", "Alias") else str(key.toString())
    return F.col("`" + name.replace("`", "``") + "`")


def _classic_kind(grouped: Any) -> str:
    return str(grouped._jgd.toString())


def _equal(a: Any, b: Any) -> bool:
    return bool(a._jc.equals(b._jc))


# Classic: a Column wraps a JVM Column, whose node() is a small immutable tree of case classes.


def kind_of(node: Any) -> str:
    """The name of the class of an object in the JVM."""
    return str(node.getClass().getSimpleName())


def items_of(seq: Any) -> list[Any]:
    """The items of a sequence in the JVM."""
    return [seq.apply(i) for i in range(seq.size())]


def _classic_column(node: Any) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn
    from pyspark.sql.utils import get_active_spark_context

    jvm = get_active_spark_context()._jvm
    return ClassicColumn(getattr(jvm, "org.apache.spark.sql.Column")(node))


def _classic_call(column: Column) -> Call | None:
    node, alias = _node(column), None
    while kind_of(node) == "Alias":
        names = items_of(node.name())
        if alias is None and len(names) == 1:
            alias = str(names[0])
        node = node.child()
    # Spark has functions without an SQL name, such as product, which are internal: their names mean the same.
    if kind_of(node) != "UnresolvedFunction" or node.isUserDefinedFunction():
        return None
    args: list[Column | Literal | Star] = []
    for arg in items_of(node.arguments()):
        kind = kind_of(arg)
        if kind == "UnresolvedStar" and arg.unparsedTarget().isEmpty():
            args.append(Star())
        elif kind == "Literal":
            args.append(Literal(arg.value(), _classic_column(arg)))
        else:
            args.append(_classic_column(arg))
    return Call(str(node.functionName()).lower(), tuple(args), bool(node.isDistinct()), alias)


def _classic_names(node: Any, names: set[str]) -> None:
    if kind_of(node) == "UnresolvedFunction":
        names.add(str(node.functionName()).lower())
    if kind_of(node) == "SqlExpression":
        names.update(_sql_functions(str(node.expression())))
    for child in items_of(node.children()):
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
