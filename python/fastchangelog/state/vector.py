"""The common part of the states of a vectorised processor.

Owns: names, types, data as processors give it, reads and removals that all kinds have alike.
Does not own: what a kind holds for each key (its own module), keys in work (`keys`), the session (`in_session`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from fastchangelog.fit.typed import Typed, rows_of
from fastchangelog.state.calls import Clear, Count, Get
from fastchangelog.state.keys import BatchKeys

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, RowsLike

__all__ = ["Columns", "VectorByKey", "VectorClearable", "VectorCounted", "VectorState"]


class Columns(Typed):
    """Values as processors give them: of tables the columns that the type has, and times of any year."""

    def many(self, data: RowsLike) -> pa.Array:
        """An array of many values."""
        return rows_of(data, self.type, f"{self.what}s")


H = TypeVar("H")


class VectorState(Generic[H]):
    """Base of the states of a vectorised processor. Keys are those in work; other ones are refused."""

    def __init__(self, name: str, declared: pa.DataType, keys: BatchKeys, calls: H) -> None:
        self.name = name
        """The state's name."""
        self.value_type = declared
        """The Arrow type of values."""
        self.calls = calls
        """The state in the session; of this package."""
        self._keys = keys.of(f"state `{name}`")
        self._values = Columns(f"state `{name}`: value", declared)


class VectorByKey(VectorState[Get]):
    """Base of those with one entry for each key: a value, a list, results."""

    def get(self, keys: ArrowArrayLike) -> pa.Array:
        """The values, lists or results of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one for each key, null where there is none.

        Example: see the class.
        """
        return self.calls.get(self._keys.many(keys))


class VectorClearable(VectorState[Clear]):
    """Base of those of which a key is cleared: maps, lists, aggregates."""

    def clear(self, keys: ArrowArrayLike) -> None:
        """Removes what keys have; those without anything are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Example: see the class.
        """
        self.calls.clear(self._keys.many(keys))


class VectorCounted(VectorClearable[Count]):
    """Base of those with many entries for each key: maps, lists."""

    def length(self, keys: ArrowArrayLike) -> pa.Int64Array:
        """How many entries or elements keys have. Reads them.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one number for each key; 0 where there are none.

        Example: see the class.
        """
        return self.calls.lengths(self._keys.many(keys))
