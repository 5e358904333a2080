"""A list for each key: what `getListState` gives.

Owns: PySpark's `ListState` over the cache of the keys in work.
Does not own: values (`types.state_type`), pages, sending and scope (`cache`).

`put`, `appendValue`, `appendList` and `clear` read nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ListState

from fastchangelog.errors import ArgumentTypeError
from fastchangelog.spark.processor.states.cache import APPEND, CLEAR, CachedState, EntryPages, Scope
from fastchangelog.spark.types.state_type import Refused, StateType

__all__ = ["ProcessorListState"]

Fields = tuple[Any, ...]


class ProcessorListState(CachedState, ListState):
    """PySpark's `ListState`; lists of many keys are read in one call, and changes written back in one."""

    kind = "list"

    def __init__(self, name: str, scope: Scope, value_type: StateType) -> None:
        CachedState.__init__(self, name, scope, value_type)
        self._pages = EntryPages(self, self._decode)
        #: Keys that were cleared or put, and what was appended since.
        self._cleared: set[int] = set()
        self._appended: dict[int, list[Fields]] = {}

    def exists(self) -> bool:
        """Whether the list of the key has an element."""
        at = self._at("exists")
        if self._appended.get(at):
            return True
        return at not in self._cleared and next(self._stored(at), None) is not None

    def get(self) -> Iterator[Fields]:
        """The elements of the key, as they are at the first `next`."""
        at = self._at("get")
        appended = list(self._appended.get(at, ()))
        if at not in self._cleared:
            stored = self._stored(at)
            yield from map(self._type.given, stored) if self._type.is_seen_changeable else stored
        if self._type.is_plain:
            yield from appended
        else:
            yield from map(self._type.shown, appended)

    def put(self, newState: Iterable[Any]) -> None:
        """Sets the list of the key; an empty one is what `clear` leaves."""
        rows = self._rows(newState)
        at = self._at("put")
        self._cleared.add(at)
        self._appended[at] = rows
        self._count(len(rows) + 1)

    def appendValue(self, newState: Any) -> None:
        """Appends an element to the list of the key."""
        try:
            row = self._admit(newState)
        except Refused as refused:
            raise self._refused(refused) from None
        at = self._at("appendValue")
        rows = self._appended.get(at)
        if rows is None:
            self._appended[at] = [row]
        else:
            rows.append(row)
        self._count(1)

    def appendList(self, newState: Iterable[Any]) -> None:
        """Appends elements to the list of the key."""
        rows = self._rows(newState)
        at = self._at("appendList")
        appended = self._appended.get(at)
        if appended is None:
            self._appended[at] = rows
        else:
            appended += rows
        self._count(len(rows))

    def clear(self) -> None:
        """Removes the list of the key."""
        at = self._at("clear")
        self._cleared.add(at)
        self._appended.pop(at, None)
        self._count(1)

    def open(self, count: int) -> None:
        """See `CachedState`."""
        self._pages.drop()
        self._cleared = set()
        self._appended = {}
        self._pending = 0

    def _write_changes(self) -> None:
        """See `CachedState`."""
        if not self._cleared and not self._appended:
            return
        ops: list[int] = []
        places: list[int] = []
        rows: list[Fields | None] = []
        for at in sorted(self._cleared | self._appended.keys()):
            if at in self._cleared:
                ops.append(CLEAR)
                places.append(at)
                rows.append(None)
            appended = self._appended.get(at)
            if appended:
                ops += [APPEND] * len(appended)
                places += [at] * len(appended)
                rows += appended
        self.open(0)
        if ops:
            values = self.codec.encode_values(self._columns(self._type, rows, places))
            self._send(ops, places, None, values)

    def _decode(self, subs: pa.BinaryArray, values: pa.BinaryArray) -> list[Any]:
        return self._type.kept_rows(self.codec.decode_values(values))

    def _stored(self, at: int) -> Iterator[Fields]:
        """The elements of a key without those that were appended since."""
        elements, are_all = self._pages.first(at)
        return iter(elements) if are_all else self._pages.all(at)

    def _rows(self, values: Iterable[Any]) -> list[Fields]:
        """What `put` and `appendList` take."""
        try:
            given = iter(values)
        except TypeError:
            raise ArgumentTypeError(
                f"state `{self._name}`, key {self._scope.key_text(self._scope.at)}: {values!r} is no list of tuples"
            ) from None
        admit, found = self._admit, []
        try:
            for value in given:
                found.append(admit(value))
        except Refused as refused:
            raise self._refused(refused.within(f"[{len(found)}]")) from None
        return found
