"""The common part of the keyed collections of an embedded state.

Owns: names, types, keys, scans, the views of keys, values and items.
Does not own: what a collection holds for each key (its own module), the order of keys (the core).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

from fastchangelog.embedded.arrow import Typed, batch_size_of

if TYPE_CHECKING:
    from fastchangelog.types import KeyLike, PythonValue

__all__ = ["ByKey", "Clearable", "Keyed", "MappingByKey"]


class Keyed:
    """Base of all collections: name, key type, and the state that it belongs to."""

    def __init__(self, state: object, name: str, schema: pa.Schema) -> None:
        self._state = state  # keeps the state open: an unreferenced state is closed
        self._keys = Typed("key", schema.field("key").type)
        self.name = name
        """The state's name."""
        self.key_type: pa.DataType = self._keys.type
        """The Arrow type of keys."""
        self._values = Typed("value", schema.field("value").type)
        self.value_type: pa.DataType = self._values.type
        """The Arrow type of values: of entries of maps, of elements of lists, of rows to add up."""

    @abstractmethod
    def _pairs(self) -> Iterator[tuple[PythonValue, PythonValue]]:
        """Keys with what they have, in the order of keys."""

    def keys(self) -> Any:
        """All keys, in the order of keys.

        Returns:
            An iterator that scans.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/keys") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks.extend_many(["bob", "ann"], [["/"], ["/", "/pay"]])
            ...     list(clicks.keys()), list(clicks.values())
            (['ann', 'bob'], [['/', '/pay'], ['/']])
        """
        return iter(self)

    def values(self) -> Any:
        """What each key has, in the order of keys; see `keys`.

        Returns:
            An iterator that scans.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/keyed/values") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks["ann"] = ["/"]
            ...     list(clicks.values())
            [['/']]
        """
        return (value for _, value in self._pairs())

    def items(self) -> Any:
        """All keys with what they have, in the order of keys; see `keys`.

        Returns:
            An iterator of pairs that scans.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/keyed/items") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks["ann"] = ["/"]
            ...     list(clicks.items())
            [('ann', ['/'])]
        """
        return self._pairs()

    def __iter__(self) -> Iterator[PythonValue]:
        return (key for key, _ in self._pairs())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), self) is not self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, key={self.key_type}, value={self.value_type})"


class Clearable(Keyed):
    """Base of those of which a key is cleared."""

    @abstractmethod
    def clear(self, key: KeyLike) -> None:
        """Removes what one key has."""

    def __delitem__(self, key: KeyLike) -> None:
        self._keys.one(key)  # refuses what is no key
        if key not in self:
            raise KeyError(key)
        self.clear(key)


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
        self,
        *,
        start: KeyLike | None = None,
        end: KeyLike | None = None,
        prefix: KeyLike | None = None,
        batch_size: int = 65_536,
    ) -> Iterator[pa.RecordBatch]:
        """Keys, and the value, list or result of each, as record batches in the order of keys.

        Strings and binaries begin with their first characters or bytes. Keys with names begin with their first fields:
        a dict or a tuple of them, for ``start`` and ``end`` too. Changes during a scan are fine: what is changed may be
        seen as it was or as it is, all else comes exactly once.

        Args:
            start: First key; None begins with the first of all.
            end: One past the last key; None ends with the last of all.
            prefix: What all keys begin with.
            batch_size: Most rows of a batch.

        Returns:
            An iterator of record batches with the columns ``key`` and ``value``.

        Raises:
            InvalidArgumentError: A bound does not fit the type of keys, or the batch size is below 1.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/scan") as st:
            ...     stock = st.value_state("stock", key="shop string, item int", value="long")
            ...     stock.put_many([("a", 1), ("a", 2), ("b", 1)], [10, 20, 30])
            ...     [batch["value"].to_pylist() for batch in stock.scan(prefix={"shop": "a"})]
            [[10, 20]]
        """
        first, last, beginning = map(self._keys.leading, (start, end, prefix))
        return self._native.scan(first, last, beginning, batch_size_of(batch_size))

    def _pairs(self) -> Iterator[tuple[PythonValue, PythonValue]]:
        for batch in self.scan():
            yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist())

    def __iter__(self) -> Iterator[PythonValue]:
        return chain.from_iterable(batch["key"].to_pylist() for batch in self.scan())

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.scan())

    def __bool__(self) -> bool:
        return any(batch.num_rows for batch in self.scan(batch_size=1))


class _Mapped(_Scanned, Protocol):
    def contains(self, keys: pa.Array) -> pa.BooleanArray: ...


M = TypeVar("M", bound=_Mapped)


class MappingByKey(ByKey[M], Mapping["KeyLike", "PythonValue"]):
    """Base of those that are mappings: from keys to a value, or to results."""

    def keys(self) -> KeysView[PythonValue]:
        """All keys, in their order; each use scans, see `scan`."""
        return KeysView(self)

    def values(self) -> ValuesView[PythonValue]:
        """What each key has, in the order of keys; each use scans."""
        return _Values(self)

    def items(self) -> ItemsView[PythonValue, PythonValue]:
        """All keys with what they have, in the order of keys; each use scans."""
        return _Items(self)

    def __contains__(self, key: object) -> bool:
        one = self._keys.found(key)
        return one is not None and bool(self._native.contains(one)[0].as_py())


class _Items(ItemsView["KeyLike", "PythonValue"]):
    """The items of a mapping that is scanned."""

    _mapping: Mapping[Any, Any]

    def __iter__(self) -> Iterator[tuple[PythonValue, PythonValue]]:
        return self._mapping._pairs()  # type: ignore[attr-defined, no-any-return]


class _Values(ValuesView["PythonValue"]):
    """The values of a mapping that is scanned."""

    _mapping: Mapping[Any, Any]

    def __iter__(self) -> Iterator[PythonValue]:
        return (value for _, value in self._mapping._pairs())  # type: ignore[attr-defined]
