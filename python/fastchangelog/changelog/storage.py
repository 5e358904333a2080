"""The storage of a changelog: a folder in an object store.

Owns: opening it, its writers and readers, the deletion of unneeded objects. Does not own: any behaviour of the log (the
core).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fastchangelog import _internal
from fastchangelog.changelog.arrow import bounds_of
from fastchangelog.changelog.handle import ChangelogHandle
from fastchangelog.changelog.reader import ChangelogReader
from fastchangelog.changelog.writer import ChangelogWriter
from fastchangelog.closing import Closing
from fastchangelog.hidden import Hidden
from fastchangelog.options import (
    gather_storage_options,
    option_texts,
    parse_duration,
    request_credentials,
    split_provider,
)

if TYPE_CHECKING:
    from fastchangelog.types import Duration, Options, PathLike, StorageOptions

__all__ = ["ChangelogStorage", "Swept"]


class Swept(NamedTuple):
    """Result of `ChangelogStorage.sweep`.

    Example: see `ChangelogStorage.sweep`.
    """

    deleted: list[str]
    """Names of the unneeded objects; they were deleted unless it was a dry run."""
    deleted_bytes: int
    """Their bytes."""
    kept: int
    """Number of objects that a handle names, that an open writer uses, or that are too young."""


class ChangelogStorage(Closing):
    """A folder in an object store for the logs of any number of writers, which share uploads.

    Args:
        uri: ``file:///path``, a plain path, ``s3://``, ``s3a://``, ``gs://``, ``az://``, ``abfss://`` or ``memory://``.
        options: See the reference of options. Its column *Of* has the defaults that differ from keyed state; their
            figures are Flink's.
        storage_options: As `object_store` names them, such as ``aws_region``, and two more: ``aws_profile``, and
            ``credential_provider``, a function without arguments that returns credentials, such as ``{"access_key_id":
            …, "secret_access_key": …, "token": …, "expires_at": …}`` (a datetime with a time zone, or None). It is
            called on another thread, and again before ``expires_at``; what it raises is the cause of the error that a
            request ends with.
        cache_dir: A local folder for copies of a remote store's objects, of what is uploaded and of what is read, so
            that a restore on the same machine downloads nothing. A full or broken disk never fails an upload. Copies
            that only older checkpoints used go at `ChangelogWriter.confirm`.

    Raises:
        InvalidArgumentError: An option is unknown (the message has the nearest known one), or the address is none.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.ChangelogStorage("memory://docs/storage", options={"compression": "none"}) as storage:
        ...     with storage.writer("operator-1", key_groups=range(0, 128)) as writer:
        ...         writer.append(7, b"seven")
        ...         handle = writer.persist(0, checkpoint_id=1).result()
        ...     with storage.reader() as reader:
        ...         [change.value for change in reader.read(handle)]
        [b'seven']
    """

    def __init__(
        self,
        uri: PathLike,
        *,
        options: Options | None = None,
        storage_options: StorageOptions | None = None,
        cache_dir: PathLike | None = None,
    ) -> None:
        asked_for = Hidden(storage_options)
        del storage_options
        provider, given = split_provider(asked_for)
        root = os.fspath(uri)
        store = Hidden(gather_storage_options(root, given.show()))
        folder = None if cache_dir is None else str(cache_dir)
        asked = None if provider is None else partial(request_credentials, provider)
        self._native = _internal.ChangelogStorage(root, option_texts(options), store.show(), folder, asked)

    @property
    def uri(self) -> str:
        """The folder, without credentials; handles name it so."""
        return self._native.uri

    def writer(self, name: str, key_groups: range) -> ChangelogWriter:
        """A new writer, whose sequence numbers start at 0.

        Args:
            name: Its name; one writer of a name may be open.
            key_groups: Its key groups, a range within 0 … 32,767.

        Returns:
            The writer.

        Raises:
            InvalidArgumentError: A writer of this name is open in this storage, or the range is none.
            ClosedError: The storage is closed.

        Example: see the class.
        """
        return ChangelogWriter(self._native, name, *bounds_of(key_groups))

    def reader(self, cache_dir: PathLike | None = None) -> ChangelogReader:
        """A reader of handles.

        Args:
            cache_dir: A folder where objects of a remote store, downloaded once for all readers, are kept (up to the
                option ``cache_size``); by default the storage's. Without one, only the requested bytes are fetched.

        Returns:
            The reader.

        Raises:
            ClosedError: The storage is closed.

        Example: see the class.
        """
        return ChangelogReader(_internal.ChangelogReader(self._native, None if cache_dir is None else str(cache_dir)))

    def metrics(self) -> dict[str, int]:
        """The part of `fastchangelog.metrics` that this storage counted.

        Returns:
            Counters by name; the reference of metrics explains each.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.ChangelogStorage("memory://docs/storage/metrics") as storage:
            ...     storage.metrics()["store_requests"] >= 0
            True
        """
        return self._native.metrics()

    def sweep(self, needed: Iterable[ChangelogHandle], *, grace: Duration = "1h", dry_run: bool = True) -> Swept:
        """Finds log objects that no handle names, that no open writer of this storage counts, and that are old enough:
        what a crash left behind. Ages are by the store's clock; a dry run, which writes nothing, takes this machine's.

        Args:
            needed: The handles of *all* writers under this folder, of other processes too.
            grace: Age below which objects are kept; longer than any checkpoint takes.
            dry_run: False to delete the objects found.

        Returns:
            The objects found, and the number of objects kept.

        Raises:
            InvalidArgumentError: A handle is of another folder.
            StoreError: The store failed.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.ChangelogStorage("memory://docs/storage/sweep") as storage:
            ...     storage.sweep([], grace="2h")
            Swept(deleted=[], deleted_bytes=0, kept=0)
        """
        handles = [handle._native for handle in needed]
        return Swept(*self._native.sweep(handles, parse_duration("grace", grace).total_seconds(), dry_run))

    def close(self) -> None:
        """Closes all writers: unpersisted changes are lost, and pending futures get `ClosedError`."""
        self._native.close()
