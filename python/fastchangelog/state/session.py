"""What states of processors do with a session, whatever their kind.

Owns: the operations of a write, and reading all entries of lists and maps.
Does not own: a session's calls (`_internal.StateSession`); processors of rows (`fastchangelog.spark.processor`) and
vectorised ones, which use these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fastchangelog import _internal

__all__ = [
    "APPEND",
    "CLEAR",
    "DELETE",
    "PUT",
    "cursor_behind",
    "read_all_entries",
]

# Operations of `StateSession.write`.
CLEAR, PUT, DELETE, APPEND = 0, 1, 2, 3

#: Keys of one call of `read_all_entries`, and the bytes of each of them.
_KEYS = 1024
_BYTES_PER_KEY = 16 * 1024
#: The next page of a key that has more.
_PAGE_BYTES = 8 * 1024 * 1024


def cursor_behind(subs: pa.BinaryArray, end: int, count: int) -> bytes | None:
    """Where the page begins that follows the first `count` entries of a key, the last of which is before `end`."""
    if not count:
        return None
    sub: bytes | None = subs[end - 1].as_py()
    return count.to_bytes(8, "big") if sub is None else sub


def read_all_entries(session: _internal.StateSession, state: int, keys: pa.BinaryArray) -> tuple[Any, pa.StructArray]:
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
