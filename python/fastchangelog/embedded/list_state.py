"""A list for each key.

Owns: Python's view of it: a sequence for a single key, Arrow for many keys at once.
Does not own: how elements are stored (the core), opening a state (`embedded.state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.arrow import Typed
from fastchangelog.embedded.keyed import ByKey, Clearable
from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, ValueLike

__all__ = ["ListState", "ListView"]


class ListState(Clearable, ByKey[_internal.ListState]):
    """A list for each key; made by `State.list_state`.

    An append neither reads nor writes the list again, however long it is. A list without elements is no list: a key has
    one from the first append on, until it is cleared. No element is null. ``lists[key]`` is a view of one list, also of
    a key without one; the methods that end in ``_many`` take many keys at once, in Arrow. A batch is applied as a whole
    or not at all.

    Example:
        >>> import fastchangelog as fc
        >>> st = fc.open_state("memory://docs/lists")
        >>> clicks = st.list_state("clicks", key="string", value="string")
        >>> clicks["ann"].append("/home")
        >>> clicks["ann"].extend(["/cart", "/pay"])
        >>> list(clicks["ann"]), len(clicks["ann"]), clicks["ann"][-1]
        (['/home', '/cart', '/pay'], 3, '/pay')
        >>> clicks.append_many(["ann", "bob", "bob"], ["/bye", "/home", "/cart"])
        >>> clicks.extend_many(["bob", "cid"], [["/pay"], ["/home", "/help"]])
        >>> clicks.get_many(["bob", "cid", "dan"]).to_pylist()
        [['/home', '/cart', '/pay'], ['/home', '/help'], None]
        >>> clicks.length_many(["ann", "dan"]).to_pylist()
        [4, 0]
        >>> st.close()
    """

    def __init__(self, state: object, native: _internal.ListState, name: str, schema: pa.Schema) -> None:
        super().__init__(state, native, name, schema)
        self._elements = Typed("element", self.value_type)
        self._whole = Typed("list", pa.list_(self.value_type))

    def get(self, key: KeyLike, default: PythonValue = None) -> PythonValue:
        """The list of one key.

        Args:
            key: The key.
            default: The result if the key has no list.

        Returns:
            A new list of all elements.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/list/get") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks.append("ann", "/home")
            ...     clicks.extend("ann", ["/cart"])
            ...     clicks.get("ann"), clicks.get("bob", [])
            (['/home', '/cart'], [])
        """
        found = self._native.get(self._keys.one(key))
        return found[0].as_py() if found.null_count == 0 else default

    def get_many(self, keys: ArrowArrayLike) -> pa.ListArray:
        """The lists of many keys.

        Args:
            keys: The keys.

        Returns:
            An array of lists, null where there is none.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see the class.
        """
        return self._native.get(self._keys.many(keys))

    def append(self, key: KeyLike, value: ValueLike) -> None:
        """Adds an element at the end of the list of one key.

        Args:
            key: The key.
            value: The element.

        Raises:
            InvalidArgumentError: Something does not fit the types, or is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `get`.
        """
        self._native.append(self._keys.one(key), self._values.one(value))

    def append_many(self, keys: ArrowArrayLike, values: ArrowArrayLike) -> None:
        """Adds one element for each of many keys, in order.

        Args:
            keys: The keys; one may come more than once.
            values: As many elements.

        Raises:
            InvalidArgumentError: Something does not fit the types, or is null, or the lengths differ.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see the class.
        """
        self._native.append(self._keys.many(keys), self._values.many(values))

    def extend(self, key: KeyLike, values: ArrowArrayLike) -> None:
        """Adds elements at the end of the list of one key.

        Args:
            key: The key.
            values: The elements.

        Raises:
            InvalidArgumentError: Something does not fit the types, or is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `get`.
        """
        self._native.extend(self._keys.one(key), self._list(values))

    def extend_many(self, keys: ArrowArrayLike, lists: ArrowArrayLike) -> None:
        """Adds a list of elements for each of many keys, in order.

        Args:
            keys: The keys; one may come more than once.
            lists: As many lists; a null adds nothing.

        Raises:
            InvalidArgumentError: Something does not fit the types, or an element is null, or the lengths differ.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see the class.
        """
        self._native.extend(self._keys.many(keys), self._lists(lists))

    def put(self, key: KeyLike, values: ArrowArrayLike | None) -> None:
        """Replaces the list of one key.

        Args:
            key: The key.
            values: The elements; none, or None, removes the list.

        Raises:
            InvalidArgumentError: Something does not fit the types, or an element is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/list/put") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks.put("ann", ["/home", "/cart"])
            ...     clicks.put_many(["bob", "ann"], [["/pay"], ["/"]])
            ...     clicks.clear("bob")
            ...     dict(clicks.items())
            {'ann': ['/']}
        """
        self._native.put(self._keys.one(key), self._list(() if values is None else values))

    def put_many(self, keys: ArrowArrayLike, lists: ArrowArrayLike) -> None:
        """Replaces the lists of many keys.

        Args:
            keys: The keys; of equal ones the last counts.
            lists: As many lists; a null or an empty one removes.

        Raises:
            InvalidArgumentError: Something does not fit the types, or an element is null, or the lengths differ.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `put`.
        """
        self._native.put(self._keys.many(keys), self._lists(lists))

    def clear(self, key: KeyLike) -> None:
        """Removes the list of one key. A key without one is fine.

        Args:
            key: The key.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example: see `put`.
        """
        self._native.clear(self._keys.one(key))

    def clear_many(self, keys: ArrowArrayLike) -> None:
        """Removes the lists of many keys. Keys without one are fine.

        Args:
            keys: The keys.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/list/clear") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks.append_many(["ann", "bob"], ["/", "/"])
            ...     clicks.clear_many(["ann", "cid"])
            ...     list(clicks)
            ['bob']
        """
        self._native.clear(self._keys.many(keys))

    def length_many(self, keys: ArrowArrayLike) -> pa.Int64Array:
        """How many elements the lists of many keys have. Reads no element, unless they have a ``ttl``.

        Args:
            keys: The keys.

        Returns:
            An array of one number for each key; 0 where there is no list.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see the class.
        """
        return self._native.lengths(self._keys.many(keys))

    def __getitem__(self, key: KeyLike) -> ListView:
        return ListView(self, key)

    def __setitem__(self, key: KeyLike, elements: ArrowArrayLike) -> None:
        self._native.put(self._keys.one(key), self._list(elements))

    def __contains__(self, key: object) -> bool:
        one = self._keys.found(key)
        return one is not None and bool(self._native.lengths(one)[0].as_py())

    def _length(self, key: KeyLike) -> int:
        return int(self._native.lengths(self._keys.one(key))[0].as_py())

    def _lists(self, lists: ArrowArrayLike) -> pa.Array:
        if isinstance(lists, list | tuple) and any(isinstance(one, str | bytes) for one in lists):
            raise InvalidArgumentError("lists: a text is no list; append_many() takes one element for each key")
        return self._whole.many(lists)

    def _list(self, elements: ArrowArrayLike) -> pa.Array:
        values = self._elements.many(elements)
        return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


class ListView(Sequence["PythonValue"]):
    """The list of one key: what ``lists[key]`` gives. Nothing is kept in it; each call reads or changes the state.

    Example: see `ListState`.
    """

    def __init__(self, lists: ListState, key: KeyLike) -> None:
        self._lists = lists
        self._key = key

    def append(self, value: ValueLike) -> None:
        """Adds an element at the end, as `ListState.append`.

        Args:
            value: The element.

        Raises:
            InvalidArgumentError: It does not fit the type, or is null.

        Example: see `ListState`.
        """
        self._lists.append(self._key, value)

    def extend(self, values: Iterable[Any]) -> None:
        """Adds elements at the end, as `ListState.extend`.

        Args:
            values: The elements.

        Raises:
            InvalidArgumentError: One does not fit the type, or is null.

        Example: see `ListState`.
        """
        self._lists.extend(self._key, values)

    def clear(self) -> None:
        """Removes the list."""
        self._lists.clear(self._key)

    def _elements(self) -> list[Any]:
        return self._lists.get(self._key) or []

    @overload
    def __getitem__(self, index: int) -> PythonValue: ...
    @overload
    def __getitem__(self, index: slice) -> list[PythonValue]: ...
    def __getitem__(self, index: int | slice) -> PythonValue:
        return self._elements()[index]

    def __iter__(self) -> Iterator[PythonValue]:
        return iter(self._elements())

    def __len__(self) -> int:
        return self._lists._length(self._key)

    def __repr__(self) -> str:
        return f"ListView({self._lists.name!r}, {self._key!r})"
