"""Runs a processor over the rows of a shard's batch.

Owns: the order of calls of user code: `init`, rows of all keys, due timers, `close`; the driver's look at `init`.
Does not own: the session's life and its commit (the caller), states (`states.cache`), which rows belong to a call
(`feed`).

>>> batches = run_batch(spec, session, grouper, TimerValues(now, watermark))  # doctest: +SKIP

Output may leave before the batch is done: what was written counts only if the caller commits.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.processor.arrow import declarations_of, run_vectorised
from fastchangelog.spark.processor.driver_copy import driver_copy
from fastchangelog.spark.processor.evolution import evolve
from fastchangelog.spark.processor.feed import ChunkFeed, Group, MergedFeed, Parts
from fastchangelog.spark.processor.imported import ImportedRows, write_imported
from fastchangelog.spark.processor.payloads import spill_folder
from fastchangelog.spark.processor.rows.input import KeyMaker, RowMaker, RowParts, has_nan
from fastchangelog.spark.processor.rows.output import OutputRows
from fastchangelog.spark.processor.spark_errors import (
    CLOSED,
    CREATED,
    DATA_PROCESSED,
    INITIALIZED,
    PRE_INIT,
    TIMER_PROCESSED,
)
from fastchangelog.spark.processor.spec import GroupedRows, ProcessorSpec, QueryInfo, RowChunkLike
from fastchangelog.spark.processor.states.cache import Scope
from fastchangelog.spark.processor.states.handle import Declaration, ProcessorHandle
from fastchangelog.spark.processor.states.timers import TIMERS, DueTimers, TimerOrder
from fastchangelog.spark.processor.user_code import raise_from_user_code
from fastchangelog.spark.types.row_class import row_class
from fastchangelog.spark.types.state_type import StateType
from fastchangelog.spark.types.values import has_floats

if TYPE_CHECKING:
    from fastchangelog.spark.processor.frames.output import OutputFrames

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "NO_QUERY", "init_on_driver", "run_batch"]

#: Rows and bytes of a chunk; as Python objects, with the states of their keys, they take some ten times as much.
CHUNK_ROWS = 16_384
CHUNK_BYTES = 8 * 1024 * 1024
#: Due timers that are listed in one call; their keys are one scope.
_TIMERS_PAGE = 4096

#: Of a batch DataFrame.
NO_QUERY = QueryInfo("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000", 0)


def run_batch(
    spec: ProcessorSpec,
    session: _internal.StateSession,
    rows: GroupedRows | None,
    times: TimerValues,
    initial: GroupedRows | None = None,
    *,
    query_info: QueryInfo = NO_QUERY,
    make_codec: type[_internal.StateCodec] | None = None,
    imported: ImportedRows | None = None,
    counted: MutableMapping[str, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Runs the processor of `spec` and yields its output, in the output's wire form; the caller commits.

    Args:
        spec: The processor and its types.
        session: A session in which nothing was declared yet.
        rows: The batch's rows; None if there are none.
        times: What user code is told: the batch's timestamp, from which TTLs count, and the watermark that decides
            which timers of event time are due; -1 and -1 without a time mode.
        initial: In the first batch of a query with an initial state, the rows of it, perhaps none; None in all others.
        query_info: What `getQueryInfo` answers.
        make_codec: For tests.
        imported: In the first batch, what another query's states held.
        counted: Where the counters of a vectorised processor are put.
    """
    codec = make_codec if make_codec is not None else _internal.StateCodec
    if spec.api == "arrow":
        try:
            yield from run_vectorised(spec, session, rows, times, codec, initial, counted)
        except Exception as error:
            raise_from_user_code(error)
        return
    run = _Run(spec, session, times, query_info, codec)
    try:
        with _rare_collections():
            yield from run.batches(_chunks(rows), None if initial is None else _chunks(initial), imported)
    except Exception as error:
        run.check_results()
        raise_from_user_code(error)
    finally:
        run.abandon()


def _chunks(rows: GroupedRows | None) -> Iterable[RowChunkLike]:
    return () if rows is None else rows.finish(CHUNK_ROWS, CHUNK_BYTES)


def init_on_driver(spec: ProcessorSpec) -> tuple[list[Declaration], frozenset[str], tuple[str, ...]]:
    """What `init` declares, what it calls `deleteIfExists` for, and the counters of a vectorised processor.

    Runs it, and `close`, on a copy of the processor, as Spark does on the driver.

    Raises what `init` raises, Spark's error for a declaration that it refuses, and `pickle.PicklingError` for a
    processor that no worker could get.
    """
    processor = driver_copy(spec.processor)
    if spec.api == "arrow":
        try:
            declarations, counters = declarations_of(processor, spec)
            return declarations, frozenset(), counters
        except Exception as error:
            raise_from_user_code(error)
    scope = Scope(PRE_INIT)
    handle = ProcessorHandle(scope, spec.time_mode, NO_QUERY)
    try:
        processor.init(handle)
        processor.close()
    except Exception as error:
        raise_from_user_code(error)
    return [declaration for declaration, _ in handle.declared.values()], frozenset(handle.deleted), ()


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes Python's cyclic collector look for garbage less often.

    Its usual threshold is 700 objects. A batch makes millions of rows and tuples, none of them in a cycle, and the
    collector took a fifth of the time of a processor with one row per key.
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], 50_000), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Run:
    """One batch of one shard."""

    def __init__(
        self,
        spec: ProcessorSpec,
        session: _internal.StateSession,
        times: TimerValues,
        query_info: QueryInfo,
        make_codec: type[_internal.StateCodec],
    ) -> None:
        self._spec = spec
        self._session = session
        self._times = times
        self._now = times.getCurrentProcessingTimeInMs()
        self._make_codec = make_codec
        self._scope = Scope(CREATED)
        self._handle = ProcessorHandle(self._scope, spec.time_mode, query_info)
        #: The grouping key as a state's key: what handlers of timers see. With frames Spark takes the session's clock
        #: for that of the process, and gives it back as it was.
        zone = spec.timezone if spec.api == "pandas" else None
        self._key_type = StateType(spec.key, "the grouping key", zone)
        self._key_codec = make_codec(self._key_type.arrow, pa.binary(), [pa.binary()])
        self._has_nan_keys = has_floats(spec.key)
        self._out: OutputRows | OutputFrames
        self._parts: Parts
        self._initial_parts: Parts | None = None
        self._keys: KeyMaker
        if spec.api == "row":
            self._keys = KeyMaker(spec.key, spec.timezone)
            self._out = OutputRows(spec.output)
        else:
            from fastchangelog.spark.processor.frames.input import key_values  # not above: see `spark.frames`
            from fastchangelog.spark.processor.frames.output import OutputFrames

            self._keys = KeyMaker(spec.key, spec.timezone, key_values)
            self._out = OutputFrames(
                spec.output,
                spec.timezone,
                by_name=spec.columns_by_name,
                safe=spec.safe_casts,
                decimals_of_integers=spec.decimals_of_integers,
            )
        self._parts = self._parts_of(spec.input, spec.columns)
        if spec.initial is not None:
            self._initial_parts = self._parts_of(spec.initial, spec.initial_columns)
        #: What user code returned last: closed if the run ends in the middle of it.
        self._results: Any = ()

    def batches(
        self,
        chunks: Iterable[RowChunkLike],
        initial: Iterable[RowChunkLike] | None,
        imported: ImportedRows | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `run_batch`."""
        spec, scope = self._spec, self._scope
        spec.processor.init(self._handle)
        ids = self._declare()
        if imported is not None:
            kinds = {name: declaration.kind for name, (declaration, _) in self._handle.declared.items()}
            write_imported(self._session, imported, ids, kinds, self._now)
        scope.phase = INITIALIZED
        yield from self._rows(chunks) if initial is None else self._merged_rows(chunks, initial)
        scope.close()
        scope.phase = DATA_PROCESSED
        if spec.time_mode != "none":
            yield from self._timers()
            scope.close()
        scope.phase = TIMER_PROCESSED
        spec.processor.close()
        scope.phase = CLOSED
        yield from self._out.flush()

    def abandon(self) -> None:
        """Closes what user code returned and was not read to the end."""
        results, self._results = self._results, ()
        close = getattr(results, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):  # the run has ended, by an error that counts more
                close()

    def _parts_of(self, struct: T.StructType, columns: Sequence[int]) -> Parts:
        spec = self._spec
        if spec.api == "row":
            return RowParts(RowMaker(struct, columns, spec.timezone))
        from fastchangelog.spark.processor.frames.input import FrameMaker, FrameParts

        maker = FrameMaker(struct, columns, spec.timezone, integers_with_na=spec.integers_with_na)
        return FrameParts(maker, spec.max_records, spec.max_bytes)

    def _declare(self) -> dict[str, int]:
        """Binds the states that `init` declared, and gives their numbers."""
        spec, session, handle = self._spec, self._session, self._handle
        declarations = [declaration for declaration, _ in handle.declared.values()]
        evolved = evolve(session.catalog, spec.key, spec.time_mode, declarations, handle.deleted)
        evolved.log_dropped()
        session.declare(evolved.text, self._now)
        for number in evolved.purged:
            session.clear_all(number)
        scope = self._scope
        scope.session = session
        for name, (declaration, state) in handle.declared.items():
            place = evolved.states[name]
            what = f"state `{name}`"
            versions = [StateType(version, what).arrow for version in place.versions]
            key = declaration.map_key if declaration.map_key is not None else spec.key
            codec = self._make_codec(StateType(key, what).arrow, versions[place.current], versions)
            ttl = declaration.ttl_millis
            state.bind(place.id, codec, None if ttl is None else self._now + ttl)
            scope.states.append(state)
        if TIMERS in evolved.states:
            handle.timers.bind(evolved.states[TIMERS].id, self._key_codec, None)
            scope.states.append(handle.timers)
        return {name: place.id for name, place in evolved.states.items()}

    def _row_keys(self, keys: pa.BinaryArray) -> list[tuple[Any, ...]]:
        return self._keys.keys(self._key_codec.decode_keys(keys))

    def _rows(self, chunks: Iterable[RowChunkLike]) -> Iterator[pa.RecordBatch]:
        """Calls `handleInputRows` for all keys."""
        scope, parts, out, times = self._scope, self._parts, self._out, self._times
        handle_rows = self._spec.processor.handleInputRows
        append, pending, part = out.append, out.pending, parts.part
        feed = ChunkFeed(chunks, scope, self._row_keys, parts)
        while feed.advance():
            feed.load()
            at = 0
            while at < scope.count:
                scope.at = at
                key = scope.shown_keys[at]
                start, end = feed.offsets[at], feed.offsets[at + 1]
                if self._has_nan_keys and has_nan(key):
                    # Spark's worker tells groups apart with ==, and a NaN equals nothing.
                    for i in range(start, end):
                        yield from self._call(handle_rows(key, part(i, i + 1), times))
                elif feed.goes_on and at == scope.count - 1:
                    rows = feed.long_part()
                    yield from self._call(handle_rows(key, rows, times))
                    rows.close()
                    feed.finish_long_part()
                    feed.load()
                    at = 0
                else:
                    # As `_call`, without a generator for each key.
                    results = handle_rows(key, part(start, end), times)
                    self._results = results
                    for result in results:
                        append(result)
                        if len(pending) >= out.limit and out.is_full():
                            yield from out.flush()
                at += 1

    def _call(self, results: Any) -> Iterator[pa.RecordBatch]:
        """Takes what a callback returned."""
        self._results = results
        out = self._out
        for result in results:
            out.append(result)
            if len(out.pending) >= out.limit and out.is_full():
                yield from out.flush()

    def check_results(self) -> None:
        """Refuses what a callback returned if it is none of what it may return."""
        results = self._results
        if not hasattr(results, "__iter__") and not hasattr(results, "__getitem__"):
            where = "handleExpiredTimer" if self._scope.phase == DATA_PROCESSED else "handleInputRows"
            what = "Rows" if self._spec.api == "row" else "pandas frames"
            raise InvalidArgumentError(f"{where} returned {results!r}; return an iterable of {what}, such as iter([])")

    def _merged_rows(self, chunks: Iterable[RowChunkLike], initial: Iterable[RowChunkLike]) -> Iterator[pa.RecordBatch]:
        """Calls `handleInitialState` and `handleInputRows` for all keys."""
        feed = MergedFeed(chunks, initial, self._scope, self._row_keys)
        yield from self._merged_as_rows(feed) if self._spec.api == "row" else self._merged_as_frames(feed)

    def _merged_as_rows(self, feed: MergedFeed) -> Iterator[pa.RecordBatch]:
        """Of the Row API: each call has at most `max_records` rows, those of the initial state counted."""
        scope = self._scope
        limit = self._spec.max_records if self._spec.max_records > 0 else 2**31 - 1
        states: list[Any] = []
        rows: list[Any] = []
        while feed.group is not None:
            group = feed.group
            assert scope.at is not None
            key = scope.shown_keys[scope.at]
            most = 1 if self._has_nan_keys and has_nan(key) else limit
            parts = self._initial_parts if group.is_initial else self._parts
            assert parts is not None
            for row in parts.joined(iter((group.rows(),))):
                (states if group.is_initial else rows).append(row)
                if len(states) + len(rows) >= most:
                    yield from self._merged_call(key, states, rows)
                    states, rows = [], []
            if feed.is_last():
                yield from self._merged_call(key, states, rows)
                states, rows = [], []
            feed.advance()

    def _merged_call(self, key: Any, states: list[Any], rows: list[Any]) -> Iterator[pa.RecordBatch]:
        processor, times = self._spec.processor, self._times
        for state in states:
            processor.handleInitialState(key, state, times)
        if rows:
            yield from self._call(processor.handleInputRows(key, iter(rows), times))

    def _merged_as_frames(self, feed: MergedFeed) -> Iterator[pa.RecordBatch]:
        """Of the pandas API: one call for each key, after one for each frame of its initial state."""
        scope, times, processor = self._scope, self._times, self._spec.processor
        while feed.group is not None:
            assert scope.at is not None
            key = scope.shown_keys[scope.at]
            if self._has_nan_keys and has_nan(key):
                yield from self._merged_frames_of_nan(key, feed.group)
                feed.advance()
                continue
            if feed.group.is_initial:
                assert self._initial_parts is not None
                for frame in self._initial_parts.joined(feed.batches()):
                    processor.handleInitialState(key, frame, times)
                if feed.is_last():
                    feed.advance()
                    continue
                feed.advance()
            rows = self._parts.joined(feed.batches())
            yield from self._call(processor.handleInputRows(key, rows, times))
            rows.close()
            while not feed.is_last():
                feed.advance()
            feed.advance()

    def _merged_frames_of_nan(self, key: Any, group: Group) -> Iterator[pa.RecordBatch]:
        """Calls for the rows of a group, each a group of its own for Spark's workers."""
        processor, times, rows = self._spec.processor, self._times, group.rows()
        parts = self._initial_parts if group.is_initial else self._parts
        assert parts is not None
        for i in range(rows.num_rows):
            frames = parts.joined(iter((rows.slice(i, 1),)))
            if group.is_initial:
                processor.handleInitialState(key, next(frames), times)
            else:
                yield from self._call(processor.handleInputRows(key, frames, times))

    def _timers(self) -> Iterator[pa.RecordBatch]:
        """Calls `handleExpiredTimer` for all timers that are due."""
        until = self._now if self._spec.time_mode == "processingtime" else self._times.getCurrentWatermarkInMs()
        with contextlib.closing(DueTimers(self._session, until, _TIMERS_PAGE, spill_folder)) as due:
            self._handle.timers.begin_firing(due)
            yield from self._fire(due)

    def _fire(self, due: DueTimers) -> Iterator[pa.RecordBatch]:
        spec, scope, times = self._spec, self._scope, self._times
        handle_timer = spec.processor.handleExpiredTimer
        out, fired = self._out, self._handle.timers.fired
        append, pending = out.append, out.pending
        make_key = row_class(spec.key.names)
        in_order = TimerOrder(spec.key)
        while page := due.next_page():
            keys = pa.array(dict.fromkeys(key for _, key in page), pa.binary())
            page, keys, decoded = in_order(page, keys, self._key_codec.decode_keys(keys))
            places = {key: i for i, key in enumerate(keys.to_pylist())}
            shown = self._key_type.shown_rows(decoded)
            scope.open(keys, [make_key(row) for row in shown if row is not None])
            for time, key in page:
                at = scope.at = places[key]
                results = handle_timer(
                    key=scope.shown_keys[at], timerValues=times, expiredTimerInfo=ExpiredTimerInfo(time)
                )
                self._results = results
                for result in results:
                    append(result)
                    if len(pending) >= out.limit and out.is_full():
                        yield from out.flush()
                fired(time)
            scope.close()  # the next page is listed after the changes of this one
