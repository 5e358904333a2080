"""Maps, lists and aggregates by key: what a state in process holds beside single values.

Owns: the habits of Python's mappings and sequences for single keys, and the forms for many keys at once.
Does not own: how entries lie or what an aggregate means (the core), opening a state (`fastchangelog.state`).

All of them are made by the methods of `fastchangelog.State`; any thread may use them. Many keys are a list, a numpy or
Arrow array, or another iterable; one key is anything else, or a dict or tuple if the key has names. A batch is done
whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.aggregates import Aggregate
from fastchangelog.errors import InvalidArgument
from fastchangelog.state_data import Keys, array_of, batch_size_of, rows_of

__all__ = ["AggregatingState", "ByKey", "ListState", "ListView", "MapState", "MapView", "calls_of"]


class Keyed:
    """What all have: a name, keys, and the state that they are of."""

    def __init__(self, state: object, name: str, schema: pa.Schema) -> None:
        self._state = state  # a state that nobody holds any more is closed
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
    """What holds one thing for each key: a value, a list, results."""

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


class MapState(Keyed):
    """A map for each key; made by `State.map_state`.

    A key's map has the habits of a mutable mapping, in the order of its map keys; many entries at once are put, read
    and deleted in Arrow. Each entry is stored by itself: a map may be larger than memory.

    >>> import fastchangelog as fc
    >>> st = fc.open_state("memory://docs/maps")
    >>> carts = st.map_state("carts", key="string", map_key="string", value="int")
    >>> carts["ann"]["pear"] = 1
    >>> carts["ann"].update(apple=2, fig=3)
    >>> del carts["ann"]["fig"]
    >>> dict(carts["ann"]), "plum" in carts["ann"], len(carts["bob"])
    ({'apple': 2, 'pear': 1}, False, 0)
    >>> carts.put(["ann", "bob"], ["apple", "kiwi"], [5, 6])
    >>> carts.get(["ann", "bob", "bob"], ["apple", "kiwi", "fig"]).to_pylist()
    [5, 6, None]
    >>> st.close()
    """

    def __init__(self, state: object, native: _internal.MapState, name: str, schema: pa.Schema) -> None:
        super().__init__(state, name, schema)
        self._native = native
        self._map_keys = Keys("map key", schema.field("map_key").type)
        self.map_key_type: pa.DataType = self._map_keys.type
        """The Arrow type of map keys."""

    def get(self, keys: Any, map_keys: Any, default: Any = None) -> Any:
        """The value of one entry, ``default`` if there is none; or those of many entries, as an Arrow array with a null
        where there is none. With many of the one, one of the other is enough: it stands for all."""
        found = self._native.get(*self._entries(keys, map_keys))
        if self._are_one(keys, map_keys):
            return found[0].as_py() if found.null_count == 0 else default
        return found

    def put(self, keys: Any, map_keys: Any, values: Any) -> None:
        """Sets one entry, or many. A null (None) deletes; of equal entries the last one counts.

        Raises `InvalidArgument` if something does not fit the types or is null, and `RetryableError` if too much was
        changed since the last checkpoint.
        """
        one = self._are_one(keys, map_keys)
        data = array_of("value", [values], self.value_type) if one else array_of("values", values, self.value_type)
        self._native.put(*self._entries(keys, map_keys), data)

    def delete(self, keys: Any, map_keys: Any) -> None:
        """Removes one entry, or many. One that is not there is fine."""
        self._native.delete(*self._entries(keys, map_keys))

    def contains(self, keys: Any, map_keys: Any) -> Any:
        """Whether one entry exists; or which of many do, as an Arrow array of booleans."""
        found = self._native.contains(*self._entries(keys, map_keys))
        return found[0].as_py() if self._are_one(keys, map_keys) else found

    def clear(self, keys: Any) -> None:
        """Removes all entries of one key, or of many. Each takes the memory of a change until the next checkpoint; what
        other threads put meanwhile may stay."""
        self._native.clear(self._keys.of(keys))

    def lengths(self, keys: Any) -> Any:
        """How many entries one key has, or each of many, as an Arrow array. It takes as long as a scan of them."""
        found = self._native.lengths(self._keys.of(keys))
        return found[0].as_py() if self._keys.is_one(keys) else found

    def scan(
        self, *, key: Any = None, start: Any = None, end: Any = None, prefix: Any = None, batch_size: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """Entries as record batches of the columns ``key``, ``map_key`` and ``value``, in the order of keys, then of
        map keys. Bounds are those of `ValueState.scan`; with ``key`` only its entries come, and bounds are of map keys.

        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/maps/scan") as st:
        ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
        ...     carts.put(["ann", "ann", "bob"], ["apple", "pear", "apple"], [1, 2, 3])
        ...     for bounds in ({"start": "b"}, {"key": "ann", "prefix": "p"}):
        ...         print([batch.to_pydict() for batch in carts.scan(**bounds)])
        [{'key': ['bob'], 'map_key': ['apple'], 'value': [3]}]
        [{'key': ['ann'], 'map_key': ['pear'], 'value': [2]}]
        """
        bounded = self._keys if key is None else self._map_keys
        first, last, beginning = map(bounded.leading, (start, end, prefix))
        one = None if key is None else self._keys.one(key)
        return self._native.scan(one, first, last, beginning, batch_size_of(batch_size))

    def items(self) -> Iterator[tuple[Any, dict[Any, Any]]]:
        """All keys with their maps, in the order of keys."""
        rows = (
            row
            for batch in self.scan()
            for row in zip(batch["key"].to_pylist(), batch["map_key"].to_pylist(), batch["value"].to_pylist())
        )
        for key, entries in groupby(rows, itemgetter(0)):
            yield key, {map_key: value for _, map_key, value in entries}

    def __iter__(self) -> Iterator[Any]:
        keys = (key for batch in self.scan() for key in batch["key"].to_pylist())
        return (key for key, _ in groupby(keys))

    def __getitem__(self, key: Any) -> MapView:
        return MapView(self, key)

    def __setitem__(self, key: Any, entries: Mapping[Any, Any]) -> None:
        map_keys = self._map_keys.many(list(entries))
        values = array_of("values", list(entries.values()), self.value_type)
        self.clear(key)
        self._native.put(self._keys.one(key), map_keys, values)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self.clear(key)

    def __contains__(self, key: object) -> bool:
        return next(iter(self.scan(key=key, batch_size=1)), None) is not None

    def _are_one(self, keys: Any, map_keys: Any) -> bool:
        return self._keys.is_one(keys) and self._map_keys.is_one(map_keys)

    def _entries(self, keys: Any, map_keys: Any) -> tuple[pa.Array, pa.Array]:
        many, others = self._keys.of(keys), self._map_keys.of(map_keys)
        if self._map_keys.is_one(map_keys) and not self._keys.is_one(keys):
            others = others.take(pa.repeat(pa.scalar(0), len(many)))
        return many, others


class MapView(MutableMapping[Any, Any]):
    """The map of one key: what ``maps[key]`` gives. Nothing is kept in it; each call reads or changes the state."""

    def __init__(self, maps: MapState, key: Any) -> None:
        self._maps = maps
        self._key = key

    def __getitem__(self, map_key: Any) -> Any:
        found = self._maps._native.get(self._maps._keys.one(self._key), self._maps._map_keys.one(map_key))
        if found.null_count:
            raise KeyError(map_key)
        return found[0].as_py()

    def __setitem__(self, map_key: Any, value: Any) -> None:
        maps = self._maps
        values = array_of("value", [value], maps.value_type)
        maps._native.put(maps._keys.one(self._key), maps._map_keys.one(map_key), values)

    def __delitem__(self, map_key: Any) -> None:
        if map_key not in self:
            raise KeyError(map_key)
        self._maps._native.delete(self._maps._keys.one(self._key), self._maps._map_keys.one(map_key))

    def __contains__(self, map_key: object) -> bool:
        maps = self._maps
        return bool(maps._native.contains(maps._keys.one(self._key), maps._map_keys.one(map_key))[0].as_py())

    def __iter__(self) -> Iterator[Any]:
        for batch in self._maps.scan(key=self._key):
            yield from batch["map_key"].to_pylist()

    def __len__(self) -> int:
        return int(self._maps._native.lengths(self._maps._keys.one(self._key))[0].as_py())

    def __bool__(self) -> bool:
        return self._key in self._maps

    def update(self, *others: Any, **named: Any) -> None:
        """Sets entries, as that of dicts; all or nothing."""
        entries = dict(*others, **named)
        maps = self._maps
        values = array_of("values", list(entries.values()), maps.value_type)
        maps._native.put(maps._keys.one(self._key), maps._map_keys.many(list(entries)), values)

    def clear(self) -> None:
        """Removes all entries."""
        self._maps._native.clear(self._maps._keys.one(self._key))

    def __repr__(self) -> str:
        return f"MapView({self._maps.name!r}, {self._key!r})"


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


class AggregatingState(ByKey[_internal.AggregatingState]):
    """Aggregates for each key; made by `State.aggregating_state`. Rows go in, results come out; rows are not kept.

    >>> import fastchangelog as fc
    >>> st = fc.open_state("memory://docs/aggregates")
    >>> totals = st.aggregating_state("totals", fc.sum("value"), key="string", value="long")
    >>> totals.add(["ann", "bob", "ann"], [1, 2, 3])
    >>> totals.add("ann", 10)
    >>> totals["ann"], totals.get(["bob", "cid"]).to_pylist()
    (14, [2, None])
    >>> del totals["ann"]
    >>> "ann" in totals
    False
    >>> st.close()
    """

    def __init__(self, state: object, native: _internal.AggregatingState, name: str, schema: pa.Schema) -> None:
        super().__init__(state, native, name, schema)
        self.result_type: pa.DataType = pa.schema(native.result_schema()).field(0).type
        """The Arrow type of results."""

    def add(self, keys: Any, rows: Any = None) -> None:
        """Adds one row to the aggregates of one key; or rows, one for each of many keys, which may come more than once.

        Rows are a record batch or table whose columns are found by name, or dicts, tuples or plain values, as declared;
        of a state that only counts, they are left out.

        Raises `InvalidArgument` if something does not fit the types, if a key is null, or for an overflow if ``ansi``,
        and `RetryableError` if too much was changed since the last checkpoint.
        """
        if rows is None and self.value_type.num_fields == 0 and pa.types.is_struct(self.value_type):
            self._native.add(self._keys.of(keys), None)
        elif self._keys.is_one(keys):
            self._native.add(self._keys.one(keys), array_of("row", [rows], self.value_type))
        else:
            self._native.add(self._keys.many(keys), rows_of(rows, self.value_type))

    def get(self, keys: Any, default: Any = None) -> Any:
        """The results of one key, ``default`` if nothing was added to it; or those of many keys, as an Arrow array with
        a null where nothing was added."""
        found = self._native.get(self._keys.of(keys))
        if self._keys.is_one(keys):
            # A result may itself be null.
            return default if found.null_count and keys not in self else found[0].as_py()
        return found

    def contains(self, keys: Any) -> Any:
        """Whether something was added to one key; or to which of many keys, as an Arrow array of booleans."""
        found = self._native.contains(self._keys.of(keys))
        return found[0].as_py() if self._keys.is_one(keys) else found

    def clear(self, keys: Any) -> None:
        """Forgets one key, or many. A key to which nothing was added is fine."""
        self._native.clear(self._keys.of(keys))

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._native.get(self._keys.one(key))[0].as_py()

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._native.clear(self._keys.one(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._native.contains(self._keys.one(key))[0].as_py())


def calls_of(aggregates: Sequence[Aggregate], named: Mapping[str, Aggregate]) -> str:
    """Aggregates as the core reads them."""
    given = [(None, aggregate) for aggregate in aggregates] + list(named.items())
    calls = []
    for name, aggregate in given:
        if not isinstance(aggregate, Aggregate):
            raise InvalidArgument(f"{aggregate!r} is no aggregate; give one such as n=fc.count()")
        for column in (*aggregate.args, aggregate.where):
            if not isinstance(column, str | None):
                raise InvalidArgument(f"{aggregate!r}: rows here have columns by name; give a name, not a Column")
        identity = repr(Aggregate(aggregate.fn, aggregate.args, aggregate.where, aggregate.ignore_nulls))
        only = len(given) == 1 and name is None and aggregate.name is None
        call = {"fn": aggregate.fn, "args": aggregate.args, "where": aggregate.where}
        call |= {"ignore_nulls": aggregate.ignore_nulls, "identity": identity}
        calls.append({**call, "name": None if only else name or aggregate.name or identity})
    names = [call["name"] for call in calls]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"two results are named `{name}`; name them apart: total=fc.sum(…)")
    return json.dumps(calls)
