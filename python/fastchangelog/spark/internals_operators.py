"""Private parts of PySpark's plans: the stateful operators of a streaming query, as Spark has analysed it.

Owns: where they are in a classic plan, the keys, windows and calls of an aggregate, and the plan with another operator
in the place of one.
Does not own: all other private parts of PySpark (`internals…`), which operators are replaced and by what
(`accelerated_queries`).
Tested per Spark version.

Spark's analysis puts the windows of rows into the plan below an aggregate. A guess takes length, slide and start out of
that arithmetic. `is_same` compares what Spark makes of the guess with what was found.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import functions as F

from fastchangelog.errors import UnsupportedError
from fastchangelog.function_table import DEVIATIONS, FUNCTIONS
from fastchangelog.functions import Aggregate
from fastchangelog.spark.internals import items_of, kind_of
from fastchangelog.spark.internals_plans import analysed, frame_of_plan, named_as, seq_of
from fastchangelog.spark.internals_queries import LIMITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AggregateParts", "Operator", "is_same", "rewritten", "stateful_operators", "with_the_watermark_of"]

AGGREGATE, DEDUPLICATE, WITHIN = "Aggregate", "Deduplicate", "DeduplicateWithinWatermark"
#: Beginnings of the kinds of nodes that keep state in a stream, as Spark counts them, beside those and joins.
_OTHERS = ("Distinct", "TransformWithState", "FlatMapGroups")
_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"


@dataclasses.dataclass(frozen=True)
class Operator:
    """A stateful operator of a query."""

    #: As Spark numbers them: from the sink to the sources, from left to right.
    number: int
    kind: str
    #: A limit is behind it.
    is_limited: bool
    _frame: Any
    _node: Any

    @property
    def text(self) -> str:
        """As logs name it."""
        if self.kind == AGGREGATE:
            keys = ", ".join(_name(key) for key in items_of(self._node.groupingExpressions()))
            return f"the aggregate by {keys or 'nothing'}"
        if self.kind in (DEDUPLICATE, WITHIN):
            method = "dropDuplicates" if self.kind == DEDUPLICATE else "dropDuplicatesWithinWatermark"
            return f"{method} of {', '.join(_name(key) for key in items_of(self._node.keys()))}"
        return f"the operator {self.kind}"

    @property
    def child(self) -> DataFrame:
        """The frame that it reads."""
        frame: DataFrame = frame_of_plan(self._frame, self._node.child())
        return frame

    def columns(self) -> list[str]:
        """The columns of a deduplication, by their names."""
        keys = [str(key.name()) for key in items_of(self._node.keys())]
        names = [str(column.name()) for column in items_of(self._node.child().output())]
        for name in keys:
            if names.count(name) != keys.count(name):
                raise UnsupportedError(f"the column {name} is there several times, and not each of them is a key")
        return list(dict.fromkeys(keys))

    def aggregate(self) -> AggregateParts:
        """The parts of an aggregate."""
        return _parts(self._frame, self._node)


@dataclasses.dataclass(frozen=True)
class AggregateParts:
    """An aggregate, taken apart."""

    #: The frame that is grouped.
    frame: DataFrame
    keys: tuple[Column, ...]
    calls: tuple[Aggregate, ...]
    #: One of the keys is a window.
    has_windows: bool
    #: Length and slide of the windows, in microseconds, if rows are put into windows here.
    windows: tuple[int, int] | None
    _node: Any
    _grouping: Sequence[Any]
    _calls: Sequence[Any]
    #: The number of the key that is a window of `windows`.
    _window: int | None


#: Gives the frame that takes the place of an operator; None if it stays. For an aggregate its columns are the keys and
#: the calls, for a deduplication those of the operator.
Replace: TypeAlias = "Callable[[Operator], DataFrame | None]"


def stateful_operators(frame: DataFrame) -> list[Operator]:
    """The stateful operators of a classic stream."""
    found: list[Operator] = []
    _Rewriting(frame, lambda operator: found.append(operator), set()).whole()
    return sorted(found, key=lambda operator: operator.number)


def rewritten(frame: DataFrame, replace: Replace) -> DataFrame:
    """The frame with other operators in its plan; `replace` is asked for those at the sources first."""
    return _Rewriting(frame, replace, {AGGREGATE, DEDUPLICATE, WITHIN}).whole()


class _Rewriting:
    """A walk through a plan."""

    def __init__(self, frame: DataFrame, replace: Callable[[Operator], Any], kinds: set[str]) -> None:
        self._frame: Any = frame
        self._spark: Any = frame.sparkSession
        self._replace = replace
        self._kinds = kinds
        self._numbers = itertools.count()

    def whole(self) -> DataFrame:
        before = analysed(self._frame)
        after = self._node(_without_tables(self._spark, before), is_limited=False)
        return self._frame if after is before else frame_of_plan(self._frame, after)  # type: ignore[no-any-return]

    def _node(self, node: Any, *, is_limited: bool) -> Any:
        if not node.isStreaming():
            return node
        kind = kind_of(node)
        number = next(self._numbers) if _keeps_state(node, kind) else None
        children = items_of(node.children())
        changed = [self._node(child, is_limited=is_limited or kind in LIMITS) for child in children]
        if any(after is not before for after, before in zip(changed, children, strict=True)):
            node = node.withNewChildren(seq_of(self._spark, changed))
        if number is None:
            return node
        result = self._replace(Operator(number, kind, is_limited, self._frame, node))
        if result is None or kind not in self._kinds:
            return node
        if kind != AGGREGATE:
            return named_as(self._spark, analysed(result), node)
        grouping, calls, results, _ = _physical(self._spark, node)
        columns = [*(key.toAttribute() for key in grouping), *(call.resultAttribute() for call in calls)]
        _check_types(columns, items_of(analysed(result).output()))
        project = self._spark.sparkContext._jvm.org.apache.spark.sql.catalyst.plans.logical.Project
        return project(seq_of(self._spark, results), named_as(self._spark, analysed(result), columns))


def _keeps_state(node: Any, kind: str) -> bool:
    if kind == "Join":
        return bool(node.left().isStreaming() and node.right().isStreaming())
    return kind in (AGGREGATE, DEDUPLICATE, WITHIN) or kind.startswith(_OTHERS)


def _without_tables(spark: Any, plan: Any) -> Any:
    """The plan with common tables where they are referred to: each reference has a state of its own."""
    if not any(kind_of(node) == "WithCTE" for node in _nodes(plan)):
        return plan
    inline = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
    # The first argument is `alwaysInline`; of the others, versions of Spark have more or fewer.
    others = int(inline._java_lang_class.getConstructors()[0].getParameterCount()) - 1
    return inline(True, *[False] * others).apply(plan)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items_of(plan.children()):
        yield from _nodes(child)


def _physical(spark: Any, node: Any) -> tuple[list[Any], list[Any], list[Any], Any]:
    """Keys, calls, and what is made of both, as Spark's planner takes an aggregate apart."""
    found = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(node)
    if found.isEmpty():
        raise UnsupportedError("Spark's planner does not take this aggregate apart")
    parts = found.get()
    grouping, calls, results = (items_of(parts.productElement(i)) for i in range(3))
    return grouping, calls, results, parts.productElement(3)


def _check_types(wanted: Sequence[Any], found: Sequence[Any]) -> None:
    if len(wanted) != len(found):
        raise UnsupportedError("spark.sql.retainGroupColumns is false, with which keys are not in a result; set it")
    for want, there in zip(wanted, found, strict=True):
        if str(want.dataType().catalogString()) != str(there.dataType().catalogString()):
            raise UnsupportedError(
                f"{want.name()} is {want.dataType().catalogString()}, not {there.dataType().catalogString()}"
            )


def _parts(frame: Any, node: Any) -> AggregateParts:
    spark = frame.sparkSession
    grouping, calls, _, child = _physical(spark, node)
    if not grouping:
        raise UnsupportedError("it has no key")
    if not calls:
        raise UnsupportedError("it has no aggregate function")
    made = tuple(_call(spark, call) for call in calls)
    keys: list[Column] = [_column(spark, _without_alias(key)) for key in grouping]
    has_windows = any(key.metadata().contains(mark) for key in grouping for mark in (_WINDOW, _SESSION))
    number, window = _window(grouping, calls, child)
    if window is None or number is None:
        source = frame_of_plan(frame, child)
        return AggregateParts(source, tuple(keys), made, has_windows, None, node, grouping, calls, None)
    durations = [f"{micros} microseconds" for micros in (window.size, window.slide, window.start)]
    keys[number] = F.window(_column(spark, window.time), *durations)
    source = frame_of_plan(frame, window.child)
    return AggregateParts(source, tuple(keys), made, True, (window.size, window.slide), node, grouping, calls, number)


def is_same(parts: AggregateParts, frame: DataFrame) -> bool:
    """True if Spark's own aggregate of `frame` is the one that was taken apart."""
    spark: Any = frame.sparkSession
    node = analysed(frame)
    if kind_of(node) != AGGREGATE:
        return False
    grouping, calls, _, child = _physical(spark, node)
    if len(grouping) != len(parts._grouping) or len(calls) != len(parts._calls):
        return False
    if not child.sameResult(parts._node.child()):
        return False
    keys = zip(grouping, parts._grouping, strict=True)
    return all(
        number == parts._window or _equal(_without_alias(one), _without_alias(other))
        for number, (one, other) in enumerate(keys)
    ) and all(
        _equal(one.aggregateFunction(), other.aggregateFunction())
        for one, other in zip(calls, parts._calls, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    return bool(one.canonicalized().equals(other.canonicalized()))


def _without_alias(expression: Any) -> Any:
    return expression.child() if kind_of(expression) == "Alias" else expression


def _name(expression: Any) -> str:
    kind = kind_of(expression)
    return str(expression.name()) if kind in ("AttributeReference", "Alias") else str(expression.sql())


def _column(spark: Any, expression: Any) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    utils = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    return ClassicColumn(utils.column(expression))


def _call(spark: Any, call: Any) -> Aggregate:
    if kind_of(call) != "AggregateExpression":
        raise UnsupportedError(f"{call.sql()} is a function in Python")
    function = call.aggregateFunction()
    known = FUNCTIONS.get(str(function.prettyName()).lower())
    if known is None or call.isDistinct():
        raise UnsupportedError(f"{call.sql()} is not supported")
    args = items_of(function.children())
    if known.takes(0) and len(args) == 1 and kind_of(args[0]) == "Literal" and args[0].value() is not None:
        args = []
    if not known.takes(len(args)):
        raise UnsupportedError(f"{call.sql()} is not supported with these arguments")
    columns = [_column(spark, arg) for arg in args]
    if known.more == "deviation":  # a number of the function's own, and no argument
        deviation = float(function.relativeSD())
        if not DEVIATIONS[0] <= deviation <= DEVIATIONS[1]:
            raise UnsupportedError(f"{call.sql()} has the relative deviation {deviation}, which is not supported")
        columns.append(F.lit(deviation))
    where = call.filter()
    return Aggregate(
        known.name,
        tuple(columns),
        None if where.isEmpty() else _column(spark, where.get()),
        bool(known.ignores_nulls and function.ignoreNulls()),
    )


@dataclasses.dataclass(frozen=True)
class _Window:
    """Windows that Spark's analysis has put below an aggregate."""

    size: int
    slide: int
    start: int
    #: The time of a row, and the plan that has it.
    time: Any
    child: Any


def _window(grouping: Sequence[Any], calls: Sequence[Any], child: Any) -> tuple[int | None, _Window | None]:
    """The number of the key that is a window of each row, and what is guessed of it."""
    marked = [i for i, key in enumerate(grouping) if key.metadata().contains(_WINDOW)]
    if len(marked) != 1 or kind_of(grouping[marked[0]]) != "AttributeReference":
        return None, None
    attribute = grouping[marked[0]]
    others = [*calls, *(key for i, key in enumerate(grouping) if i != marked[0])]
    if any(other.references().contains(attribute) for other in others):
        return None, None
    expand = child.child() if kind_of(child) == "Filter" else None
    if kind_of(child) == "Project":
        named = child.projectList().apply(0)
        struct = named.child() if kind_of(named) == "Alias" else None
        below = child.child().child() if kind_of(child.child()) == "Filter" else None
    elif expand is not None and kind_of(expand) == "Expand":
        named = expand.output().apply(0)
        struct, below = expand.projections().apply(0).apply(0), expand.child()
    else:
        return None, None
    if struct is None or below is None or not named.exprId().equals(attribute.exprId()):
        return None, None
    return marked[0], _guess(struct, below)


def _guess(struct: Any, child: Any) -> _Window | None:
    """What the arithmetic of the first window says: its end is the start of the last slide, and the length."""
    try:
        found = list(_nodes(struct.children().apply(3)))
        end = next(node for node in found if kind_of(node) == "Add")
        rest = next(node for node in found if kind_of(node) == "Remainder")
        size, slide, start = (int(node.value()) for node in (end.right(), rest.right(), rest.left().right()))
        return _Window(size, slide, start, rest.left().left().child(), child)
    except Exception:  # of a Spark with other arithmetic: the column of windows is a key as any other
        return None


def with_the_watermark_of(frame: DataFrame, original: DataFrame) -> DataFrame | None:
    """The frame, in which rows raise the watermark as in the original; None if that cannot be had.

    Spark's optimizer puts filters below `withWatermark`, such as those by a key behind an aggregate, or what a join
    needs of its keys. Then the rows that they drop do not raise the watermark. An operator of ours stops those filters,
    so they are put there beforehand.
    """
    wanted = _filters_below_watermarks(original)
    if wanted is None:
        return frame
    found = _filters_below_watermarks(frame) or []
    if len(found) != len(wanted):
        return None
    missing = [[one for text, one in want.items() if text not in there] for want, there in zip(wanted, found)]
    if any(missing):
        plan = _filtered(frame.sparkSession, analysed(frame), iter(missing))
        if plan is None:
            return None
        frame = frame_of_plan(frame, plan)
        found = _filters_below_watermarks(frame) or []
    return frame if [set(there) for there in found] == [set(want) for want in wanted] else None


def _filters_below_watermarks(frame: DataFrame) -> list[dict[str, Any]] | None:
    """The conditions that Spark's optimizer puts below each `withWatermark`, by their texts.

    None without a watermark, or if nothing in the plan could be put there.
    """
    spark: Any = frame.sparkSession
    plan = analysed(frame)
    kinds = {kind_of(node) for node in _nodes(plan)}
    if "EventTimeWatermark" not in kinds or kinds.isdisjoint({"Filter", "Join"}):
        return None
    optimized = spark._jsparkSession.sessionState().optimizer().execute(plan)
    marks = [node for node in _nodes(optimized) if kind_of(node) == "EventTimeWatermark"]
    below = ([node.condition() for node in _nodes(mark) if kind_of(node) == "Filter"] for mark in marks)
    return [{str(one.sql()): one for condition in found for one in _conjuncts(condition)} for found in below]


def _conjuncts(condition: Any) -> Iterator[Any]:
    if kind_of(condition) != "And":
        yield condition
        return
    for side in (condition.left(), condition.right()):
        yield from _conjuncts(side)


def _filtered(spark: Any, node: Any, conditions: Iterator[list[Any]]) -> Any:
    """The plan with these conditions below its watermarks, in their order; None if one of them reads other columns."""
    mine = next(conditions) if kind_of(node) == "EventTimeWatermark" else []
    children = [_filtered(spark, child, conditions) for child in items_of(node.children())]
    if any(child is None for child in children):
        return None
    for condition in mine:
        if not condition.references().subsetOf(children[0].outputSet()):
            return None
        children = [spark.sparkContext._jvm.org.apache.spark.sql.catalyst.plans.logical.Filter(condition, children[0])]
    return node.withNewChildren(seq_of(spark, children)) if children else node
