"""Keyed state of a program's own, without Spark: changed in memory, durable by checkpoints.

Owns: opening, checkpoints, single values by key, and Python's futures.
Does not own: any behaviour of the state; that is the core's (`rust/core/src/local`). Maps, lists and aggregates by key
(`state_types`), the conversion of data (`state_data`).

What is put is seen at once by whoever reads the same object. It is durable when `checkpoint` has returned: the net
effect since the last checkpoint goes to the log in the object store, and the next `open_state` of that folder finds it.
What no checkpoint holds is lost when the program ends, however it ends. Everything on the local disk is a cache.

>>> import fastchangelog as fc
>>> with fc.open_state("memory://docs/state", name="profiles") as st:
...     visits = st.value_state("visits", key="string", value="long")
...     visits["ann"] = 1
...     visits.put(["bob", "cid"], [2, 3])
...     visits["ann"], "bob" in visits, visits.get(["cid", "dan"]).to_pylist()
(1, True, [3, None])
>>> with fc.open_state("memory://docs/state", name="profiles") as st:
...     visits = st.value_state("visits", key="string", value="long")
...     for batch in visits.scan(start="b"):
...         print(batch.to_pydict())
{'key': ['bob', 'cid'], 'value': [2, 3]}
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.aggregates import Aggregate
from fastchangelog.config import OptionValue, StorageOption, ask, gather_options, gather_storage_options, split_provider
from fastchangelog.errors import InvalidArgument
from fastchangelog.materialization.embedded import EmbeddedMaterializer
from fastchangelog.materialization.policy import MaterializationPolicy
from fastchangelog.schema import arrow_type
from fastchangelog.state_data import array_of
from fastchangelog.state_types import AggregatingState, ByKey, ListState, MapState, calls_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Handle", "State", "ValueState", "open_state"]


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
    ``create``: makes the state if there is none. ``read_only``: nothing can be changed, and nobody is disturbed.

    ``savepoint``: the folder of a savepoint of `State.savepoint`, which a new state begins with; if there is a state
    already, it is not read. It is opened with the same ``storage_options``.

    **One writer.** Who opens a state to write takes it over: the next checkpoint of an older writer, in whichever
    process, ends with `FencedError`, and what it changed since its last checkpoint is not kept. The store must be able
    to create an object only if it does not exist; all stores can but some that imitate S3.

    Opening with ``handle`` to write makes that checkpoint the newest one again. Only the handles of the newest
    checkpoints are sure to have all their objects.

    **Bases.** An open reads the newest base and the log after it. New bases are made in the background, as the options
    ``materialization_…`` say, and the next checkpoint starts from them. A close waits for one if the log alone asks for
    it. When too many fail in a row, changes are refused with `StoreError` until one succeeds; checkpoints go on.
    What is on the local disk then is loaded into memory in the background (``restore``: here `lazy` unless set).
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
    asked = None if provider is None else partial(ask, provider)
    start = None if handle is None else handle._native
    begin = None if savepoint is None else _folder(savepoint, storage_options)
    texts = {"restore": "lazy", **gather_options(options)}
    native = _internal.LocalState(uri, name, texts, store, start, read_only, create, asked, begin)
    return State(native, None if read_only else EmbeddedMaterializer(native, MaterializationPolicy.from_options(texts)))


def _folder(uri: str, storage_options: Mapping[str, StorageOption] | None) -> _internal.SavepointFolder:
    provider, given = split_provider(storage_options)
    asked = None if provider is None else partial(ask, provider)
    return _internal.SavepointFolder(uri, {}, gather_storage_options(uri, given), asked)


class Handle:
    """A checkpoint of a state. Immutable; can be compared, hashed and pickled, and has a stable binary form.

    It names objects relative to its state's folder and holds no credentials.

    >>> with open_state("memory://docs/handles") as st:
    ...     handle = st.checkpoint()
    >>> Handle.from_bytes(handle.to_bytes()) == handle
    True
    """

    __slots__ = ("_native",)

    def __init__(self, native: _internal.StateHandle) -> None:
        self._native = native

    @classmethod
    def from_bytes(cls, data: bytes) -> Handle:
        """The handle of `to_bytes`. Raises `CorruptDataError` if the bytes are not what was written, and
        `InvalidArgument` if a newer release wrote them."""
        return cls(_internal.StateHandle.from_bytes(bytes(data)))

    def to_bytes(self) -> bytes:
        """A compact, versioned form with a checksum."""
        return self._native.to_bytes()

    def to_dict(self) -> dict[str, Any]:
        """A readable form: plain numbers, texts, lists and dicts. Ids are 128-bit numbers."""
        shown: dict[str, Any] = json.loads(self._native.to_json())
        return shown

    @property
    def version(self) -> str:
        """The random id of what it holds; the same for checkpoints between which nothing changed."""
        return self._native.version

    @property
    def state_keys(self) -> int:
        """Entries in all states: keys, of maps all their entries, and a long list has several."""
        return self._native.state_keys

    @property
    def state_bytes(self) -> int:
        """Bytes of their keys and values."""
        return self._native.state_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self._native == other._native

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return Handle.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        number = self._native.checkpoint_number
        return f"Handle({self.version}, checkpoint {number}, {self.state_keys} keys, {self.state_bytes} bytes)"


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
            self._native.savepoint(handle._native, _folder(uri, storage_options), format, scratch)
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
        checkpoint. If nothing has changed, and no new base waits, that is the last one.

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
        future: Future[Handle] = Future()
        future.set_running_or_notify_cancel()
        self._native.begin_checkpoint(partial(_settle, future))
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


class ValueState(ByKey[_internal.ValueState]):
    """One value for each key; made by `State.value_state`. Any thread may use it.

    It has the habits of a mapping for single keys; many keys at once are put, read and deleted in Arrow.

    >>> st = open_state("memory://docs/values")
    >>> seen = st.value_state("seen", key="string", value="n long, last timestamp")
    >>> seen["ann"] = {"n": 1, "last": None}
    >>> seen["ann"]
    {'n': 1, 'last': None}
    >>> del seen["ann"]
    >>> "ann" in seen
    False
    >>> seen["ann"]
    Traceback (most recent call last):
    KeyError: 'ann'
    >>> st.close()
    """

    def get(self, keys: Any, default: Any = None) -> Any:
        """The value of one key, ``default`` if there is none; or those of many keys, as an Arrow array with a null
        where there is none.

        Many keys are a list, a numpy or Arrow array, or another iterable. One key is anything else; of a state whose
        key has names, a dict or a tuple.
        """
        found = self._native.get(self._keys.of(keys))
        if self._keys.is_one(keys):
            return found[0].as_py() if found.null_count == 0 else default
        return found

    def put(self, keys: Any, values: Any) -> None:
        """Sets the value of one key, or those of many keys. A null (None) deletes; of equal keys the last one counts.

        All or nothing: raises `InvalidArgument` if something does not fit the types, or if a key is null, and
        `RetryableError` if too much was changed since the last checkpoint.
        """
        if self._keys.is_one(keys):
            self[keys] = values
        else:
            self._native.put(self._keys.many(keys), array_of("values", values, self.value_type))

    def delete(self, keys: Any) -> None:
        """Removes one key, or many. A key without a value is fine."""
        self._native.delete(self._keys.of(keys))

    def contains(self, keys: Any) -> Any:
        """Whether one key has a value; or which of many keys have, as an Arrow array of booleans."""
        found = self._native.contains(self._keys.of(keys))
        return found[0].as_py() if self._keys.is_one(keys) else found

    def __getitem__(self, key: Any) -> Any:
        found = self._native.get(self._keys.one(key))
        if found.null_count:
            raise KeyError(key)
        return found[0].as_py()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._native.put(self._keys.one(key), array_of("value", [value], self.value_type))

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._native.delete(self._keys.one(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._native.contains(self._keys.one(key))[0].as_py())


def _settle(future: Future[Handle], native: _internal.StateHandle | None, error: BaseException | None) -> None:
    if error is not None or native is None:
        future.set_exception(error or RuntimeError("a checkpoint ended without an answer"))
    else:
        future.set_result(Handle(native))
