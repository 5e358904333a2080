"""Aggregates for each key.

Owns: Python's view of them: a mapping for single keys, Arrow for many keys at once; their calls in a session, with the
stored form there: accumulators, or results where an older catalog says so.
Does not own: aggregates and their rows (`aggregates`), opening a state (`embedded.state`), processors
(`vectorised`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import Typed
from fastchangelog.functions import Aggregate
from fastchangelog.state.aggregates import Aggregates, Rows
from fastchangelog.state.in_session import Form, ValuesInSession, joined
from fastchangelog.state.keyed import Clearable, MappingByKey
from fastchangelog.state.keys import BatchKeys
from fastchangelog.state.session import DELETE, PUT
from fastchangelog.state.vector import Columns, VectorByKey, VectorClearable

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, PythonValue, RowsLike, ValueLike

__all__ = ["AggregatingInSession", "AggregatingState", "VectorAggregatingState"]


class AggregatingInSession(ValuesInSession):
    """The calls of a state of aggregates, as `_internal.AggregatingState` has them."""

    kind = "aggregating"

    def __init__(self, name: str, rows: pa.StructType, named: Mapping[str, Aggregate], *, ansi: bool) -> None:
        self._rows, self._named = rows, dict(named)
        self._aggregates = Aggregates(rows, named, ansi=ansi)
        self.layout = self._aggregates.layout
        super().__init__(name, self._aggregates.result_type)

    def bind(
        self,
        session: _internal.StateSession,
        state_id: int,
        codec: _internal.StateCodec | None = None,
        expires_at: int | None = None,
    ) -> None:
        """See `ValuesInSession`; a codec is that of stored results."""
        super().bind(session, state_id, codec, expires_at)
        if codec is not None:
            # Stored results do not tell a null sum that has overflowed from an empty one: an overflow is an error.
            self._aggregates = Aggregates(self._rows, self._named, ansi=True)

    def get(self, keys: pa.BinaryArray) -> pa.StructArray:
        """The results; null where nothing was added."""
        return self._aggregates.results(self._stored(keys))

    def add(self, keys: pa.BinaryArray, rows: pa.Array) -> None:
        """Adds rows."""
        if not len(self._each("rows", rows, keys)):
            return
        whole = rows if pa.types.is_struct(rows.type) else pa.StructArray.from_arrays([rows], fields=list(self._rows))
        distinct = keys.dictionary_encode()
        folded = self._aggregates.fold(self._stored(distinct.dictionary), distinct.indices, whole)
        kept = folded if self._codec is None else self._codec.encode_values(self._aggregates.results(folded))
        self._send(PUT, distinct.dictionary, None, kept)

    def clear(self, keys: pa.BinaryArray) -> None:
        """Removes keys."""
        self._send(DELETE, keys)

    def _stored(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The accumulators of keys, null where nothing was added."""
        codec, pages = self._codec, list(self._pages(keys))
        if codec is not None:
            pages = [self._aggregates.rebuild(codec.decode_values(page)) for page in pages]
        return joined(pages)


class VectorAggregatingState(VectorByKey[AggregatingInSession], VectorClearable[AggregatingInSession]):
    """Aggregates for each key; made by `Context.aggregating_state`. Rows go in, results come out; rows are not kept.

    Keys are `batch.keys`, or some of them: another key is an `InvalidArgumentError`, as is what does not fit its type.

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

    def __init__(
        self, name: str, rows: pa.DataType, named: Mapping[str, Aggregate], keys: BatchKeys, *, ansi: bool = True
    ) -> None:
        if not named:
            raise InvalidArgumentError(
                f"state `{name}` has no aggregates; give them by the name of their result, such as n=fc.count()"
            )
        whole = Form(rows, "value").kept
        calls = AggregatingInSession(name, whole, named, ansi=ansi)
        super().__init__(name, calls.form.declared, keys, calls)
        self._rows, self._whole_rows = Columns(f"state `{name}`: row", rows), Columns(f"state `{name}`: row", whole)

    def add(self, keys: ArrowArrayLike, rows: RowsLike) -> None:
        """Adds rows, one for each of many keys.

        Args:
            keys: Keys of the batch, such as `batch.row_keys`; one may come more than once.
            rows: As many rows: `batch.rows`, whose columns are found by name, or what fits the declared type.

        Raises:
            InvalidArgumentError: A key is none of the batch, something does not fit its type, or a result overflows in
                ANSI mode.

        Example: see the class.
        """
        given = self._whole_rows if isinstance(rows, pa.RecordBatch | pa.Table) else self._rows
        self.calls.add(self._keys.many(keys), given.many(rows))


class AggregatingState(Clearable[_internal.AggregatingState], MappingByKey[_internal.AggregatingState]):
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
        super().__init__(state, native, name, schema.set(1, pa.field("value", rows.declared)))
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
