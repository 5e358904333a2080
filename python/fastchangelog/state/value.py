"""One value for each key.

Owns: Python's view of it: a mutable mapping for single keys, Arrow for many keys at once; its calls in a session.
Does not own: how values are stored (the core), opening a state (`embedded.state`), processors (`vectorised`).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import pairs_of
from fastchangelog.state.in_session import ValuesInSession
from fastchangelog.state.keyed import MappingByKey
from fastchangelog.state.keys import BatchKeys
from fastchangelog.state.session import DELETE
from fastchangelog.state.vector import VectorByKey

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, RowsLike, ValueLike

__all__ = ["ValueInSession", "ValueState", "VectorValueState"]


class ValueInSession(ValuesInSession):
    """The calls of a state of values, as `_internal.ValueState` has them."""

    kind = "value"

    def get(self, keys: pa.BinaryArray) -> pa.Array:
        """The values; null where there is none."""
        return self._read(keys)

    def put(self, keys: pa.BinaryArray, values: pa.Array) -> None:
        """Sets values; a null deletes."""
        self._put(keys, values)

    def delete(self, keys: pa.BinaryArray) -> None:
        """Removes keys."""
        self._send(DELETE, keys)


class VectorValueState(VectorByKey[ValueInSession]):
    """One value for each key; made by `Context.value_state`. All methods take many keys at once.

    They are those of `ValueState` whose names end in ``_many``, without that ending. Keys are `batch.keys`, or some of
    them: another key is an `InvalidArgumentError`, as is what does not fit its type.

    Example: see `Processor`.
    """

    def __init__(self, name: str, declared: pa.DataType, keys: BatchKeys) -> None:
        super().__init__(name, declared, keys, ValueInSession(name, declared))

    def put(self, keys: ArrowArrayLike, values: RowsLike) -> None:
        """Sets the values of keys.

        Args:
            keys: `batch.keys`, or some of them; of equal ones the last counts.
            values: As many values; a null deletes. Of structs also a record batch with their columns.

        Example: see `Processor`.
        """
        self.calls.put(self._keys.many(keys), self._values.many(values))

    def delete(self, keys: ArrowArrayLike) -> None:
        """Removes the values of keys; those without one are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Example: see `Processor`.
        """
        self.calls.delete(self._keys.many(keys))


class ValueState(MappingByKey[_internal.ValueState], MutableMapping["KeyLike", "PythonValue"]):
    """One value for each key; made by `State.value_state`. Any thread may use it.

    It is a `MutableMapping` in the order of keys. The methods that end in ``_many`` put, read and delete many keys at
    once, in Arrow. ``len(…)`` counts by a scan.

    Example:
        >>> import fastchangelog as fc
        >>> st = fc.open_state("memory://docs/values")
        >>> seen = st.value_state("seen", key="string", value="n long, last timestamp")
        >>> seen["ann"] = {"n": 1, "last": None}
        >>> seen["ann"]
        {'n': 1, 'last': None}
        >>> seen.pop("ann")["n"], "ann" in seen, len(seen)
        (1, False, 0)
        >>> seen["ann"]
        Traceback (most recent call last):
        KeyError: 'ann'
        >>> st.close()
    """

    def put(self, key: KeyLike, value: ValueLike) -> None:
        """Sets the value of one key.

        Args:
            key: The key.
            value: The value; None deletes.

        Raises:
            InvalidArgumentError: Something does not fit the types, or the key is null.
            RetryableError: Too much was changed since the last checkpoint.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/value/put") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits.put("ann", 1)
            ...     visits.delete("ann")
            ...     visits.delete("ann")
        """
        self._native.put(self._keys.one(key), self._values.one(value))

    def put_many(self, keys: ArrowArrayLike, values: ArrowArrayLike) -> None:
        """Sets the values of many keys: all or none.

        Args:
            keys: The keys; of equal ones the last counts.
            values: As many values; a null deletes.

        Raises:
            InvalidArgumentError: Something does not fit the types, a key is null, or the lengths differ.
            RetryableError: Too much was changed since the last checkpoint.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/value/put_many") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits.put_many(["ann", "bob", "ann"], [1, 2, 3])
            ...     dict(visits)
            {'ann': 3, 'bob': 2}
        """
        self._native.put(self._keys.many(keys), self._values.many(values))

    def delete(self, key: KeyLike) -> None:
        """Removes one key. A key without a value is fine; ``del`` of one is a `KeyError`.

        Args:
            key: The key.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example: see `put`.
        """
        self._native.delete(self._keys.one(key))

    def delete_many(self, keys: ArrowArrayLike) -> None:
        """Removes many keys: all or none. Keys without a value are fine.

        Args:
            keys: The keys.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/value/delete_many") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits.update(ann=1, bob=2)
            ...     visits.delete_many(["ann", "cid"])
            ...     visits.contains_many(["ann", "bob"]).to_pylist()
            [False, True]
        """
        self._native.delete(self._keys.many(keys))

    def update(self, *others: Any, **named: ValueLike) -> None:
        """Sets the values of a mapping, or of pairs of key and value: all or none.

        Args:
            *others: A mapping, or an iterable of pairs, as `dict.update` takes them.
            **named: Values of keys that are texts.

        Raises:
            InvalidArgumentError: Something does not fit the types.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see `delete_many`.
        """
        keys, values = pairs_of(others, named)
        self.put_many(keys, values)

    def clear(self) -> None:
        """Removes all keys. Each is a change, which takes memory until the next checkpoint.

        Raises:
            RetryableError: Too much was changed since the last checkpoint; some keys are removed.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/value/clear") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits["ann"] = 1
            ...     visits.clear()
            ...     bool(visits)
            False
        """
        for batch in self.scan():
            self._native.delete(batch["key"])

    def __getitem__(self, key: KeyLike) -> PythonValue:
        found = self._native.get(self._keys.one(key))
        if found.null_count:
            raise KeyError(key)
        return found[0].as_py()

    def __setitem__(self, key: KeyLike, value: ValueLike) -> None:
        self.put(key, value)

    def __delitem__(self, key: KeyLike) -> None:
        one = self._keys.one(key)
        if not self._native.contains(one)[0].as_py():
            raise KeyError(key)
        self._native.delete(one)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if self is other:
            return True
        try:
            return len(self) == len(other) and self.get_many(list(other)).to_pylist() == list(other.values())
        except InvalidArgumentError:  # the keys of `other` are of another type
            return False

    __hash__ = None  # type: ignore[assignment]
