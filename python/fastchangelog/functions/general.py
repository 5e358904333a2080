"""Counts, sums, extremes, values in the order of rows, booleans and bits.

Owns: one builder for each function. Does not own: what a function means (the Rust core's table).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastchangelog.functions.aggregate import Aggregate, make

if TYPE_CHECKING:
    from fastchangelog.types import ColumnLike

__all__ = [
    "all",
    "any",
    "any_value",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "count",
    "count_if",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "product",
    "sum",
]


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
    return make("count", *(() if col is None or (isinstance(col, str) and col == "*") else (col,)), where=where)


def count_if(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Number of rows in which the value is true.

    Args:
        col: Column name or PySpark Column of booleans.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.count_if("late")
        count_if(late)
    """
    return make("count_if", col, where=where)


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
    return make("sum", col, where=where)


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
    return make("min", col, where=where)


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
    return make("max", col, where=where)


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
    return make("avg", col, where=where)


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
    return make("avg", col, where=where)


def product(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Product of the values that are not null, as doubles; null if there are none.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.product("price")
        product(price)
    """
    return make("product", col, where=where)


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
    return make("first", col, where=where, ignore_nulls=ignorenulls)


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
    return make("last", col, where=where, ignore_nulls=ignorenulls)


def any_value(col: ColumnLike, *, ignorenulls: bool = False, where: ColumnLike | None = None) -> Aggregate:
    """A value of the key: the first one seen, nulls included unless `ignorenulls`.

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
        >>> F.any_value("price", ignorenulls=True)
        any_value(price) ignore nulls
    """
    return make("any_value", col, where=where, ignore_nulls=ignorenulls)


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
    return make("bool_or", col, where=where)


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
    return make("bool_and", col, where=where)


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
    return make("bool_or", col, where=where)


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
    return make("bool_and", col, where=where)


def bit_and(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Bitwise AND of the integers that are not null, of their type; null if there are none.

    Args:
        col: Column name or PySpark Column of integers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.bit_and("flags")
        bit_and(flags)
    """
    return make("bit_and", col, where=where)


def bit_or(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Bitwise OR of the integers that are not null, of their type; null if there are none.

    Args:
        col: Column name or PySpark Column of integers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.bit_or("flags")
        bit_or(flags)
    """
    return make("bit_or", col, where=where)


def bit_xor(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Bitwise XOR of the integers that are not null, of their type; null if there are none.

    Args:
        col: Column name or PySpark Column of integers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.bit_xor("flags")
        bit_xor(flags)
    """
    return make("bit_xor", col, where=where)


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
    return make("max_by", col, ord, where=where)


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
    return make("min_by", col, ord, where=where)
