"""A list for each key.

Owns: Python's view of it: a sequence for a single key, Arrow for many keys at once; its calls in a session.
Does not own: how elements are stored (the core), opening a state (`embedded.state`), processors (`vectorised`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import Typed
from fastchangelog.state.in_session import ValuesInSession, offsets_of
from fastchangelog.state.keyed import ByKey, Counted
from fastchangelog.state.keys import BatchKeys
from fastchangelog.state.session import APPEND, CLEAR
from fastchangelog.state.vector import Columns, VectorByKey, VectorCounted

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, RowsLike, ValueLike

__all__ = ["ListInSession", "ListState", "ListView", "VectorListState"]


class ListInSession(ValuesInSession):
    """The calls of a state of lists, as `_internal.ListState` has them."""

    kind = "list"

    def get(self, keys: pa.BinaryArray) -> pa.ListArray:
        """The lists; null where there is none."""
        counts, found = self._read_all(keys)
        elements = self.form.shown(self._bound.decode_values(found.field("value")))
        return pa.ListArray.from_arrays(offsets_of(counts), elements)

    def lengths(self, keys: pa.BinaryArray) -> pa.Int64Array:
        """How many elements they have."""
        return pa.array(self._read_all(keys)[0], pa.int64())

    def append(self, keys: pa.BinaryArray, values: pa.Array) -> None:
        """Adds one element to each list."""
        self._send(APPEND, keys, None, self._elements(self._each("elements", values, keys)))

    def extend(self, keys: pa.BinaryArray, lists: pa.ListArray) -> None:
        """Adds a list to each list."""
        counts, values = self._parts(keys, lists)
        owners = pa.array(np.repeat(np.arange(len(keys)), counts))
        self._send(APPEND, keys.take(owners), None, values)

    def put(self, keys: pa.BinaryArray, lists: pa.ListArray) -> None:
        """Replaces lists; a null or empty one removes."""
        counts, values = self._parts(keys, lists)
        owners = np.repeat(np.arange(len(keys)), counts + 1)
        # Each list is cleared before its first element: one more change for each key.
        is_clear = np.zeros(len(owners), bool)
        is_clear[np.cumsum(counts + 1) - counts - 1] = True
        values = values.take(pa.array(np.cumsum(~is_clear) - 1, mask=is_clear))
        self._send(np.where(is_clear, CLEAR, APPEND), keys.take(pa.array(owners)), None, values)

    def clear(self, keys: pa.BinaryArray) -> None:
        """Removes lists."""
        self._send(CLEAR, keys)

    def _parts(self, keys: pa.BinaryArray, lists: pa.ListArray) -> tuple[Any, pa.BinaryArray]:
        """How many elements each list has, and all of them as bytes."""
        counts = np.asarray(self._each("lists", lists, keys).value_lengths().fill_null(0)).astype(np.int64)
        return counts, self._elements(lists.flatten())

    def _elements(self, elements: pa.Array) -> pa.BinaryArray:
        if elements.null_count:
            raise InvalidArgumentError(
                f"{self._what}: an element is null; leave it out, or keep structs with null fields"
            )
        return self._bound.encode_values(self.form.struct(elements))


class VectorListState(VectorByKey[ListInSession], VectorCounted[ListInSession]):
    """A list for each key; made by `Context.list_state`. All methods take many keys at once.

    They are those of `ListState` whose names end in ``_many``, without that ending. Keys are `batch.keys`, or some of
    them: another key is an `InvalidArgumentError`, as is an element that is null, and what does not fit its type. A
    list without elements is none.

    Example:
        >>> import pyarrow as pa
        >>> import fastchangelog as fc
        >>> from fastchangelog.testing import run_processor
        >>> class Visits(fc.Processor):
        ...     def open(self, ctx):
        ...         self.pages = ctx.list_state("pages", "string")
        ...     def process(self, batch):
        ...         self.pages.extend(batch.keys, batch.lists("page"))
        ...         yield pa.RecordBatch.from_arrays([batch.keys.field("user"), self.pages.get(batch.keys)], ["u", "p"])
        >>> first = pa.record_batch({"user": ["ann", "bob", "ann"], "page": ["/", "/", "/cart"]})
        >>> run_processor(Visits(), [first, first.slice(0, 1)])[1].to_pylist()
        [{'u': 'ann', 'p': ['/', '/cart', '/']}]
    """

    def __init__(self, name: str, declared: pa.DataType, keys: BatchKeys) -> None:
        super().__init__(name, declared, keys, ListInSession(name, declared))
        self._elements = Columns(f"state `{name}`: element", declared)
        self._lists = Columns(f"state `{name}`: list", pa.list_(declared))

    def append(self, keys: ArrowArrayLike, values: RowsLike) -> None:
        """Adds one element for each of many keys, in order.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            values: As many elements.

        Example: see `extend`.
        """
        self.calls.append(self._keys.many(keys), self._elements.many(values))

    def extend(self, keys: ArrowArrayLike, lists: ArrowArrayLike) -> None:
        """Adds a list of elements for each of many keys, in order.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            lists: As many lists; a null adds nothing.

        Example: see the class.
        """
        self.calls.extend(self._keys.many(keys), _lists_of(self._lists, lists, "append"))

    def put(self, keys: ArrowArrayLike, lists: ArrowArrayLike) -> None:
        """Replaces the lists of keys.

        Args:
            keys: `batch.keys`, or some of them; of equal ones the last counts.
            lists: As many lists; a null or an empty one removes.

        Example: see `extend`.
        """
        self.calls.put(self._keys.many(keys), _lists_of(self._lists, lists, "append"))


class ListState(Counted[_internal.ListState], ByKey[_internal.ListState]):
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

    def append(self, key: KeyLike, value: ValueLike) -> None:
        """Adds an element at the end of the list of one key.

        Args:
            key: The key.
            value: The element.

        Raises:
            InvalidArgumentError: Something does not fit the types, or is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/list/append") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks.append("ann", "/home")
            ...     clicks.extend("ann", ["/cart"])
            ...     clicks.get("ann"), clicks.get("bob", [])
            (['/home', '/cart'], [])
        """
        self._native.append(self._keys.one(key), self._elements.one(value))

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
        self._native.append(self._keys.many(keys), self._elements.many(values))

    def extend(self, key: KeyLike, values: ArrowArrayLike) -> None:
        """Adds elements at the end of the list of one key.

        Args:
            key: The key.
            values: The elements.

        Raises:
            InvalidArgumentError: Something does not fit the types, or is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `append`.
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
        self._native.extend(self._keys.many(keys), _lists_of(self._whole, lists, "append_many"))

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
        self._native.put(self._keys.many(keys), _lists_of(self._whole, lists, "append_many"))

    def __getitem__(self, key: KeyLike) -> ListView:
        return ListView(self, key)

    def __setitem__(self, key: KeyLike, elements: ArrowArrayLike) -> None:
        self._native.put(self._keys.one(key), self._list(elements))

    def __contains__(self, key: object) -> bool:
        one = self._keys.found(key)
        return one is not None and bool(self._native.lengths(one)[0].as_py())

    def _list(self, elements: ArrowArrayLike) -> pa.Array:
        values = self._elements.many(elements)
        return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _lists_of(typed: Typed, lists: ArrowArrayLike, append: str) -> pa.ListArray:
    """Many lists; `append` is the method that takes elements."""
    if isinstance(lists, list | tuple) and any(isinstance(one, str | bytes) for one in lists):
        raise InvalidArgumentError(f"{typed.what}s: a text is no list; {append}() takes one element for each key")
    return typed.many(lists)


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
