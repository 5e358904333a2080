"""Aggregates of the rows of many keys.

Owns: the columns that the core's accumulators are given: those that aggregates name, and a column for each condition.
Does not own: what an aggregate means and how it is stored (the core), the description of aggregates
(`embedded.aggregating_state`), conditions (`embedded.condition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.embedded.aggregating_state import calls_of
from fastchangelog.functions import Aggregate

__all__ = ["Aggregates"]


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
