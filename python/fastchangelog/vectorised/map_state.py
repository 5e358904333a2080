"""A map for each key, for many entries at once.

Owns: what user code sees of it, Arrow in and out, and the errors for what does not fit.
Does not own: what all kinds of state share (`state`), reading whole maps (`session`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.vectorised.keys import BatchKeys
from fastchangelog.vectorised.list_state import offsets_of
from fastchangelog.vectorised.session import CLEAR, DELETE, PUT, read_all_entries
from fastchangelog.vectorised.state import Form, VectorState

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, RowsLike

__all__ = ["VectorMapState"]


class VectorMapState(VectorState):
    """A map for each key; made by `Context.map_state`. All methods take many entries at once.

    They are those of `fastchangelog.MapState` whose names end in ``_many``, without that ending, and `entries`.

    Example:
        >>> import pyarrow as pa
        >>> import fastchangelog as fc
        >>> from fastchangelog.testing import run_processor
        >>> class Carts(fc.Processor):
        ...     def open(self, ctx):
        ...         self.carts = ctx.map_state("carts", "map<string, long>")
        ...     def process(self, batch):
        ...         self.carts.put(batch.row_keys, batch.rows["item"], batch.rows["n"])
        ...         yield pa.record_batch({"u": batch.keys.field("user"), "n": self.carts.length(batch.keys)})
        >>> rows = pa.record_batch({"user": ["ann", "ann"], "item": ["fig", "kiwi"], "n": [1, 2]})
        >>> run_processor(Carts(), [rows])[0].to_pylist()
        [{'u': 'ann', 'n': 2}]
    """

    def __init__(self, name: str, declared: pa.MapType, keys: BatchKeys) -> None:
        super().__init__(name, declared.item_type, keys)
        self.map_key_type: pa.DataType = declared.key_type
        """The Arrow type of map keys."""
        self.map_key_form = Form(declared.key_type, "key")
        """How map keys are kept; of this package."""

    def get(self, keys: ArrowArrayLike, map_keys: RowsLike) -> pa.Array:
        """The values of entries.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            map_keys: As many keys in their maps.

        Returns:
            An array of one value for each entry, null where there is none.

        Raises:
            InvalidArgumentError: A key is none of the batch, a map key is null, or something does not fit its type.

        Example: see `put`.
        """
        return self._read(*self._entries(keys, map_keys))

    def contains(self, keys: ArrowArrayLike, map_keys: RowsLike) -> pa.BooleanArray:
        """Which entries there are.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            map_keys: As many keys in their maps.

        Returns:
            An array of one answer for each entry.

        Raises:
            InvalidArgumentError: As of `get`.

        Example: see `put`.
        """
        return self._are_there(*self._entries(keys, map_keys))

    def entries(self, keys: ArrowArrayLike) -> pa.MapArray:
        """The whole maps of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one map for each key, in the order of map keys; null where there are no entries.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `put`.
        """
        encoded = self._keys.encoded(self._what, keys)
        session, codec = self._bound()
        counts, found = read_all_entries(session, self._id, encoded)
        map_keys = self.map_key_form.shown(codec.decode_keys(found.field("sub")))
        values = self.form.shown(codec.decode_values(found.field("value")))
        return pa.MapArray.from_arrays(offsets_of(counts), map_keys, values)

    def length(self, keys: ArrowArrayLike) -> pa.Int64Array:
        """How many entries the maps of keys have. Reads them.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one number for each key; 0 where there are no entries.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see the class.
        """
        session, _ = self._bound()
        counts, _ = read_all_entries(session, self._id, self._keys.encoded(self._what, keys))
        return pa.array(counts, pa.int64())

    def put(self, keys: ArrowArrayLike, map_keys: RowsLike, values: RowsLike) -> None:
        """Sets entries.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            map_keys: As many keys in their maps; of equal entries the last counts.
            values: As many values; a null deletes.

        Raises:
            InvalidArgumentError: A key is none of the batch, a map key is null, or something does not fit its type.

        Example: see the class.
        """
        encoded, subs = self._entry_keys(keys, map_keys)
        given = self.form.struct(self._given("values", values, self.value_type, encoded))
        absent = given.is_null().to_numpy(zero_copy_only=False)
        self._send(np.where(absent, DELETE, PUT), encoded, subs, self._bound()[1].encode_values(given))

    def delete(self, keys: ArrowArrayLike, map_keys: RowsLike) -> None:
        """Removes entries; those that are not there are fine.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            map_keys: As many keys in their maps.

        Raises:
            InvalidArgumentError: As of `get`.

        Example: see `put`.
        """
        encoded, subs = self._entry_keys(keys, map_keys)
        self._send(np.full(len(encoded), DELETE), encoded, subs)

    def clear(self, keys: ArrowArrayLike) -> None:
        """Removes the maps of keys; those without entries are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `put`.
        """
        encoded = self._keys.encoded(self._what, keys)
        self._send(np.full(len(encoded), CLEAR), encoded)

    def _entries(self, keys: ArrowArrayLike, map_keys: RowsLike) -> tuple[int, Callable[[int, int], pa.BinaryArray]]:
        """How many entries are asked for, and what reads some of them."""
        encoded, subs = self._entry_keys(keys, map_keys)
        session, _ = self._bound()
        return len(encoded), lambda start, count: session.get_entries(
            self._id, encoded.slice(start, count), subs.slice(start, count)
        )

    def _entry_keys(self, keys: ArrowArrayLike, map_keys: RowsLike) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        encoded = self._keys.encoded(self._what, keys)
        _, codec = self._bound()
        given = self._given("map keys", map_keys, self.map_key_type, encoded)
        if given.null_count:
            raise InvalidArgumentError(f"{self._what}: a map key is null; leave it out")
        return encoded, codec.encode_keys(self.map_key_form.struct(given))
