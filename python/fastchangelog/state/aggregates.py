"""Aggregates of the rows of many keys, and their description.

Owns: the rows that the core is given: the columns that aggregates name, and one for each condition; aggregates as JSON.
Does not own: what an aggregate means and how it is stored (the core), conditions (`condition`), states (`aggregating`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.function_table import FUNCTIONS
from fastchangelog.functions import Aggregate
from fastchangelog.state.condition import Condition

__all__ = ["Aggregates", "Rows", "calls_of"]


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


class Aggregates:
    """Named aggregates over rows of one type; a group of rows has one accumulator.

    >>> import fastchangelog as fc
    >>> aggregates = Aggregates(pa.struct([("v", pa.int64())]), {"mean": fc.avg("v", where="v > 1")})
    >>> rows = pa.array([{"v": 1}, {"v": 2}, {"v": 3}])
    >>> stored = aggregates.fold(pa.nulls(2, pa.binary()), [0, 0, 1], rows)
    >>> stored = aggregates.fold(stored, [0], pa.array([{"v": 5}]))
    >>> aggregates.results(stored).to_pylist()
    [{'mean': 3.5}, {'mean': 3.0}]
    """

    def __init__(self, rows: pa.StructType, named: Mapping[str, Aggregate], *, ansi: bool = True) -> None:
        calls, self._rows = calls_of((), named, rows)
        columns = list(self._rows.kept_type)
        self._core = _internal.Accumulators(pa.schema(columns), calls, ansi)
        self._fields = [columns[i] for i in self._core.columns]
        self.result_type = pa.struct(list(self._core.result_schema))
        """The type of results, with a field for each aggregate."""

    @property
    def layout(self) -> AccumulatorLayout:
        """The description of stored accumulators."""
        core = self._core
        return AccumulatorLayout(core.schema, tuple(core.identities), can_rebuild=core.can_rebuild)

    def of_groups(self, count: int, groups: Any, rows: pa.StructArray) -> pa.StructArray:
        """The results of `count` groups; `groups` has the number of each row's group."""
        return self._core.aggregate(count, _numbers(groups), self._columns(rows))

    def fold(self, stored: pa.BinaryArray, groups: Any, rows: pa.StructArray) -> pa.BinaryArray:
        """The accumulators of `stored` with rows added; `groups` has the number of each row's accumulator."""
        return self._core.fold(stored, _numbers(groups), self._columns(rows))

    def results(self, stored: pa.BinaryArray) -> pa.StructArray:
        """The results of accumulators, null for null."""
        return self._core.results(stored)

    def rebuild(self, results: pa.StructArray) -> pa.BinaryArray:
        """The accumulators that have these results, if the layout allows it."""
        return self._core.rebuild(results)

    def _columns(self, rows: pa.StructArray) -> pa.StructArray:
        columns = self._rows.with_conditions(rows).flatten()
        if not self._fields:
            return pa.array([], pa.struct([]))
        return pa.StructArray.from_arrays([columns[i] for i in self._core.columns], fields=self._fields)


def _numbers(groups: Any) -> pa.UInt32Array:
    return pa.array(np.asarray(groups, np.uint32))
