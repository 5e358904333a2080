"""Opening an embedded state, its checkpoints, its collections.

Owns: Python's view of a state, its futures, its lifetime. Does not own: any behaviour of the state (the core), the
collections (`fastchangelog.state`), its materialization (`materialization.embedded`), its sweeps (`places`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.closing import Closing
from fastchangelog.embedded.handle import StateHandle
from fastchangelog.embedded.places import StatePlace, savepoint_folder, start_sweeper
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.functions import Aggregate
from fastchangelog.futures import CallbackThread, CoreFuture, resolve_future
from fastchangelog.hidden import Hidden
from fastchangelog.materialization.embedded import EmbeddedMaterializer
from fastchangelog.materialization.policy import MaterializationPolicy, option_texts_of
from fastchangelog.options import gather_options, gather_storage_options, request_credentials, split_provider
from fastchangelog.schema import arrow_type
from fastchangelog.state.aggregates import calls_of
from fastchangelog.state.aggregating import AggregatingState
from fastchangelog.state.list import ListState
from fastchangelog.state.map import MapState
from fastchangelog.state.timers import TimerState
from fastchangelog.state.times import clock_millis, ttl_millis
from fastchangelog.state.value import ValueState

if TYPE_CHECKING:
    from fastchangelog.types import DataTypeLike, Duration, Options, PathLike, SavepointFormat, StorageOptions

__all__ = ["State", "open_state"]


def open_state(
    uri: PathLike,
    *,
    name: str = "default",
    handle: StateHandle | None = None,
    start_from: PathLike | None = None,
    read_only: bool = False,
    create: bool = True,
    materialization: MaterializationPolicy | None = None,
    options: Options | None = None,
    storage_options: StorageOptions | None = None,
    clock: Callable[[], float] | None = None,
) -> State:
    """Opens the state ``name`` under the folder ``uri``, at its newest checkpoint or at ``handle``.

    **One writer.** Opening for writing fences the previous writer, in any process: its next checkpoint ends with
    `FencedError`, and its changes since its last checkpoint are not kept. The store must support conditional creation
    of an object (create if absent); some S3-compatible stores do not.

    Opening with ``handle`` to write makes that checkpoint the newest one again. Only the handles of the newest
    checkpoints are sure to have all their objects.

    **Snapshots.** An open reads the newest snapshot and the log after it. New snapshots are made in the background, by
    the policy ``materialization``, and the next checkpoint starts from them. A close waits for one if the length of
    the log requires it. When too many fail in a row, changes are refused with `StoreError` until one succeeds;
    checkpoints continue. After an open, the local files are loaded into memory in the background (``restore``: here
    `lazy` unless set). Local files are caches, in the temp folder (``TMPDIR``).

    **Garbage.** While a state is open for writing, a thread deletes what its newest eight checkpoints have not needed
    for a day, once in ``sweep_interval``. The option ``sweep`` set to ``off`` leaves that to `fastchangelog sweep`.

    Args:
        uri: The folder: ``file:///path``, a plain path, ``s3://``, ``s3a://``, ``gs://``, ``az://``, ``abfss://`` or
            ``memory://``.
        name: Name of the state; a folder may hold many.
        handle: The checkpoint to open; None opens the newest one.
        start_from: The folder of a savepoint of `State.savepoint`, which a new state begins with. If there is a state
            already, it is not read. It is opened with the same ``storage_options``.
        read_only: True to allow no changes; no writer is fenced.
        create: True to make the state if there is none.
        materialization: When to make snapshots; None follows the options ``materialization_…``.
        options: See the reference of options. ``memory_budget`` bounds the memory. Changes that no checkpoint holds yet
            take a quarter of it, then move to the local disk. Options of queries, such as ``max_parallelism``, are
            refused.
        storage_options: As for `ChangelogStorage`.
        clock: The time by which what has a ``ttl`` ends, in seconds since the epoch; None = that of the machine.

    Returns:
        The open state; use it in ``with``.

    Raises:
        StateNotFoundError: There is no state, and none may be made.
        InvalidArgumentError: An option is unknown, or the handle is of another state.
        CorruptDataError: Stored bytes are not what was written.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/open", materialization=fc.MaterializationPolicy(interval="5m")) as st:
        ...     st.value_state("visits", key="string", value="long")["ann"] = 1
        >>> fc.open_state("memory://docs/none", read_only=True)
        Traceback (most recent call last):
        fastchangelog.errors.StateNotFoundError: there is no state in memory://docs/none/default; check the address \
and the name, or create it (create=True, without read_only)
    """
    given = Hidden(storage_options)
    del storage_options
    folder = os.fspath(uri)
    if handle is not None and not isinstance(handle, StateHandle):
        raise InvalidArgumentError(
            f"handle is a {type(handle).__name__}; give a StateHandle; StateHandle.from_bytes() makes one from bytes"
        )
    provider, explicit = split_provider(given)
    store = Hidden(gather_storage_options(folder, explicit.show()))
    asked = None if provider is None else partial(request_credentials, provider)
    start = None if handle is None else handle._native
    begin = None if start_from is None else savepoint_folder(start_from, given)
    texts = {"restore": "lazy", **gather_options(option_texts_of(materialization, options))}
    millis = clock_millis(clock)
    native = _internal.LocalState(folder, name, texts, store.show(), start, read_only, create, asked, begin, millis)
    policy = materialization or MaterializationPolicy.from_options(texts)
    return State(native, policy, StatePlace(folder, name, texts, store, asked))


class State(Closing):
    """An open state; made by `open_state`. Any thread may use it.

    Leaving ``with`` takes a checkpoint; leaving it by an exception discards what came after the last one.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/with") as st:
        ...     st.value_state("a", key="int", value="int")[1] = 10
        >>> try:
        ...     with fc.open_state("memory://docs/with") as st:
        ...         st.value_state("a", key="int", value="int")[1] = 11
        ...         raise RuntimeError("no")
        ... except RuntimeError:
        ...     pass
        >>> with fc.open_state("memory://docs/with") as st:
        ...     st.value_state("a", key="int", value="int")[1]
        10
    """

    def __init__(self, native: _internal.LocalState, policy: MaterializationPolicy, place: StatePlace) -> None:
        self._native = native
        self._materializer = None if native.read_only else EmbeddedMaterializer(native, policy)
        self._callbacks = CallbackThread()
        self._sweeper = None if native.read_only else start_sweeper(self, place)

    @property
    def uri(self) -> str:
        """The state's folder, without credentials."""
        return self._native.uri

    @property
    def read_only(self) -> bool:
        """True if nothing can be changed."""
        return self._native.read_only

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._native.closed

    @property
    def handle(self) -> StateHandle | None:
        """The newest checkpoint of this object: the one it was opened at, or one it has made since; None before the
        first."""
        newest = self._native.newest()
        return None if newest is None else StateHandle(newest)

    def savepoint(
        self, uri: PathLike, format: SavepointFormat = "canonical", *, storage_options: StorageOptions | None = None
    ) -> StateHandle:
        """Takes a checkpoint and copies it into the empty folder ``uri``, which then needs nothing else.

        The folder may be copied, and kept for as long as you like; `open_state(start_from=…)` begins a state with it.
        Others may read and change the state meanwhile.

        Args:
            uri: An empty folder, or one that does not exist yet.
            format: ``"canonical"`` is sorted and readable by any later version, ``"native"`` is a copy of the files.
            storage_options: Of the store of ``uri``, as for `ChangelogStorage`.

        Returns:
            The checkpoint; of a read-only state its newest one.

        Raises:
            InvalidArgumentError: The folder is not empty, the format is unknown, or a read-only state has no
                checkpoint.
            StoreError: The store failed.

        Example:
            >>> import tempfile
            >>> import fastchangelog as fc
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with fc.open_state(f"{folder}/state") as st:
            ...         st.value_state("a", key="int", value="int")[1] = 10
            ...         handle = st.savepoint(f"{folder}/savepoint")
            ...     with fc.open_state(f"{folder}/another", start_from=f"{folder}/savepoint") as st:
            ...         st.value_state("a", key="int", value="int")[1]
            10
        """
        given = Hidden(storage_options)
        del storage_options
        handle = self.handle if self.read_only else self.checkpoint()
        if handle is None:
            raise InvalidArgumentError(f"the state in {self.uri} has no checkpoint yet; call checkpoint() first")
        with tempfile.TemporaryDirectory(prefix="fastchangelog-", ignore_cleanup_errors=True) as scratch:
            self._native.savepoint(handle._native, savepoint_folder(uri, given), format, scratch)
        return handle

    def value_state(
        self, name: str, key: DataTypeLike, value: DataTypeLike, *, ttl: Duration | None = None
    ) -> ValueState:
        """One value for each key.

        ``"string"`` means plain values, ``"n long, last timestamp"`` dicts and struct arrays. The types are kept with
        the state. A later open may declare another type of values, with fields that were added, dropped or widened:
        older values are then read in the new type.

        Args:
            name: Name of the collection.
            key: Schema of keys: a DDL text, a PySpark type or an Arrow type.
            value: Schema of values.
            ttl: How long a value lives after it was set; None = until it is deleted. A later open may pass another
                one, which applies to later writes.

        Returns:
            The collection; the same data for each call of one name.

        Raises:
            InvalidArgumentError: A schema is none, or of a type that cannot be kept; the ttl is no duration.
            SchemaMismatchError: It was declared with another key, with values that cannot become the new type, or with
                a ttl and now without, or without one.
            StateNotFoundError: A read-only state has none of this name.

        Example:
            >>> import fastchangelog as fc
            >>> now = 0.0
            >>> with fc.open_state("memory://docs/ttl", clock=lambda: now) as st:
            ...     seen = st.value_state("seen", key="string", value="long", ttl="10s")
            ...     seen["ann"] = 1
            ...     now = 9.9
            ...     print(seen.get("ann"))
            ...     now = 10.0
            ...     print(seen.get("ann"))
            1
            None
            >>> with fc.open_state("memory://docs/types") as st:
            ...     sessions = st.value_state("sessions", key="user string, day date", value="n long, last timestamp")
            ...     st.value_state("sessions", key="string", value="long")
            Traceback (most recent call last):
            fastchangelog.errors.SchemaMismatchError: the state `sessions` was declared with key \
`struct<user:string,day:date>`, now with `string`; declare it as it was, or take another name
        """
        schema = pa.schema([("key", arrow_type("key", key)), ("value", arrow_type("value", value))])
        return ValueState(self, _internal.ValueState(self._native, name, schema, ttl_millis(ttl)), name, schema)

    def map_state(
        self, name: str, key: DataTypeLike, map_key: DataTypeLike, value: DataTypeLike, *, ttl: Duration | None = None
    ) -> MapState:
        """A map for each key.

        Args:
            name: Name of the collection.
            key: Schema of keys, as for `value_state`.
            map_key: Schema of the keys of maps.
            value: Schema of the values of maps.
            ttl: How long an entry is there after it was set, as for `value_state`.

        Returns:
            The collection.

        Raises:
            InvalidArgumentError, SchemaMismatchError, StateNotFoundError: As for `value_state`.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/map") as st:
            ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
            ...     carts["ann"]["apple"] = 2
            ...     dict(carts["ann"])
            {'apple': 2}
        """
        types = {"key": arrow_type("key", key), "map_key": arrow_type("map_key", map_key)}
        types["value"] = arrow_type("value", value)
        schema = pa.schema(list(types.items()))
        return MapState(self, _internal.MapState(self._native, name, schema, ttl_millis(ttl)), name, schema)

    def list_state(
        self, name: str, key: DataTypeLike, value: DataTypeLike, *, ttl: Duration | None = None
    ) -> ListState:
        """A list for each key.

        Args:
            name: Name of the collection.
            key: Schema of keys, as for `value_state`.
            value: Schema of elements.
            ttl: How long an element is there after it was added, as for `value_state`.

        Returns:
            The collection.

        Raises:
            InvalidArgumentError, SchemaMismatchError, StateNotFoundError: As for `value_state`.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/list") as st:
            ...     clicks = st.list_state("clicks", key="string", value="string")
            ...     clicks["ann"].append("/home")
            ...     list(clicks["ann"])
            ['/home']
        """
        schema = pa.schema([("key", arrow_type("key", key)), ("value", arrow_type("value", value))])
        return ListState(self, _internal.ListState(self._native, name, schema, ttl_millis(ttl)), name, schema)

    def aggregating_state(
        self,
        name: str,
        /,
        *aggregates: Aggregate,
        key: DataTypeLike,
        value: DataTypeLike | None = None,
        ansi: bool = True,
        ttl: Duration | None = None,
        **named: Aggregate,
    ) -> AggregatingState:
        """Aggregates for each key, of rows of the schema ``value``: results, null rules and overflow as a query's.

        Named aggregates give dicts and struct arrays; a single one without a name gives plain results. ``where=`` of an
        aggregate is a condition such as ``"price > 0"``: comparisons of columns and values, ``is null``, ``in``,
        ``between``, ``not``, ``and``, ``or``; the name of a boolean column is one, too.

        Args:
            name: Name of the collection.
            *aggregates: Functions of `fastchangelog.functions` over columns of the rows. Plain rows have the one column
                ``value``.
            key: Schema of keys, as for `value_state`.
            value: Schema of rows; ``count()`` alone needs none.
            ansi: True to make an overflow of a sum an error, as in Spark's ANSI mode; else integers wrap around and
                decimals become null.
            ttl: How long a key's results are there after a row was added, as for `value_state`.
            **named: Aggregates by the name of their result.

        Returns:
            The collection.

        Raises:
            InvalidArgumentError: An aggregate or a condition does not fit the rows; else as for `value_state`.
            SchemaMismatchError, StateNotFoundError: As for `value_state`.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/aggregating") as st:
            ...     bids = st.aggregating_state(
            ...         "bids", key="string", value="price long", n=fc.count(where="price > 3"), best=fc.max("price")
            ...     )
            ...     bids.add_many(["ann", "bob", "ann"], [{"price": 3}, {"price": 5}, {"price": 4}])
            ...     bids["ann"]
            {'n': 1, 'best': 4}
        """
        declared = pa.struct([]) if value is None else arrow_type("value", value)
        calls, rows = calls_of(aggregates, named, declared)
        kept = pa.schema([("key", arrow_type("key", key)), ("value", rows.kept_type)])
        native = _internal.AggregatingState(self._native, name, kept, calls, ansi, ttl_millis(ttl))
        return AggregatingState(self, native, name, kept, rows)

    def timers(self, name: str, key: DataTypeLike) -> TimerState:
        """Times by key, in order: an iterator gives what is due.

        Args:
            name: Name of the collection.
            key: Schema of keys, as for `value_state`.

        Returns:
            The timers.

        Raises:
            InvalidArgumentError, SchemaMismatchError, StateNotFoundError: As for `value_state`.

        Example: see `TimerState`.
        """
        schema = pa.schema([("key", arrow_type("key", key))])
        return TimerState(self, _internal.TimerState(self._native, name, schema), name, schema)

    def checkpoint(self) -> StateHandle:
        """Makes all that was changed until now durable. Returns when it is.

        Returns:
            The handle of what is then the newest checkpoint; the last one if nothing has changed and no new snapshot
            is pending.

        Raises:
            FencedError: A newer writer has opened the state.
            RetryableError, StoreError: The store failed. Nothing is lost: the next checkpoint holds it. (The one that
                failed may have arrived all the same, if its answer was lost.)

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/checkpoint") as st:
            ...     st.value_state("visits", key="string", value="long")["ann"] = 1
            ...     handle = st.checkpoint()
            >>> handle.state_keys
            1
        """
        return StateHandle(self._native.checkpoint())

    def begin_checkpoint(self) -> Future[StateHandle]:
        """A checkpoint of what is changed until now; changes may go on while it is under way.

        Checkpoints end in the order in which they were begun; the ninth at a time waits for the first. Callbacks that
        are added to the future are called in that order, on a thread of the state's: they may use the state and wait
        for another checkpoint of it.

        Returns:
            A future that ends as `checkpoint` would.

        Raises:
            ClosedError: The state is closed.
            InvalidArgumentError: The state is read-only.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/future") as st:
            ...     numbers = st.value_state("numbers", key="int", value="int")
            ...     numbers[1] = 1
            ...     future = st.begin_checkpoint()
            ...     numbers[2] = 2
            ...     future.result().state_keys
            1
        """
        future: CoreFuture[StateHandle] = CoreFuture(self._callbacks)
        self._native.begin_checkpoint(partial(resolve_future, future, StateHandle))
        return future

    def metrics(self) -> dict[str, int]:
        """The part of `fastchangelog.metrics` that this state counted.

        Returns:
            Counters by name; the reference of metrics says what each counts.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/metrics") as st:
            ...     st.value_state("visits", key="string", value="long")["ann"] = 1
            ...     handle = st.checkpoint()
            ...     st.metrics()["checkpoints"]
            1
        """
        return self._native.metrics()

    def close(self, *, checkpoint: bool = True) -> None:
        """Ends the state, after a checkpoint. Twice is fine.

        If the checkpoint fails, its error is raised and the state stays open: close again, or without a checkpoint.

        Args:
            checkpoint: False to discard what came after the last checkpoint; checkpoints under way then end with
                `ClosedError`.

        Raises:
            FencedError, RetryableError, StoreError: As of `checkpoint`.

        Example:
            >>> import fastchangelog as fc
            >>> st = fc.open_state("memory://docs/close")
            >>> st.close(checkpoint=False)
            >>> st.closed
            True
        """
        if checkpoint and not self.read_only and not self.closed:
            self.checkpoint()
            if self._materializer is not None and self._materializer.finish():
                self.checkpoint()
        self._end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(checkpoint=kind is None)
        finally:
            self._end()

    def _end(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()
        self._native.close()
        if self._materializer is not None:
            self._materializer.close()

    def __repr__(self) -> str:
        return f"State({self.uri!r}{', read_only' * self.read_only}{', closed' * self.closed})"
