"""Aggregate functions: `count()`, `sum("price")`, … describe an aggregate as data.

Owns: the builders and their argument checks.
Does not own: what an aggregate means (the Rust core), its use on a data frame (`fastchangelog.spark`).
Imports nothing but the standard library, so that `import fastchangelog` stays cheap.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fastchangelog.errors import InvalidArgument

__all__ = [
    "Aggregate",
    "all",
    "any",
    "avg",
    "bool_and",
    "bool_or",
    "count",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "sum",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Aggregate:
    """An aggregate that is not yet bound to a table; made by the functions of this module only.

    >>> import fastchangelog as fc
    >>> fc.sum("price", where="price > 0")
    sum(price) where price > 0
    >>> fc.sum("price").alias("total").name
    'total'
    """

    fn: str
    args: tuple[Any, ...]
    where: Any = None
    ignore_nulls: bool = False
    name: str | None = None

    def alias(self, name: str) -> Aggregate:
        """The same aggregate under another name.

        >>> import fastchangelog as fc
        >>> fc.count().alias("n")
        count(*) as n
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f'an alias is a text that is not empty, not {name!r}; write .alias("total")')
        return dataclasses.replace(self, name=name)

    def __repr__(self) -> str:
        text = f"{self.fn}({', '.join(map(str, self.args)) or '*'})"
        text += " ignore nulls" if self.ignore_nulls else ""
        text += f" where {self.where}" if self.where is not None else ""
        return text + (f" as {self.name}" if self.name else "")


def _is_column(value: object) -> bool:
    """True for a PySpark `Column`, without importing PySpark."""
    return hasattr(value, "alias") and not isinstance(value, Aggregate)


def _argument(fn: str, value: object) -> object:
    if (isinstance(value, str) and value) or _is_column(value):
        return value
    raise InvalidArgument(f"fc.{fn} takes a column name or a Column, not {value!r}")


def _make(fn: str, *args: object, where: object, ignore_nulls: bool = False) -> Aggregate:
    if where is not None and not (isinstance(where, str) and where) and not _is_column(where):
        raise InvalidArgument(f'fc.{fn}: where= takes a condition such as "price > 0" or a Column, not {where!r}')
    if not isinstance(ignore_nulls, bool):
        raise InvalidArgument(f"fc.{fn}: ignorenulls= is True or False, not {ignore_nulls!r}")
    return Aggregate(fn, tuple(_argument(fn, a) for a in args), where, ignore_nulls)


def count(col: Any = None, *, where: Any = None) -> Aggregate:
    """Number of rows, or of rows where `col` is not null.

    >>> import fastchangelog as fc
    >>> fc.count(), fc.count("price")
    (count(*), count(price))
    """
    return _make("count", *(() if col is None or (isinstance(col, str) and col == "*") else (col,)), where=where)


def sum(col: Any, *, where: Any = None) -> Aggregate:
    """Sum of the values that are not null; null if there are none.

    >>> import fastchangelog as fc
    >>> fc.sum("price")
    sum(price)
    """
    return _make("sum", col, where=where)


def min(col: Any, *, where: Any = None) -> Aggregate:
    """Smallest value that is not null (NaN is the greatest number).

    >>> import fastchangelog as fc
    >>> fc.min("price")
    min(price)
    """
    return _make("min", col, where=where)


def max(col: Any, *, where: Any = None) -> Aggregate:
    """Greatest value that is not null (NaN is the greatest number).

    >>> import fastchangelog as fc
    >>> fc.max("price")
    max(price)
    """
    return _make("max", col, where=where)


def avg(col: Any, *, where: Any = None) -> Aggregate:
    """Mean of the values that are not null; null if there are none.

    >>> import fastchangelog as fc
    >>> fc.avg("price")
    avg(price)
    """
    return _make("avg", col, where=where)


def mean(col: Any, *, where: Any = None) -> Aggregate:
    """The same as `avg`.

    >>> import fastchangelog as fc
    >>> fc.mean("price")
    avg(price)
    """
    return _make("avg", col, where=where)


def first(col: Any, *, ignorenulls: bool = False, where: Any = None) -> Aggregate:
    """The first value seen, nulls included unless `ignorenulls`.

    >>> import fastchangelog as fc
    >>> fc.first("price", ignorenulls=True)
    first(price) ignore nulls
    """
    return _make("first", col, where=where, ignore_nulls=ignorenulls)


def last(col: Any, *, ignorenulls: bool = False, where: Any = None) -> Aggregate:
    """The last value seen, nulls included unless `ignorenulls`.

    >>> import fastchangelog as fc
    >>> fc.last("price")
    last(price)
    """
    return _make("last", col, where=where, ignore_nulls=ignorenulls)


def bool_or(col: Any, *, where: Any = None) -> Aggregate:
    """True if any value is true.

    >>> import fastchangelog as fc
    >>> fc.bool_or("late")
    bool_or(late)
    """
    return _make("bool_or", col, where=where)


def bool_and(col: Any, *, where: Any = None) -> Aggregate:
    """True if every value that is not null is true.

    >>> import fastchangelog as fc
    >>> fc.bool_and("paid")
    bool_and(paid)
    """
    return _make("bool_and", col, where=where)


def any(col: Any, *, where: Any = None) -> Aggregate:
    """The same as `bool_or`.

    >>> import fastchangelog as fc
    >>> fc.any("late")
    bool_or(late)
    """
    return _make("bool_or", col, where=where)


def all(col: Any, *, where: Any = None) -> Aggregate:
    """The same as `bool_and`.

    >>> import fastchangelog as fc
    >>> fc.all("paid")
    bool_and(paid)
    """
    return _make("bool_and", col, where=where)


def max_by(col: Any, ord: Any, *, where: Any = None) -> Aggregate:
    """The value of `col` in the row with the greatest `ord`.

    >>> import fastchangelog as fc
    >>> fc.max_by("bidder", "price")
    max_by(bidder, price)
    """
    return _make("max_by", col, ord, where=where)


def min_by(col: Any, ord: Any, *, where: Any = None) -> Aggregate:
    """The value of `col` in the row with the smallest `ord`.

    >>> import fastchangelog as fc
    >>> fc.min_by("bidder", "price")
    min_by(bidder, price)
    """
    return _make("min_by", col, ord, where=where)
