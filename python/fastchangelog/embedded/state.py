"""Opening an embedded state, its checkpoints, its collections.

Owns: Python's view of a state, its futures, its lifetime. Does not own: any behaviour of the state (the core), the
collections (a module each), its materialization (`materialization.embedded`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.embedded.aggregating_state import AggregatingState, calls_of
from fastchangelog.embedded.handle import Handle
from fastchangelog.embedded.list_state import ListState
from fastchangelog.embedded.map_state import MapState
from fastchangelog.embedded.value_state import ValueState
from fastchangelog.errors import InvalidArgument
from fastchangelog.functions import Aggregate
from fastchangelog.futures import resolve_future, running_future
from fastchangelog.materialization.embedded import EmbeddedMaterializer
from fastchangelog.materialization.policy import MaterializationPolicy
from fastchangelog.options import (
    OptionValue,
    StorageOption,
    gather_options,
    gather_storage_options,
    request_credentials,
    split_provider,
)
from fastchangelog.schema import arrow_type

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["State", "open_state"]


def open_state(
    uri: str,
    *,
    name: str = "default",
    handle: Handle | None = None,
    read_only: bool = False,
    create: bool = True,
    savepoint: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
    storage_options: Mapping[str, StorageOption] | None = None,
) -> State:
    """Opens the state ``name`` under the folder ``uri``, at its newest checkpoint or at ``handle``.

    ``uri``, ``storage_options``: as for `ChangelogStorage`. ``options``: see the reference of options;
    ``memory_budget`` bounds the memory, and a quarter of it the changes that no checkpoint holds yet.
    Local files are caches, in the temp folder (``TMPDIR``).
    ``create``: makes the state if there is none. ``read_only``: nothing can be changed, and no writer is fenced.

    ``savepoint``: the folder of a savepoint of `State.savepoint`, which a new state begins with; if there is a state
    already, it is not read. It is opened with the same ``storage_options``.

    **One writer.** Opening for writing fences the previous writer, in any process: its next checkpoint ends with
    `FencedError`, and its changes since its last checkpoint are not kept. The store must support conditional creation
    of an object (create if absent); some S3-compatible stores do not.

    Opening with ``handle`` to write makes that checkpoint the newest one again. Only the handles of the newest
    checkpoints are sure to have all their objects.

    **Snapshots.** An open reads the newest snapshot and the log after it. New snapshots are made in the background, by
    the options ``materialization_…``, and the next checkpoint starts from them. A close waits for one if the length of
    the log requires it. When too many fail in a row, changes are refused with `StoreError` until one succeeds;
    checkpoints continue. After an open, the local files are loaded into memory in the background (``restore``: here
    `lazy` unless set).
    Options of queries, such as ``max_parallelism``, are refused.

    Raises `StateNotFoundError` if there is no state and none may be made, `InvalidArgument` for an unknown option or a
    handle of another state, `CorruptDataError` if stored bytes are not what was written.

    >>> open_state("memory://docs/none", read_only=True)
    Traceback (most recent call last):
    fastchangelog.errors.StateNotFoundError: there is no state in memory://docs/none/default; check the address and \
the name, or let it be made (create=True, and not read_only)
    """
    provider, given = split_provider(storage_options)
    store = gather_storage_options(uri, given)
    asked = None if provider is None else partial(request_credentials, provider)
    start = None if handle is None else handle._native
    begin = None if savepoint is None else _savepoint_folder(savepoint, storage_options)
    texts = {"restore": "lazy", **gather_options(options)}
    native = _internal.LocalState(uri, name, texts, store, start, read_only, create, asked, begin)
    return State(native, None if read_only else EmbeddedMaterializer(native, MaterializationPolicy.from_options(texts)))


def _savepoint_folder(uri: str, storage_options: Mapping[str, StorageOption] | None) -> _internal.SavepointFolder:
    provider, given = split_provider(storage_options)
    asked = None if provider is None else partial(request_credentials, provider)
    return _internal.SavepointFolder(uri, {}, gather_storage_options(uri, given), asked)


class State:
    """An open state; made by `open_state`. Any thread may use it.

    Leaving ``with`` takes a checkpoint; leaving it by an exception discards what came after the last one.

    >>> with open_state("memory://docs/with") as st:
    ...     st.value_state("a", key="int", value="int")[1] = 10
    >>> try:
    ...     with open_state("memory://docs/with") as st:
    ...         st.value_state("a", key="int", value="int")[1] = 11
    ...         raise RuntimeError("no")
    ... except RuntimeError:
    ...     pass
    >>> with open_state("memory://docs/with") as st:
    ...     st.value_state("a", key="int", value="int")[1]
    10
    """

    def __init__(self, native: _internal.LocalState, materializer: EmbeddedMaterializer | None) -> None:
        self._native = native
        self._materializer = materializer

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
    def handle(self) -> Handle | None:
        """The newest checkpoint of this object: the one it was opened at, or one it has made since; None before the
        first."""
        newest = self._native.newest()
        return None if newest is None else Handle(newest)

    def savepoint(
        self, uri: str, *, format: str = "canonical", storage_options: Mapping[str, StorageOption] | None = None
    ) -> Handle:
        """Takes a checkpoint and puts it aside in the empty folder ``uri``, which then needs nothing else: it may be
        copied, and kept for as long as you like. Others may read and change the state meanwhile. Returns the
        checkpoint; of a read-only state its newest one is taken.

        ``format``: ``"canonical"`` is sorted and readable by any later version, ``"native"`` is a copy of the files.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_state(f"{folder}/state") as st:
        ...         st.value_state("a", key="int", value="int")[1] = 10
        ...         handle = st.savepoint(f"{folder}/savepoint")
        ...     with open_state(f"{folder}/another", savepoint=f"{folder}/savepoint") as st:
        ...         st.value_state("a", key="int", value="int")[1]
        10
        """
        handle = self.handle if self.read_only else self.checkpoint()
        if handle is None:
            raise InvalidArgument(f"the state in {self.uri} has no checkpoint yet, so there is nothing to put aside")
        with tempfile.TemporaryDirectory(prefix="fastchangelog-", ignore_cleanup_errors=True) as scratch:
            self._native.savepoint(handle._native, _savepoint_folder(uri, storage_options), format, scratch)
        return handle

    def value_state(self, name: str, key: Any, value: Any) -> ValueState:
        """One value for each key. ``key`` and ``value`` are schemas: DDL texts, PySpark types or Arrow types.

        ``"string"`` means plain values, ``"n long, last timestamp"`` dicts and struct arrays. The types are kept with
        the state. Raises `SchemaMismatchError` if it was declared with others; `StateNotFoundError` if a read-only
        state has none of this name.

        >>> with open_state("memory://docs/types") as st:
        ...     sessions = st.value_state("sessions", key="user string, day date", value="n long, last timestamp")
        ...     st.value_state("sessions", key="string", value="long")
        Traceback (most recent call last):
        fastchangelog.errors.SchemaMismatchError: the state `sessions` was declared with key \
`struct<user:string,day:date>`, now with `string`; declare it as it was, or take another name
        """
        schema = pa.schema([("key", arrow_type("key", key)), ("value", arrow_type("value", value))])
        return ValueState(self, _internal.ValueState(self._native, name, schema), name, schema)

    def map_state(self, name: str, key: Any, map_key: Any, value: Any) -> MapState:
        """A map for each key. Schemas, and what is raised, are as for `value_state`.

        >>> with open_state("memory://docs/map") as st:
        ...     carts = st.map_state("carts", key="string", map_key="string", value="int")
        ...     carts["ann"]["apple"] = 2
        ...     dict(carts["ann"])
        {'apple': 2}
        """
        types = {"key": arrow_type("key", key), "map_key": arrow_type("map_key", map_key)}
        types["value"] = arrow_type("value", value)
        schema = pa.schema(list(types.items()))
        return MapState(self, _internal.MapState(self._native, name, schema), name, schema)

    def list_state(self, name: str, key: Any, value: Any) -> ListState:
        """A list for each key, of elements of the schema ``value``. Otherwise as `value_state`.

        >>> with open_state("memory://docs/list") as st:
        ...     clicks = st.list_state("clicks", key="string", value="string")
        ...     clicks["ann"].append("/home")
        ...     list(clicks["ann"])
        ['/home']
        """
        schema = pa.schema([("key", arrow_type("key", key)), ("value", arrow_type("value", value))])
        return ListState(self, _internal.ListState(self._native, name, schema), name, schema)

    def aggregating_state(
        self,
        name: str,
        /,
        *aggregates: Aggregate,
        key: Any,
        value: Any = None,
        ansi: bool = True,
        **named: Aggregate,
    ) -> AggregatingState:
        """Aggregates for each key, of rows of the schema ``value``: results, null rules and overflow as a query's.

        Each aggregate is one of `fastchangelog`'s (`count`, `sum`, …) over columns of the rows; plain rows have the
        one column ``value``, and ``count()`` alone needs none. ``where`` is the name of a boolean column. Named
        aggregates give dicts and struct arrays; a single one without a name gives plain results. ``ansi``: an
        overflow of a sum is an error, as in Spark's ANSI mode; else integers wrap around and decimals become null.

        >>> import fastchangelog as fc
        >>> with open_state("memory://docs/aggregating") as st:
        ...     bids = st.aggregating_state(
        ...         "bids", key="string", value="price long", n=fc.count(), best=fc.max("price")
        ...     )
        ...     bids.add(["ann", "bob", "ann"], [{"price": 3}, {"price": 5}, {"price": 4}])
        ...     bids["ann"]
        {'n': 2, 'best': 4}
        """
        rows = pa.struct([]) if value is None else arrow_type("value", value)
        schema = pa.schema([("key", arrow_type("key", key)), ("value", rows)])
        native = _internal.AggregatingState(self._native, name, schema, calls_of(aggregates, named), ansi)
        return AggregatingState(self, native, name, schema)

    def checkpoint(self) -> Handle:
        """Makes all that was changed until now durable. Returns when it is, with the handle of what is then the newest
        checkpoint. If nothing has changed and no new snapshot is pending, that is the last one.

        Raises `FencedError` if a newer writer has opened the state. After `RetryableError` or `StoreError` nothing is
        lost: the next checkpoint holds it. (The one that failed may have arrived all the same, if its answer was lost.)
        """
        return self.begin_checkpoint().result()

    def begin_checkpoint(self) -> Future[Handle]:
        """A checkpoint of what is changed until now; changes may go on while it is under way.

        The future ends as `checkpoint` would. Checkpoints end in the order in which they were begun; the ninth at a
        time waits for the first.

        >>> with open_state("memory://docs/future") as st:
        ...     numbers = st.value_state("numbers", key="int", value="int")
        ...     numbers[1] = 1
        ...     future = st.begin_checkpoint()
        ...     numbers[2] = 2
        ...     future.result().state_keys
        1
        """
        future: Future[Handle] = running_future()
        self._native.begin_checkpoint(partial(resolve_future, future, Handle))
        return future

    def metrics(self) -> dict[str, int]:
        """Every counter of this state by name; the reference of metrics says what each counts."""
        return self._native.metrics()

    def close(self, *, checkpoint: bool = True) -> None:
        """Ends the state, after a checkpoint. With ``checkpoint=False`` what came after the last one is discarded, and
        checkpoints under way end with `ClosedError`. Twice is fine.

        If the checkpoint fails, its error is raised and the state stays open: close again, or without a checkpoint.
        """
        if checkpoint and not self.read_only and not self.closed:
            self.checkpoint()
            if self._materializer is not None and self._materializer.finish():
                self.checkpoint()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(checkpoint=kind is None)
        finally:
            self._end()

    def _end(self) -> None:
        self._native.close()
        if self._materializer is not None:
            self._materializer.close()

    def __repr__(self) -> str:
        return f"State({self.uri!r}{', read_only' * self.read_only}{', closed' * self.closed})"
