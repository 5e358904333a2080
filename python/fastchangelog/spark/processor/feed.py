"""Which rows belong to which call of user code.

Owns: the walk over chunks, keys that go on over several chunks, the merge with rows of the initial state.
Does not own: the calls (`run`), what rows are made of (`rows.input`, `frames.input`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from fastchangelog.errors import InternalError
from fastchangelog.spark.processor.spec import RowChunkLike
from fastchangelog.spark.processor.states.cache import Scope

__all__ = ["ChunkFeed", "Group", "MergedFeed", "Parts"]

#: Groups and rows of one scope of a merge.
_MERGED_GROUPS = 2048
_MERGED_ROWS = 16_384


class Parts(Protocol):
    """Makes rows of batches in the form of one API."""

    def load(self, batch: pa.RecordBatch) -> None:
        """Takes the rows of a chunk."""

    def part(self, start: int, end: int) -> Iterator[Any]:
        """Some rows of the chunk, lazily."""

    def joined(self, batches: Iterator[pa.RecordBatch]) -> Generator[Any, None, None]:
        """Rows of several batches, lazily."""


class ChunkFeed:
    """The keys of all chunks, one after the other; `scope` follows."""

    def __init__(
        self,
        chunks: Iterable[RowChunkLike],
        scope: Scope,
        shown_keys: Callable[[pa.BinaryArray], Sequence[Any]],
        parts: Parts,
    ) -> None:
        self._chunks = iter(chunks)
        self._scope = scope
        self._shown_keys = shown_keys
        self._parts = parts
        self._batch: pa.RecordBatch | None = None
        #: Where the rows of each key begin and end.
        self.offsets: list[int] = []
        #: The last key goes on in the next chunk.
        self.goes_on = False
        #: The same of the key of `long_part`.
        self._long_goes_on = False

    def advance(self) -> bool:
        """Moves on to the next chunk, if there is one."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        keys = chunk.keys
        self._scope.open(keys, self._shown_keys(keys))
        self.offsets = chunk.offsets.to_pylist()
        self.goes_on = chunk.more
        self._batch = chunk.rows
        return True

    def load(self) -> None:
        """Makes the rows of the chunk."""
        assert self._batch is not None
        self._parts.load(self._batch)

    def long_part(self) -> Generator[Any, None, None]:
        """Rows of the last key of the chunk, which goes on: while they are read, the feed advances."""
        self._long_goes_on = True
        return self._parts.joined(self._long_batches())

    def finish_long_part(self) -> None:
        """Moves on to the chunk in which the key of `long_part` ends. Its key is then the first one."""
        while self._long_goes_on:
            self._follow()

    def _long_batches(self) -> Iterator[pa.RecordBatch]:
        batch, start, end = self._batch, self.offsets[-2], self.offsets[-1]
        assert batch is not None
        yield batch.slice(start, end - start)
        while self._long_goes_on:
            self._follow()
            assert self._batch is not None
            yield self._batch.slice(0, self.offsets[1])

    def _follow(self) -> None:
        if not self.advance():
            raise InternalError(
                "a chunk of rows said that its last key continues, but no chunk followed; please report it"
            )
        # A chunk in the middle of the key has this key alone.
        self._long_goes_on = self.goes_on and self._scope.count == 1
        self._scope.at = 0


class Group:
    """Rows of one key, of the input or of the initial state."""

    __slots__ = ("at", "batch", "end", "is_initial", "key", "start")

    def __init__(self, key: bytes, is_initial: bool, batch: pa.RecordBatch, start: int, end: int) -> None:
        self.key = key
        self.is_initial = is_initial
        self.batch = batch
        self.start = start
        self.end = end
        self.at = 0

    def rows(self) -> pa.RecordBatch:
        """The rows."""
        return self.batch.slice(self.start, self.end - self.start)


class MergedFeed:
    """The keys of the initial state and of the input, merged; of each key, rows of the initial state come first."""

    def __init__(
        self,
        chunks: Iterable[RowChunkLike],
        initial: Iterable[RowChunkLike],
        scope: Scope,
        shown_keys: Callable[[pa.BinaryArray], Sequence[Any]],
    ) -> None:
        self._groups = _merged(_groups(initial, True), _groups(chunks, False))
        self._ahead = next(self._groups, None)
        self._scope = scope
        self._shown_keys = shown_keys
        self._opened: list[Group] = []
        self._next = 0
        #: The group whose rows are next; None at the end.
        self.group: Group | None = None
        self.advance()

    def advance(self) -> None:
        """Moves on to the next group, and the scope with it."""
        if self._next == len(self._opened) and not self._open():
            self.group = None
            self._scope.at = None
            return
        self.group = self._opened[self._next]
        self._next += 1
        self._scope.at = self.group.at

    def is_last(self) -> bool:
        """True if no other group of the same key follows."""
        following = self._following()
        return self.group is None or following is None or following.key != self.group.key

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the current group, and of those of its key and kind that follow: the feed advances to them."""
        group = self.group
        while group is not None:
            yield group.rows()
            following = self._following()
            if following is None or (following.key, following.is_initial) != (group.key, group.is_initial):
                return
            self.advance()
            group = self.group

    def _following(self) -> Group | None:
        return self._opened[self._next] if self._next < len(self._opened) else self._ahead

    def _open(self) -> bool:
        """Opens the scope for the next groups."""
        groups: list[Group] = []
        keys: list[bytes] = []
        rows = 0
        while self._ahead is not None and len(groups) < _MERGED_GROUPS and rows < _MERGED_ROWS:
            group = self._ahead
            if not keys or keys[-1] != group.key:
                keys.append(group.key)
            group.at = len(keys) - 1
            groups.append(group)
            rows += group.end - group.start
            self._ahead = next(self._groups, None)
        if not groups:
            return False
        array = pa.array(keys, pa.binary())
        self._scope.open(array, self._shown_keys(array))
        self._opened, self._next = groups, 0
        return True


def _groups(chunks: Iterable[RowChunkLike], is_initial: bool) -> Iterator[Group]:
    for chunk in chunks:
        rows, offsets = chunk.rows, chunk.offsets.to_pylist()
        for i, key in enumerate(chunk.keys.to_pylist()):
            yield Group(key, is_initial, rows, offsets[i], offsets[i + 1])


def _merged(initial: Iterator[Group], rows: Iterator[Group]) -> Iterator[Group]:
    """Groups of both by key, initial ones first."""
    first, second = next(initial, None), next(rows, None)
    while first is not None or second is not None:
        if second is None or (first is not None and first.key <= second.key):
            assert first is not None
            yield first
            first = next(initial, None)
        else:
            yield second
            second = next(rows, None)
