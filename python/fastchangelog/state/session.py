"""What states of processors stand on: a session of a shard's state, and codecs.

Owns: their shapes, and reading all entries of lists and maps.
Does not own: the sessions themselves (the core's), who calls them: processors of rows
(`fastchangelog.spark.processor`) and vectorised ones alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

__all__ = [
    "APPEND",
    "CLEAR",
    "DELETE",
    "PUT",
    "Codec",
    "CodecMaker",
    "SessionLike",
    "cursor_behind",
    "read_all_entries",
]

# Operations of `SessionLike.write`.
CLEAR, PUT, DELETE, APPEND = 0, 1, 2, 3

#: Keys of one call of `read_all_entries`, and the bytes of each of them.
_KEYS = 1024
_BYTES_PER_KEY = 16 * 1024
#: The next page of a key that has more.
_PAGE_BYTES = 8 * 1024 * 1024


class SessionLike(Protocol):
    """A shard's state in one batch; `_internal.StateSession` is one. Types are not known to it: all is bytes."""

    @property
    def catalog(self) -> str:
        """The states of the version that the session began with; empty if there was none."""

    def declare(self, catalog: str, now_millis: int) -> None:
        """The states of this batch, and the time that decides what has expired. Once, first."""

    def get(self, state: int, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Values of the first keys, null where there are none: of all unless they are large, of one at least."""

    def read_entries(
        self, state: int, keys: pa.BinaryArray, max_bytes_per_key: int
    ) -> tuple[pa.ListArray, pa.BooleanArray]:
        """For each key its first entries (`sub`, `value`), and whether there are more.

        They begin after the last `sub` of a map, after the number of elements of a list as eight bytes, big endian, or
        at the start for a key without entries here.
        """

    def read_page(
        self, state: int, key: bytes, after: bytes | None, max_bytes: int
    ) -> tuple[pa.StructArray, bytes | None]:
        """Entries of a key after a cursor, and the cursor of the next ones."""

    def get_entries(self, state: int, keys: pa.BinaryArray, subs: pa.BinaryArray) -> pa.BinaryArray:
        """Values of the first entries of maps, null where there are none; as many as `get` has."""

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

    def due_timers(
        self, until: int, after: tuple[int, bytes] | None, limit: int
    ) -> tuple[pa.Int64Array, pa.BinaryArray, bool]:
        """A page of the timers up to a time, ascending by time and key; True = there are more."""

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        """The times of the timers of each of the first keys, ascending; of one key at least."""

    def clear_all(self, state: int) -> None:
        """Removes everything from a state."""


class Codec(Protocol):
    """Keys and values of one state as bytes; `_internal.StateCodec` is one."""

    def encode_keys(self, keys: pa.Array) -> pa.BinaryArray:
        """The canonical bytes of keys."""

    def decode_keys(self, keys: pa.BinaryArray) -> pa.Array:
        """The inverse of `encode_keys`."""

    def encode_values(self, values: pa.Array) -> pa.BinaryArray:
        """The bytes of values, with the number of their schema; null for null."""

    def decode_values(self, values: pa.BinaryArray) -> pa.Array:
        """Values of any schema that the state ever had, as the newest."""


class CodecMaker(Protocol):
    """What makes the codec of a state; `_internal.StateCodec` is one."""

    def __call__(self, key: pa.DataType, value: pa.DataType, versions: Sequence[pa.DataType]) -> Codec:
        """`versions` are all types of values that were ever written, `value` the last of them."""


def cursor_behind(subs: pa.BinaryArray, end: int, count: int) -> bytes | None:
    """Where the page begins that follows the first `count` entries of a key, the last of which is before `end`."""
    if not count:
        return None
    sub: bytes | None = subs[end - 1].as_py()
    return count.to_bytes(8, "big") if sub is None else sub


def read_all_entries(session: SessionLike, state: int, keys: pa.BinaryArray) -> tuple[Any, pa.StructArray]:
    """How many entries each key has, as numpy's array, and the entries of all keys, one key after the other."""
    counts: list[Any] = [np.zeros(0, np.int64)]
    parts: list[pa.StructArray] = []
    for start in range(0, max(len(keys), 1), _KEYS):
        asked = keys.slice(start, _KEYS)
        lists, more = session.read_entries(state, asked, _BYTES_PER_KEY)
        count = np.asarray(lists.value_lengths()).astype(np.int64)
        entries, taken = lists.flatten(), 0
        ends = np.cumsum(count)
        for i in np.flatnonzero(np.asarray(more.to_numpy(zero_copy_only=False), bool)):
            end = int(ends[i])
            parts.append(entries.slice(taken, end - taken))
            taken = end
            cursor = cursor_behind(entries.field("sub"), end, int(count[i]))
            while True:
                page, cursor = session.read_page(state, asked[int(i)].as_py(), cursor, _PAGE_BYTES)
                count[i] += len(page)
                parts.append(page)
                if cursor is None:
                    break
        parts.append(entries.slice(taken))
        counts.append(count)
    return np.concatenate(counts), pa.concat_arrays(parts)
