"""A map for each key.

Owns: Python's view of it: a mutable mapping for a single key, Arrow for many entries at once; its calls in a session.
Does not own: how entries are stored (the core), opening a state (`embedded.state`), processors (`vectorised`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import Typed, batch_size_of, pairs_of
from fastchangelog.state.in_session import Form, ValuesInSession, joined, offsets_of
from fastchangelog.state.keyed import Counted
from fastchangelog.state.keys import BatchKeys
from fastchangelog.state.session import CLEAR, DELETE
from fastchangelog.state.vector import Columns, VectorCounted

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, RowsLike, ValueLike

__all__ = ["MapInSession", "MapState", "MapView", "VectorMapState"]


class MapInSession(ValuesInSession):
    """The calls of a state of maps, as `_internal.MapState` has them, and whole maps."""

    kind = "map"

    def __init__(self, name: str, declared: pa.MapType) -> None:
        super().__init__(name, declared.item_type)
        self.map_keys = Form(declared.key_type, "key")
        self.map_key = self.map_keys.kept

    def get(self, keys: pa.BinaryArray, map_keys: pa.Array) -> pa.Array:
        """The values; null where there is none."""
        return self._read(keys, self._subs(keys, map_keys))

    def contains(self, keys: pa.BinaryArray, map_keys: pa.Array) -> pa.BooleanArray:
        """Which entries exist."""
        return joined([page.is_valid() for page in self._pages(keys, self._subs(keys, map_keys))])

    def entries(self, keys: pa.BinaryArray) -> pa.MapArray:
        """The maps; null where there are no entries."""
        counts, found = self._read_all(keys)
        map_keys = self.map_keys.shown(self._bound.decode_keys(found.field("sub")))
        values = self.form.shown(self._bound.decode_values(found.field("value")))
        return pa.MapArray.from_arrays(offsets_of(counts), map_keys, values)

    def lengths(self, keys: pa.BinaryArray) -> pa.Int64Array:
        """How many entries keys have."""
        return pa.array(self._read_all(keys)[0], pa.int64())

    def put(self, keys: pa.BinaryArray, map_keys: pa.Array, values: pa.Array) -> None:
        """Sets entries; a null deletes."""
        self._put(keys, values, self._subs(keys, map_keys))

    def delete(self, keys: pa.BinaryArray, map_keys: pa.Array) -> None:
        """Removes entries."""
        self._send(DELETE, keys, self._subs(keys, map_keys))

    def clear(self, keys: pa.BinaryArray) -> None:
        """Removes all entries of keys."""
        self._send(CLEAR, keys)

    def _subs(self, keys: pa.BinaryArray, map_keys: pa.Array) -> pa.BinaryArray:
        if self._each("map keys", map_keys, keys).null_count:
            raise InvalidArgumentError(f"{self._what}: a map key is null; leave it out")
        return self._bound.encode_keys(self.map_keys.struct(map_keys))


class VectorMapState(VectorCounted[MapInSession]):
    """A map for each key; made by `Context.map_state`. All methods take many entries at once.

    They are those of `MapState` whose names end in ``_many``, without that ending, and `entries`. Keys are
    `batch.keys`, or some of them, and may come more than once: another key is an `InvalidArgumentError`, as is a map
    key that is null, and what does not fit its type.

    Example:
        >>> import pyarrow as pa
        >>> import fastchangelog as fc
        >>> from fastchangelog.testing import run_processor
        >>> class Carts(fc.Processor):
        ...     def open(self, ctx):
        ...         self.carts = ctx.map_state("carts", "map<string, long>")
        ...     def process(self, batch):
        ...         self.carts.put(batch.row_keys, batch.rows["item"], batch.rows["n"])
        ...         yield pa.record_batch({"u": batch.keys.field("user"), "n": self.carts.length(batch.keys)})
        >>> rows = pa.record_batch({"user": ["ann", "ann"], "item": ["fig", "kiwi"], "n": [1, 2]})
        >>> run_processor(Carts(), [rows])[0].to_pylist()
        [{'u': 'ann', 'n': 2}]
    """

    def __init__(self, name: str, declared: pa.MapType, keys: BatchKeys) -> None:
        super().__init__(name, declared.item_type, keys, MapInSession(name, declared))
        self._map_keys = Columns(f"state `{name}`: map key", declared.key_type)
        self.map_key_type: pa.DataType = declared.key_type
        """The Arrow type of map keys."""

    def get(self, keys: ArrowArrayLike, map_keys: RowsLike) -> pa.Array:
        """The values of entries.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            map_keys: As many keys in their maps.

        Returns:
            An array of one value for each entry, null where there is none.

        Example: see the class.
        """
        return self.calls.get(self._keys.many(keys), self._map_keys.many(map_keys))

    def contains(self, keys: ArrowArrayLike, map_keys: RowsLike) -> pa.BooleanArray:
        """Which entries there are.

        Args:
            keys: As of `get`.
            map_keys: As of `get`.

        Returns:
            An array of one answer for each entry.

        Example: see the class.
        """
        return self.calls.contains(self._keys.many(keys), self._map_keys.many(map_keys))

    def entries(self, keys: ArrowArrayLike) -> pa.MapArray:
        """The whole maps of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one map for each key, in the order of map keys; null where there are no entries.

        Example: see the class.
        """
        return self.calls.entries(self._keys.many(keys))

    def put(self, keys: ArrowArrayLike, map_keys: RowsLike, values: RowsLike) -> None:
        """Sets entries.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            map_keys: As many keys in their maps; of equal entries the last counts.
            values: As many values; a null deletes.

        Example: see the class.
        """
        self.calls.put(self._keys.many(keys), self._map_keys.many(map_keys), self._values.many(values))

    def delete(self, keys: ArrowArrayLike, map_keys: RowsLike) -> None:
        """Removes entries; those that are not there are fine.

        Args:
            keys: As of `get`.
            map_keys: As of `get`.

        Example: see the class.
        """
        self.calls.delete(self._keys.many(keys), self._map_keys.many(map_keys))


class MapState(Counted[_internal.MapState]):
    """A map for each key; made by `State.map_state`. Any thread may use it.

    ``maps[key]`` is a view of one map, a mutable mapping in the order of its map keys, also of a key without entries.
    The methods that end in ``_many`` take many entries at once, in Arrow. Each entry is stored by itself: a map may be
    larger than memory. A batch is applied as a whole or not at all.

    Example:
        >>> import fastchangelog as fc
        >>> st = fc.open_state("memory://docs/maps")
        >>> carts = st.map_state("carts", key="string", map_key="string", value="int")
        >>> carts["ann"]["pear"] = 1
        >>> carts["ann"].update(apple=2, fig=3)
        >>> del carts["ann"]["fig"]
        >>> dict(carts["ann"]), "plum" in carts["ann"], len(carts["bob"])
        ({'apple': 2, 'pear': 1}, False, 0)
        >>> carts.put_many(["ann", "bob"], ["apple", "kiwi"], [5, 6])
        >>> carts.get_many(["ann", "bob", "bob"], ["apple", "kiwi", "fig"]).to_pylist()
        [5, 6, None]
        >>> carts["ann"].get_many(["pear", "fig"]).to_pylist()
        [1, None]
        >>> st.close()
    """

    def __init__(self, state: object, native: _internal.MapState, name: str, schema: pa.Schema) -> None:
        super().__init__(state, native, name, schema)
        self._map_keys = Typed("map key", schema.field("map_key").type)
        self.map_key_type: pa.DataType = self._map_keys.type
        """The Arrow type of map keys."""

    def get(self, key: KeyLike, map_key: KeyLike, default: PythonValue = None) -> PythonValue:
        """The value of one entry.

        Args:
            key: The key.
            map_key: The key in its map.
            default: The result if there is no such entry.

        Returns:
            The value as Python has it.

        Raises:
            InvalidArgumentError: A key does not fit its type.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/map/get") as st:
            ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
            ...     carts.put("ann", "pear", 1)
            ...     carts.get("ann", "pear"), carts.get("ann", "fig"), carts.get("ann", "fig", 0)
            (1, None, 0)
        """
        found = self._native.get(self._keys.one(key), self._map_keys.one(map_key))
        return found[0].as_py() if found.null_count == 0 else default

    def get_many(self, keys: ArrowArrayLike, map_keys: ArrowArrayLike) -> pa.Array:
        """The values of many entries. Many entries of one key: ``maps[key].get_many(map_keys)``.

        Args:
            keys: The keys.
            map_keys: As many keys in their maps.

        Returns:
            An array of one value for each entry, null where there is none.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null, or the lengths differ.

        Example: see the class.
        """
        return self._native.get(self._keys.many(keys), self._map_keys.many(map_keys))

    def put(self, key: KeyLike, map_key: KeyLike, value: ValueLike) -> None:
        """Sets one entry.

        Args:
            key: The key.
            map_key: The key in its map.
            value: The value; None deletes.

        Raises:
            InvalidArgumentError: Something does not fit the types, or a key is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `get`.
        """
        self._native.put(self._keys.one(key), self._map_keys.one(map_key), self._values.one(value))

    def put_many(self, keys: ArrowArrayLike, map_keys: ArrowArrayLike, values: ArrowArrayLike) -> None:
        """Sets many entries.

        Args:
            keys: The keys.
            map_keys: As many keys in their maps; of equal entries the last counts.
            values: As many values; a null deletes.

        Raises:
            InvalidArgumentError: Something does not fit the types, a key is null, or the lengths differ.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see the class.
        """
        data = self._values.many(values)
        self._native.put(self._keys.many(keys), self._map_keys.many(map_keys), data)

    def delete(self, key: KeyLike, map_key: KeyLike) -> None:
        """Removes one entry. One that is not there is fine.

        Args:
            key: The key.
            map_key: The key in its map.

        Raises:
            InvalidArgumentError: A key does not fit its type.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/map/delete") as st:
            ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
            ...     carts["ann"] = {"pear": 1, "fig": 2, "kiwi": 3}
            ...     carts.delete("ann", "pear")
            ...     carts.delete_many(["ann", "bob"], ["fig", "fig"])
            ...     carts.contains_many(["ann", "ann"], ["fig", "kiwi"]).to_pylist()
            [False, True]
        """
        self._native.delete(self._keys.one(key), self._map_keys.one(map_key))

    def delete_many(self, keys: ArrowArrayLike, map_keys: ArrowArrayLike) -> None:
        """Removes many entries. Those that are not there are fine.

        Args:
            keys: The keys.
            map_keys: As many keys in their maps.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null, or the lengths differ.

        Example: see `delete`.
        """
        self._native.delete(self._keys.many(keys), self._map_keys.many(map_keys))

    def contains_many(self, keys: ArrowArrayLike, map_keys: ArrowArrayLike) -> pa.BooleanArray:
        """Which of many entries exist.

        Args:
            keys: The keys.
            map_keys: As many keys in their maps.

        Returns:
            An array of booleans, one for each entry.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null, or the lengths differ.

        Example: see `delete`.
        """
        return self._native.contains(self._keys.many(keys), self._map_keys.many(map_keys))

    def scan(
        self,
        *,
        key: KeyLike | None = None,
        start: KeyLike | None = None,
        end: KeyLike | None = None,
        prefix: KeyLike | None = None,
        batch_size: int = 65_536,
    ) -> Iterator[pa.RecordBatch]:
        """Entries as record batches, in the order of keys, then of map keys.

        Args:
            key: With it only its entries come, and the bounds are of map keys.
            start: First key, as of `ValueState.scan`.
            end: One past the last key.
            prefix: What all keys begin with.
            batch_size: Most rows of a batch.

        Returns:
            An iterator of record batches with the columns ``key``, ``map_key`` and ``value``.

        Raises:
            InvalidArgumentError: A bound does not fit its type, or the batch size is below 1.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/maps/scan") as st:
            ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
            ...     carts.put_many(["ann", "ann", "bob"], ["apple", "pear", "apple"], [1, 2, 3])
            ...     for bounds in ({"start": "b"}, {"key": "ann", "prefix": "p"}):
            ...         print([batch.to_pydict() for batch in carts.scan(**bounds)])
            [{'key': ['bob'], 'map_key': ['apple'], 'value': [3]}]
            [{'key': ['ann'], 'map_key': ['pear'], 'value': [2]}]
        """
        bounded = self._keys if key is None else self._map_keys
        first, last, beginning = map(bounded.leading, (start, end, prefix))
        one = None if key is None else self._keys.one(key)
        return self._native.scan(one, first, last, beginning, batch_size_of(batch_size))

    def _pairs(self) -> Iterator[tuple[PythonValue, dict[PythonValue, PythonValue]]]:
        rows = (
            row
            for batch in self.scan()
            for row in zip(batch["key"].to_pylist(), batch["map_key"].to_pylist(), batch["value"].to_pylist())
        )
        for key, entries in groupby(rows, itemgetter(0)):
            yield key, {map_key: value for _, map_key, value in entries}

    def __iter__(self) -> Iterator[PythonValue]:
        keys = (key for batch in self.scan() for key in batch["key"].to_pylist())
        return (key for key, _ in groupby(keys))

    def __getitem__(self, key: KeyLike) -> MapView:
        return MapView(self, key)

    def __setitem__(self, key: KeyLike, entries: Mapping[Any, ValueLike]) -> None:
        map_keys = self._map_keys.many(list(entries))
        values = self._values.many(list(entries.values()))
        self.clear(key)
        self._native.put(self._keys.one(key), map_keys, values)

    def __contains__(self, key: object) -> bool:
        if self._keys.found(key) is None:
            return False
        return next(iter(self.scan(key=key, batch_size=1)), None) is not None

    def __bool__(self) -> bool:
        return next(iter(self.scan(batch_size=1)), None) is not None


class MapView(MutableMapping["KeyLike", "PythonValue"]):
    """The map of one key: what ``maps[key]`` gives. Nothing is kept in it; each call reads or changes the state.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/map/view") as st:
        ...     ann = st.map_state("carts", key="string", map_key="string", value="int")["ann"]
        ...     ann.put_many(["pear", "fig"], [1, 2])
        ...     ann.delete_many(["fig"])
        ...     dict(ann), ann.contains_many(["pear", "fig"]).to_pylist()
        ({'pear': 1}, [True, False])
    """

    def __init__(self, maps: MapState, key: KeyLike) -> None:
        self._maps = maps
        self._key = key

    def get_many(self, map_keys: ArrowArrayLike) -> pa.Array:
        """The values of many entries of this key, null where there is none; see `MapState.get_many`."""
        maps = self._maps
        return maps._native.get(maps._keys.one(self._key), maps._map_keys.many(map_keys))

    def put_many(self, map_keys: ArrowArrayLike, values: ArrowArrayLike) -> None:
        """Sets many entries of this key; see `MapState.put_many`."""
        maps = self._maps
        data = maps._values.many(values)
        maps._native.put(maps._keys.one(self._key), maps._map_keys.many(map_keys), data)

    def delete_many(self, map_keys: ArrowArrayLike) -> None:
        """Removes many entries of this key; see `MapState.delete_many`."""
        maps = self._maps
        maps._native.delete(maps._keys.one(self._key), maps._map_keys.many(map_keys))

    def contains_many(self, map_keys: ArrowArrayLike) -> pa.BooleanArray:
        """Which of many entries of this key exist; see `MapState.contains_many`."""
        maps = self._maps
        return maps._native.contains(maps._keys.one(self._key), maps._map_keys.many(map_keys))

    def __getitem__(self, map_key: KeyLike) -> PythonValue:
        found = self._maps._native.get(self._maps._keys.one(self._key), self._maps._map_keys.one(map_key))
        if found.null_count:
            raise KeyError(map_key)
        return found[0].as_py()

    def __setitem__(self, map_key: KeyLike, value: ValueLike) -> None:
        self._maps.put(self._key, map_key, value)

    def __delitem__(self, map_key: KeyLike) -> None:
        self._maps._map_keys.one(map_key)  # refuses what is no key
        if map_key not in self:
            raise KeyError(map_key)
        self._maps.delete(self._key, map_key)

    def __contains__(self, map_key: object) -> bool:
        maps = self._maps
        one = maps._map_keys.found(map_key)
        return one is not None and bool(maps._native.contains(maps._keys.one(self._key), one)[0].as_py())

    def __iter__(self) -> Iterator[PythonValue]:
        for batch in self._maps.scan(key=self._key):
            yield from batch["map_key"].to_pylist()

    def __len__(self) -> int:
        return self._maps._length(self._key)

    def __bool__(self) -> bool:
        return self._key in self._maps

    def update(self, *others: Any, **named: ValueLike) -> None:
        """Sets entries, as that of dicts; all or nothing."""
        map_keys, values = pairs_of(others, named)
        self.put_many(map_keys, values)

    def clear(self) -> None:
        """Removes all entries."""
        self._maps.clear(self._key)

    def __repr__(self) -> str:
        return f"MapView({self._maps.name!r}, {self._key!r})"
