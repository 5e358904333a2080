"""A state session, a codec and a grouper in plain Python, for tests of processors without a server.

Owns: what `SessionLike`, `Codec` and `GroupedRows` promise, written down as dicts.
Does not own: what is compared with it (the tests).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import math
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

CLEAR, PUT, DELETE, APPEND = range(4)
ENTRY = pa.struct([("sub", pa.binary()), ("value", pa.binary())])


def normal(value: Any) -> Any:
    """Equal keys in one form: 0.0 for -0.0, one NaN."""
    if isinstance(value, dict):
        return {k: normal(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [normal(v) for v in value]
    if isinstance(value, float):
        return math.nan if value != value else value + 0.0
    return value


class FakeCodec:
    """`Codec`: keys as their `repr`, values pickled behind a byte with their version."""

    #: What keys were encoded, of all codecs: type, bytes → key.
    known: dict[tuple[str, bytes], Any] = {}

    def __init__(self, key: pa.DataType, value: pa.DataType, versions: Sequence[pa.DataType] = ()) -> None:
        self.key, self.value, self.versions = key, value, list(versions) or [value]
        assert self.versions[-1] == value

    def encode_keys(self, keys: pa.Array) -> pa.BinaryArray:
        assert keys.type == self.key
        assert keys.null_count == 0
        found = []
        for key in map(normal, keys.to_pylist()):
            found.append(repr(key).encode())
            self.known[str(self.key), found[-1]] = key
        return pa.array(found, pa.binary())

    def decode_keys(self, keys: pa.BinaryArray) -> pa.Array:
        return pa.array([self.known[str(self.key), key] for key in keys.to_pylist()], self.key)

    def encode_values(self, values: pa.Array) -> pa.BinaryArray:
        assert values.type == self.value
        version = bytes([len(self.versions) - 1])
        encoded = [None if v is None else version + pickle.dumps(v) for v in values.to_pylist()]
        return pa.array(encoded, pa.binary())

    def decode_values(self, values: pa.BinaryArray) -> pa.Array:
        return pa.array([None if v is None else self._newest(v) for v in values.to_pylist()], self.value)

    def _newest(self, value: bytes) -> Any:
        return _converted(pickle.loads(value[1:]), self.versions[value[0]], self.value)


def _converted(value: Any, old: pa.DataType, new: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(new):
        names = {field.name for field in old}
        return {
            f.name: _converted(value[f.name], old.field(f.name).type, f.type) if f.name in names else None for f in new
        }
    if pa.types.is_list(new):
        return [_converted(item, old.value_type, new.value_type) for item in value]
    return value


@dataclasses.dataclass
class Store:
    """What a version of a shard's state has."""

    catalog: str = "[]"
    values: dict[tuple[int, bytes], tuple[bytes, int | None]] = dataclasses.field(default_factory=dict)
    lists: dict[tuple[int, bytes], list[tuple[bytes, int | None]]] = dataclasses.field(default_factory=dict)
    maps: dict[tuple[int, bytes], dict[bytes, tuple[bytes, int | None]]] = dataclasses.field(default_factory=dict)
    timers: set[tuple[int, bytes]] = dataclasses.field(default_factory=set)


class FakeSession:
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
        self._count("get", state, "value")
        found = [self._store.values.get((state, key)) for key in keys.to_pylist()]
        return pa.array([v[0] if v is not None and self._lives(v) else None for v in found], pa.binary())

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
            skip = int.from_bytes(after, "big") if is_list else sum(1 for sub, _ in entries if sub <= after)
            entries = entries[skip:]
        else:
            skip = 0
        page, more = _page(entries, max_bytes)
        cursor = (skip + len(page)).to_bytes(8, "big") if is_list else page[-1][0] if page else None
        return pa.array(page, ENTRY), cursor if more else None

    def get_entries(self, state: int, keys: pa.BinaryArray, subs: pa.BinaryArray) -> pa.BinaryArray:
        self._count("get_entries", state, "map")
        found = [
            self._store.maps.get((state, key), {}).get(sub) for key, sub in zip(keys.to_pylist(), subs.to_pylist())
        ]
        return pa.array([v[0] if v is not None and self._lives(v) else None for v in found], pa.binary())

    def write(
        self,
        state: int,
        ops: pa.UInt8Array,
        keys: pa.BinaryArray,
        subs: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        expires_at: int | None = None,
    ) -> None:
        self._count("write", state, "value", "list", "map", "timers")
        assert ops.type == pa.uint8()
        assert (expires_at is not None) == (state in self._ttl)
        nothing = [None] * len(ops)
        columns = [nothing if column is None else column.to_pylist() for column in (subs, values)]
        for op, key, sub, value in zip(ops.to_pylist(), keys.to_pylist(), *columns, strict=True):
            self._change(state, op, key, sub, value, expires_at)

    def clear_all(self, state: int) -> None:
        for part in (self._store.values, self._store.lists, self._store.maps):
            for place in [place for place in part if place[0] == state]:
                del part[place]  # type: ignore[attr-defined]

    def due_timers(
        self, until: int, after: tuple[int, bytes] | None, limit: int
    ) -> tuple[pa.Int64Array, pa.BinaryArray]:
        self.calls["due_timers"] += 1
        due = sorted(t for t in self._store.timers if t[0] <= until and (after is None or t > after))[:limit]
        return pa.array([time for time, _ in due], pa.int64()), pa.array([key for _, key in due], pa.binary())

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

    def _entries(self, state: int, key: bytes) -> list[tuple[bytes | None, bytes]]:
        if self._kinds[state] == "list":
            return [(None, v[0]) for v in self._store.lists.get((state, key), ()) if self._lives(v)]
        return [(sub, v[0]) for sub, v in sorted(self._store.maps.get((state, key), {}).items()) if self._lives(v)]

    def _change(
        self, state: int, op: int, key: bytes, sub: bytes | None, value: bytes | None, expires_at: int | None
    ) -> None:
        kind, place, store = self._kinds[state], (state, key), self._store
        if kind == "value":
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


@dataclasses.dataclass
class FakeChunk:
    """`RowChunkLike`."""

    rows: pa.RecordBatch
    keys: pa.BinaryArray
    offsets: pa.Int64Array
    continues: bool
    more: bool


class FakeGrouper:
    """`GroupedRows`: rows of a batch sorted by the first columns, the key; `chunk_rows` overrides what is asked for."""

    def __init__(self, rows: pa.RecordBatch, key: pa.DataType, chunk_rows: int | None = None) -> None:
        self._rows, self._key, self._chunk_rows = rows, key, chunk_rows

    def finish(self, chunk_rows: int, chunk_bytes: int) -> Iterator[FakeChunk]:
        most = self._chunk_rows or chunk_rows
        columns = self._rows.columns[: self._key.num_fields]
        codec = FakeCodec(self._key, pa.binary())
        keys = codec.encode_keys(pa.StructArray.from_arrays(columns, fields=list(self._key))).to_pylist()
        order = sorted(range(len(keys)), key=lambda i: keys[i])
        groups: list[tuple[bytes, list[int]]] = []
        for i in order:
            if not groups or groups[-1][0] != keys[i]:
                groups.append((keys[i], []))
            groups[-1][1].append(i)
        parts: list[tuple[bytes, list[int]]] = []
        continues = False
        for key, rows in groups:
            while rows:
                room = most - sum(len(part) for _, part in parts)
                if room <= 0 or (parts and len(rows) > room and len(rows) <= most):
                    yield self._chunk(parts, continues, False)
                    parts, continues = [], False
                    continue
                parts.append((key, rows[:room]))
                rows = rows[room:]
                if rows:
                    yield self._chunk(parts, continues, True)
                    parts, continues = [], True
        if parts:
            yield self._chunk(parts, continues, False)

    def _chunk(self, parts: list[tuple[bytes, list[int]]], continues: bool, more: bool) -> FakeChunk:
        offsets = [0]
        for _, rows in parts:
            offsets.append(offsets[-1] + len(rows))
        taken = self._rows.take(pa.array([i for _, rows in parts for i in rows], pa.int64()))
        keys = pa.array([key for key, _ in parts], pa.binary())
        return FakeChunk(taken, keys, pa.array(offsets, pa.int64()), continues, more)
