"""Private parts of PySpark's plans: one plan in the place of another, and the change of a DataFrame's methods that
combine two frames.

Owns: finding the plan of a frame in that of another, and the frame with another plan in its place, for classic PySpark
and for Spark Connect.
Does not own: all other private parts of PySpark (`internals`), which frames are changed (`acceleration`).
Tested per Spark version.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from fastchangelog.spark.internals import (
    divert_method,
    is_connect,
    is_diverted,
    is_passing_on,
    items_of,
    own_method,
    passing_on,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "COMBINING",
    "analysed",
    "connect_plans",
    "divert_combinations",
    "frame_of_plan",
    "has_plan",
    "named_as",
    "replaced",
    "seq_of",
]

#: The methods of a DataFrame that take another one into the same query.
COMBINING = ("union", "unionAll", "unionByName", "join", "crossJoin")
_diverting = threading.Lock()

#: What gives the second frame of a combination: both frames as the caller gave them.
Prepare: TypeAlias = "Callable[[DataFrame, DataFrame], DataFrame]"


def divert_combinations(spark: SparkSession, prepare: Prepare) -> None:
    """From here on the methods of `COMBINING` take what `prepare` gives for their second frame, whatever the session.

    The methods of PySpark's class are replaced once, for classic PySpark or for Spark Connect, as the session is. What
    another library put in their place before is called where PySpark's own would be.
    """
    kind = type(spark.range(0))
    with _diverting:
        for name in COMBINING:
            there = getattr(kind, name)
            if not is_diverted(there):
                divert_method(kind, name, _diverted(there, own_method(kind, name) or there, prepare))


def _diverted(
    there: Callable[..., DataFrame], own: Callable[..., DataFrame], prepare: Prepare
) -> Callable[..., DataFrame]:
    @functools.wraps(own)
    def method(self: DataFrame, other: DataFrame, *args: Any, **kwargs: Any) -> DataFrame:
        if is_passing_on(self):  # a library's wrapper has called the method that it found, and that is this one
            return own(self, other, *args, **kwargs)
        second = prepare(self, other) if isinstance(other, type(self)) else other
        with passing_on(self):
            return there(self, second, *args, **kwargs)

    return method


def has_plan(frame: DataFrame, part: DataFrame) -> bool:
    """True if the plan of `part` is that of the frame, or is in it."""
    if is_connect(frame):
        old = _connect_plan(part)
        return any(plan is old for plan in _connect_plans(_connect_plan(frame)))
    old = analysed(part)
    return any(node.fastEquals(old) for node in _classic_nodes(analysed(frame)))


def replaced(frame: DataFrame, old: DataFrame, new: DataFrame) -> DataFrame:
    """The frame with the plan of `new` wherever that of `old` is in its own."""
    owner: Any = frame
    spark: Any = owner.sparkSession
    made: DataFrame
    if is_connect(frame):
        there = _connect_plan(old)
        plan = _connect_replaced(_connect_plan(frame), there, _with_id_of(_connect_plan(new), there))
        made = type(owner)(plan, spark)
    else:
        there = analysed(old)
        plan = _classic_replaced(spark, analysed(frame), there, named_as(spark, analysed(new), there))
        made = frame_of_plan(frame, plan)
    return made


# Classic: analysed plans are immutable trees in the JVM. A frame that is made of another one has its tree as a part.


def analysed(frame: Any) -> Any:
    """The analysed plan of a classic frame."""
    return frame._jdf.queryExecution().analyzed()


def frame_of_plan(frame: Any, plan: Any) -> Any:
    """The frame of an analysed plan, in the session of `frame`."""
    spark = frame.sparkSession
    dataset = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.classic.Dataset")
    return type(frame)(dataset.ofRows(spark._jsparkSession, plan), spark)


def _classic_nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in items_of(node.children()):
        yield from _classic_nodes(child)


def _classic_replaced(spark: Any, node: Any, old: Any, new: Any) -> Any:
    if node.fastEquals(old):
        return new
    children = items_of(node.children())
    changed = [_classic_replaced(spark, child, old, new) for child in children]
    if all(after is before for after, before in zip(changed, children, strict=True)):
        return node
    return node.withNewChildren(seq_of(spark, changed))


def named_as(spark: Any, new: Any, old: Any) -> Any:
    """A plan whose columns are those of the plan `old`, or its list of columns, for all that refers to them."""
    catalyst = spark.sparkContext._jvm.org.apache.spark.sql.catalyst
    option = spark.sparkContext._jvm.scala.Option
    wanted = old if isinstance(old, list) else items_of(old.output())
    columns = []
    for column, there in zip(wanted, items_of(new.output()), strict=True):
        parts = (column.name(), column.exprId(), column.qualifier(), option.apply(column.metadata()), seq_of(spark, []))
        columns.append(catalyst.expressions.Alias(there, *parts))
    return catalyst.plans.logical.Project(seq_of(spark, columns), new)


def seq_of(spark: Any, items: list[Any]) -> Any:
    """A sequence in the JVM."""
    return spark.sparkContext._jvm.PythonUtils.toSeq(items)


# Connect: plans are Python objects that refer to each other.


def _connect_plan(frame: Any) -> Any:
    return frame._plan


def connect_plans(frame: Any) -> Iterator[Any]:
    """The plans of a frame of Spark Connect, its own first."""
    return _connect_plans(_connect_plan(frame))


def _with_id_of(plan: Any, other: Any) -> Any:
    """The plan under the number of another one, by which columns of its frame refer to it."""
    twin = copy.copy(plan)
    twin._root_plan_id, twin._plan_id_with_rel = other._root_plan_id, other._plan_id_with_rel
    return twin


def _connect_parts(value: Any) -> list[Any]:
    """The plans in a value of a plan."""
    from pyspark.sql.connect.plan import LogicalPlan

    parts = value if isinstance(value, (list, tuple)) else [value]
    return [part for part in parts if isinstance(part, LogicalPlan)]


def _connect_plans(plan: Any) -> Iterator[Any]:
    yield plan
    for value in vars(plan).values():
        for part in _connect_parts(value):
            yield from _connect_plans(part)


def _connect_replaced(plan: Any, old: Any, new: Any) -> Any:
    if plan is old:
        return new
    changes: dict[str, Any] = {}
    for name, value in vars(plan).items():
        after = {id(part): _connect_replaced(part, old, new) for part in _connect_parts(value)}
        if isinstance(value, (list, tuple)):
            changed: Any = type(value)(after.get(id(part), part) for part in value)
        else:
            changed = after.get(id(value), value)
        if any(a is not b for a, b in zip(after.values(), _connect_parts(value))):
            changes[name] = changed
    if not changes:
        return plan
    twin = copy.copy(plan)
    vars(twin).update(changes)
    return twin
