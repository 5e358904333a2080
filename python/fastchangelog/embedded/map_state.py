"""A map for each key.

Owns: Python's view of it: a mutable mapping for a single key, Arrow for many entries at once.
Does not own: how entries are stored (the core), opening a state (`embedded.state`).

Any thread may use it. Many keys are a list, a numpy or Arrow array, or another iterable; one key is anything else, or a
dict or tuple if the key has names. A batch is applied as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.arrow import Keys, array_of, batch_size_of
from fastchangelog.embedded.keyed import Keyed

__all__ = ["MapState", "MapView"]


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
        where there is none. A scalar is broadcast against an array."""
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
