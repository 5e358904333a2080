"""The common part of the keyed collections of an embedded state.

Owns: names, types, keys, reads and removals that all kinds have alike, scans, the views of keys, values and items.
Does not own: what a collection holds for each key (its own module), the order of keys (the core).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

from fastchangelog.fit.typed import Typed, batch_size_of
from fastchangelog.state.calls import Clear, Count, Gets

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue

__all__ = ["ByKey", "Clearable", "Counted", "Keyed", "MappingByKey"]


class _Scans(Gets, Protocol):
    def scan(
        self, start: pa.Array | None, end: pa.Array | None, prefix: pa.Array | None, batch_size: int
    ) -> Iterator[pa.RecordBatch]: ...


class _Contains(_Scans, Protocol):
    def contains(self, keys: pa.Array) -> pa.BooleanArray: ...


K = TypeVar("K")
Scan = TypeVar("Scan", bound=_Scans)
Contain = TypeVar("Contain", bound=_Contains)


class Keyed(Generic[K]):
    """Base of all collections: name, key type, its calls, and the state that it belongs to."""

    def __init__(self, state: object, native: K, name: str, schema: pa.Schema) -> None:
        self._state = state  # keeps the state open: an unreferenced state is closed
        self._native = native
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


class Clearable(Keyed[Clear]):
    """Base of those of which a key is cleared: maps, lists, aggregates."""

    def clear(self, key: KeyLike) -> None:
        """Removes what one key has: one change, in memory and in the log. A key without anything is fine.

        Args:
            key: The key.

        Raises:
            InvalidArgumentError: The key does not fit its type.
            RetryableError: Too much was changed since the last checkpoint.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/clear") as st:
            ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
            ...     carts.put_many(["ann", "bob", "cid", "cid"], ["fig", "fig", "fig", "kiwi"], [1, 1, 1, 1])
            ...     carts.clear("ann")
            ...     carts.clear_many(["bob", "dan"])
            ...     list(carts), carts.length_many(["ann", "cid"]).to_pylist()
            (['cid'], [0, 2])
        """
        self._native.clear(self._keys.one(key))

    def clear_many(self, keys: ArrowArrayLike) -> None:
        """Removes what many keys have: all or none. Keys without anything are fine.

        Args:
            keys: The keys.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `clear`.
        """
        self._native.clear(self._keys.many(keys))

    def __delitem__(self, key: KeyLike) -> None:
        self._keys.one(key)  # refuses what is no key
        if key not in self:
            raise KeyError(key)
        self.clear(key)


class Counted(Clearable[Count]):
    """Base of those with many entries for each key: maps, lists."""

    def length_many(self, keys: ArrowArrayLike) -> pa.Int64Array:
        """How many entries or elements many keys have.

        Of maps it takes as long as a scan of them; of lists it reads no element, unless they have a ``ttl``.

        Args:
            keys: The keys.

        Returns:
            An array of one number for each key; 0 where there are none.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see `clear`.
        """
        return self._native.lengths(self._keys.many(keys))

    def _length(self, key: KeyLike) -> int:
        return int(self._native.lengths(self._keys.one(key))[0].as_py())


class ByKey(Keyed[Scan]):
    """Base of the collections with one entry for each key: a value, a list, results."""

    def get(self, key: KeyLike, default: PythonValue = None) -> PythonValue:
        """The value, list or results of one key.

        Args:
            key: The key; of a state whose key has names, a dict or a tuple.
            default: The result if the key has nothing.

        Returns:
            As Python has it: of a value with names a dict, of a list a new list of all elements.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/keyed/get") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits["ann"] = 1
            ...     visits.get("ann"), visits.get("bob"), visits.get("bob", 0)
            (1, None, 0)
        """
        found = self._native.get(self._keys.one(key))
        return found[0].as_py() if found.null_count == 0 else default

    def get_many(self, keys: ArrowArrayLike) -> pa.Array:
        """The values, lists or results of many keys.

        Args:
            keys: The keys; one may come more than once.

        Returns:
            An array of one for each key, null where there is none.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/keyed/get_many") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits.put_many(["ann", "bob"], [1, 2])
            ...     visits.get_many(["bob", "cid"]).to_pylist()
            [2, None]
        """
        return self._native.get(self._keys.many(keys))

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


class MappingByKey(ByKey[Contain], Mapping["KeyLike", "PythonValue"]):
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

    def contains_many(self, keys: ArrowArrayLike) -> pa.BooleanArray:
        """Which of many keys have a value, or results.

        Args:
            keys: The keys.

        Returns:
            An array of booleans, one for each key.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/keyed/contains_many") as st:
            ...     best = st.aggregating_state("best", fc.max("value"), key="string", value="long")
            ...     best.add("ann", None)
            ...     best.contains_many(["ann", "bob"]).to_pylist(), best.get("ann", 0), best.get("bob", 0)
            ([True, False], None, 0)
        """
        return self._native.contains(self._keys.many(keys))

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
