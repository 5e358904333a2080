"""The storage of a changelog: a folder in an object store.

Owns: opening it, its writers and readers, the deletion of unneeded objects. Does not own: any behaviour of the log (the
core).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from fastchangelog import _internal
from fastchangelog.changelog.arrow import bounds_of
from fastchangelog.changelog.handle import ChangelogHandle
from fastchangelog.changelog.reader import ChangelogReader
from fastchangelog.changelog.writer import ChangelogWriter
from fastchangelog.options import (
    OptionValue,
    StorageOption,
    gather_storage_options,
    option_texts,
    parse_duration,
    request_credentials,
    split_provider,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ChangelogStorage", "Swept"]


class Swept(NamedTuple):
    """Result of `ChangelogStorage.sweep`."""

    deleted: list[str]
    """Names of the unneeded objects; they were deleted unless it was a dry run."""
    deleted_bytes: int
    """Their bytes."""
    kept: int
    """Number of objects that a handle names, that an open writer uses, or that are too young."""


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
        asked = None if provider is None else partial(request_credentials, provider)
        self._native = _internal.ChangelogStorage(uri, option_texts(options), store, folder, asked)

    @property
    def uri(self) -> str:
        """The folder, without credentials; handles name it so."""
        return self._native.uri

    def create_writer(self, name: str, key_groups: range) -> ChangelogWriter:
        """A new writer for ``key_groups``, a range within 0 … 32,767. Its sequence numbers start at 0.

        Raises `InvalidArgument` if a writer of this name is open in this storage.
        """
        return ChangelogWriter(self._native, name, *bounds_of(key_groups))

    def reader(self, cache_dir: str | Path | None = None) -> ChangelogReader:
        """A reader. With ``cache_dir`` (by default the storage's), objects of a remote store are downloaded once
        for all readers and kept in that folder (up to the option ``cache_size``); without, only the requested bytes are
        fetched."""
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
        return Swept(*self._native.sweep(handles, parse_duration("grace", grace).total_seconds(), dry_run))

    def close(self) -> None:
        """Ends all writers: what was not persisted is lost, pending futures end with `ClosedError`."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
