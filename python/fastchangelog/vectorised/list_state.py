"""A list for each key, for many keys at once.

Owns: what user code sees of it, Arrow in and out, and the errors for what does not fit.
Does not own: what all kinds of state share (`state`), reading whole lists (`session`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.vectorised.session import APPEND, CLEAR, read_all_entries
from fastchangelog.vectorised.state import VectorState

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, RowsLike

__all__ = ["VectorListState", "offsets_of"]


class VectorListState(VectorState):
    """A list for each key; made by `Context.list_state`. All methods take many keys at once.

    They are those of `fastchangelog.ListState` whose names end in ``_many``, without that ending. No element is null,
    and a list without elements is none.

    Example:
        >>> import pyarrow as pa
        >>> import fastchangelog as fc
        >>> from fastchangelog.testing import run_processor
        >>> class Visits(fc.Processor):
        ...     def open(self, ctx):
        ...         self.pages = ctx.list_state("pages", "string")
        ...     def process(self, batch):
        ...         self.pages.extend(batch.keys, batch.lists("page"))
        ...         yield pa.RecordBatch.from_arrays([batch.keys.field("user"), self.pages.get(batch.keys)], ["u", "p"])
        >>> first = pa.record_batch({"user": ["ann", "bob", "ann"], "page": ["/", "/", "/cart"]})
        >>> run_processor(Visits(), [first, first.slice(0, 1)])[1].to_pylist()
        [{'u': 'ann', 'p': ['/', '/cart', '/']}]
    """

    def get(self, keys: ArrowArrayLike) -> pa.ListArray:
        """The lists of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one list for each key, null where there is none.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see the class.
        """
        encoded = self._keys.encoded(self._what, keys)
        session, codec = self._bound()
        counts, entries = read_all_entries(session, self._id, encoded)
        elements = self.form.shown(codec.decode_values(entries.field("value")))
        return pa.ListArray.from_arrays(offsets_of(counts), elements)

    def length(self, keys: ArrowArrayLike) -> pa.Int64Array:
        """How many elements the lists of keys have.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one number for each key; 0 where there is no list.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `get`.
        """
        session, _ = self._bound()
        counts, _ = read_all_entries(session, self._id, self._keys.encoded(self._what, keys))
        return pa.array(counts, pa.int64())

    def append(self, keys: ArrowArrayLike, values: RowsLike) -> None:
        """Adds one element for each of many keys, in order.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            values: As many elements.

        Raises:
            InvalidArgumentError: A key is none of the batch, an element is null, or something does not fit its type.

        Example: see `extend`.
        """
        encoded = self._keys.encoded(self._what, keys)
        elements = self._given("elements", values, self.value_type, encoded)
        self._send(np.full(len(encoded), APPEND), encoded, None, self._encoded(elements))

    def extend(self, keys: ArrowArrayLike, lists: ArrowArrayLike) -> None:
        """Adds a list of elements for each of many keys, in order.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            lists: As many lists; a null adds nothing.

        Raises:
            InvalidArgumentError: A key is none of the batch, an element is null, or something does not fit its type.

        Example: see the class.
        """
        encoded = self._keys.encoded(self._what, keys)
        counts, elements = self._lists(lists, encoded)
        owners = pa.array(np.repeat(np.arange(len(encoded)), counts))
        self._send(np.full(len(elements), APPEND), encoded.take(owners), None, self._encoded(elements))

    def put(self, keys: ArrowArrayLike, lists: ArrowArrayLike) -> None:
        """Replaces the lists of keys.

        Args:
            keys: `batch.keys`, or some of them; of equal ones the last counts.
            lists: As many lists; a null or an empty one removes.

        Raises:
            InvalidArgumentError: A key is none of the batch, an element is null, or something does not fit its type.

        Example: see `extend`.
        """
        encoded = self._keys.encoded(self._what, keys)
        counts, elements = self._lists(lists, encoded)
        owners = np.repeat(np.arange(len(encoded)), counts + 1)
        # Each list is cleared before its first element: one more change for each key.
        is_clear = np.zeros(len(owners), bool)
        is_clear[np.cumsum(counts + 1) - counts - 1] = True
        values = self._encoded(elements).take(pa.array(np.cumsum(~is_clear) - 1, mask=is_clear))
        self._send(np.where(is_clear, CLEAR, APPEND), encoded.take(pa.array(owners)), None, values)

    def clear(self, keys: ArrowArrayLike) -> None:
        """Removes the lists of keys; those without one are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `extend`.
        """
        encoded = self._keys.encoded(self._what, keys)
        self._send(np.full(len(encoded), CLEAR), encoded)

    def _lists(self, lists: ArrowArrayLike, keys: pa.BinaryArray) -> tuple[Any, pa.Array]:
        """How many elements each list has, and all of them."""
        if isinstance(lists, list | tuple) and any(isinstance(one, str | bytes) for one in lists):
            raise InvalidArgumentError(f"{self._what}: a text is no list; append() takes one element for each key")
        given = self._given("lists", lists, pa.list_(self.value_type), keys)
        counts = np.asarray(given.value_lengths().fill_null(0)).astype(np.int64)
        return counts, given.flatten()

    def _encoded(self, elements: pa.Array) -> pa.BinaryArray:
        if elements.null_count:
            raise InvalidArgumentError(
                f"{self._what}: an element is null; leave it out, or keep structs with null fields"
            )
        return self._bound()[1].encode_values(self.form.struct(elements))


def offsets_of(counts: Any) -> pa.Int32Array:
    """Offsets of lists of so many elements; those of none are null."""
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.array(ends, mask=np.append(counts == 0, False))
