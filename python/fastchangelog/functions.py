"""Aggregate functions: `count()`, `sum("price")`, … describe an aggregate as data.

Owns: the builders and their argument checks.
Does not own: what an aggregate means (the Rust core), its use on a data frame (`fastchangelog.spark`), on an embedded
state (`fastchangelog.embedded`). Imports nothing but the standard library, so that `import fastchangelog` stays cheap.

Results, null rules and overflow are those of Spark's aggregate of the same name. Each function takes `where=`: only
rows for which it is true are counted.

>>> from fastchangelog import functions as F
>>> F.sum("price", where="price > 0").alias("total")
sum(price) where price > 0 as total
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ColumnLike

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

    Attributes:
        fn: Name of the function.
        args: Its arguments: column names or PySpark Columns.
        where: Condition on rows, or None.
        ignore_nulls: True if `first` and `last` skip nulls.
        name: Name of the result, or None for the default one.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.sum("price", where="price > 0")
        sum(price) where price > 0
    """

    fn: str
    args: tuple[ColumnLike, ...]
    where: ColumnLike | None = None
    ignore_nulls: bool = False
    name: str | None = None

    def alias(self, name: str) -> Aggregate:
        """The same aggregate under another name.

        Args:
            name: Name of the result.

        Returns:
            A new aggregate.

        Raises:
            InvalidArgumentError: The name is empty or no text.

        Example:
            >>> from fastchangelog import functions as F
            >>> F.count().alias("n")
            count(*) as n
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f'an alias is a text that is not empty, not {name!r}; write .alias("total")')
        return dataclasses.replace(self, name=name)

    def __repr__(self) -> str:
        text = f"{self.fn}({', '.join(map(str, self.args)) or '*'})"
        text += " ignore nulls" if self.ignore_nulls else ""
        text += f" where {self.where}" if self.where is not None else ""
        return text + (f" as {self.name}" if self.name else "")


def _is_column(value: object) -> bool:
    """True for a PySpark `Column`, without importing PySpark."""
    return hasattr(value, "alias") and not isinstance(value, Aggregate)


def _argument(fn: str, value: ColumnLike) -> ColumnLike:
    if (isinstance(value, str) and value) or _is_column(value):
        return value
    raise InvalidArgumentError(f"fc.{fn} takes a column name or a Column, not {value!r}")


def _make(fn: str, *args: ColumnLike, where: ColumnLike | None, ignore_nulls: bool = False) -> Aggregate:
    if where is not None and not (isinstance(where, str) and where) and not _is_column(where):
        raise InvalidArgumentError(f'fc.{fn}: where= takes a condition such as "price > 0" or a Column, not {where!r}')
    if not isinstance(ignore_nulls, bool):
        raise InvalidArgumentError(f"fc.{fn}: ignorenulls= is True or False, not {ignore_nulls!r}")
    return Aggregate(fn, tuple(_argument(fn, a) for a in args), where, ignore_nulls)


def count(col: ColumnLike | None = None, *, where: ColumnLike | None = None) -> Aggregate:
    """Number of rows, or of rows where `col` is not null.

    Args:
        col: Column name or PySpark Column; None or `"*"` counts rows.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.count(), F.count("price")
        (count(*), count(price))
    """
    return _make("count", *(() if col is None or (isinstance(col, str) and col == "*") else (col,)), where=where)


def sum(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Sum of the values that are not null; null if there are none.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.sum("price")
        sum(price)
    """
    return _make("sum", col, where=where)


def min(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Smallest value that is not null (NaN is the greatest number).

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.min("price")
        min(price)
    """
    return _make("min", col, where=where)


def max(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Greatest value that is not null (NaN is the greatest number).

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.max("price")
        max(price)
    """
    return _make("max", col, where=where)


def avg(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Mean of the values that are not null; null if there are none.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.avg("price")
        avg(price)
    """
    return _make("avg", col, where=where)


def mean(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The same as `avg`.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.mean("price")
        avg(price)
    """
    return _make("avg", col, where=where)


def first(col: ColumnLike, *, ignorenulls: bool = False, where: ColumnLike | None = None) -> Aggregate:
    """The first value seen, nulls included unless `ignorenulls`.

    Args:
        col: Column name or PySpark Column.
        ignorenulls: True to skip nulls.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.first("price", ignorenulls=True)
        first(price) ignore nulls
    """
    return _make("first", col, where=where, ignore_nulls=ignorenulls)


def last(col: ColumnLike, *, ignorenulls: bool = False, where: ColumnLike | None = None) -> Aggregate:
    """The last value seen, nulls included unless `ignorenulls`.

    Args:
        col: Column name or PySpark Column.
        ignorenulls: True to skip nulls.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.last("price")
        last(price)
    """
    return _make("last", col, where=where, ignore_nulls=ignorenulls)


def bool_or(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """True if any value is true.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.bool_or("late")
        bool_or(late)
    """
    return _make("bool_or", col, where=where)


def bool_and(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """True if every value that is not null is true.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.bool_and("paid")
        bool_and(paid)
    """
    return _make("bool_and", col, where=where)


def any(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The same as `bool_or`.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.any("late")
        bool_or(late)
    """
    return _make("bool_or", col, where=where)


def all(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The same as `bool_and`.

    Args:
        col: Column name or PySpark Column.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.all("paid")
        bool_and(paid)
    """
    return _make("bool_and", col, where=where)


def max_by(col: ColumnLike, ord: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The value of `col` in the row with the greatest `ord`.

    Args:
        col: Column name or PySpark Column of the result.
        ord: Column name or PySpark Column that is compared.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.max_by("bidder", "price")
        max_by(bidder, price)
    """
    return _make("max_by", col, ord, where=where)


def min_by(col: ColumnLike, ord: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The value of `col` in the row with the smallest `ord`.

    Args:
        col: Column name or PySpark Column of the result.
        ord: Column name or PySpark Column that is compared.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.min_by("bidder", "price")
        min_by(bidder, price)
    """
    return _make("min_by", col, ord, where=where)
