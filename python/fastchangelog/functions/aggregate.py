"""A description of an aggregate, and the check of its arguments.

Owns: the type. Does not own: the functions that make it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ColumnLike

__all__ = ["Aggregate", "make"]


@dataclasses.dataclass(frozen=True, eq=False)
class Aggregate:
    """An aggregate that is not yet bound to a table; made by the functions of this module only.

    Attributes:
        fn: Name of the function, as Spark shows it.
        args: Its arguments: column names or PySpark Columns.
        where: Condition on rows, or None.
        ignore_nulls: True if nulls are skipped by a function that can keep them, such as `first`.
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


def make(fn: str, *args: ColumnLike, where: ColumnLike | None, ignore_nulls: bool = False) -> Aggregate:
    """The aggregate of checked arguments."""
    if where is not None and not (isinstance(where, str) and where) and not _is_column(where):
        raise InvalidArgumentError(f'fc.{fn}: where= takes a condition such as "price > 0" or a Column, not {where!r}')
    if not isinstance(ignore_nulls, bool):
        raise InvalidArgumentError(f"fc.{fn}: ignorenulls= is True or False, not {ignore_nulls!r}")
    return Aggregate(fn, tuple(_argument(fn, a) for a in args), where, ignore_nulls)
