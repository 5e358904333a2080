"""Runs a vectorised processor over the rows of a shard's batch.

Owns: the order of calls of user code: `open`, rows of the initial state, rows, due timers, `close`; binding of states;
the check of what user code yields.
Does not own: the session's life and its commit, and where a state is in it (the caller).
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import TIMERS
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import many_of
from fastchangelog.state.due_timers import DueTimers
from fastchangelog.vectorised.batch import Batch, whole_keys
from fastchangelog.vectorised.chunks import RowChunkLike
from fastchangelog.vectorised.context import Context, Declared
from fastchangelog.vectorised.processor import Processor
from fastchangelog.vectorised.timers import Timers, one_for_each_key, shown_times

__all__ = ["Place", "Times", "VectorRun", "opened"]

#: Due timers that are listed in one call.
_TIMERS_PAGE = 16_384


@dataclasses.dataclass(frozen=True)
class Times:
    """The time mode, and the times of the batch in milliseconds."""

    mode: str
    now: int
    watermark: int


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a state is in the session, all types of its values, and which of these they are written in.

    Timers and accumulators have no types of values.
    """

    id: int
    versions: Sequence[pa.DataType] = ()
    current: int = -1


def opened(processor: Processor, key_type: pa.DataType, times: Times, *, ansi: bool = True) -> Context:
    """What `open` declared."""
    context = Context(key_type, times.mode, times.now, times.watermark, ansi=ansi)
    processor.open(context)
    context.close()
    return context


class VectorRun:
    """One batch of one shard.

    `declare` gives each declared state its place in the session, and the timers theirs if there is a time mode. With
    `ansi`, aggregates that overflow are errors.
    """

    def __init__(
        self,
        processor: Processor,
        key_type: pa.DataType,
        times: Times,
        session: _internal.StateSession,
        make_codec: type[_internal.StateCodec],
        declare: Callable[[Mapping[str, Declared]], Mapping[str, Place]],
        *,
        ansi: bool = True,
    ) -> None:
        self._processor, self._times, self._session, self._ansi = processor, times, session, ansi
        self.context = opened(processor, key_type, times, ansi=ansi)
        self._key_codec: _internal.StateCodec = make_codec(key_type, pa.binary(), [pa.binary()])
        self.context.batch_keys.bind(self._key_codec)
        places = declare(self.context.declared)
        for name, found in self.context.declared.items():
            place = places[name]
            ends = None if found.ttl_millis is None else times.now + found.ttl_millis
            codec = None
            if place.versions:
                codec = make_codec(found.map_key or key_type, place.versions[place.current], list(place.versions))
            found.state.calls.bind(session, place.id, codec, ends)
        if TIMERS in places:
            self.context.timers.calls.bind(session, places[TIMERS].id)

    @property
    def counted(self) -> dict[str, int]:
        """What user code counted."""
        return {name: counter.value for name, counter in self.context.metrics.counters.items()}

    def initial(self, chunks: Iterable[RowChunkLike], shown: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Calls `initial_state` for all keys."""
        for batch in self._batches(chunks, shown):
            self._processor.initial_state(batch)

    def rows(
        self,
        chunks: Iterable[RowChunkLike],
        shown: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema | None,
    ) -> Iterator[pa.RecordBatch]:
        """Calls `process` for all keys. `shown` gives the columns that user code sees; a schema is what it yields."""
        for batch in self._batches(chunks, shown):
            for answered in _results("process()", self._processor.process(batch)):
                yield from _checked("process()", answered, schema)

    def timers(
        self, schema: pa.Schema | None, folder: Callable[[], str] = tempfile.gettempdir
    ) -> Iterator[pa.RecordBatch]:
        """Calls `on_timer` for all timers that are due. `folder` is for those that are beyond what memory may hold."""
        mode = self._times.mode
        if mode == "none":
            return
        until = self._times.now if mode == "processingtime" else self._times.watermark
        with contextlib.closing(DueTimers(self._session, until, _TIMERS_PAGE, folder)) as due:
            yield from self._fire(due, schema)

    def _fire(self, due: DueTimers, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        keys, changes = self.context.batch_keys, self.context.timers.calls
        changes.begin_firing(due)
        while page := due.next_page():
            for part in one_for_each_key(page):
                encoded = pa.array([key for _, key in part], pa.binary())
                shown = self._key_codec.decode_keys(encoded)
                keys.move(shown, encoded)
                answers = self._processor.on_timer(Timers(shown, shown_times(part)))
                for answered in _results("on_timer()", answers):
                    yield from _checked("on_timer()", answered, schema)
                changes.fired(part)
                keys.move(None, encoded[:0])

    def close(self) -> None:
        """Calls `close`."""
        self._processor.close()

    def _batches(
        self, chunks: Iterable[RowChunkLike], shown: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> Iterator[Batch]:
        """Each batch of rows; its keys are in work while user code has it."""
        for encoded, columns, offsets in whole_keys(chunks):
            keys = self._key_codec.decode_keys(encoded)
            self.context.batch_keys.move(keys, encoded)
            yield Batch(keys, shown(columns), offsets, ansi=self._ansi)
            self.context.batch_keys.move(None, encoded[:0])


def _results(method: str, results: Any) -> Iterator[Any]:
    if results is None:  # of a method that yields nothing
        return
    if isinstance(results, pa.RecordBatch | pa.Table) or not hasattr(results, "__iter__"):
        raise InvalidArgumentError(
            f"{method} returned a {type(results).__name__}; yield record batches, or return a list of them"
        )
    yield from results


def _checked(method: str, answered: Any, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    if not isinstance(answered, pa.RecordBatch | pa.Table):
        raise InvalidArgumentError(f"{method} yielded a {type(answered).__name__}; yield record batches of pyarrow")
    if schema is None:
        yield from answered.to_batches() if isinstance(answered, pa.Table) else [answered]
        return
    names = answered.schema.names
    if sorted(names) != sorted(schema.names):
        raise InvalidArgumentError(
            f"{method} yielded the columns {', '.join(names) or 'none'}; the output has {', '.join(schema.names)}"
        )
    if names != schema.names and len(set(names)) == len(names):
        answered = answered.select(schema.names)
    for batch in answered.to_batches() if isinstance(answered, pa.Table) else [answered]:
        columns = [_column(column, field) for field, column in zip(schema, batch.columns, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(column: pa.Array, field: pa.Field) -> pa.Array:
    """The column as its declaration says, by the rule of states: see `many_of`."""
    column = many_of(f"output column `{field.name}`", column, field.type)
    if column.null_count and not field.nullable:
        raise InvalidArgumentError(f"output column `{field.name}` has a null, which its declaration excludes")
    return column
