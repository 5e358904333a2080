"""Aggregates for each key.

Owns: Python's view of them, and their description for the core.
Does not own: what an aggregate means (the core), conditions (`embedded.condition`), opening a state (`embedded.state`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.arrow import Typed
from fastchangelog.embedded.condition import Condition
from fastchangelog.embedded.keyed import Clearable, MappingByKey
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.function_table import FUNCTIONS
from fastchangelog.functions import Aggregate

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, RowsLike, ValueLike

__all__ = ["AggregatingState", "Rows", "calls_of"]


class Rows:
    """The rows of an aggregating state: the declared type, and a column for each condition.

    >>> import fastchangelog as fc
    >>> rows = Rows(pa.int64(), [fc.count(where="value > 1")])
    >>> rows.kept_type
    StructType(struct<value: int64, where value > 1: bool>)
    >>> rows.with_conditions(pa.array([1, 2])).to_pylist()
    [{'value': 1, 'where value > 1': False}, {'value': 2, 'where value > 1': True}]
    """

    def __init__(self, declared: pa.DataType, aggregates: Sequence[Aggregate]) -> None:
        self.declared = declared
        self._plain = not pa.types.is_struct(declared)
        self._fields = [pa.field("value", declared)] if self._plain else list(declared)
        names = [field.name for field in self._fields]
        self._conditions: dict[str, Condition] = {}
        for aggregate in aggregates:
            if isinstance(aggregate.where, str) and aggregate.where not in names:
                condition = Condition(repr(aggregate), aggregate.where)
                for column in condition.columns - set(names):
                    raise InvalidArgumentError(
                        f"{aggregate!r}: rows have no column `{column}`; they have: {', '.join(names)}"
                    )
                condition.of({field.name: pa.array([], field.type) for field in self._fields})
                self._conditions[aggregate.where] = condition
        more = [pa.field(f"where {text}", pa.bool_()) for text in self._conditions]
        self.kept_type: pa.DataType = pa.struct([*self._fields, *more]) if more else declared
        """The type of what the core is given."""

    def column(self, where: str | None) -> str | None:
        """The name of the column of a condition."""
        return f"where {where}" if where in self._conditions else where

    def with_conditions(self, rows: pa.Array) -> pa.Array:
        """Rows of the declared type as those that the core is given."""
        if not self._conditions:
            return rows
        columns = {"value": rows} if self._plain else dict(zip((f.name for f in self._fields), rows.flatten()))
        found = [condition.of(columns) for condition in self._conditions.values()]
        return pa.StructArray.from_arrays([*columns.values(), *found], fields=list(self.kept_type))


class AggregatingState(Clearable, MappingByKey[_internal.AggregatingState]):
    """Aggregates for each key; made by `State.aggregating_state`. Rows go in, results come out; rows are not kept.

    It is a `Mapping` of results in the order of keys, from which keys can be deleted. The methods that end in ``_many``
    take many keys at once, in Arrow; a batch is applied as a whole or not at all.

    Example:
        >>> import fastchangelog as fc
        >>> st = fc.open_state("memory://docs/aggregates")
        >>> totals = st.aggregating_state("totals", fc.sum("value", where="value > 0"), key="string", value="long")
        >>> totals.add_many(["ann", "bob", "ann"], [1, 2, 3])
        >>> totals.add("ann", 10)
        >>> totals.add("ann", -5)
        >>> totals["ann"], totals.get_many(["bob", "cid"]).to_pylist()
        (14, [2, None])
        >>> del totals["ann"]
        >>> dict(totals)
        {'bob': 2}
        >>> st.close()
    """

    def __init__(
        self, state: object, native: _internal.AggregatingState, name: str, schema: pa.Schema, rows: Rows
    ) -> None:
        super().__init__(state, native, name, schema)
        self._values = Typed("row", self.value_type)
        self._rows = rows
        self.result_type: pa.DataType = pa.schema(native.result_schema()).field(0).type
        """The Arrow type of results."""

    def add(self, key: KeyLike, row: ValueLike = None) -> None:
        """Adds one row to the aggregates of one key.

        Args:
            key: The key.
            row: A dict, a tuple or a plain value, as declared; left out of a state that only counts.

        Raises:
            InvalidArgumentError: Something does not fit the types, the key is null, or a sum overflows and the state
                was declared with ``ansi``.
            RetryableError: Too much was changed since the last checkpoint.

        Example: see the class.
        """
        rows = None if self._counts(row) else self._rows.with_conditions(self._values.one(row))
        self._native.add(self._keys.one(key), rows)

    def add_many(self, keys: ArrowArrayLike, rows: RowsLike | None = None) -> None:
        """Adds rows, one for each of many keys, in order.

        Args:
            keys: The keys; one may come more than once.
            rows: A record batch or table whose columns are found by name, or dicts, tuples or plain values, as
                declared; left out of a state that only counts.

        Raises:
            InvalidArgumentError: Something does not fit the types, a key is null, the lengths differ, or a sum
                overflows and the state was declared with ``ansi``.
            RetryableError: Too much was changed since the last checkpoint.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/aggregates/add_many") as st:
            ...     counts = st.aggregating_state("counts", fc.count(), key="string")
            ...     counts.add_many(["ann", "bob", "ann"])
            ...     counts.add("ann")
            ...     dict(counts)
            {'ann': 3, 'bob': 1}
        """
        given = None
        if rows is not None or not self._counts(rows):
            given = self._rows.with_conditions(self._values.rows(() if rows is None else rows))
        self._native.add(self._keys.many(keys), given)

    def get(self, key: KeyLike, default: PythonValue = None) -> PythonValue:
        """The results of one key.

        Args:
            key: The key.
            default: The result if nothing was added to the key.

        Returns:
            A dict of results, or the plain result of a single aggregate without a name. A result may be null.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example: see `contains_many`.
        """
        one = self._keys.one(key)
        found = self._native.get(one)
        # A result may itself be null.
        if found.null_count and not self._native.contains(one)[0].as_py():
            return default
        return found[0].as_py()

    def get_many(self, keys: ArrowArrayLike) -> pa.Array:
        """The results of many keys.

        Args:
            keys: The keys.

        Returns:
            An array of one result for each key, null where nothing was added.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see the class.
        """
        return self._native.get(self._keys.many(keys))

    def contains_many(self, keys: ArrowArrayLike) -> pa.BooleanArray:
        """To which of many keys something was added.

        Args:
            keys: The keys.

        Returns:
            An array of booleans, one for each key.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/aggregates/contains_many") as st:
            ...     best = st.aggregating_state("best", fc.max("value"), key="string", value="long")
            ...     best.add("ann", None)
            ...     best.contains_many(["ann", "bob"]).to_pylist(), best.get("ann", 0), best.get("bob", 0)
            ([True, False], None, 0)
        """
        return self._native.contains(self._keys.many(keys))

    def clear(self, key: KeyLike) -> None:
        """Forgets one key. A key to which nothing was added is fine.

        Args:
            key: The key.

        Raises:
            InvalidArgumentError: The key does not fit its type.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/aggregates/clear") as st:
            ...     counts = st.aggregating_state("counts", fc.count(), key="string")
            ...     counts.add_many(["ann", "bob", "cid"])
            ...     counts.clear("ann")
            ...     counts.clear_many(["bob", "dan"])
            ...     list(counts)
            ['cid']
        """
        self._native.clear(self._keys.one(key))

    def clear_many(self, keys: ArrowArrayLike) -> None:
        """Forgets many keys. Those to which nothing was added are fine.

        Args:
            keys: The keys.

        Raises:
            InvalidArgumentError: A key does not fit its type, or is null.

        Example: see `clear`.
        """
        self._native.clear(self._keys.many(keys))

    def __getitem__(self, key: KeyLike) -> PythonValue:
        one = self._keys.one(key)
        if not self._native.contains(one)[0].as_py():
            raise KeyError(key)
        return self._native.get(one)[0].as_py()

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _counts(self, row: object) -> bool:
        """True if there is no row to add: the state only counts."""
        return row is None and self.value_type.num_fields == 0 and pa.types.is_struct(self.value_type)


def calls_of(
    aggregates: Sequence[Aggregate], named: Mapping[str, Aggregate], declared: pa.DataType
) -> tuple[str, Rows]:
    """The JSON description of aggregates for the core, and the rows that it is given."""
    given = [(None, aggregate) for aggregate in aggregates] + list(named.items())
    for _, aggregate in given:
        if not isinstance(aggregate, Aggregate):
            raise InvalidArgumentError(f"{aggregate!r} is no aggregate; give one such as n=fc.count()")
        for column in (*aggregate.args, aggregate.where):
            if not isinstance(column, str | None):
                raise InvalidArgumentError(f"{aggregate!r}: rows here have columns by name; give a text, not a Column")
    rows = Rows(declared, [aggregate for _, aggregate in given])
    calls: list[dict[str, object]] = []
    for name, aggregate in given:
        where = aggregate.where if isinstance(aggregate.where, str) else None
        # Stored rows know a function by one name; a result has the name that was written.
        fn = FUNCTIONS[aggregate.fn].name
        shown = repr(Aggregate(aggregate.fn, aggregate.args, where, aggregate.ignore_nulls))
        identity = repr(Aggregate(fn, aggregate.args, where, aggregate.ignore_nulls))
        only = len(given) == 1 and name is None and aggregate.name is None
        described = {"fn": fn, "args": aggregate.args, "where": rows.column(where), "identity": identity}
        result = None if only else name or aggregate.name or shown
        calls.append({**described, "ignore_nulls": aggregate.ignore_nulls, "name": result})
    names = [call["name"] for call in calls]
    for twice in names:
        if names.count(twice) > 1:
            raise InvalidArgumentError(f"two results are named `{twice}`; name them apart: total=fc.sum(…)")
    return json.dumps(calls), rows
