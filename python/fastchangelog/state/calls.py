"""What a state answers, in any host, as far as several kinds have it alike.

Owns: the shape of these calls: an embedded state (`fastchangelog._internal`) and one in a session (`in_session`) have
the same, with one row for each key.
Does not own: what only one kind has (its own module), keys and values as users give them (`keyed`, `vector`).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import pyarrow as pa

__all__ = ["Clear", "Clears", "Count", "Counts", "Get", "Gets"]


class Gets(Protocol):
    """One entry for each key: a value, a list, results."""

    def get(self, keys: pa.Array) -> pa.Array:
        """The entries; null where there is none."""


class Clears(Protocol):
    """What a key has is removed as a whole."""

    def clear(self, keys: pa.Array) -> None:
        """Removes what keys have."""


class Counts(Clears, Protocol):
    """Many entries for each key: maps, lists."""

    def lengths(self, keys: pa.Array) -> pa.Int64Array:
        """How many entries keys have."""


Get = TypeVar("Get", bound=Gets)
Clear = TypeVar("Clear", bound=Clears)
Count = TypeVar("Count", bound=Counts)
