"""A state session in plain Python: what a shard's session at the state server promises, over dicts.

Owns: states of all kinds, their time to live, timers, versions.
Does not own: types (all is bytes), who uses it (`run_processor`, tests of processors).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import struct
from collections.abc import Iterable

import pyarrow as pa

from fastchangelog.state.session import APPEND, CLEAR, DELETE, PUT

__all__ = ["ENTRY", "MemorySession", "Store"]

#: Values of one answer have at most so many bytes, unless they are of one key.
_READ_BYTES = 64 * 1024 * 1024

#: Of lists and maps.
ENTRY = pa.struct([("sub", pa.binary()), ("value", pa.binary())])


@dataclasses.dataclass
class Store:
    """What a version of a shard's state has."""

    catalog: str = "[]"
    values: dict[tuple[int, bytes], tuple[bytes, int | None]] = dataclasses.field(default_factory=dict)
    lists: dict[tuple[int, bytes], list[tuple[bytes, int | None]]] = dataclasses.field(default_factory=dict)
    maps: dict[tuple[int, bytes], dict[bytes, tuple[bytes, int | None]]] = dataclasses.field(default_factory=dict)
    timers: set[tuple[int, bytes]] = dataclasses.field(default_factory=set)


class MemorySession:
    """`SessionLike` over a `Store`: `commit` gives the next version, without it nothing is kept."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = copy.deepcopy(store) if store is not None else Store()
        self._now: int | None = None
        self._kinds: dict[int, str] = {}
        self._ttl: set[int] = set()
        #: How often each method was called.
        self.calls: collections.Counter[str] = collections.Counter()

    @property
    def catalog(self) -> str:
        return self._store.catalog

    def declare(self, catalog: str, now_millis: int) -> None:
        assert self._now is None, "declared twice"
        entries = {entry["id"]: entry for entry in json.loads(catalog)}
        assert len(entries) == len(json.loads(catalog)) == len({entry["name"] for entry in entries.values()})
        for stored in json.loads(self._store.catalog):
            now = entries[stored["id"]]
            for part in ("name", "kind", "ttl", "encoding"):
                assert stored[part] == now[part]
        self._store.catalog, self._now = catalog, now_millis
        self._kinds = {number: entry["kind"] for number, entry in entries.items()}
        self._ttl = {number for number, entry in entries.items() if entry["ttl"]}

    def commit(self) -> Store:
        return self._store

    def get(self, state: int, keys: pa.BinaryArray) -> pa.BinaryArray:
        self._count("get", state, "value", "aggregating")
        return self._first(self._store.values.get((state, key)) for key in keys.to_pylist())

    def read_entries(
        self, state: int, keys: pa.BinaryArray, max_bytes_per_key: int
    ) -> tuple[pa.ListArray, pa.BooleanArray]:
        self._count("read_entries", state, "list", "map")
        pages = [_page(self._entries(state, key), max_bytes_per_key) for key in keys.to_pylist()]
        lists = pa.array([page for page, _ in pages], pa.list_(ENTRY))
        return lists, pa.array([more for _, more in pages], pa.bool_())

    def read_page(
        self, state: int, key: bytes, after: bytes | None, max_bytes: int
    ) -> tuple[pa.StructArray, bytes | None]:
        self._count("read_page", state, "list", "map")
        entries = self._entries(state, key)
        is_list = self._kinds[state] == "list"
        if after is not None:
            skip = (
                int.from_bytes(after, "big")
                if is_list
                else sum(1 for sub, _ in entries if sub is not None and sub <= after)
            )
            entries = entries[skip:]
        else:
            skip = 0
        page, more = _page(entries, max_bytes)
        cursor = (skip + len(page)).to_bytes(8, "big") if is_list else page[-1][0] if page else None
        return pa.array(page, ENTRY), cursor if more else None

    def get_entries(self, state: int, keys: pa.BinaryArray, subs: pa.BinaryArray) -> pa.BinaryArray:
        self._count("get_entries", state, "map")
        pairs = zip(keys.to_pylist(), subs.to_pylist())
        return self._first(self._store.maps.get((state, key), {}).get(sub) for key, sub in pairs)

    def write(
        self,
        state: int,
        ops: pa.UInt8Array,
        keys: pa.BinaryArray,
        subs: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        expires_at: int | None = None,
    ) -> None:
        self._count("write", state, "value", "list", "map", "aggregating", "timers")
        assert ops.type == pa.uint8()
        assert (expires_at is not None) == (state in self._ttl)
        nothing = [None] * len(ops)
        columns = [nothing if column is None else column.to_pylist() for column in (subs, values)]
        for op, key, sub, value in zip(ops.to_pylist(), keys.to_pylist(), *columns, strict=True):
            self._change(state, op, key, sub, value, expires_at)

    def clear_all(self, state: int) -> None:
        for part in (self._store.values, self._store.lists, self._store.maps):
            for place in [place for place in part if place[0] == state]:
                del part[place]

    def due_timers(
        self, until: int, after: tuple[int, bytes] | None, limit: int
    ) -> tuple[pa.Int64Array, pa.BinaryArray, bool]:
        self.calls["due_timers"] += 1
        due = sorted(t for t in self._store.timers if t[0] <= until and (after is None or t > after))
        more, due = len(due) > limit, due[:limit]
        return pa.array([time for time, _ in due], pa.int64()), pa.array([key for _, key in due], pa.binary()), more

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        self.calls["timers_of"] += 1
        found = [sorted(time for time, owner in self._store.timers if owner == key) for key in keys.to_pylist()]
        return pa.array(found, pa.list_(pa.int64()))

    def next_timer(self) -> int | None:
        return min((time for time, _ in self._store.timers), default=None)

    def _count(self, method: str, state: int, *kinds: str) -> None:
        assert self._now is not None, "nothing was declared"
        assert self._kinds[state] in kinds
        self.calls[method] += 1

    def _lives(self, value: tuple[bytes, int | None]) -> bool:
        assert self._now is not None
        return value[1] is None or value[1] > self._now

    def _first(self, stored: Iterable[tuple[bytes, int | None] | None]) -> pa.BinaryArray:
        """The first values, as many as one answer may have."""
        found: list[bytes | None] = []
        size = 0
        for value in stored:
            size += len(value[0]) if value is not None else 0
            if found and size > _READ_BYTES:
                break
            found.append(value[0] if value is not None and self._lives(value) else None)
        return pa.array(found, pa.binary())

    def _entries(self, state: int, key: bytes) -> list[tuple[bytes | None, bytes]]:
        if self._kinds[state] == "list":
            return [(None, v[0]) for v in self._store.lists.get((state, key), ()) if self._lives(v)]
        return [(sub, v[0]) for sub, v in sorted(self._store.maps.get((state, key), {}).items()) if self._lives(v)]

    def _change(
        self, state: int, op: int, key: bytes, sub: bytes | None, value: bytes | None, expires_at: int | None
    ) -> None:
        kind, place, store = self._kinds[state], (state, key), self._store
        if kind in ("value", "aggregating"):
            assert sub is None
            if op == PUT:
                assert value is not None
                store.values[place] = (value, expires_at)
            else:
                assert op in (CLEAR, DELETE)
                store.values.pop(place, None)
        elif kind == "list":
            assert sub is None
            if op == APPEND:
                assert value is not None
                store.lists.setdefault(place, []).append((value, expires_at))
            else:
                assert op == CLEAR
                store.lists.pop(place, None)
        elif kind == "map":
            entries = store.maps.setdefault(place, {})
            if op == PUT:
                assert sub is not None
                assert value is not None
                entries[sub] = (value, expires_at)
            elif op == DELETE:
                assert sub is not None
                entries.pop(sub, None)
            else:
                assert op == CLEAR
                assert sub is None
                entries.clear()
        else:
            assert sub is not None
            assert value is None
            timer = struct.unpack(">q", sub)[0], key
            store.timers.add(timer) if op == PUT else store.timers.discard(timer)


def _page(entries: list[tuple[bytes | None, bytes]], max_bytes: int) -> tuple[list[tuple[bytes | None, bytes]], bool]:
    """The first entries of at most so many bytes, at least one, and whether there are more."""
    size = 0
    for i, (sub, value) in enumerate(entries):
        size += len(value) + len(sub or b"")
        if size > max_bytes and i > 0:
            return entries[:i], True
    return entries, False
