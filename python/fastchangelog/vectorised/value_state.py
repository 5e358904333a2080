"""One value for each key, for many keys at once.

Owns: what user code sees of it, Arrow in and out, and the errors for what does not fit.
Does not own: the session that reads and writes bytes, the codec (the core).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog.embedded.arrow import many_of
from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike

__all__ = ["BatchKeys", "Codec", "Session", "VectorValueState"]

_PUT, _DELETE = 1, 2
#: Keys of the first read, and the bytes that one aims at.
_FIRST_READ = 256
_READ_BYTES = 16 * 1024 * 1024


class Session(Protocol):
    """A shard's state in one batch, as far as value states need it."""

    def get(self, state: int, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Values, null where there are none."""

    def write(
        self,
        state: int,
        ops: pa.UInt8Array,
        keys: pa.BinaryArray,
        subs: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        expires_at: int | None = None,
    ) -> None:
        """Changes, in order."""


class Codec(Protocol):
    """Keys and values as bytes."""

    def encode_keys(self, keys: pa.Array) -> pa.BinaryArray:
        """The canonical bytes of keys."""

    def encode_values(self, values: pa.Array) -> pa.BinaryArray:
        """The bytes of values; null for null."""

    def decode_values(self, values: pa.BinaryArray) -> pa.Array:
        """The inverse of `encode_values`."""


class BatchKeys:
    """The keys in work: those for which states may be read and written."""

    def __init__(self, key_type: pa.DataType) -> None:
        self._type = key_type
        self._codec: Codec | None = None
        self._keys: pa.Array | None = None
        self._bytes = pa.array([], pa.binary())

    def bind(self, codec: Codec) -> None:
        """Gives the codec of the grouping key."""
        self._codec = codec

    def move(self, keys: pa.Array | None, encoded: pa.BinaryArray) -> None:
        """Moves on to these keys; None: to none."""
        self._keys, self._bytes = keys, encoded

    def encoded(self, what: str, keys: ArrowArrayLike) -> pa.BinaryArray:
        """The bytes of keys, or the error for one that is not in work."""
        if self._keys is None or self._codec is None:
            raise InvalidArgumentError(f"{what}: a state belongs to the keys of a batch; use it in process()")
        if keys is self._keys:
            return self._bytes
        given = self._structs(f"{what}: keys", keys)
        if given.null_count:
            raise InvalidArgumentError(f"{what}: a key is null; give a key with null fields, or leave it out")
        found = self._codec.encode_keys(given)
        known = pc.is_in(found, value_set=self._bytes)
        if not pc.all(known, min_count=0).as_py():
            first = given[pc.index(known, False).as_py()].as_py()
            raise InvalidArgumentError(
                f"{what}: the key {tuple(first.values())!r} is none of the batch: its state may be in another shard; "
                "use keys of batch.keys"
            )
        return found

    def _structs(self, what: str, keys: ArrowArrayLike) -> pa.StructArray:
        """Keys as structs; of one grouping column they may be its values."""
        if self._type.num_fields == 1:
            if isinstance(keys, pa.Array | pa.ChunkedArray):
                is_plain = not pa.types.is_struct(keys.type)
            else:
                is_plain = isinstance(keys, list) and not any(isinstance(key, dict | tuple) for key in keys)
            if is_plain:
                column = many_of(what, keys, self._type.field(0).type)
                return pa.StructArray.from_arrays([column], fields=list(self._type))
        return many_of(what, keys, self._type)


class VectorValueState:
    """One value for each key; made by `Context.value_state`. All methods take many keys at once.

    Example: see `Processor`.
    """

    def __init__(self, name: str, declared: pa.DataType, keys: BatchKeys) -> None:
        self.name = name
        """The state's name."""
        self.value_type = declared
        """The Arrow type of values."""
        self._what = f"state `{name}`"
        self._plain = not pa.types.is_struct(declared)
        self._kept = pa.struct([pa.field("value", declared)]) if self._plain else declared
        self._keys = keys
        self._session: Session | None = None
        self._codec: Codec | None = None
        self._id = -1
        self._expires_at: int | None = None
        self._width = _FIRST_READ

    def bind(self, session: Session, state_id: int, codec: Codec, expires_at: int | None) -> None:
        """Gives the state its place in the session; of this package."""
        self._session, self._id, self._codec, self._expires_at = session, state_id, codec, expires_at

    def get(self, keys: ArrowArrayLike) -> pa.Array:
        """The values of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one value for each key, null where there is none.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `Processor`.
        """
        encoded = self._keys.encoded(self._what, keys)
        session, codec = self._bound()
        parts: list[pa.Array] = []
        start = 0
        while start < len(encoded) or not parts:
            asked = encoded.slice(start, self._width)
            found = session.get(self._id, asked)
            start += len(asked)
            each = max(found.nbytes // max(len(asked), 1), 1)
            self._width = max(min(self._width * 8, _READ_BYTES // each), 1)
            parts.append(codec.decode_values(found))
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return values.flatten()[0] if self._plain else values

    def put(self, keys: ArrowArrayLike, values: ArrowArrayLike) -> None:
        """Sets the values of keys.

        Args:
            keys: `batch.keys`, or some of them; of equal ones the last counts.
            values: As many values; a null deletes.

        Raises:
            InvalidArgumentError: A key is none of the batch, or something does not fit its type.

        Example: see `Processor`.
        """
        encoded = self._keys.encoded(self._what, keys)
        session, codec = self._bound()
        given = many_of(f"{self._what}: values", values, self.value_type)
        if len(given) != len(encoded):
            raise InvalidArgumentError(f"{self._what}: {len(encoded)} keys and {len(given)} values; give one for each")
        absent = given.is_null()
        if self._plain:
            given = pa.StructArray.from_arrays([given], fields=list(self._kept), mask=absent)
        ops = np.where(absent.to_numpy(zero_copy_only=False), _DELETE, _PUT).astype(np.uint8)
        self._send(session, pa.array(ops), encoded, codec.encode_values(given))

    def delete(self, keys: ArrowArrayLike) -> None:
        """Removes the values of keys; those without one are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `Processor`.
        """
        encoded = self._keys.encoded(self._what, keys)
        self.put(keys, pa.nulls(len(encoded), self.value_type))

    def _bound(self) -> tuple[Session, Codec]:
        if self._session is None or self._codec is None:
            raise InvalidArgumentError(f"{self._what} has no keys in open(); use it in process()")
        return self._session, self._codec

    def _send(self, session: Session, ops: Any, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        if len(ops) > 1 and keys.nbytes + values.nbytes > _READ_BYTES:
            half = len(ops) // 2
            self._send(session, ops[:half], keys[:half], values[:half])
            self._send(session, ops[half:], keys[half:], values[half:])
        elif len(ops):
            session.write(self._id, ops, keys, None, values, self._expires_at)
