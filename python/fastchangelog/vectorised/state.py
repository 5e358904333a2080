"""What all kinds of state share: their place in the session, values in Arrow, sending changes.

Owns: binding, the form in which values are kept, reads and writes of bounded size.
Does not own: what user code sees (`value_state`, `list_state`, `map_state`), the codec (the core).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fastchangelog.embedded.arrow import rows_of
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.vectorised.keys import BatchKeys
from fastchangelog.vectorised.session import Codec, SessionLike

if TYPE_CHECKING:
    from fastchangelog.types import RowsLike

__all__ = ["READ_BYTES", "Form", "VectorState", "joined", "send"]

#: Keys of the first read, and the bytes that a message aims at.
_FIRST_READ = 256
READ_BYTES = 16 * 1024 * 1024


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


class VectorState:
    """One declared state."""

    def __init__(self, name: str, declared: pa.DataType, keys: BatchKeys) -> None:
        self.name = name
        """The state's name."""
        self.value_type = declared
        """The Arrow type of values."""
        self.form = Form(declared, "value")
        """How values are kept; of this package."""
        self._what = f"state `{name}`"
        self._keys = keys
        self._session: SessionLike | None = None
        self._codec: Codec | None = None
        self._id = -1
        self._expires_at: int | None = None
        self._width = _FIRST_READ

    def bind(self, session: SessionLike, state_id: int, codec: Codec | None, expires_at: int | None) -> None:
        """Gives the state its place in the session; of this package. Accumulators have no codec."""
        self._session, self._id, self._codec, self._expires_at = session, state_id, codec, expires_at

    def _in_session(self) -> SessionLike:
        if self._session is None:
            raise InvalidArgumentError(f"{self._what} has no keys in open(); use it in process() or on_timer()")
        return self._session

    def _bound(self) -> tuple[SessionLike, Codec]:
        session = self._in_session()
        assert self._codec is not None
        return session, self._codec

    def _given(self, what: str, values: RowsLike, wanted: pa.DataType, keys: pa.BinaryArray) -> pa.Array:
        """As many values as keys, of the wanted type."""
        given = rows_of(values, wanted, f"{self._what}: {what}")
        if len(given) != len(keys):
            raise InvalidArgumentError(f"{self._what}: {len(keys)} keys and {len(given)} {what}; give one for each")
        return given

    def _read(self, count: int, read: Callable[[int, int], pa.BinaryArray]) -> pa.Array:
        """Values of so many keys; see `_pages`."""
        codec = self._bound()[1]
        return self.form.shown(joined([codec.decode_values(page) for page in self._pages(count, read)]))

    def _are_there(self, count: int, read: Callable[[int, int], pa.BinaryArray]) -> pa.BooleanArray:
        """Which of so many keys have a value; see `_pages`."""
        return joined([page.is_valid() for page in self._pages(count, read)])

    def _pages(self, count: int, read: Callable[[int, int], pa.BinaryArray]) -> Iterator[pa.BinaryArray]:
        """Encoded values in parts, one at least: `read` takes the first key and how many, and may have fewer values."""
        start = 0
        while True:
            asked = min(self._width, count - start)
            found = read(start, asked)
            start += len(found)
            each = max(found.nbytes // max(len(found), 1), 1)
            self._width = max(min(self._width * 8, READ_BYTES // each), 1)
            yield found
            if start == count:
                return

    def _send(
        self, ops: Any, keys: pa.BinaryArray, subs: pa.BinaryArray | None = None, values: pa.BinaryArray | None = None
    ) -> None:
        send(self._in_session(), self._id, ops, keys, subs, values, self._expires_at)


def joined(parts: list[pa.Array]) -> pa.Array:
    """The arrays as one."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def send(
    session: SessionLike,
    state: int,
    ops: Any,
    keys: pa.BinaryArray,
    subs: pa.BinaryArray | None,
    values: pa.BinaryArray | None,
    expires_at: int | None,
) -> None:
    """Sends changes in order, in messages of bounded size."""
    size = sum(column.nbytes for column in (keys, subs, values) if column is not None)
    if len(ops) > 1 and size > READ_BYTES:
        half = len(ops) // 2
        for part in (slice(0, half), slice(half, None)):
            sub, value = (None if column is None else column[part] for column in (subs, values))
            send(session, state, ops[part], keys[part], sub, value, expires_at)
    elif len(ops):
        session.write(state, pa.array(np.asarray(ops, np.uint8)), keys, subs, values, expires_at)
