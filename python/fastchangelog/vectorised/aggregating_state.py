"""Aggregates for each key, for many rows at once.

Owns: what user code sees of it, and merging new results into kept ones.
Does not own: the computation (`aggregates`), what all kinds of state share (`state`).

What is kept is a value state whose values are results: so only functions are taken whose results can be merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.function_table import FUNCTIONS
from fastchangelog.functions import Aggregate
from fastchangelog.vectorised.aggregates import aggregate
from fastchangelog.vectorised.keys import BatchKeys, by_key
from fastchangelog.vectorised.session import DELETE, PUT
from fastchangelog.vectorised.state import Form, VectorState

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, RowsLike

__all__ = ["VectorAggregatingState"]

#: Function -> what makes one result of two.
_MERGED = {"count": "sum", "sum": "sum", "min": "min", "max": "max", "bool_and": "bool_and", "bool_or": "bool_or"}


class VectorAggregatingState(VectorState):
    """Aggregates for each key; made by `Context.aggregating_state`. Rows go in, results come out; rows are not kept.

    Example:
        >>> import pyarrow as pa
        >>> import fastchangelog as fc
        >>> from fastchangelog.testing import run_processor
        >>> class Totals(fc.Processor):
        ...     def open(self, ctx):
        ...         self.totals = ctx.aggregating_state("totals", "v long", n=fc.count(), high=fc.max("v"))
        ...     def process(self, batch):
        ...         self.totals.add(batch.row_keys, batch.rows)
        ...         yield pa.record_batch({"k": batch.keys.field("k"), "found": self.totals.get(batch.keys)})
        >>> rows = pa.record_batch({"k": ["a", "b", "a"], "v": [1, 2, 3]})
        >>> run_processor(Totals(), [rows, rows.slice(1)])[1].to_pylist()
        [{'k': 'a', 'found': {'n': 3, 'high': 3}}, {'k': 'b', 'found': {'n': 2, 'high': 2}}]
    """

    def __init__(self, name: str, rows: pa.DataType, named: Mapping[str, Aggregate], keys: BatchKeys) -> None:
        if not named:
            raise InvalidArgumentError(
                f"state `{name}` has no aggregates; give them by the name of their result, such as n=fc.count()"
            )
        self._declared = rows
        self._rows = Form(rows, "value").kept
        self._named = dict(named)
        self._merging: dict[str, Aggregate] = {}
        for result, one in self._named.items():
            function = FUNCTIONS[one.fn].name if isinstance(one, Aggregate) else ""
            if isinstance(one, Aggregate) and function not in _MERGED:
                raise UnsupportedError(
                    f"state `{name}`: results of {one!r} cannot be merged; an aggregating state of a processor takes "
                    f"{', '.join(_MERGED)}"
                )
            self._merging[result] = Aggregate(_MERGED.get(function, ""), (result,))
        none = pa.RecordBatch.from_pylist([], pa.schema(list(self._rows)))
        self._results = aggregate(none, np.zeros(1, np.int64), self._named).schema
        super().__init__(name, pa.struct(list(self._results)), keys)

    def get(self, keys: ArrowArrayLike) -> pa.StructArray:
        """The results of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            A struct array of the results of each key, null where nothing was added.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see the class.
        """
        return self._found(self._keys.encoded(self._what, keys))

    def add(self, keys: ArrowArrayLike, rows: RowsLike) -> None:
        """Adds rows, one for each of many keys.

        Args:
            keys: Keys of the batch, such as `batch.row_keys`; one may come more than once.
            rows: As many rows: `batch.rows`, whose columns are found by name, or what fits the declared type.

        Raises:
            InvalidArgumentError: A key is none of the batch, something does not fit its type, or a sum overflows.

        Example: see the class.
        """
        encoded = self._keys.encoded(self._what, keys)
        _, codec = self._bound()
        order, starts, offsets = by_key(encoded)
        is_table = isinstance(rows, pa.RecordBatch | pa.Table)
        given = self._given("rows", rows, self._rows if is_table else self._declared, encoded)
        if not len(given):
            return
        whole = (
            given if pa.types.is_struct(given.type) else pa.StructArray.from_arrays([given], fields=list(self._rows))
        )
        columns = pa.RecordBatch.from_struct_array(whole).take(order)
        changed = encoded.take(order).take(pa.array(starts))
        new = aggregate(columns, offsets, self._named).to_struct_array()
        self._send(np.full(len(changed), PUT), changed, None, codec.encode_values(self._merged(changed, new)))

    def clear(self, keys: ArrowArrayLike) -> None:
        """Removes the results of keys; those without any are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `get`.
        """
        encoded = self._keys.encoded(self._what, keys)
        self._send(np.full(len(encoded), DELETE), encoded)

    def _found(self, keys: pa.BinaryArray) -> pa.StructArray:
        session, _ = self._bound()
        return self._read(len(keys), lambda start, count: session.get(self._id, keys.slice(start, count)))

    def _merged(self, keys: pa.BinaryArray, new: pa.StructArray) -> pa.StructArray:
        """Kept results and new ones as one; of a key without kept ones the new ones as they are."""
        kept = self._found(keys)
        count = len(kept)
        # Kept and new results of a key side by side; aggregates leave out the nulls of a key that has none kept.
        pairs = pa.concat_arrays([kept, new]).take(pa.array(np.arange(2 * count).reshape(2, count).T.ravel()))
        both = pa.RecordBatch.from_arrays(pairs.flatten(), names=self._results.names)
        merged = aggregate(both, np.arange(0, 2 * count + 1, 2), self._merging)
        columns = []
        for field, column in zip(self._results, merged.columns, strict=True):
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowInvalid:
                raise InvalidArgumentError(
                    f"{self._what}: {self._named[field.name]!r} of a key is beyond {field.type}"
                ) from None
        return pa.StructArray.from_arrays(columns, fields=list(self.value_type))
