"""Private parts of PySpark: expressions with columns in the place of some of their parts.

Owns: which kinds of expressions can be taken apart and put together again, for classic PySpark and for Spark Connect.
Does not own: calls of functions, texts and equality of columns (`internals`), which parts are replaced
(`aggregates.expressions`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fastchangelog.spark.internals import is_connect, items_of, kind_of

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["is_alias", "is_reference", "replaced", "without_alias"]

#: A part's replacement; None where the part stays and its own parts are asked for.
Replace: TypeAlias = "Callable[[Column], Column | None]"

#: Nodes of a classic column: those with parts, and those without.
_CLASSIC = frozenset(
    (
        *("UnresolvedFunction", "Alias", "Cast", "CaseWhenOtherwise"),
        *("UnresolvedExtractValue", "UpdateFields", "LambdaFunction"),
    )
)
_CLASSIC_LEAVES = frozenset(("Literal", "UnresolvedNamedLambdaVariable"))
#: The same of Spark Connect.
_CONNECT = frozenset(
    (
        *("UnresolvedFunction", "CallFunction", "ColumnAlias", "CastExpression", "CaseWhen"),
        *("UnresolvedExtractValue", "WithField", "DropField", "LambdaFunction"),
    )
)
_CONNECT_LEAVES = frozenset(("LiteralExpression", "UnresolvedNamedLambdaVariable"))
_NODE = "org.apache.spark.sql.internal.ColumnNode"


def replaced(column: Column, replace: Replace) -> Column | None:
    """The expression with replacements: a part is asked for before its own parts, and parts from left to right.

    None if a part that stays is of a kind that cannot be taken apart, such as an SQL text, a window or a function of
    the user.
    """
    try:
        return _of_expr(_connect(_expr(column), replace)) if is_connect(column) else _Classic(replace).column(column)
    except _UnknownPartError:
        return None


def is_alias(column: Column) -> bool:
    """True for an expression with a name."""
    return (type(_expr(column)).__name__ if is_connect(column) else kind_of(_node(column))) in ("Alias", "ColumnAlias")


def without_alias(column: Column) -> Column:
    """The expression that an alias names."""
    while is_alias(column):
        column = _of_expr(_expr(column)._child) if is_connect(column) else _of_node(_node(column).child())
    return column


def is_reference(column: Column) -> bool:
    """True for a column's name, and for a column of a frame."""
    if is_connect(column):
        return type(_expr(column)).__name__ == "ColumnReference"
    node = _node(column)
    kind = kind_of(node)
    if kind == "ExpressionColumnNode":
        return kind_of(node.expression()) == "AttributeReference"
    return kind == "UnresolvedAttribute"


class _UnknownPartError(Exception):
    """A part that cannot be taken apart."""


def _node(column: Any) -> Any:
    return column._jc.node()


def _expr(column: Any) -> Any:
    return column._expr


def _of_node(node: Any) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    return ClassicColumn(getattr(_jvm(), "org.apache.spark.sql.Column")(node))


def _of_expr(expr: Any) -> Column:
    from pyspark.sql.connect.column import Column as ConnectColumn

    return ConnectColumn(expr)


def _jvm() -> Any:
    from pyspark.sql.utils import get_active_spark_context

    return get_active_spark_context()._jvm


class _Classic:
    """Replacements in nodes of the JVM: case classes, which are made again from their elements."""

    def __init__(self, replace: Replace):
        self._replace = replace
        self._jvm = _jvm()
        self._gateway = _gateway()

    def column(self, column: Column) -> Column:
        return _of_node(self._node(_node(column)))

    def _node(self, node: Any) -> Any:
        found = self._replace(_of_node(node))
        if found is not None:
            return _node(found)
        kind = kind_of(node)
        if kind in _CLASSIC_LEAVES:
            return node
        if kind not in _CLASSIC:
            raise _UnknownPartError
        elements = [node.productElement(i) for i in range(node.productArity())]
        made = self._gateway.new_array(self._jvm.java.lang.Object, len(elements))
        for i, element in enumerate(elements):
            made[i] = self._element(element)
        return node.getClass().getConstructors()[0].newInstance(made)

    def _element(self, element: Any) -> Any:
        if not hasattr(element, "getClass"):  # a text or a boolean
            return element
        kind = kind_of(element)
        if self._is_a(element, _NODE):
            return self._node(element)
        if kind == "Some" and self._is_a(element.get(), _NODE):
            return self._jvm.scala.Some(self._node(element.get()))
        if kind == "Tuple2":
            return self._jvm.scala.Tuple2(self._element(element._1()), self._element(element._2()))
        if self._is_a(element, "scala.collection.immutable.Seq"):
            items = items_of(element)
            if not any(hasattr(item, "getClass") for item in items):
                return element
            return self._jvm.PythonUtils.toSeq([self._element(item) for item in items])
        return element

    def _is_a(self, thing: Any, name: str) -> bool:
        from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]

        return hasattr(thing, "getClass") and bool(is_instance_of(self._gateway, thing, name))


def _gateway() -> Any:
    from pyspark.sql.utils import get_active_spark_context

    return get_active_spark_context()._gateway


def _connect(expr: Any, replace: Replace) -> Any:
    found = replace(_of_expr(expr))
    if found is not None:
        return _expr(found)
    kind = type(expr).__name__
    if kind in _CONNECT_LEAVES:
        return expr
    if kind not in _CONNECT:
        raise _UnknownPartError
    made = copy.copy(expr)
    for name, value in vars(expr).items():
        setattr(made, name, _connect_element(value, replace))
    return made


def _connect_element(value: Any, replace: Replace) -> Any:
    from pyspark.sql.connect.expressions import Expression

    if isinstance(value, Expression):
        return _connect(value, replace)
    if isinstance(value, (list, tuple)):
        return type(value)(_connect_element(item, replace) for item in value)
    return value
