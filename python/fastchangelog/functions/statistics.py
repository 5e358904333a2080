"""Statistics of numbers: variance, deviation, skewness, kurtosis, covariance, correlation.

Owns: one builder for each function. Does not own: what a function means (the Rust core's table).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastchangelog.functions.aggregate import Aggregate, make

if TYPE_CHECKING:
    from fastchangelog.types import ColumnLike

__all__ = [
    "corr",
    "covar_pop",
    "covar_samp",
    "kurtosis",
    "skewness",
    "std",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "var_pop",
    "var_samp",
    "variance",
]


def var_samp(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Sample variance: the mean square of deviations from the mean, with n - 1; null for one value or none.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.var_samp("price")
        var_samp(price)
    """
    return make("var_samp", col, where=where)


def variance(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The same as `var_samp`.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.variance("price")
        variance(price)
    """
    return make("variance", col, where=where)


def var_pop(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Population variance: the mean square of deviations from the mean; null if there are no values.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.var_pop("price")
        var_pop(price)
    """
    return make("var_pop", col, where=where)


def stddev_samp(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Sample standard deviation, the root of `var_samp`; null for one value or none.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.stddev_samp("price")
        stddev_samp(price)
    """
    return make("stddev_samp", col, where=where)


def stddev(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The same as `stddev_samp`.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.stddev("price")
        stddev(price)
    """
    return make("stddev", col, where=where)


def std(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """The same as `stddev_samp`.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.std("price")
        std(price)
    """
    return make("std", col, where=where)


def stddev_pop(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Population standard deviation, the root of `var_pop`; null if there are no values.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.stddev_pop("price")
        stddev_pop(price)
    """
    return make("stddev_pop", col, where=where)


def skewness(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Skewness of the values; null if there are none or all are equal.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.skewness("price")
        skewness(price)
    """
    return make("skewness", col, where=where)


def kurtosis(col: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Excess kurtosis of the values; null if there are none or all are equal.

    Args:
        col: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.kurtosis("price")
        kurtosis(price)
    """
    return make("kurtosis", col, where=where)


def covar_samp(col1: ColumnLike, col2: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Sample covariance of the rows in which neither value is null, with n - 1; null for one such row or none.

    Args:
        col1: Column name or PySpark Column of numbers.
        col2: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.covar_samp("price", "quantity")
        covar_samp(price, quantity)
    """
    return make("covar_samp", col1, col2, where=where)


def covar_pop(col1: ColumnLike, col2: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Population covariance of the rows in which neither value is null; null if there are none.

    Args:
        col1: Column name or PySpark Column of numbers.
        col2: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.covar_pop("price", "quantity")
        covar_pop(price, quantity)
    """
    return make("covar_pop", col1, col2, where=where)


def corr(col1: ColumnLike, col2: ColumnLike, *, where: ColumnLike | None = None) -> Aggregate:
    """Pearson correlation of the rows in which neither value is null; null if either value is the same in all of them.

    Args:
        col1: Column name or PySpark Column of numbers.
        col2: Column name or PySpark Column of numbers.
        where: Condition on rows, such as `"price > 0"` or a Column; None takes all rows.

    Returns:
        The aggregate, to be given to `agg()` or to `aggregating_state()`.

    Raises:
        InvalidArgumentError: An argument is no column name and no Column.

    Example:
        >>> from fastchangelog import functions as F
        >>> F.corr("price", "quantity")
        corr(price, quantity)
    """
    return make("corr", col1, col2, where=where)
