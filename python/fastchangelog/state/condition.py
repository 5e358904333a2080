"""Conditions on rows, `where="price > 0"`, without Spark.

Owns: reading the part of Spark's SQL that conditions of aggregating states may have, and its evaluation on Arrow data.
Does not own: conditions of queries (Spark reads those), the use of the result (`aggregates`).

A condition has column names (in backticks where they are no words), numbers, texts in single quotes, ``true``,
``false``, ``null``, comparisons, ``is [not] null``, ``[not] in (…)``, ``[not] between … and …``, ``not``, ``and``,
``or`` and parentheses. Nulls are unknown, as in SQL; NaN is equal to itself and greater than any other number, as in
Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog.errors import InvalidArgumentError

__all__ = ["Condition"]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|(?P<text>'(?:[^']|'')*')|`(?P<quoted>(?:[^`]|``)+)`"
    r"|(?P<word>[^\W\d]\w*)|(?P<mark><=|>=|<>|!=|==|[=<>(),-]))"
)
_WORDS = {"and", "or", "not", "is", "in", "between", "null", "true", "false"}

#: A whole number with fewer digits is an int64.
_DIGITS = 19

Columns: TypeAlias = Mapping[str, Any]
Node: TypeAlias = Callable[[Columns], Any]
"""Gives the value of a part of a condition: an Arrow array, or a scalar."""


class Condition:
    """A condition that was read. ``what`` names it in messages.

    >>> where = Condition("sum(n) where n > 1", "n > 1 and not (flag or n in (3, 4))")
    >>> rows = {"n": pa.array([1, 2, 3, None, 5]), "flag": pa.array([False, False, False, False, None])}
    >>> where.of(rows).to_pylist()
    [False, True, False, None, None]
    >>> where.columns == {"n", "flag"}
    True
    """

    def __init__(self, what: str, text: str) -> None:
        self.text = text
        self.columns: set[str] = set()
        self._what = what
        self._tokens = self._read()
        self._at = 0
        self._node = self._or()
        if self._at < len(self._tokens):
            raise self._wrong(f"`{self._tokens[self._at][1]}` is not understood")

    def of(self, columns: Columns) -> pa.BooleanArray:
        """The condition of each row: true, false, or null where it is unknown."""
        try:
            found = self._node(columns)
        except (pa.ArrowException, TypeError) as error:
            raise self._wrong(" ".join(str(error).split())) from None
        if not pa.types.is_boolean(found.type):
            raise self._wrong(f"it is of type {found.type}, not boolean")
        if isinstance(found, pa.Scalar):
            return pa.repeat(found, len(next(iter(columns.values()))))
        return found

    def _wrong(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._what}: where={self.text!r}: {why}; write comparisons of columns and values, is null, in, between, "
            "not, and, or, such as \"price > 0 and currency = 'EUR'\""
        )

    def _read(self) -> list[tuple[str, str]]:
        place, text, found = 0, self.text.rstrip(), []
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise self._wrong(f"`{text[place:].strip()[:10]}` is not understood")
            kind = str(token.lastgroup)
            word = token[kind].lower() if kind == "word" and token[kind].lower() in _WORDS else token[kind]
            found.append(("mark" if word in _WORDS and kind == "word" else kind, word))
            place = token.end()
        return found

    def _takes(self, *marks: str) -> bool:
        """True, and one step on, if the next tokens are these."""
        wanted = [("mark", mark) for mark in marks]
        if self._tokens[self._at : self._at + len(marks)] != wanted:
            return False
        self._at += len(marks)
        return True

    def _must(self, mark: str) -> None:
        if not self._takes(mark):
            raise self._wrong(f"`{mark}` is missing")

    def _or(self) -> Node:
        parts = [self._and()]
        while self._takes("or"):
            parts.append(self._and())
        return _joined(pc.or_kleene, parts)

    def _and(self) -> Node:
        parts = [self._not()]
        while self._takes("and"):
            parts.append(self._not())
        return _joined(pc.and_kleene, parts)

    def _not(self) -> Node:
        if not self._takes("not"):
            return self._comparison()
        inner = self._not()
        return lambda columns: pc.invert(inner(columns))

    def _comparison(self) -> Node:
        left = self._operand()
        for mark, compare in _COMPARISONS.items():
            if self._takes(mark):
                return _compared(compare, left, self._operand())
        if self._takes("is", "not", "null"):
            return lambda columns: pc.is_valid(left(columns))
        if self._takes("is", "null"):
            return lambda columns: pc.is_null(left(columns))
        if self._takes("not", "in"):
            return _inverted(self._in(left))
        if self._takes("in"):
            return self._in(left)
        if self._takes("not", "between"):
            return _inverted(self._between(left))
        return self._between(left) if self._takes("between") else left

    def _in(self, left: Node) -> Node:
        self._must("(")
        parts = [_compared(_equal, left, self._operand())]
        while self._takes(","):
            parts.append(_compared(_equal, left, self._operand()))
        self._must(")")
        return _joined(pc.or_kleene, parts)

    def _between(self, left: Node) -> Node:
        low = _compared(_at_least, left, self._operand())
        self._must("and")
        return _joined(pc.and_kleene, [low, _compared(_at_most, left, self._operand())])

    def _operand(self) -> Node:
        if self._takes("("):
            inner = self._or()
            self._must(")")
            return inner
        sign = -1 if self._takes("-") else 1
        for mark, value in (("true", True), ("false", False), ("null", None)):
            if self._takes(mark):
                return _constant(pa.scalar(value, pa.bool_()))
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        if kind == "number":
            return _constant(self._number(token, sign))
        if sign == 1 and kind == "text":
            return _constant(pa.scalar(token[1:-1].replace("''", "'")))
        if sign == 1 and kind in ("word", "quoted"):
            name = token.replace("``", "`") if kind == "quoted" else token
            self.columns.add(name)
            return lambda columns: columns[name]
        raise self._wrong(f"a column or a value is missing{f' before `{token}`' if token else ' at its end'}")

    def _number(self, token: str, sign: int) -> pa.Scalar:
        whole = token.isdigit() and len(token) < _DIGITS
        number = int(token) if whole else float(token) if "e" in token.lower() else Decimal(token)
        try:
            return pa.scalar(sign * number)
        except pa.ArrowException:
            raise self._wrong(f"{token} has too many digits") from None


def _constant(value: pa.Scalar) -> Node:
    return lambda columns: value


def _joined(join: Callable[[Any, Any], Any], parts: list[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    return lambda columns: reduce(join, (part(columns) for part in parts))


def _inverted(inner: Node) -> Node:
    return lambda columns: pc.invert(inner(columns))


def _compared(compare: Callable[[Any, Any], Any], left: Node, right: Node) -> Node:
    return lambda columns: compare(*_alike(left(columns), right(columns)))


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Both sides, a text as the date or time that it is compared with, and an untyped null as the other side.

    A date is no moment: Arrow would take it for midnight in UTC.
    """
    if any(_is_moment(this.type) and pa.types.is_date(other.type) for this, other in ((left, right), (right, left))):
        raise TypeError("a date and a timestamp are compared; give a timestamp_ntz, or both as one type")
    if isinstance(left, pa.Scalar) and not isinstance(right, pa.Scalar):
        right, left = _alike(right, left)
    elif isinstance(right, pa.Scalar) and (
        not right.is_valid or (pa.types.is_string(right.type) and pa.types.is_temporal(left.type))
    ):
        right = pa.scalar(None, left.type) if not right.is_valid else right.cast(left.type)
    return left, right


def _is_moment(dtype: pa.DataType) -> bool:
    return pa.types.is_timestamp(dtype) and dtype.tz is not None


def _is_nan(value: Any) -> Any:
    return pc.is_nan(value) if pa.types.is_floating(value.type) else pa.scalar(False)


def _floating(left: Any, right: Any) -> bool:
    return bool(pa.types.is_floating(left.type) or pa.types.is_floating(right.type))


def _equal(left: Any, right: Any) -> Any:
    found = pc.equal(left, right)
    return pc.or_kleene(found, pc.and_kleene(_is_nan(left), _is_nan(right))) if _floating(left, right) else found


def _greater(left: Any, right: Any) -> Any:
    found = pc.greater(left, right)
    if not _floating(left, right):
        return found
    return pc.or_kleene(found, pc.and_kleene(_is_nan(left), pc.invert(_is_nan(right))))


def _at_least(left: Any, right: Any) -> Any:
    return pc.or_kleene(_greater(left, right), _equal(left, right))


def _at_most(left: Any, right: Any) -> Any:
    return _at_least(right, left)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": _equal,
    "==": _equal,
    "!=": lambda left, right: pc.invert(_equal(left, right)),
    "<>": lambda left, right: pc.invert(_equal(left, right)),
    ">": _greater,
    "<": lambda left, right: _greater(right, left),
    ">=": _at_least,
    "<=": _at_most,
}
