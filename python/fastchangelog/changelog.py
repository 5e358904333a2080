"""The changelog by itself: a log of byte strings by key group in an object store.

Owns: the public classes, the conversion of Python's and numpy's data, and Python's futures.
Does not own: any behaviour of the log; that is the core's (`rust/core/src/changelog`).

The semantics are those of Apache Flink's changelog storage (FLIP-158): appends go to the active change set, sets are
uploaded as they fill, and a checkpoint waits for the rest of its range only.

>>> import fastchangelog as fc
>>> with fc.ChangelogStorage("memory://log") as storage:
...     writer = storage.create_writer("operator-1", key_groups=range(0, 128))
...     writer.append(7, b"seven")
...     writer.append_batch([7, 9], [b"again", b"nine"])
...     handle = writer.persist(0, checkpoint_id=1).result()
...     with storage.reader() as reader:
...         print([(change.key_group, change.value) for change in reader.read(handle)])
[(7, b'seven'), (7, b'again'), (9, b'nine')]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.config import (
    OptionValue,
    StorageOption,
    ask,
    duration,
    gather_storage_options,
    split_provider,
    texts,
)
from fastchangelog.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Change", "ChangelogHandle", "ChangelogReader", "ChangelogStorage", "ChangelogWriter", "Swept"]


class Change(NamedTuple):
    """One change of a log."""

    key_group: int
    """The key group; -1 for a metadata record."""
    value: bytes
    """The bytes that were appended."""
    sequence_number: int
    """Number of its change set."""


class Swept(NamedTuple):
    """What a sweep found."""

    deleted: list[str]
    """Names of the objects that nobody needs; they were deleted unless it was a dry run."""
    deleted_bytes: int
    """Their bytes."""
    kept: int
    """Objects that are named, counted by a writer, or too young."""


class ChangelogHandle:
    """A durable range ``[from_sequence_number, to_sequence_number)`` of one writer's changes.

    It is immutable, can be compared, hashed and pickled, and has a stable binary form. It names objects relative to its
    storage and holds no credentials.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _internal.ChangelogHandle) -> None:
        self._native = native

    @classmethod
    def from_bytes(cls, data: bytes) -> ChangelogHandle:
        """The handle of `to_bytes`. Raises `CorruptDataError` if the bytes are not what was written, and
        `InvalidArgument` if a newer release wrote them."""
        return cls(_internal.ChangelogHandle.from_bytes(bytes(data)))

    def to_bytes(self) -> bytes:
        """A compact, versioned form with a checksum."""
        return self._native.to_bytes()

    def to_dict(self) -> dict[str, Any]:
        """A readable form: plain numbers, texts, lists and dicts."""
        shown: dict[str, Any] = json.loads(self._native.to_json())
        return shown

    def moved_to(self, uri: str) -> ChangelogHandle:
        """The same handle for a storage whose objects were copied to ``uri``."""
        return ChangelogHandle(self._native.moved_to(uri))

    @property
    def storage(self) -> str:
        """The storage's folder."""
        return self._native.storage

    @property
    def writer(self) -> str:
        """The writer's name."""
        return self._native.writer

    @property
    def key_groups(self) -> range:
        """The writer's key groups."""
        return range(*self._native.key_groups)

    @property
    def from_sequence_number(self) -> int:
        """First sequence number."""
        return self._native.from_sequence_number

    @property
    def to_sequence_number(self) -> int:
        """One past the last sequence number."""
        return self._native.to_sequence_number

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it was made for."""
        return self._native.checkpoint_id

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return self._native.size

    @property
    def incremental_size(self) -> int:
        """Bytes of the values that no earlier checkpoint of the writer named."""
        return self._native.incremental_size

    def __len__(self) -> int:
        """Number of changes."""
        return self._native.change_count

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChangelogHandle) and self._native == other._native

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangelogHandle.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return (
            f"ChangelogHandle({self.writer!r}, [{self.from_sequence_number}, {self.to_sequence_number}), "
            f"checkpoint_id={self.checkpoint_id}, {len(self)} changes, {self.size} bytes)"
        )


class ChangelogWriter(_internal.ChangelogWriter):
    """One writer of a storage; made by `ChangelogStorage.create_writer`.

    Any thread may use it, calls take effect one after the other. Sequence numbers count change sets: many appends share
    one, and it grows when a set ends: at `persist`, at `rollover`, or when the active set reaches the option
    ``preemptive_persist_threshold`` and is uploaded ahead of any checkpoint. Ranges are half open, ``[from, to)``.

    Appends only wait when ``max_in_flight`` bytes are on their way to the store; Ctrl-C ends the wait.
    """

    @property
    def key_groups(self) -> range:
        """The key groups that it takes."""
        return range(*self._key_groups)

    def append_batch(self, groups: Any, values: Any) -> None:
        """Appends many changes at once, in order.

        ``groups``: key groups, as a numpy or Arrow array of integers or a sequence. ``values``: as many byte strings,
        as an Arrow array of binary type (or a chunked one), a sequence of ``bytes``, or a pair ``(offsets, buffer)``
        of ``n + 1`` int32 or int64 offsets into a buffer. All key groups are checked before the first change is
        appended.

        Raises `InvalidArgument` for a key group of another writer, nulls, or lengths that differ.
        """
        key_groups = _groups(groups)
        arrays = _values(values)
        if len(key_groups) != sum(map(len, arrays)):
            raise InvalidArgument(
                f"{len(key_groups)} key groups and {sum(map(len, arrays))} values: a batch needs one of each"
            )
        start = 0
        for array in arrays:
            self._append_arrow(key_groups.slice(start, len(array)), array)
            start += len(array)

    def persist(self, from_sqn: int, checkpoint_id: int) -> Future[ChangelogHandle]:
        """Makes every change from sequence number ``from_sqn`` on durable, for the checkpoint ``checkpoint_id``.

        Only what is not durable yet is uploaded; sets whose upload failed before are sent once more. The future ends
        with the handle of ``[from_sqn, next_sequence_number)``, or with `RetryableError` or `StoreError` when the store
        failed after all attempts (persist again: nothing was lost), or with `ClosedError` at close.

        Raises `InvalidArgument` if ``from_sqn`` was truncated or not appended yet.
        """
        future: Future[ChangelogHandle] = Future()
        future.set_running_or_notify_cancel()
        self._persist(from_sqn, checkpoint_id, partial(_settle, future))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ChangelogReader:
    """Reads handles of a storage; made by `ChangelogStorage.reader`."""

    def __init__(self, native: _internal.ChangelogReader) -> None:
        self._native = native

    def read(self, handle: ChangelogHandle, key_groups: range | None = None) -> Iterator[Change]:
        """The changes one by one: sets in order; in a set metadata first, then ascending key groups, each in the order
        of its appends. ``key_groups`` reads a part (and metadata)."""
        for batch in self.read_batches(handle, key_groups):
            columns = (column.to_pylist() for column in batch.columns)
            yield from map(Change._make, zip(*columns))

    def read_batches(self, handle: ChangelogHandle, key_groups: range | None = None) -> Iterator[pa.RecordBatch]:
        """The changes as Arrow record batches, in the same order, at least one batch per set.

        Columns: ``key_group`` (int32, -1 for metadata), ``value`` (binary), ``sequence_number`` (int64). Values of an
        uncompressed log are not copied. Raises `CorruptDataError`, naming object and offset, if bytes are not what was
        written; `StateNotFoundError` if an object is gone.
        """
        part = None if key_groups is None else _bounds(key_groups)
        return self._native.batches(handle._native, part)

    def close(self) -> None:
        """Ends the reader; iterators that are under way may go on."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ChangelogStorage:
    """A folder in an object store for the logs of any number of writers, which share uploads.

    ``uri``: ``file:///path``, a plain path, ``s3://``, ``s3a://``, ``gs://``, ``az://``, ``abfss://`` or ``memory://``.
    ``options``: see the reference of options; the defaults that differ from keyed state are ``persist_delay`` 10 ms,
    ``persist_size_threshold`` 10 MiB, ``max_in_flight`` 100 MiB and ``upload_threads`` 5, as in Flink.
    ``storage_options``: as `object_store` names them, such as ``aws_region``, and two more: ``aws_profile``, and
    ``credential_provider``, a function without arguments that returns credentials, such as ``{"access_key_id": …,
    "secret_access_key": …, "token": …, "expires_at": …}`` (a datetime with a time zone, or None). It is called on
    another thread, and again before ``expires_at``; what it raises is the cause of the error that a request ends with.
    ``cache_dir``: a local folder for copies of a remote store's objects, of what is uploaded (unless the option
    ``local_recovery`` is off) and of what is read, so that a restore on the same machine downloads nothing. A full or
    broken disk never fails an upload. Copies that only older checkpoints used go at `ChangelogWriter.confirm`.

    Raises `InvalidArgument` for an unknown option (with the nearest known one) or an address that is none.
    """

    def __init__(
        self,
        uri: str,
        *,
        options: Mapping[str, OptionValue] | None = None,
        storage_options: Mapping[str, StorageOption] | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        provider, given = split_provider(storage_options)
        store = gather_storage_options(uri, given)
        folder = None if cache_dir is None else str(cache_dir)
        asked = None if provider is None else partial(ask, provider)
        self._native = _internal.ChangelogStorage(uri, texts(options), store, folder, asked)

    @property
    def uri(self) -> str:
        """The folder, without credentials; handles name it so."""
        return self._native.uri

    def create_writer(self, name: str, key_groups: range) -> ChangelogWriter:
        """A new writer for ``key_groups``, a range within 0 … 32,767. Its sequence numbers start at 0.

        Raises `InvalidArgument` if a writer of this name is open in this storage.
        """
        return ChangelogWriter(self._native, name, *_bounds(key_groups))

    def reader(self, cache_dir: str | Path | None = None) -> ChangelogReader:
        """A reader. With ``cache_dir`` (by default the storage's), objects of a remote store are downloaded once,
        whoever asks, and kept in that folder (up to the option ``cache_size``); without, only the bytes that are wanted
        are fetched."""
        return ChangelogReader(_internal.ChangelogReader(self._native, None if cache_dir is None else str(cache_dir)))

    def metrics(self) -> dict[str, int]:
        """Every counter of this storage by name; the reference of metrics says what each counts."""
        return self._native.metrics()

    def sweep(self, needed: Iterable[ChangelogHandle], *, grace: str | timedelta = "1h", dry_run: bool = True) -> Swept:
        """Finds log objects that none of ``needed`` names, no open writer of this storage counts, and that are older
        than ``grace``: what a crash left behind. Deletes them with ``dry_run=False``.

        Give the handles of *all* writers under this folder, of other processes too, and a grace period longer than any
        checkpoint takes. Ages are by the store's clock; a dry run, which writes nothing, takes this machine's.
        """
        handles = [handle._native for handle in needed]
        return Swept(*self._native.sweep(handles, duration("grace", grace).total_seconds(), dry_run))

    def close(self) -> None:
        """Ends all writers: what was not persisted is lost, pending futures end with `ClosedError`."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _settle(
    future: Future[ChangelogHandle], native: _internal.ChangelogHandle | None, error: BaseException | None
) -> None:
    if native is not None:
        future.set_result(ChangelogHandle(native))
    else:
        future.set_exception(error)


def _bounds(key_groups: range) -> tuple[int, int]:
    if not isinstance(key_groups, range) or key_groups.step != 1:
        raise InvalidArgument(f"key groups are a range with step 1, such as range(0, 128), not {key_groups!r}")
    return key_groups.start, max(key_groups.start, key_groups.stop)


def _groups(groups: Any) -> pa.Array:
    array = pa.array(groups) if not isinstance(groups, pa.Array | pa.ChunkedArray) else groups
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == pa.uint16():
        return array
    try:
        return array.cast(pa.uint16())
    except pa.ArrowException as error:
        raise InvalidArgument(f"key groups are integers from 0 to 32767: {error}") from None


def _values(values: Any) -> Sequence[pa.Array]:
    if isinstance(values, tuple) and len(values) == 2:
        return [_from_offsets(*values)]
    if isinstance(values, pa.ChunkedArray):
        return [part for chunk in values.chunks for part in _values(chunk)]
    if not isinstance(values, pa.Array):
        try:
            values = pa.array(values) if hasattr(values, "__arrow_c_array__") else pa.array(values, pa.binary())
        except (pa.ArrowException, TypeError) as error:
            raise InvalidArgument(f"values are byte strings: {error}") from None
        if isinstance(values, pa.ChunkedArray):
            return _values(values)
    if not (
        pa.types.is_binary(values.type)
        or pa.types.is_large_binary(values.type)
        or pa.types.is_fixed_size_binary(values.type)
    ):
        try:
            values = values.cast(pa.large_binary())
        except pa.ArrowException as error:
            raise InvalidArgument(f"values of type {values.type} are not bytes: {error}") from None
    return [values]


def _from_offsets(offsets: Any, buffer: Any) -> pa.Array:
    ends = offsets if isinstance(offsets, pa.Array) else pa.array(offsets)
    if ends.type not in (pa.int32(), pa.int64()):
        try:
            ends = ends.cast(pa.int64())
        except pa.ArrowException as error:
            raise InvalidArgument(f"offsets are integers: {error}") from None
    if len(ends) == 0 or ends.null_count:
        raise InvalidArgument("offsets are one more than the values, without nulls; give [0] for none")
    kind = pa.binary() if ends.type == pa.int32() else pa.large_binary()
    buffers = [None, ends.buffers()[1], pa.py_buffer(buffer)]
    try:
        array = pa.Array.from_buffers(kind, len(ends) - 1, buffers, 0, ends.offset)
        array.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidArgument(f"offsets do not fit the buffer: {error}") from None
    return array
