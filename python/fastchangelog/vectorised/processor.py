"""The base class of vectorised processors, and what `open` is given.

Owns: `Processor`, `Context`, checks of declarations.
Does not own: states (`value_state`), when user code is called (`fastchangelog.spark.processor.vectorised`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from fastchangelog.embedded.times import ttl_millis
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.schema import arrow_type
from fastchangelog.vectorised.batch import Batch
from fastchangelog.vectorised.value_state import BatchKeys, VectorValueState

if TYPE_CHECKING:
    from fastchangelog.types import DataTypeLike, Duration

__all__ = ["Context", "Declared", "Processor"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclasses.dataclass(frozen=True)
class Declared:
    """A state that `open` asked for."""

    name: str
    #: The struct that is kept; a plain type is its field `value`.
    kept: pa.DataType
    ttl_millis: int | None
    state: VectorValueState


class Context:
    """What `Processor.open` is given: states, and the times of the batch.

    Example: see `Processor`.
    """

    def __init__(self, key_type: pa.DataType, time_mode: str, now_millis: int, watermark_millis: int) -> None:
        self._time_mode = time_mode
        self._now, self._watermark = now_millis, watermark_millis
        self._is_open = True
        self.batch_keys = BatchKeys(key_type)
        """The keys in work; of this package."""
        self.declared: dict[str, Declared] = {}
        """What `open` declared, by name; of this package."""

    @property
    def watermark(self) -> datetime:
        """The watermark of the batch, in UTC; the epoch before the first one."""
        return _EPOCH + timedelta(milliseconds=max(self._watermark, 0))

    @property
    def processing_time(self) -> datetime:
        """When the batch was planned, in UTC; without a time mode, when its shard's task began."""
        return _EPOCH + timedelta(milliseconds=self._now)

    def value_state(self, name: str, schema: DataTypeLike, *, ttl: Duration | None = None) -> VectorValueState:
        """Declares a value for each key; within `open` only.

        Args:
            name: The state's name.
            schema: The type of values: ``"long"`` gives plain arrays, ``"n long, last timestamp"`` struct arrays; also
                a PySpark or an Arrow type or schema.
            ttl: How long after it was put a value is returned; with ``timeMode="processingtime"`` only.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: The name, the schema or the TTL cannot be.

        Example: see `Processor`.
        """
        if not self._is_open:
            raise InvalidArgumentError(f"state {name!r} is declared too late; declare states in open()")
        if not isinstance(name, str) or not name or name != name.strip() or name.startswith("$") or name == "default":
            raise InvalidArgumentError(
                f"{name!r} is no name of a state; give a text that is not empty, is not `default`, has no spaces "
                "around it and does not begin with $"
            )
        if name in self.declared:
            raise InvalidArgumentError(f"the state `{name}` is declared twice; give each state a name of its own")
        millis = ttl_millis(ttl)
        if millis is not None and self._time_mode != "processingtime":
            raise InvalidArgumentError(
                f'state `{name}`: a TTL counts from the processing time; call with timeMode="processingtime"'
            )
        declared = arrow_type(f"state `{name}`", schema)
        kept = declared if pa.types.is_struct(declared) else pa.struct([pa.field("value", declared)])
        state = VectorValueState(name, declared, self.batch_keys)
        self.declared[name] = Declared(name, kept, millis, state)
        return state

    def close(self) -> None:
        """Ends declarations; of this package."""
        self._is_open = False


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
    def process(self, batch: Batch) -> Iterable[pa.RecordBatch]:
        """Works on the rows of some keys; each key of a shard is in one batch.

        Args:
            batch: Keys, rows, and which rows are of which key.

        Returns:
            Any number of record batches with the columns of the output.

        Example: see the class.
        """

    def close(self) -> None:  # noqa: B027 a processor may have nothing to close
        """Called after the last batch of a task.

        Example: see the class.
        """
