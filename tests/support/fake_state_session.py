"""A state session, a codec and a grouper in plain Python, for tests of processors without a server.

Owns: what `SessionLike`, `Codec` and `GroupedRows` promise, written down as dicts.
Does not own: what is compared with it (the tests).
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from fastchangelog.state.session import APPEND, CLEAR, DELETE, PUT
from fastchangelog.testing.memory_session import MemorySession as FakeSession
from fastchangelog.testing.memory_session import Store

__all__ = ["APPEND", "CLEAR", "DELETE", "PUT", "FakeCodec", "FakeGrouper", "FakeSession", "Store"]


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
    """`Codec`: keys as their `repr`, values pickled behind a byte with their version, without the names of fields."""

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
