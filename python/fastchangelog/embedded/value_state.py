"""One value for each key.

Owns: Python's view of it: a mutable mapping for single keys, Arrow for many keys at once.
Does not own: how values are stored (the core), opening a state (`embedded.state`).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.arrow import pairs_of
from fastchangelog.embedded.keyed import MappingByKey
from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, ValueLike

__all__ = ["ValueState"]


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

    def get(self, key: KeyLike, default: PythonValue = None) -> PythonValue:
        """The value of one key.

        Args:
            key: The key; of a state whose key has names, a dict or a tuple.
            default: The result if the key has no value.

        Returns:
            The value as Python has it, a dict where the schema has names.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/value/get") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits["ann"] = 1
            ...     visits.get("ann"), visits.get("bob"), visits.get("bob", 0)
            (1, None, 0)
        """
        found = self._native.get(self._keys.one(key))
        return found[0].as_py() if found.null_count == 0 else default

    def get_many(self, keys: ArrowArrayLike) -> pa.Array:
        """The values of many keys.

        Args:
            keys: The keys; one may come more than once.

        Returns:
            An array of one value for each key, null where there is none.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/value/get_many") as st:
            ...     visits = st.value_state("visits", key="string", value="long")
            ...     visits.put_many(["ann", "bob"], [1, 2])
            ...     visits.get_many(["bob", "cid"]).to_pylist()
            [2, None]
        """
        return self._native.get(self._keys.many(keys))

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

    def contains_many(self, keys: ArrowArrayLike) -> pa.BooleanArray:
        """Which of many keys have a value.

        Args:
            keys: The keys.

        Returns:
            An array of booleans, one for each key.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see `delete_many`.
        """
        return self._native.contains(self._keys.many(keys))

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
