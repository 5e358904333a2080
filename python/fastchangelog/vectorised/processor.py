"""The base class of vectorised processors.

Owns: `Processor`.
Does not own: what its methods are given (`context`, `batch`, `timers`), when they are called (`run`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.vectorised.batch import Batch
from fastchangelog.vectorised.context import Context
from fastchangelog.vectorised.timers import Timers

__all__ = ["Processor"]


class Processor(ABC):
    """User code of `transformWithStateInArrow`: one call for the rows of many keys, states in Arrow.

    Example:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> class Counts(Processor):
        ...     def open(self, ctx):
        ...         self.seen = ctx.value_state("seen", "long")
        ...     def process(self, batch):
        ...         before = pc.fill_null(self.seen.get(batch.keys), 0)
        ...         now = pc.add(before, np.diff(batch.offsets))
        ...         self.seen.put(batch.keys, now)
        ...         yield pa.RecordBatch.from_arrays([batch.keys.field("k"), now], ["k", "n"])
    """

    @abstractmethod
    def open(self, ctx: Context) -> None:
        """Declares states. Called once before the batches of a task, and once on the driver, on a copy.

        Args:
            ctx: Declares states, and knows the times of the batch.

        Example: see the class.
        """

    @abstractmethod
    def process(self, batch: Batch) -> Iterable[pa.RecordBatch] | None:
        """Works on the rows of some keys; each key of a shard is in one batch.

        Args:
            batch: Keys, rows, and which rows are of which key.

        Returns:
            Any number of record batches with the columns of the output; perhaps none, and perhaps None.

        Example: see the class.
        """

    def on_timer(self, timers: Timers) -> Iterable[pa.RecordBatch] | None:
        """Works on timers that are due, after all rows of the shard's batch.

        A key comes once in a call. Several timers of a key come in several calls, in the order of their times. Which
        timers are due is settled before the first call: one that is deleted meanwhile comes all the same, one that is
        registered meanwhile comes in a later batch. A timer is removed when its call is done.

        Args:
            timers: Keys, and the times for which their timers were registered.

        Returns:
            Any number of record batches with the columns of the output; None for none.

        Example: see `Timers`.
        """
        return None

    def initial_state(self, batch: Batch) -> None:
        """Works on rows of the initial state, in a query's first batch, before all rows of the shard.

        Args:
            batch: Keys and rows of the initial state. Each key is in one batch.

        Raises:
            InvalidArgumentError: The processor does not override it, and there is an initial state.

        Example:
            >>> class Counts(Processor):
            ...     def open(self, ctx):
            ...         self.seen = ctx.value_state("seen", "long")
            ...     def initial_state(self, batch):
            ...         self.seen.put(batch.keys, batch.rows["n"])
            ...     def process(self, batch):
            ...         yield pa.RecordBatch.from_arrays([batch.keys.field("k"), self.seen.get(batch.keys)], ["k", "n"])
        """
        raise InvalidArgumentError(
            f"there is an initialState, and {type(self).__name__} has no method initial_state(); write one"
        )

    def close(self) -> None:  # noqa: B027 a processor may have nothing to close
        """Called after the last batch of a task.

        Example: see the class.
        """
