"""A state of a processor: its place in the session, typed columns in and out.

Owns: what all kinds share: binding, the form in which values are kept, reads and writes of bounded size.
Does not own: what a kind sends (its own module), what user code sees (`vector`), the codec (the core).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.state.session import DELETE, PUT, read_all_entries

__all__ = ["Form", "InSession", "ValuesInSession", "joined", "offsets_of", "one_each"]

#: Keys of the first read, and the bytes that a message aims at.
_FIRST_READ = 256
_MESSAGE_BYTES = 16 * 1024 * 1024


class Form:
    """A declared type, and the struct that is kept for it: a plain type is a field of its own.

    >>> form = Form(pa.int64(), "value")
    >>> form.kept, form.shown(form.struct(pa.array([1, None]))).to_pylist()
    (StructType(struct<value: int64>), [1, None])
    """

    def __init__(self, declared: pa.DataType, name: str) -> None:
        self.declared = declared
        self._plain = not pa.types.is_struct(declared)
        self.kept: pa.DataType = pa.struct([pa.field(name, declared)]) if self._plain else declared

    def struct(self, given: pa.Array) -> pa.StructArray:
        """Values of the declared type as those that are kept."""
        if not self._plain:
            return given
        return pa.StructArray.from_arrays([given], fields=list(self.kept), mask=given.is_null())

    def shown(self, kept: pa.StructArray) -> pa.Array:
        """The inverse of `struct`."""
        return kept.flatten()[0] if self._plain else kept


class InSession:
    """The place of a state in a session. Keys are those in work, as bytes."""

    _session: _internal.StateSession
    _id: int
    _codec: _internal.StateCodec | None
    _expires_at: int | None

    def bind(
        self,
        session: _internal.StateSession,
        state_id: int,
        codec: _internal.StateCodec | None = None,
        expires_at: int | None = None,
    ) -> None:
        """Gives the state its place. Timers and accumulators have no codec."""
        self._session, self._id, self._codec, self._expires_at = session, state_id, codec, expires_at

    def _send(
        self, ops: Any, keys: pa.BinaryArray, subs: pa.BinaryArray | None = None, values: pa.BinaryArray | None = None
    ) -> None:
        """Sends changes in order, of one operation or one for each key, in messages of bounded size."""
        size = sum(column.nbytes for column in (keys, subs, values) if column is not None)
        ops = np.full(len(keys), ops, np.uint8)
        if len(ops) > 1 and size > _MESSAGE_BYTES:
            half = len(ops) // 2
            for part in (slice(0, half), slice(half, None)):
                sub, value = (None if column is None else column[part] for column in (subs, values))
                self._send(ops[part], keys[part], sub, value)
        elif len(ops):
            self._session.write(self._id, pa.array(ops), keys, subs, values, self._expires_at)


class ValuesInSession(InSession):
    """A state of values of a declared type."""

    #: As catalogs name it.
    kind: str
    #: Of a map: the struct of its keys.
    map_key: pa.DataType | None = None
    #: Of aggregates.
    layout: AccumulatorLayout | None = None

    def __init__(self, name: str, declared: pa.DataType) -> None:
        self.form = Form(declared, "value")
        self._what = f"state `{name}`"
        self._width = _FIRST_READ

    @property
    def _bound(self) -> _internal.StateCodec:
        assert self._codec is not None
        return self._codec

    def _each(self, name: str, given: pa.Array, keys: pa.BinaryArray) -> pa.Array:
        return one_each(self._what, name, given, keys)

    def _pages(self, keys: pa.BinaryArray, subs: pa.BinaryArray | None = None) -> Iterator[pa.BinaryArray]:
        """Encoded values of keys, or of entries, in parts of bounded size; one at least."""
        start, count = 0, len(keys)
        while True:
            asked = min(self._width, count - start)
            part = keys.slice(start, asked)
            if subs is None:
                found = self._session.get(self._id, part)
            else:
                found = self._session.get_entries(self._id, part, subs.slice(start, asked))
            start += len(found)
            each = max(found.nbytes // max(len(found), 1), 1)
            self._width = max(min(self._width * 8, _MESSAGE_BYTES // each), 1)
            yield found
            if start == count:
                return

    def _read(self, keys: pa.BinaryArray, subs: pa.BinaryArray | None = None) -> pa.Array:
        """The values of keys, or of entries."""
        return self.form.shown(joined([self._bound.decode_values(page) for page in self._pages(keys, subs)]))

    def _read_all(self, keys: pa.BinaryArray) -> tuple[Any, pa.StructArray]:
        """How many elements or entries each key has, and those of all keys, as bytes."""
        return read_all_entries(self._session, self._id, keys)

    def _put(self, keys: pa.BinaryArray, values: pa.Array, subs: pa.BinaryArray | None = None) -> None:
        """Sets values; a null deletes."""
        given = self.form.struct(self._each("values", values, keys))
        absent = given.is_null().to_numpy(zero_copy_only=False)
        self._send(np.where(absent, DELETE, PUT), keys, subs, self._bound.encode_values(given))


def one_each(what: str, name: str, given: pa.Array, keys: pa.Array) -> pa.Array:
    """What is given, if that is one for each key."""
    if len(given) != len(keys):
        raise InvalidArgumentError(f"{what}: {len(keys)} keys and {len(given)} {name}; give one for each")
    return given


def joined(parts: list[pa.Array]) -> pa.Array:
    """The arrays as one."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def offsets_of(counts: Any) -> pa.Int32Array:
    """Offsets of lists of so many elements; those of none are null."""
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.array(ends, mask=np.append(counts == 0, False))
