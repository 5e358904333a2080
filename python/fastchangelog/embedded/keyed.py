"""The common part of the keyed collections of an embedded state.

Owns: names, types, keys, scans. Does not own: what a collection holds for each key (its own module), the order of keys
(the core).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from fastchangelog.embedded.arrow import Keys, batch_size_of

__all__ = ["ByKey", "Keyed"]


class Keyed:
    """Base of all collections: name, key type, and the state that it belongs to."""

    def __init__(self, state: object, name: str, schema: pa.Schema) -> None:
        self._state = state  # keeps the state open: an unreferenced state is closed
        self._keys = Keys("key", schema.field("key").type)
        self.name = name
        """The state's name."""
        self.key_type: pa.DataType = self._keys.type
        """The Arrow type of keys."""
        self.value_type: pa.DataType = schema.field("value").type
        """The Arrow type of values: of entries of maps, of elements of lists, of rows to add up."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, key={self.key_type}, value={self.value_type})"


class _Scanned(Protocol):
    def scan(
        self, start: pa.Array | None, end: pa.Array | None, prefix: pa.Array | None, batch_size: int
    ) -> Iterator[pa.RecordBatch]: ...


N = TypeVar("N", bound=_Scanned)


class ByKey(Keyed, Generic[N]):
    """Base of the collections with one entry for each key: a value, a list, results."""

    def __init__(self, state: object, native: N, name: str, schema: pa.Schema) -> None:
        super().__init__(state, name, schema)
        self._native = native

    def scan(
        self, *, start: Any = None, end: Any = None, prefix: Any = None, batch_size: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """Keys, and the value, list or result of each, as record batches of the columns ``key`` and ``value``, in the
        order of keys: from ``start`` on, before ``end``, beginning with ``prefix``; at most ``batch_size`` rows each.

        Strings and binaries begin with their first characters or bytes. Keys with names begin with their first fields:
        a dict or a tuple of them, for ``start`` and ``end`` too. Changes during a scan are fine: what is changed may be
        seen as it was or as it is, all else comes exactly once.

        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/scan") as st:
        ...     stock = st.value_state("stock", key="shop string, item int", value="long")
        ...     stock.put([("a", 1), ("a", 2), ("b", 1)], [10, 20, 30])
        ...     [batch["value"].to_pylist() for batch in stock.scan(prefix={"shop": "a"})]
        [[10, 20]]
        """
        first, last, beginning = map(self._keys.leading, (start, end, prefix))
        return self._native.scan(first, last, beginning, batch_size_of(batch_size))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys with what they have, in the order of keys."""
        for batch in self.scan():
            yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist())

    def __iter__(self) -> Iterator[Any]:
        for batch in self.scan():
            yield from batch["key"].to_pylist()
