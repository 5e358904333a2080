"""Aggregates for each key, for many rows at once.

Owns: what user code sees of it, and the stored form: accumulators, or results where an older catalog says so.
Does not own: aggregates and their accumulators (`aggregates`), what all kinds of state share (`state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.functions import Aggregate
from fastchangelog.vectorised.aggregates import Aggregates
from fastchangelog.vectorised.keys import BatchKeys
from fastchangelog.vectorised.session import DELETE, PUT, Codec, SessionLike
from fastchangelog.vectorised.state import Form, VectorState, joined

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, RowsLike

__all__ = ["VectorAggregatingState"]


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

    def __init__(
        self, name: str, rows: pa.DataType, named: Mapping[str, Aggregate], keys: BatchKeys, *, ansi: bool = True
    ) -> None:
        if not named:
            raise InvalidArgumentError(
                f"state `{name}` has no aggregates; give them by the name of their result, such as n=fc.count()"
            )
        self._declared = rows
        self._rows = Form(rows, "value").kept
        self._named = dict(named)
        self._aggregates = Aggregates(self._rows, named, ansi=ansi)
        self.layout = self._aggregates.layout
        """The description of stored accumulators; of this package."""
        super().__init__(name, self._aggregates.result_type, keys)

    def bind(self, session: SessionLike, state_id: int, codec: Codec | None, expires_at: int | None) -> None:
        """See `VectorState`; a codec is that of stored results."""
        super().bind(session, state_id, codec, expires_at)
        if codec is not None:
            # Stored results do not tell a null sum that has overflowed from an empty one: an overflow is an error.
            self._aggregates = Aggregates(self._rows, self._named, ansi=True)

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
        return self._aggregates.results(self._stored(self._keys.encoded(self._what, keys)))

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
        encoded = self._keys.encoded(self._what, keys)
        is_table = isinstance(rows, pa.RecordBatch | pa.Table)
        given = self._given("rows", rows, self._rows if is_table else self._declared, encoded)
        if not len(given):
            return
        whole = (
            given if pa.types.is_struct(given.type) else pa.StructArray.from_arrays([given], fields=list(self._rows))
        )
        distinct = encoded.dictionary_encode()
        changed = distinct.dictionary
        folded = self._aggregates.fold(self._stored(changed), distinct.indices, whole)
        self._send(np.full(len(changed), PUT), changed, None, self._kept(folded))

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

    def _stored(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The accumulators of keys, null where nothing was added."""
        session, codec = self._in_session(), self._codec
        pages = self._pages(len(keys), lambda start, count: session.get(self._id, keys.slice(start, count)))
        if codec is None:
            return joined(list(pages))
        return joined([self._aggregates.rebuild(codec.decode_values(page)) for page in pages])

    def _kept(self, accumulators: pa.BinaryArray) -> pa.BinaryArray:
        """The bytes that are stored for accumulators: results with a codec, else the accumulators themselves."""
        codec = self._codec
        return accumulators if codec is None else codec.encode_values(self._aggregates.results(accumulators))
