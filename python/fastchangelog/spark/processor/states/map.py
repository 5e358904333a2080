"""A map for each key: what `getMapState` gives.

Owns: PySpark's `MapState` over the cache of the keys in work.
Does not own: keys and values (`types.state_type`), pages, sending and scope (`cache`).

`updateValue`, `removeKey` and `clear` read nothing. `getValue` and `containsKey` read the first entries of the keys in
work; of a map that has more, the one entry that is asked for. Iterators give entries of the store in the order of their
keys' bytes, then those that were added since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState

from fastchangelog.spark.processor.states.cache import (
    CLEAR,
    DELETE,
    PUT,
    CachedState,
    EntryPages,
    Scope,
)
from fastchangelog.spark.processor.states.order import spark_order
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.state_type import Refused, StateType
from fastchangelog.spark.types.values import has_floats

__all__ = ["ProcessorMapState"]

Fields = tuple[Any, ...]

#: Stands for an entry that was not read.
_UNREAD: Any = object()


class _Map:
    """The map of one key: entries that were read (None: there is none), and those that were changed since."""

    __slots__ = ("changed", "is_cleared", "is_complete", "known")

    def __init__(self) -> None:
        self.known: dict[Fields, Fields | None] | None = None
        self.is_complete = False
        self.changed: dict[Fields, Fields | None] = {}
        self.is_cleared = False


class ProcessorMapState(CachedState, MapState):
    """PySpark's `MapState`; maps of many keys are read in one call, and changes written back in one."""

    kind = "map"

    def __init__(self, name: str, scope: Scope, key_type: StateType, value_type: StateType) -> None:
        CachedState.__init__(self, name, scope, value_type)
        self._key_type = key_type
        self._admit_key = key_type.admit
        self._value_row = row_class(value_type.names)
        self._is_changeable = value_type.is_seen_changeable
        self._has_floats = has_floats(key_type.struct)
        self._order = spark_order(key_type.struct)
        self._pages = EntryPages(self, self._decode)
        self._maps: dict[int, _Map] = {}

    def exists(self) -> bool:
        """Whether the map of the key has an entry."""
        at = self._at("exists")
        found = self._map(at)
        if any(row is not None for row in found.changed.values()):
            return True
        return next(self._entries(found, at), None) is not None

    def getValue(self, key: Any) -> Any:
        """The value of an entry as a Row, None if there is no such entry."""
        at = self._at("getValue")
        entry = self._key(key)
        found = self._map(at)
        value: Fields | None
        if entry in found.changed:
            value = found.changed[entry]
            if value is not None:
                value = self._type.shown(value)
        else:
            value = self._look_up(found, at, entry)
            if value is not None and self._is_changeable:
                value = self._type.given(value)
        return None if value is None else self._value_row(value)

    def containsKey(self, key: Any) -> bool:
        """Whether there is such an entry."""
        at = self._at("containsKey")
        entry = self._key(key)
        found = self._map(at)
        if entry in found.changed:
            return found.changed[entry] is not None
        return self._look_up(found, at, entry) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        """Sets the value of an entry."""
        at = self._at("updateValue")
        entry = self._key(key)
        try:
            row = self._admit(value)
        except Refused as refused:
            raise self._refused(refused.within(f"[{key!r}]")) from None
        self._map(at).changed[entry] = row
        self._count(1)

    def iterator(self) -> Iterator[tuple[Fields, Fields]]:
        """Keys and values of all entries, as they are at the first `next`."""
        at = self._at("iterator")
        entries = self._in_order(self._map(at), at)
        shown = self._key_type.shown
        if self._key_type.is_plain:
            yield from entries
        else:
            for key, value in entries:
                yield shown(key), value

    def keys(self) -> Iterator[Fields]:
        """The keys of all entries, as they are at the first `next`."""
        at = self._at("keys")
        shown = self._key_type.shown
        for key, _ in self._in_order(self._map(at), at):
            yield shown(key)

    def values(self) -> Iterator[Fields]:
        """The values of all entries, as they are at the first `next`."""
        at = self._at("values")
        for _, value in self._in_order(self._map(at), at):
            yield value

    def removeKey(self, key: Any) -> None:
        """Removes an entry; a missing one is none to remove."""
        at = self._at("removeKey")
        self._map(at).changed[self._key(key)] = None
        self._count(1)

    def clear(self) -> None:
        """Removes all entries of the key."""
        found = self._map(self._at("clear"))
        found.changed = {}
        found.known, found.is_complete, found.is_cleared = {}, True, True
        self._count(1)

    def open(self, count: int) -> None:
        """See `CachedState`."""
        self._pages.drop()
        self._maps = {}
        self._pending = 0

    def forget(self) -> None:
        """See `CachedState`."""
        for found in self._maps.values():
            if not found.is_cleared:
                found.known, found.is_complete = None, False

    def _write_changes(self) -> None:
        """See `CachedState`."""
        ops: list[int] = []
        places: list[int] = []
        keys: list[Fields] = []
        rows: list[Fields | None] = []
        for at, found in self._maps.items():
            if found.is_cleared:
                ops.append(CLEAR)
                places.append(at)
                rows.append(None)
            if found.changed:
                places += [at] * len(found.changed)
                keys += found.changed
                values = found.changed.values()
                rows += values
                ops += [PUT] * len(values) if None not in values else [DELETE if v is None else PUT for v in values]
        self.open(0)
        if not ops:
            return
        subs = pa.nulls(len(ops), pa.binary())
        if keys:
            entries = [i for i, op in enumerate(ops) if op != CLEAR]
            owners = places if len(entries) == len(ops) else [places[i] for i in entries]
            subs = self.codec.encode_keys(self._columns(self._key_type, keys, owners))
            if len(entries) < len(ops):
                numbers = iter(range(len(entries)))
                subs = subs.take(pa.array([None if op == CLEAR else next(numbers) for op in ops], pa.int64()))
        encoded = self.codec.encode_values(self._columns(self._type, rows, places))
        self._send(ops, places, subs, encoded)

    def _map(self, at: int) -> _Map:
        found = self._maps.get(at)
        if found is None:
            found = self._maps[at] = _Map()
        return found

    def _key(self, key: Any) -> Fields:
        """The exact key of an entry."""
        try:
            row = self._admit_key(key)
        except Refused as refused:
            raise self._refused(refused, self._key_type) from None
        return _normal(row) if self._has_floats else row

    def _look_up(self, found: _Map, at: int, entry: Fields) -> Fields | None:
        """The stored value of an entry, as it is kept."""
        known = self._known(found, at)
        value = known.get(entry, _UNREAD)
        if value is _UNREAD:
            if found.is_complete:
                return None
            keys = pa.array([self._scope.key_bytes(at)], pa.binary())
            subs = self.codec.encode_keys(self._columns(self._key_type, [entry], [at]))
            encoded = self.session.get_entries(self._id, keys, subs)
            value = known[entry] = self._type.kept_rows(self.codec.decode_values(encoded))[0]
        return value  # type: ignore[no-any-return]

    def _known(self, found: _Map, at: int) -> dict[Fields, Fields | None]:
        """The first entries of a key."""
        if found.known is None:
            entries, found.is_complete = self._pages.first(at)
            found.known = dict(entries)
        return found.known

    def _in_order(self, found: _Map, at: int) -> Iterator[tuple[Fields, Fields]]:
        """`_entries` in the order of Spark's store, if all of them are in memory."""
        known = self._known(found, at)
        order = self._order
        if order is None or not found.is_complete or len(known) + len(found.changed) < 2:
            return self._entries(found, at)
        return iter(sorted(self._entries(found, at), key=lambda entry: order(entry[0])))

    def _entries(self, found: _Map, at: int) -> Iterator[tuple[Fields, Fields]]:
        """Exact keys and shown values of all entries, as they are now."""
        known = self._known(found, at)
        stored: Iterable[tuple[Fields, Any]] = known.items() if found.is_complete else self._pages.all(at)
        if self._is_changeable:
            given, kept = self._type.given, stored
            stored = ((key, given(value)) for key, value in kept)
        return self._merged(stored, dict(found.changed)) if found.changed else iter(stored)

    def _merged(
        self, stored: Iterable[tuple[Fields, Any]], changed: dict[Fields, Fields | None]
    ) -> Iterator[tuple[Fields, Fields]]:
        shown = self._type.shown
        for key, value in stored:
            if key in changed:
                row = changed.pop(key)
                if row is not None:
                    yield key, shown(row)
            else:
                yield key, value
        for key, row in changed.items():
            if row is not None:
                yield key, shown(row)

    def _decode(self, subs: pa.BinaryArray, values: pa.BinaryArray) -> list[Any]:
        keys = self._key_type.rows(self.codec.decode_keys(subs))
        return list(zip(keys, self._type.kept_rows(self.codec.decode_values(values))))


def _normal(value: Any) -> Any:
    """The value with 0.0 in the place of -0.0: they are one key."""
    if type(value) is tuple:
        return tuple([_normal(part) for part in value])
    return 0.0 if type(value) is float and value == 0 else value
