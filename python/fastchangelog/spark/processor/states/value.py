"""A single value for each key: what `getValueState` gives.

Owns: PySpark's `ValueState` over the cache of the keys in work.
Does not own: values (`types.state_type`), sending and scope (`cache`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ValueState

from fastchangelog.spark.processor.states import cache
from fastchangelog.spark.processor.states.cache import CLEAR, PUT, CachedState, Scope
from fastchangelog.spark.types.state_type import Refused, StateType

__all__ = ["ProcessorValueState"]

#: Stands for a value that was not read yet.
_UNREAD: Any = object()
#: Stands for a changed value that is seen in another form than it is kept in.
_CHANGED: Any = object()

#: Keys of the first read, most keys of one, and the bytes that one aims at.
_FIRST_READ = 8
_MOST_KEYS = 16_384
_READ_BYTES = 4 * 1024 * 1024


class ProcessorValueState(CachedState, ValueState):
    """PySpark's `ValueState`; values of many keys are read in one call, and written back in one."""

    kind = "value"

    def __init__(self, name: str, scope: Scope, value_type: StateType) -> None:
        CachedState.__init__(self, name, scope, value_type)
        self._values: list[Any] = []
        self._changed: dict[int, tuple[Any, ...] | None] = {}
        self._is_plain = value_type.is_plain
        self._is_changeable = value_type.is_seen_changeable
        self._width = _FIRST_READ
        self._read_bytes = 0

    def exists(self) -> bool:
        """Whether the key has a value."""
        try:
            value = self._values[self._scope.at]  # type: ignore[index]
        except (TypeError, IndexError):
            self._outside("exists")
        return (self._read() if value is _UNREAD else value) is not None

    def get(self) -> Any:
        """The value of the key as a tuple, None if it has none."""
        try:
            value = self._values[self._scope.at]  # type: ignore[index]
        except (TypeError, IndexError):
            self._outside("get")
        if value is _UNREAD:
            value = self._read()
        if value is _CHANGED:
            row = self._changed[self._at("get")]
            assert row is not None
            return self._type.shown(row)
        if self._is_changeable and value is not None:
            return self._type.given(value)
        return value

    def update(self, newValue: Any) -> None:
        """Sets the value of the key."""
        try:
            row = self._admit(newValue)
        except Refused as refused:
            raise self._refused(refused) from None
        at = self._scope.at
        try:
            self._values[at] = row if self._is_plain else _CHANGED  # type: ignore[index]
        except (TypeError, IndexError):
            self._outside("update")
        changed = self._changed
        changed[at] = row  # type: ignore[index]
        if len(changed) >= self._limit:
            self._write_early()

    def clear(self) -> None:
        """Removes the value of the key."""
        at = self._at("clear")
        self._values[at] = None
        self._changed[at] = None

    def open(self, count: int) -> None:
        """See `CachedState`."""
        self._values = [_UNREAD] * count
        self._changed = {}
        self._read_bytes = 0

    def _write_changes(self) -> None:
        """See `CachedState`."""
        changed, self._changed = self._changed, {}
        if not changed:
            return
        places, rows = list(changed), list(changed.values())
        ops = pa.array(np.full(len(rows), PUT, np.uint8))
        if None in rows:
            ops = pa.array([CLEAR if row is None else PUT for row in rows], pa.uint8())
        values = self.codec.encode_values(self._columns(self._type, rows, places))
        self._send(ops, places, None, values)

    def forget(self) -> None:
        """See `CachedState`."""
        self._read_bytes = 0
        values = self._values
        self._values = [_UNREAD] * len(values)
        for at in self._changed:
            self._values[at] = values[at]

    def _write_early(self) -> None:
        """Writes back while the scope is worked on."""
        places = list(self._changed)
        self.write_back()
        for at in places:
            self._values[at] = _UNREAD

    def _read(self) -> Any:
        """Reads the value of the key in work, and those of the keys behind it that were not changed yet."""
        first = self._at("get")
        end = min(first + self._width, self._scope.count)
        if self._read_bytes > cache.MOST_READ_BYTES:
            self.forget()
        encoded = self.session.get(self._id, self._scope.keys.slice(first, end - first))
        end = first + len(encoded)
        found = self._type.kept_rows(self.codec.decode_values(encoded))
        if self._changed.keys().isdisjoint(range(first, end)):
            self._values[first:end] = found
        else:
            for at, value in enumerate(found, first):
                if self._values[at] is _UNREAD:
                    self._values[at] = value
        self._read_bytes += encoded.nbytes
        each = max(encoded.nbytes // (end - first), 1)
        self._width = min(self._width * 8, max(_READ_BYTES // each, 1), _MOST_KEYS)
        return self._values[first]
