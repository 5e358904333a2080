"""The states of the keys in work, in memory: read ahead, changed, written back.

Owns: which keys are in work and which one user code runs for (`Scope`), reading entries of many keys in one call,
pages of large ones, and sending changes.
Does not own: what a kind of state keeps of them (`value`, `list`, `map`, `timers`), the bytes (the
core).

Invariants:
1. a state is read only for keys of the scope, and what was read or changed is dropped when the scope moves on;
2. changes of a key are sent in the order in which they were made, and before anything of that key is read again;
3. an iterator shows what was there at its first `next`: one that still has pages to read has read them before changes
   of its key are sent;
4. no change is lost without the batch failing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.processor.spark_errors import CREATED, PRE_INIT, spark_error
from fastchangelog.spark.types.columns import list_slices
from fastchangelog.spark.types.state_type import Refused, StateType, UnencodableRow
from fastchangelog.state.session import APPEND, CLEAR, DELETE, PUT, cursor_behind

__all__ = ["APPEND", "CLEAR", "DELETE", "PUT", "CachedState", "EntryPages", "OpenPages", "Scope"]

#: Changes of a state that wait in memory: beyond this number they are written back before the scope moves on. It begins
#: low, and is then what fits into so many bytes.
FIRST_PENDING = 256
MOST_PENDING = 50_000
PENDING_BYTES = 8 * 1024 * 1024
#: Encoded bytes that are read for a scope; beyond these, what was read before is forgotten.
MOST_READ_BYTES = 8 * 1024 * 1024
#: Lists or maps that are read ahead at the first touch of one: at most the first number of them, of short ones the
#: second. Bytes of each, and of all.
_KEYS_AHEAD = 256
_MOST_KEYS_AHEAD = 1024
_BYTES_AHEAD = 16 * 1024
_ALL_BYTES_AHEAD = 8 * 1024 * 1024
#: A page of one large list or map.
_PAGE_BYTES = 512 * 1024
#: How Spark's texts begin.
_DOING = {
    ("value", "exists"): "checking value state exists",
    ("value", "get"): "getting value state",
    ("value", "update"): "updating value state",
    ("value", "clear"): "clearing value state",
    ("list", "exists"): "checking value state exists",
    ("list", "put"): "updating value state",
    ("list", "appendValue"): "updating value state",
    ("list", "appendList"): "updating value state",
    ("list", "clear"): "clearing value state",
    ("map", "exists"): "checking map state exists",
    ("map", "getValue"): "getting value",
    ("map", "containsKey"): "checking if map state contains key",
    ("map", "updateValue"): "updating map state value",
    ("map", "removeKey"): "removing key from map state",
    ("map", "clear"): "clearing map state",
}

#: The largest message of changes.
_WRITE_BYTES = 16 * 1024 * 1024


class Scope:
    """The keys in work. `at` is the number of the one that user code runs for, None outside of callbacks."""

    __slots__ = ("at", "count", "failed", "keys", "phase", "session", "shown_keys", "states")

    def __init__(self, phase: str) -> None:
        self.at: int | None = None
        self.count = 0
        self.keys: pa.BinaryArray = pa.array([], pa.binary())
        self.shown_keys: Sequence[Any] = ()
        #: The state of the handle, as Spark names it.
        self.phase = phase
        self.session: _internal.StateSession | None = None
        self.states: list[CachedState] = []
        #: Why changes could not be sent.
        self.failed: Exception | None = None

    def open(self, keys: pa.BinaryArray, shown_keys: Sequence[Any]) -> None:
        """Moves on to these keys; `shown_keys` are the same as user code has them."""
        self.close()
        self.keys = keys
        self.shown_keys = shown_keys
        self.count = len(keys)
        for state in self.states:
            state.open(self.count)

    def close(self) -> None:
        """Writes back what was changed, and drops everything. Raises what an earlier write failed with."""
        self.at = None
        if self.failed is not None:
            raise self.failed
        for state in self.states:
            state.write_back()
            state.open(0)
        self.count = 0

    def key_bytes(self, at: int) -> bytes:
        """The canonical bytes of a key of the scope."""
        return self.keys[at].as_py()  # type: ignore[no-any-return]

    def key_text(self, at: int | None) -> str:
        """A key as errors name it."""
        if at is None or at >= len(self.shown_keys):
            return "(none)"
        text = ", ".join(map(repr, self.shown_keys[at]))
        return f"({text if len(text) <= 100 else f'{text[:97]}...'})"

    def taken(self, keys: Sequence[int]) -> pa.BinaryArray:
        """The bytes of some keys of the scope, by number."""
        if len(keys) == self.count and keys[0] == 0 and keys[-1] == self.count - 1 and _is_ascending(keys):
            return self.keys
        return self.keys.take(pa.array(keys, pa.int64()))


def _is_ascending(numbers: Sequence[int]) -> bool:
    return all(i == number for i, number in enumerate(numbers))


class CachedState:
    """What all kinds of state share: their place in the session, refusals, and sending changes."""

    #: What Spark's texts call the kind.
    kind = "state"

    def __init__(self, name: str, scope: Scope, value_type: StateType) -> None:
        self._name = name
        self._scope = scope
        self._type = value_type
        self._admit = value_type.admit
        self._id = -1
        self._codec: _internal.StateCodec | None = None
        self._expires_at: int | None = None
        self._pending = 0
        self._limit = min(FIRST_PENDING, MOST_PENDING)
        self._iterated: weakref.WeakSet[OpenPages] = weakref.WeakSet()

    def bind(self, state_id: int, codec: _internal.StateCodec, expires_at: int | None) -> None:
        """Gives the state its place in the session; `expires_at` is when what is written in this batch ends."""
        self._id = state_id
        self._codec = codec
        self._expires_at = expires_at

    @property
    def session(self) -> _internal.StateSession:
        """The session of the batch."""
        assert self._scope.session is not None
        return self._scope.session

    @property
    def codec(self) -> _internal.StateCodec:
        """The codec of the state."""
        assert self._codec is not None
        return self._codec

    def open(self, count: int) -> None:
        """Drops everything; the scope has `count` keys now."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drops what was read, but not what was changed."""

    def write_back(self) -> None:
        """Sends all changes. A failure ends the batch, even if user code catches it: the changes are gone."""
        try:
            self._write_changes()
        except Exception as error:
            scope = self._scope
            scope.failed = scope.failed or error
            raise

    def _write_changes(self) -> None:
        """Sends all changes, and forgets them."""
        raise NotImplementedError

    def _at(self, operation: str) -> int:
        """The number of the key in work."""
        at = self._scope.at
        if at is None:
            self._outside(operation)
        if self._id < 0:
            self._outside(operation)
        return at

    def _outside(self, operation: str) -> NoReturn:
        """Refuses a call that belongs to no key."""
        scope, doing = self._scope, _DOING.get((self.kind, operation), f"{operation} of {self.kind} state")
        hint = "a state belongs to a key: use it where Spark hands one over, as in handleInputRows"
        if scope.phase == PRE_INIT:
            condition = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
            raise spark_error(doing, condition, hint, operation=f"{self._name}.{operation}", state=scope.phase)
        if scope.phase != CREATED and self._id < 0:
            kind = self.kind.capitalize()
            raise PySparkRuntimeError(f"Error {doing}: {kind} state {self._name} is not initialized: init deleted it")
        raise spark_error(doing, "INTERNAL_ERROR_TWS", hint, name=self._name)

    def _refused(self, refused: Refused, dtype: StateType | None = None, at: int | None = None) -> InvalidArgumentError:
        """The error for a value that the state does not take."""
        text = refused.text((dtype or self._type).struct)
        key = self._scope.key_text(self._scope.at if at is None else at)
        return refused.error(f"state `{self._name}`, key {key}: {text}")

    def _columns(self, dtype: StateType, rows: Sequence[tuple[Any, ...] | None], places: Sequence[int]) -> pa.Array:
        """Rows as a column; `places` are the numbers of their keys, for errors."""
        try:
            return dtype.columns(rows)
        except UnencodableRow as refused:
            raise self._refused(refused, dtype, places[refused.row]) from None

    def _send(
        self,
        ops: Sequence[int] | pa.UInt8Array,
        places: Sequence[int],
        subs: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
    ) -> None:
        """Sends changes of the keys with these numbers."""
        self._finish_iterated(places)
        ops = pa.array(ops, pa.uint8())
        keys = self._scope.taken(places)
        each = sum(_size(column) for column in (keys, subs, values) if column is not None) // len(ops)
        self._limit = max(min(self._limit * 8, MOST_PENDING, PENDING_BYTES // max(each, 1)), 1)
        self._send_parts(ops, keys, subs, values)

    def _send_parts(
        self, ops: pa.UInt8Array, keys: pa.BinaryArray, subs: pa.BinaryArray | None, values: pa.BinaryArray | None
    ) -> None:
        count = len(ops)
        size = sum(_size(column) for column in (keys, subs, values) if column is not None)
        if size > _WRITE_BYTES and count > 1:
            half = count // 2
            for start, length in ((0, half), (half, count - half)):
                parts = [None if c is None else c.slice(start, length) for c in (subs, values)]
                self._send_parts(ops.slice(start, length), keys.slice(start, length), *parts)
        else:
            self.session.write(self._id, ops, keys, subs, values, self._expires_at)

    def _count(self, changes: int) -> None:
        """Counts changes that wait, and writes all back if they are too many."""
        self._pending += changes
        if self._pending >= self._limit:
            self.write_back()

    def _finish_iterated(self, places: Sequence[int]) -> None:
        if self._iterated:
            changed = {self._scope.key_bytes(place) for place in set(places)}
            for pages in list(self._iterated):
                if pages.key in changed:
                    pages.read_all()


def _size(column: pa.BinaryArray) -> int:
    """Bytes of a binary column, or of a slice of one."""
    if len(column) == 0:
        return 0
    return int(column.nbytes)


#: Columns `sub` and `value` of entries → entries.
Decode = Callable[[pa.BinaryArray, pa.BinaryArray], "list[Any]"]


class OpenPages:
    """The entries of one large list or map, page by page, as they were when this was made.

    The `first` ones are there already; the others follow after `cursor`.
    """

    __slots__ = ("__weakref__", "_cursor", "_decode", "_ended", "_pages", "_ready", "_state", "key")

    def __init__(
        self, state: CachedState, decode: Decode, key: bytes, first: Sequence[Any], cursor: bytes | None
    ) -> None:
        self.key = key
        self._state = state
        self._decode = decode
        self._cursor = cursor
        self._ended = False
        self._pages: list[pa.StructArray] = []
        self._ready: Iterator[Any] = iter(first)

    def __iter__(self) -> OpenPages:
        return self

    def __next__(self) -> Any:
        while True:
            for entry in self._ready:
                return entry
            while not self._pages and not self._ended:
                self._fetch()
            if not self._pages:
                raise StopIteration
            self._ready = iter(self._decode(*self._pages.pop(0).flatten()))

    def read_all(self) -> None:
        """Reads all pages that are left, still encoded: the entries are about to change."""
        while not self._ended:
            self._fetch()

    def _fetch(self) -> None:
        state = self._state
        page, self._cursor = state.session.read_page(state._id, self.key, self._cursor, _PAGE_BYTES)
        self._ended = self._cursor is None
        if len(page):
            self._pages.append(page)


class EntryPages:
    """Lists or maps of the keys of the scope: the first entries of many keys in one call, more of one by pages.

    Keys are read ahead from the one that is asked for on: keys are worked on in order. How many adapts to how many of
    those that were read were asked for, and to their bytes.
    """

    def __init__(self, state: CachedState, decode: Decode) -> None:
        self._state = state
        self._decode = decode
        self._width = _KEYS_AHEAD
        self.drop()

    def drop(self) -> None:
        """Forgets what was read."""
        self._first = self._end = 0
        self._asked = 0
        #: Bytes of the last read, and of all since the last time that reads were forgotten.
        self._last_bytes = self._read_bytes = 0
        self._entries: list[Any] = []
        self._slices: list[tuple[int, int]] = []
        self._more: list[bool] = []
        self._subs: pa.BinaryArray | None = None

    def first(self, at: int) -> tuple[list[Any], bool]:
        """The first entries of a key, and whether they are all."""
        if not self._first <= at < self._end:
            self._read(at)
        self._asked += 1
        start, end = self._slices[at - self._first]
        return self._entries[start:end], not self._more[at - self._first]

    def all(self, at: int) -> OpenPages:
        """All entries of a key, page by page."""
        state = self._state
        first, _ = self.first(at)
        pages = OpenPages(state, self._decode, state._scope.key_bytes(at), first, self._cursor(at))
        state._iterated.add(pages)
        return pages

    def _cursor(self, at: int) -> bytes | None:
        """What follows the first entries of a key."""
        start, end = self._slices[at - self._first]
        assert self._subs is not None
        return cursor_behind(self._subs, end, end - start)

    def _read(self, at: int) -> None:
        had = self._end - self._first
        if had:
            if self._asked * 2 > had:
                short = self._last_bytes * 8 < _ALL_BYTES_AHEAD
                self._width = min(self._width * 2, _MOST_KEYS_AHEAD if short else _KEYS_AHEAD)
            elif self._asked * 8 < had:
                self._width = max(self._width // 4, 1)
        state = self._state
        self._first, self._asked = at, 0
        self._end = min(at + self._width, state._scope.count)
        keys = state._scope.keys.slice(at, self._end - at)
        each = min(_BYTES_AHEAD, max(_ALL_BYTES_AHEAD // self._width, 1))
        lists, more = state.session.read_entries(state._id, keys, each)
        self._last_bytes = int(lists.nbytes)
        self._read_bytes += self._last_bytes
        if self._read_bytes > MOST_READ_BYTES:
            self._read_bytes = 0
            state.forget()
        self._subs, values = lists.flatten().flatten()
        self._entries = self._decode(self._subs, values)
        self._slices = list_slices(lists)
        self._more = more.to_pylist()
