"""A state session in memory that tests can look into; a codec and a grouper in plain Python.

Owns: what `StateCodec` and `GroupedRows` promise, in plain Python; the entries that a session leaves, its calls
counted.
Does not own: the session itself (the Rust core's), what is compared with it (the tests).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from fastchangelog._internal import StateSession
from fastchangelog.state.session import APPEND, CLEAR, DELETE, PUT

__all__ = ["APPEND", "CLEAR", "DELETE", "PUT", "FakeCodec", "FakeGrouper", "FakeSession", "Store"]


class Store:
    """The version that a session in memory committed; any number of sessions may start from it."""

    def __init__(self, session: StateSession | None = None) -> None:
        self.session = session

    @property
    def catalog(self) -> str:
        return StateSession.in_memory(self.session).catalog

    def rows(self, kind: str) -> list[tuple[int, bytes, bytes | None, bytes | None]]:
        """Number, key, `sub` (the expiry, or the time of a timer) and value of all entries of the states of a kind."""
        session = StateSession.in_memory(self.session)
        catalog = session.catalog
        session.declare(catalog, -(2**63))
        found = []
        for state in (entry["id"] for entry in json.loads(catalog) if entry["kind"] == kind):
            cursor = None
            while True:
                page, cursor = session.scan(state, cursor, 1 << 20)
                found += [(state, *row.values()) for row in page.to_pylist()]
                if cursor is None:
                    break
        return found

    @property
    def timers(self) -> set[tuple[int, bytes]]:
        rows = self.rows("timers")
        return {(int.from_bytes(sub, "big", signed=True), key) for _, key, sub, _ in rows if sub is not None}


class FakeSession:
    """`StateSession`: a session in memory that counts its calls, and whose answers may be short."""

    #: Values of one answer have at most so many bytes, unless they are of one key; None: the core's own bound.
    most_bytes: int | None = None

    def __init__(self, store: Store | None = None) -> None:
        self._session = StateSession.in_memory(None if store is None else store.session)
        #: How often each method was called.
        self.calls: collections.Counter[str] = collections.Counter()

    @classmethod
    def in_memory(cls, after: FakeSession | None = None) -> FakeSession:
        """In the place of `StateSession.in_memory`."""
        return cls(None if after is None else Store(after._session))

    @property
    def catalog(self) -> str:
        return self._session.catalog

    def declare(self, catalog: str, now_millis: int) -> None:
        self._session.declare(catalog, now_millis)

    def commit(self) -> Any:
        self._session.commit()
        return Store(self._session)

    def get(self, state: int, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.calls["get"] += 1
        return self._short(self._session.get(state, keys))

    def read_entries(self, state: int, keys: pa.BinaryArray, max_bytes_per_key: int) -> Any:
        self.calls["read_entries"] += 1
        return self._session.read_entries(state, keys, max_bytes_per_key)

    def read_page(self, state: int, key: bytes, after: bytes | None, max_bytes: int) -> Any:
        self.calls["read_page"] += 1
        return self._session.read_page(state, key, after, max_bytes)

    def get_entries(self, state: int, keys: pa.BinaryArray, subs: pa.BinaryArray) -> pa.BinaryArray:
        self.calls["get_entries"] += 1
        return self._short(self._session.get_entries(state, keys, subs))

    def write(self, state: int, ops: Any, keys: Any, subs: Any, values: Any, expires_at: int | None = None) -> None:
        self.calls["write"] += 1
        self._session.write(state, ops, keys, subs, values, expires_at)

    def clear_all(self, state: int) -> None:
        self._session.clear_all(state)

    def due_timers(self, until: int, after: tuple[int, bytes] | None, limit: int) -> Any:
        self.calls["due_timers"] += 1
        return self._session.due_timers(until, after, limit)

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        self.calls["timers_of"] += 1
        return self._session.timers_of(keys)

    def next_timer(self) -> int | None:
        return self._session.next_timer()

    def _short(self, values: pa.BinaryArray) -> pa.BinaryArray:
        if self.most_bytes is None:
            return values
        size = 0
        for i, value in enumerate(values.to_pylist()):
            size += len(value or b"")
            if i and size > self.most_bytes:
                return values.slice(0, i)
        return values


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
    """`StateCodec`: keys as their `repr`; values pickled behind a byte with their version, without names of fields."""

    #: What keys were encoded, of all codecs: type, bytes → key.
    known: dict[tuple[str, bytes], Any] = {}

    def __init__(self, key: pa.DataType, value: pa.DataType, versions: Sequence[pa.DataType] = ()) -> None:
        self.key, self.value, self.versions = key, value, list(versions) or [value]
        self.current = max(i for i, version in enumerate(self.versions) if version == value)

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
        version = bytes([self.current])
        placed = [_placed(v, self.value) for v in values.to_pylist()]
        encoded = [None if v is None else version + pickle.dumps(v) for v in placed]
        return pa.array(encoded, pa.binary())

    def decode_values(self, values: pa.BinaryArray) -> pa.Array:
        return pa.array([None if v is None else self._newest(v) for v in values.to_pylist()], self.value)

    def _newest(self, value: bytes) -> Any:
        return _converted(pickle.loads(value[1:]), self.versions[value[0]], self.value)


def _placed(value: Any, dtype: pa.DataType) -> Any:
    """A value with tuples in the place of structs."""
    if value is None:
        return None
    if pa.types.is_struct(dtype):
        return tuple(_placed(value[field.name], field.type) for field in dtype)
    if pa.types.is_list(dtype):
        return [_placed(item, dtype.value_type) for item in value]
    return value


def _converted(value: Any, old: pa.DataType, new: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(new):
        at = {field.name: i for i, field in enumerate(old)}
        return {
            f.name: _converted(value[at[f.name]], old.field(f.name).type, f.type) if f.name in at else None for f in new
        }
    if pa.types.is_list(new):
        return [_converted(item, old.value_type, new.value_type) for item in value]
    return value


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
