"""What `open` of a vectorised processor is given.

Owns: `Context`: states, timers, counters and the times of the batch; checks of declarations.
Does not own: states and timers (`fastchangelog.state`), the base class of user code (`processor`).
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.functions import Aggregate
from fastchangelog.schema import arrow_type
from fastchangelog.state.aggregating import VectorAggregatingState
from fastchangelog.state.keys import BatchKeys
from fastchangelog.state.list import VectorListState
from fastchangelog.state.map import VectorMapState
from fastchangelog.state.timers import VectorTimers
from fastchangelog.state.times import ttl_millis
from fastchangelog.state.value import VectorValueState
from fastchangelog.state.vector import VectorState
from fastchangelog.vectorised.counters import Metrics

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, DataTypeLike, Duration

__all__ = ["Context", "Declared"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

S = TypeVar("S", bound=VectorState[Any])


@dataclasses.dataclass(frozen=True)
class Declared:
    """A state that `open` asked for."""

    name: str
    #: As catalogs name it.
    kind: str
    #: The struct that is kept; a plain type is its field `value`. Of aggregates, their results.
    kept: pa.DataType
    #: Of a map: the struct of its keys; a plain type is its field `key`.
    map_key: pa.DataType | None
    ttl_millis: int | None
    state: VectorState[Any]
    #: Of aggregates.
    accumulators: AccumulatorLayout | None = None


class Context:
    """What `Processor.open` is given: states, timers, counters, and the times of the batch.

    Example: see `Processor`.
    """

    def __init__(
        self, key_type: pa.DataType, time_mode: str, now_millis: int, watermark_millis: int, *, ansi: bool = True
    ) -> None:
        self._now, self._watermark, self._ansi = now_millis, watermark_millis, ansi
        self._is_open = True
        self.metrics = Metrics()
        """Counters: ``ctx.metrics.counter("late").add(3)``; see `Counter`."""
        self.batch_keys = BatchKeys(key_type)
        """The keys in work; of this package."""
        self.declared: dict[str, Declared] = {}
        """What `open` declared, by name; of this package."""
        self.timers = VectorTimers(self.batch_keys, time_mode)
        """Registers and deletes timers; of this package."""

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
            ttl: How long after it was put a value is returned, by the processing time.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: The name, the schema or the TTL cannot be.

        Example: see `Processor`.
        """
        return self._declare(VectorValueState(name, arrow_type(f"state `{name}`", schema), self.batch_keys), ttl)

    def list_state(self, name: str, schema: DataTypeLike, *, ttl: Duration | None = None) -> VectorListState:
        """Declares a list for each key; within `open` only.

        Args:
            name: The state's name.
            schema: The type of elements, as for `value_state`.
            ttl: How long after it was added an element is returned, by the processing time.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: The name, the schema or the TTL cannot be.

        Example: see `VectorListState`.
        """
        return self._declare(VectorListState(name, arrow_type(f"state `{name}`", schema), self.batch_keys), ttl)

    def map_state(self, name: str, schema: DataTypeLike, *, ttl: Duration | None = None) -> VectorMapState:
        """Declares a map for each key; within `open` only.

        Args:
            name: The state's name.
            schema: The type of maps: ``"map<string, long>"``, or a PySpark or an Arrow map type.
            ttl: How long after it was put an entry is returned, by the processing time.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: The name, the schema or the TTL cannot be.

        Example: see `VectorMapState`.
        """
        declared = arrow_type(f"state `{name}`", schema)
        if not pa.types.is_map(declared):
            raise InvalidArgumentError(f'state `{name}`: {declared} is no map; write "map<string, long>"')
        return self._declare(VectorMapState(name, declared, self.batch_keys), ttl)

    def aggregating_state(
        self, name: str, schema: DataTypeLike, *, ttl: Duration | None = None, **named: Aggregate
    ) -> VectorAggregatingState:
        """Declares aggregates for each key; within `open` only.

        Args:
            name: The state's name.
            schema: The type of rows, as for `value_state`; plain ones have the one column ``value``.
            ttl: How long a key's results are there after a row was added, by the processing time.
            **named: Aggregates by the name of their result; any function, with ``where=`` as a text.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: The name, the schema, an aggregate or the TTL cannot be.

        Example: see `VectorAggregatingState`.
        """
        rows = arrow_type(f"state `{name}`", schema)
        return self._declare(VectorAggregatingState(name, rows, named, self.batch_keys, ansi=self._ansi), ttl)

    def register_timers(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Registers one timer for each of many keys; `Processor.on_timer` is called when they are due.

        A timer is due when the processing time, or with ``timeMode="eventtime"`` the watermark, has reached its time.
        Timers have milliseconds: parts of one count as a whole. One that is there already is fine.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            times: As many times: an Arrow array of timestamps with a time zone, or aware datetimes.

        Raises:
            InvalidArgumentError: There is no time mode, a key is none of the batch, or a time is null or naive.

        Example: see `Timers`.
        """
        self.timers.register(keys, times)

    def delete_timers(self, keys: ArrowArrayLike, times: ArrowArrayLike) -> None:
        """Removes one timer of each of many keys. Those that are not there are fine.

        Args:
            keys: `batch.keys`, or some of them; one may come more than once.
            times: As many times, as of `register_timers`.

        Raises:
            InvalidArgumentError: As of `register_timers`.

        Example: see `Timers`.
        """
        self.timers.delete(keys, times)

    def close(self) -> None:
        """Ends declarations; of this package."""
        self._is_open = False
        self.metrics.close()

    def _declare(self, state: S, ttl: Duration | None) -> S:
        name = state.name
        if not self._is_open:
            raise InvalidArgumentError(f"state {name!r} is declared too late; declare states in open()")
        if not isinstance(name, str) or not name or name != name.strip() or name.startswith("$") or name == "default":
            raise InvalidArgumentError(
                f"{name!r} is no name of a state; give a text that is not empty, is not `default`, has no spaces "
                "around it and does not begin with $"
            )
        if name in self.declared:
            raise InvalidArgumentError(f"the state `{name}` is declared twice; give each state a name of its own")
        calls = state.calls
        self.declared[name] = Declared(
            name, calls.kind, calls.form.kept, calls.map_key, ttl_millis(ttl), state, calls.layout
        )
        return state
