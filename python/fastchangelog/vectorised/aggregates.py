"""Aggregates of the rows of many keys, key by key.

Owns: their computation with Arrow and numpy. Rows of a key are side by side, so no hash table is needed.
Does not own: their description and the types of results (`embedded.aggregating_state`, the core), conditions
(`embedded.condition`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog import _internal
from fastchangelog.embedded.aggregating_state import calls_of
from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.functions import Aggregate

__all__ = ["aggregate"]

_WIDE = 76


def aggregate(rows: pa.RecordBatch, offsets: Any, named: Mapping[str, Aggregate]) -> pa.RecordBatch:
    """See `Batch.aggregate`."""
    if not named:
        raise InvalidArgumentError("aggregate() takes aggregates by the name of their result, such as n=fc.count()")
    declared = pa.struct(list(rows.schema))
    text, described = calls_of((), named, declared)
    calls = json.loads(text)
    whole = described.with_conditions(rows.to_struct_array())
    columns = dict(zip((field.name for field in whole.type), whole.flatten()))
    results = _results(calls, columns)
    arrays = [_Call(call, columns, offsets).result(dtype) for call, dtype in zip(calls, results, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(named))


def _results(calls: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.Array]) -> list[pa.DataType]:
    """The types that Spark's aggregates give."""
    used: list[str] = []
    specs = []
    for call in calls:
        for name in call["args"] + [name for name in [call["where"]] if name is not None]:
            if name not in columns:
                raise InvalidArgumentError(
                    f"{call['identity']}: rows have no column `{name}`; they have: {', '.join(columns)}"
                )
            if name not in used:
                used.append(name)
        spec = {name: call[name] for name in ("fn", "ignore_nulls", "identity")}
        where = None if call["where"] is None else used.index(call["where"])
        specs.append({**spec, "args": list(map(used.index, call["args"])), "where": where, "ansi": True})
    schema = pa.schema([(name, columns[name].type) for name in used])
    return list(_internal.aggregate_results(schema, json.dumps(specs)).types)


class _Call:
    """One aggregate over the rows of all keys."""

    def __init__(self, call: Mapping[str, Any], columns: Mapping[str, pa.Array], offsets: Any) -> None:
        self._fn: str = call["fn"]
        self._name: str = call["identity"]
        self._ignores_nulls: bool = call["ignore_nulls"]
        self._arguments = [columns[name] for name in call["args"]]
        self._offsets = offsets
        where = call["where"]
        self._kept = np.ones(int(offsets[-1]), bool)
        if where is not None:
            self._kept = columns[where].fill_null(False).to_numpy(zero_copy_only=False)

    def result(self, dtype: pa.DataType) -> pa.Array:
        """One result of this type for each key."""
        found: Callable[[], pa.Array] | None = {
            "count": self._count,
            "sum": lambda: self._sum(dtype),
            "avg": self._average,
            "min": lambda: self._extreme(np.fmin, np.minimum),
            "max": lambda: self._extreme(np.maximum, np.maximum),
            "first": lambda: self._edge(0),
            "last": lambda: self._edge(-1),
            "bool_and": lambda: self._extreme(np.minimum, np.minimum),
            "bool_or": lambda: self._extreme(np.maximum, np.maximum),
            "min_by": lambda: self._by(np.minimum),
            "max_by": lambda: self._by(np.maximum),
        }.get(self._fn)
        if found is None:
            raise UnsupportedError(
                f"{self._name}: Batch.aggregate() does not compute {self._fn}(); compute it from batch.rows and "
                "batch.offsets"
            )
        result = found()
        return result if result.type == dtype else result.cast(dtype)

    def _of(self, *needed: pa.Array) -> tuple[Any, Any, Any, Any]:
        """The numbers of the rows that count, where all `needed` have a value; where those of each key begin and end
        among them; which keys have any."""
        mask = self._kept
        for column in needed:
            if column.null_count:
                mask = mask & column.is_valid().to_numpy(zero_copy_only=False)
        before = np.concatenate([[0], np.cumsum(mask)])
        starts, ends = before[self._offsets[:-1]], before[self._offsets[1:]]
        return np.flatnonzero(mask), starts, ends, ends > starts

    def _count(self) -> pa.Array:
        _, starts, ends, _ = self._of(*self._arguments)
        return pa.array(ends - starts, pa.int64())

    def _edge(self, at: int) -> pa.Array:
        column = self._arguments[0]
        rows, starts, ends, has = self._of(*([column] if self._ignores_nulls else []))
        places = (starts if at == 0 else ends - 1)[has]
        return self._taken(column, rows[places], has)

    def _sum(self, dtype: pa.DataType) -> pa.Array:
        column = self._arguments[0]
        rows, starts, _, has = self._of(column)
        values = column.take(pa.array(rows))
        if pa.types.is_decimal(dtype):
            return self._exact_sum(values, starts, has, dtype)
        if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_duration(dtype)):
            raise self._unsupported(column)
        is_float = pa.types.is_floating(dtype)
        numbers = _numbers(values).astype(np.float64 if is_float else np.int64)
        if not is_float and len(numbers) and float(np.abs(numbers.astype(np.float64)).sum()) > 2.0**62:
            wide = pa.array(numbers, pa.int64()).cast(pa.decimal256(_WIDE, 0))
            exact = self._exact_sum(wide, starts, has, pa.decimal128(38, 0))
            return self._fitting(exact, pa.int64()).cast(dtype)
        return self._spread(_reduced(np.add, numbers, starts, has), has).cast(dtype)

    def _exact_sum(self, values: pa.Array, starts: Any, has: Any, dtype: pa.DataType) -> pa.Array:
        """The sum of decimals, or the error for one that is beyond its type."""
        wide = values.cast(pa.decimal256(_WIDE, values.type.scale))
        groups = np.repeat(np.arange(len(has)), np.diff(np.append(starts, len(values))))
        table: Any = pa.table({"group": groups, "value": wide})
        summed = table.group_by("group", use_threads=False).aggregate([("value", "sum")])
        found = summed.sort_by("group")["value_sum"].combine_chunks()
        places = pa.array(np.cumsum(has) - 1, mask=~has)
        return self._fitting(found, dtype).take(places)

    def _fitting(self, found: pa.Array, dtype: pa.DataType) -> pa.Array:
        try:
            return found.cast(dtype)
        except pa.ArrowInvalid:
            raise InvalidArgumentError(f"{self._name}: the sum of a key is beyond {dtype}") from None

    def _average(self) -> pa.Array:
        column = self._arguments[0]
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise self._unsupported(column)
        rows, starts, ends, has = self._of(column)
        numbers = _numbers(column.take(pa.array(rows))).astype(np.float64)
        return self._spread(_reduced(np.add, numbers, starts, has) / (ends - starts)[has], has)

    def _extreme(self, of_floats: Any, of_others: Any) -> pa.Array:
        """The smallest or largest value; a NaN is larger than all others."""
        column = self._arguments[0]
        dtype = column.type
        if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
            return self._ranked(column, column, of_others)
        rows, starts, _, has = self._of(column)
        reduce = of_floats if pa.types.is_floating(dtype) else of_others
        return self._spread(_reduced(reduce, _numbers(column.take(pa.array(rows))), starts, has), has)

    def _by(self, reduce: Any) -> pa.Array:
        return self._ranked(self._arguments[1], self._arguments[0], reduce)

    def _ranked(self, order: pa.Array, shown: pa.Array, reduce: Any) -> pa.Array:
        """The value of `shown` in the last of the rows in which `order` is smallest or largest."""
        rows, starts, ends, has = self._of(order)
        if not len(rows):
            return pa.nulls(len(has), shown.type)
        values = order.take(pa.array(rows))
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        try:
            ranks = np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
        except pa.ArrowNotImplementedError:
            raise self._unsupported(order) from None
        best = _reduced(reduce, ranks, starts, has)
        is_best = ranks == np.repeat(best, (ends - starts)[has])
        places = np.where(is_best, np.arange(len(ranks)), -1)
        return self._taken(shown, rows[_reduced(np.maximum, places, starts, has)], has)

    def _taken(self, column: pa.Array, rows: Any, has: Any) -> pa.Array:
        """Some rows of a column, one for each key that has any; null for the others."""
        return column.take(self._spread(rows, has))

    def _spread(self, found: Any, has: Any) -> pa.Array:
        """Results of the keys that have any, with nulls for the others."""
        whole = np.zeros(len(has), found.dtype)
        whole[has] = found
        return pa.array(whole, mask=~has)

    def _unsupported(self, column: pa.Array) -> UnsupportedError:
        return UnsupportedError(
            f"{self._name}: Batch.aggregate() does not compute {self._fn}() of {column.type}; compute it from "
            "batch.rows and batch.offsets"
        )


def _numbers(values: pa.Array) -> Any:
    """Numbers as numpy has them; durations as integers."""
    return np.asarray(values.cast(pa.int64()) if pa.types.is_duration(values.type) else values)


def _reduced(reduce: Any, values: Any, starts: Any, has: Any) -> Any:
    """One result for each key that has rows; its values reach up to the next key's."""
    return reduce.reduceat(values, starts[has]) if has.any() else values[:0]
