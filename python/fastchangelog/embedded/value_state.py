"""One value for each key.

Owns: Python's view of it: item access for a single key, Arrow for many keys at once.
Does not own: how values are stored (the core), opening a state (`embedded.state`).
"""

from __future__ import annotations

from typing import Any

from fastchangelog import _internal
from fastchangelog.embedded.arrow import array_of
from fastchangelog.embedded.keyed import ByKey

__all__ = ["ValueState"]


class ValueState(ByKey[_internal.ValueState]):
    """One value for each key; made by `State.value_state`. Any thread may use it.

    It has the habits of a mapping for single keys; many keys at once are put, read and deleted in Arrow.

    >>> import fastchangelog as fc
    >>> st = fc.open_state("memory://docs/values")
    >>> seen = st.value_state("seen", key="string", value="n long, last timestamp")
    >>> seen["ann"] = {"n": 1, "last": None}
    >>> seen["ann"]
    {'n': 1, 'last': None}
    >>> del seen["ann"]
    >>> "ann" in seen
    False
    >>> seen["ann"]
    Traceback (most recent call last):
    KeyError: 'ann'
    >>> st.close()
    """

    def get(self, keys: Any, default: Any = None) -> Any:
        """The value of one key, ``default`` if there is none; or those of many keys, as an Arrow array with a null
        where there is none.

        Many keys are a list, a numpy or Arrow array, or another iterable. One key is anything else; of a state whose
        key has names, a dict or a tuple.
        """
        found = self._native.get(self._keys.of(keys))
        if self._keys.is_one(keys):
            return found[0].as_py() if found.null_count == 0 else default
        return found

    def put(self, keys: Any, values: Any) -> None:
        """Sets the value of one key, or those of many keys. A null (None) deletes; of equal keys the last one counts.

        All or nothing: raises `InvalidArgument` if something does not fit the types, or if a key is null, and
        `RetryableError` if too much was changed since the last checkpoint.
        """
        if self._keys.is_one(keys):
            self[keys] = values
        else:
            self._native.put(self._keys.many(keys), array_of("values", values, self.value_type))

    def delete(self, keys: Any) -> None:
        """Removes one key, or many. A key without a value is fine."""
        self._native.delete(self._keys.of(keys))

    def contains(self, keys: Any) -> Any:
        """Whether one key has a value; or which of many keys have, as an Arrow array of booleans."""
        found = self._native.contains(self._keys.of(keys))
        return found[0].as_py() if self._keys.is_one(keys) else found

    def __getitem__(self, key: Any) -> Any:
        found = self._native.get(self._keys.one(key))
        if found.null_count:
            raise KeyError(key)
        return found[0].as_py()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._native.put(self._keys.one(key), array_of("value", [value], self.value_type))

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._native.delete(self._keys.one(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._native.contains(self._keys.one(key))[0].as_py())
