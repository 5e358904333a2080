"""The keys in work, and their bytes.

Owns: which keys states and timers take, and the error for others.
Does not own: what is done with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.arrays import array_of
from fastchangelog.fit.typed import many_of

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike

__all__ = ["BatchKeys", "StateKeys"]


class BatchKeys:
    """The keys in work: those for which states may be read and written."""

    def __init__(self, key_type: pa.DataType) -> None:
        self._type = key_type
        self._codec: _internal.StateCodec | None = None
        self._keys: pa.Array | None = None
        self._bytes = pa.array([], pa.binary())

    def bind(self, codec: _internal.StateCodec) -> None:
        """Gives the codec of the grouping key."""
        self._codec = codec

    def move(self, keys: pa.Array | None, encoded: pa.BinaryArray) -> None:
        """Moves on to these keys; None: to none."""
        self._keys, self._bytes = keys, encoded

    def of(self, what: str) -> StateKeys:
        """The keys as a state takes them, which errors name."""
        return StateKeys(self, what)

    def encoded(self, what: str, keys: ArrowArrayLike) -> pa.BinaryArray:
        """The bytes of keys, or the error for one that is not in work."""
        if self._keys is None or self._codec is None:
            raise InvalidArgumentError(f"{what}: only keys of a batch are taken; use it in process() or on_timer()")
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
                "use keys of batch.keys, or of timers.keys in on_timer()"
            )
        return found

    def _structs(self, what: str, keys: ArrowArrayLike) -> pa.StructArray:
        """Keys as structs; of one grouping column they may be its values."""
        given: Any = keys
        if self._type.num_fields == 1:
            if hasattr(given, "__arrow_c_stream__") or getattr(given, "ndim", 0) == 1:
                given = array_of(given)
            if isinstance(given, pa.Array | pa.ChunkedArray):
                is_plain = not pa.types.is_struct(given.type)
            else:
                is_plain = isinstance(given, list | tuple) and not any(isinstance(key, dict | tuple) for key in given)
            if is_plain:
                column = many_of(what, given, self._type.field(0).type)
                return pa.StructArray.from_arrays([column], fields=list(self._type))
        return many_of(what, given, self._type)


class StateKeys:
    """The keys in work, as a state takes them."""

    def __init__(self, keys: BatchKeys, what: str) -> None:
        self._keys, self.what = keys, what

    def many(self, keys: ArrowArrayLike) -> pa.BinaryArray:
        """The bytes of many keys."""
        return self._keys.encoded(self.what, keys)
