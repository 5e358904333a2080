"""A list for each key.

Owns: Python's view of it: a sequence for a single key, Arrow for many keys at once.
Does not own: how elements are stored (the core), opening a state (`embedded.state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.arrow import array_of
from fastchangelog.embedded.keyed import ByKey
from fastchangelog.errors import InvalidArgument

__all__ = ["ListState", "ListView"]


class ListState(ByKey[_internal.ListState]):
    """A list for each key; made by `State.list_state`.

    An append neither reads nor writes the list again, however long it is. A list without elements is no list: a key has
    one from the first append on, until it is cleared. No element is null.

    >>> import fastchangelog as fc
    >>> st = fc.open_state("memory://docs/lists")
    >>> clicks = st.list_state("clicks", key="string", value="string")
    >>> clicks["ann"].append("/home")
    >>> clicks["ann"].extend(["/cart", "/pay"])
    >>> list(clicks["ann"]), len(clicks["ann"]), clicks["ann"][-1]
    (['/home', '/cart', '/pay'], 3, '/pay')
    >>> clicks.append(["ann", "bob", "bob"], ["/bye", "/home", "/cart"])
    >>> clicks.extend(["bob", "cid"], [["/pay"], ["/home", "/help"]])
    >>> clicks.get(["bob", "cid", "dan"]).to_pylist()
    [['/home', '/cart', '/pay'], ['/home', '/help'], None]
    >>> clicks.lengths(["ann", "dan"]).to_pylist()
    [4, 0]
    >>> st.close()
    """

    def get(self, keys: Any, default: Any = None) -> Any:
        """The list of one key, ``default`` if there is none; or those of many keys, as an Arrow array of lists with a
        null where there is none."""
        found = self._native.get(self._keys.of(keys))
        if self._keys.is_one(keys):
            return found[0].as_py() if found.null_count == 0 else default
        return found

    def append(self, keys: Any, values: Any) -> None:
        """Adds an element to the list of one key; or one to that of each of many keys, which may come more than once.

        Raises `InvalidArgument` if something does not fit the types or is null, and `RetryableError` if too much was
        changed since the last checkpoint.
        """
        if self._keys.is_one(keys):
            self._native.append(self._keys.one(keys), array_of("value", [values], self.value_type))
        else:
            self._native.append(self._keys.many(keys), array_of("values", values, self.value_type))

    def extend(self, keys: Any, lists: Any) -> None:
        """Adds elements to the list of one key; or a list of them to that of each of many. A null adds nothing."""
        self._native.extend(self._keys.of(keys), self._lists(keys, lists))

    def put(self, keys: Any, lists: Any) -> None:
        """Replaces the list of one key, or those of many; a null or an empty list removes it. Of equal keys the last
        one counts."""
        self._native.put(self._keys.of(keys), self._lists(keys, lists))

    def clear(self, keys: Any) -> None:
        """Removes the list of one key, or those of many. A key without one is fine."""
        self._native.clear(self._keys.of(keys))

    def lengths(self, keys: Any) -> Any:
        """How many elements the list of one key has, or those of many keys, as an Arrow array. Reads no element."""
        found = self._native.lengths(self._keys.of(keys))
        return found[0].as_py() if self._keys.is_one(keys) else found

    def __getitem__(self, key: Any) -> ListView:
        return ListView(self, key)

    def __setitem__(self, key: Any, elements: Iterable[Any]) -> None:
        self._native.put(self._keys.one(key), self._list("elements", elements))

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._native.clear(self._keys.one(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._native.lengths(self._keys.one(key))[0].as_py())

    def _lists(self, keys: Any, lists: Any) -> pa.Array:
        if self._keys.is_one(keys):
            return self._list("elements", () if lists is None else lists)
        if isinstance(lists, list | tuple) and any(isinstance(one, str | bytes) for one in lists):
            raise InvalidArgument("lists: a text is no list; append() takes one element for each key")
        return array_of("lists", lists, pa.list_(self.value_type))

    def _list(self, what: str, elements: Any) -> pa.Array:
        values = array_of(what, elements, self.value_type)
        return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


class ListView(Sequence[Any]):
    """The list of one key: what ``lists[key]`` gives. Nothing is kept in it; each call reads or changes the state."""

    def __init__(self, lists: ListState, key: Any) -> None:
        self._lists = lists
        self._key = key

    def append(self, value: Any) -> None:
        """Adds an element at the end."""
        lists = self._lists
        lists._native.append(lists._keys.one(self._key), array_of("value", [value], lists.value_type))

    def extend(self, values: Iterable[Any]) -> None:
        """Adds elements at the end."""
        self._lists._native.extend(self._lists._keys.one(self._key), self._lists._list("elements", values))

    def clear(self) -> None:
        """Removes the list."""
        self._lists._native.clear(self._lists._keys.one(self._key))

    def _elements(self) -> list[Any]:
        found = self._lists._native.get(self._lists._keys.one(self._key))[0].as_py()
        return found or []

    def __getitem__(self, index: Any) -> Any:
        return self._elements()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements())

    def __len__(self) -> int:
        return int(self._lists._native.lengths(self._lists._keys.one(self._key))[0].as_py())

    def __repr__(self) -> str:
        return f"ListView({self._lists.name!r}, {self._key!r})"
