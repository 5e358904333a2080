"""One value for each key, for many keys at once.

Owns: what user code sees of it, Arrow in and out, and the errors for what does not fit.
Does not own: what all kinds of state share (`state`), the codec (the core).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fastchangelog.vectorised.session import DELETE, PUT
from fastchangelog.vectorised.state import VectorState

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, RowsLike

__all__ = ["VectorValueState"]


class VectorValueState(VectorState):
    """One value for each key; made by `Context.value_state`. All methods take many keys at once.

    Example: see `Processor`.
    """

    def get(self, keys: ArrowArrayLike) -> pa.Array:
        """The values of keys.

        Args:
            keys: `batch.keys`, or some of them.

        Returns:
            An array of one value for each key, null where there is none.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `Processor`.
        """
        encoded = self._keys.encoded(self._what, keys)
        session, _ = self._bound()
        return self._read(len(encoded), lambda start, count: session.get(self._id, encoded.slice(start, count)))

    def put(self, keys: ArrowArrayLike, values: RowsLike) -> None:
        """Sets the values of keys.

        Args:
            keys: `batch.keys`, or some of them; of equal ones the last counts.
            values: As many values; a null deletes. Of structs also a record batch with their columns.

        Raises:
            InvalidArgumentError: A key is none of the batch, or something does not fit its type.

        Example: see `Processor`.
        """
        encoded = self._keys.encoded(self._what, keys)
        _, codec = self._bound()
        given = self.form.struct(self._given("values", values, self.value_type, encoded))
        absent = given.is_null().to_numpy(zero_copy_only=False)
        self._send(np.where(absent, DELETE, PUT), encoded, None, codec.encode_values(given))

    def delete(self, keys: ArrowArrayLike) -> None:
        """Removes the values of keys; those without one are fine.

        Args:
            keys: `batch.keys`, or some of them.

        Raises:
            InvalidArgumentError: A key is none of the batch, or does not fit its type.

        Example: see `Processor`.
        """
        encoded = self._keys.encoded(self._what, keys)
        self._send(np.full(len(encoded), DELETE), encoded)
