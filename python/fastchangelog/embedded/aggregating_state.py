"""Aggregates for each key.

Owns: Python's view of them, and their description for the core.
Does not own: what an aggregate means (the core), opening a state (`embedded.state`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.arrow import array_of, rows_of
from fastchangelog.embedded.keyed import ByKey
from fastchangelog.errors import InvalidArgument
from fastchangelog.functions import Aggregate

__all__ = ["AggregatingState", "calls_of"]


class AggregatingState(ByKey[_internal.AggregatingState]):
    """Aggregates for each key; made by `State.aggregating_state`. Rows go in, results come out; rows are not kept.

    >>> import fastchangelog as fc
    >>> st = fc.open_state("memory://docs/aggregates")
    >>> totals = st.aggregating_state("totals", fc.sum("value"), key="string", value="long")
    >>> totals.add(["ann", "bob", "ann"], [1, 2, 3])
    >>> totals.add("ann", 10)
    >>> totals["ann"], totals.get(["bob", "cid"]).to_pylist()
    (14, [2, None])
    >>> del totals["ann"]
    >>> "ann" in totals
    False
    >>> st.close()
    """

    def __init__(self, state: object, native: _internal.AggregatingState, name: str, schema: pa.Schema) -> None:
        super().__init__(state, native, name, schema)
        self.result_type: pa.DataType = pa.schema(native.result_schema()).field(0).type
        """The Arrow type of results."""

    def add(self, keys: Any, rows: Any = None) -> None:
        """Adds one row to the aggregates of one key; or rows, one for each of many keys, which may come more than once.

        Rows are a record batch or table whose columns are found by name, or dicts, tuples or plain values, as declared;
        of a state that only counts, they are left out.

        Raises `InvalidArgument` if something does not fit the types, if a key is null, or for an overflow if ``ansi``,
        and `RetryableError` if too much was changed since the last checkpoint.
        """
        if rows is None and self.value_type.num_fields == 0 and pa.types.is_struct(self.value_type):
            self._native.add(self._keys.of(keys), None)
        elif self._keys.is_one(keys):
            self._native.add(self._keys.one(keys), array_of("row", [rows], self.value_type))
        else:
            self._native.add(self._keys.many(keys), rows_of(rows, self.value_type))

    def get(self, keys: Any, default: Any = None) -> Any:
        """The results of one key, ``default`` if nothing was added to it; or those of many keys, as an Arrow array with
        a null where nothing was added."""
        found = self._native.get(self._keys.of(keys))
        if self._keys.is_one(keys):
            # A result may itself be null.
            return default if found.null_count and keys not in self else found[0].as_py()
        return found

    def contains(self, keys: Any) -> Any:
        """Whether something was added to one key; or to which of many keys, as an Arrow array of booleans."""
        found = self._native.contains(self._keys.of(keys))
        return found[0].as_py() if self._keys.is_one(keys) else found

    def clear(self, keys: Any) -> None:
        """Forgets one key, or many. A key to which nothing was added is fine."""
        self._native.clear(self._keys.of(keys))

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._native.get(self._keys.one(key))[0].as_py()

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._native.clear(self._keys.one(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._native.contains(self._keys.one(key))[0].as_py())


def calls_of(aggregates: Sequence[Aggregate], named: Mapping[str, Aggregate]) -> str:
    """The JSON description of aggregates for the core."""
    given = [(None, aggregate) for aggregate in aggregates] + list(named.items())
    calls = []
    for name, aggregate in given:
        if not isinstance(aggregate, Aggregate):
            raise InvalidArgument(f"{aggregate!r} is no aggregate; give one such as n=fc.count()")
        for column in (*aggregate.args, aggregate.where):
            if not isinstance(column, str | None):
                raise InvalidArgument(f"{aggregate!r}: rows here have columns by name; give a name, not a Column")
        identity = repr(Aggregate(aggregate.fn, aggregate.args, aggregate.where, aggregate.ignore_nulls))
        only = len(given) == 1 and name is None and aggregate.name is None
        call = {"fn": aggregate.fn, "args": aggregate.args, "where": aggregate.where}
        call |= {"ignore_nulls": aggregate.ignore_nulls, "identity": identity}
        calls.append({**call, "name": None if only else name or aggregate.name or identity})
    names = [call["name"] for call in calls]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"two results are named `{name}`; name them apart: total=fc.sum(…)")
    return json.dumps(calls)
