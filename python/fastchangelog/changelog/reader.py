"""Readers of a changelog.

Owns: Python's view of a reader and of single changes. Does not own: downloads and checks (the core).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.changelog.arrow import bounds_of
from fastchangelog.changelog.handle import ChangelogHandle
from fastchangelog.closing import Closing

__all__ = ["Change", "ChangelogReader"]


class Change(NamedTuple):
    """One change of a log.

    Example:
        >>> import fastchangelog as fc
        >>> fc.Change(7, b"seven", 0).key_group
        7
    """

    key_group: int
    """The key group; -1 for a metadata record."""
    value: bytes
    """The bytes that were appended."""
    sequence_number: int
    """Number of its change set."""


class ChangelogReader(Closing):
    """Reads handles of a storage; made by `ChangelogStorage.reader`.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.ChangelogStorage("memory://docs/reader") as storage:
        ...     writer = storage.writer("operator-1", key_groups=range(0, 128))
        ...     writer.append_batch([7, 9], [b"seven", b"nine"])
        ...     handle = writer.persist(0, checkpoint_id=1).result()
        ...     with storage.reader() as reader:
        ...         print(list(reader.read(handle, key_groups=range(0, 8))))
        ...         print([batch["value"].to_pylist() for batch in reader.read_batches(handle)])
        [Change(key_group=7, value=b'seven', sequence_number=0)]
        [[b'seven', b'nine']]
    """

    def __init__(self, native: _internal.ChangelogReader) -> None:
        self._native = native

    def read(self, handle: ChangelogHandle, key_groups: range | None = None) -> Iterator[Change]:
        """The changes one by one: sets in order; in a set metadata first, then ascending key groups, each in the order
        of its appends.

        Args:
            handle: What to read.
            key_groups: The key groups to read, and metadata; None reads all.

        Returns:
            An iterator of changes.

        Raises:
            CorruptDataError: Bytes are not what was written; the message names object and offset.
            StateNotFoundError: An object is gone.

        Example: see the class.
        """
        for batch in self.read_batches(handle, key_groups):
            columns = (column.to_pylist() for column in batch.columns)
            yield from map(Change._make, zip(*columns))

    def read_batches(self, handle: ChangelogHandle, key_groups: range | None = None) -> Iterator[pa.RecordBatch]:
        """The changes as Arrow record batches, in the same order, at least one batch per set. Values of an uncompressed
        log are not copied.

        Args:
            handle: What to read.
            key_groups: The key groups to read, and metadata; None reads all.

        Returns:
            An iterator of batches with the columns ``key_group`` (int32, -1 for metadata), ``value`` (binary) and
            ``sequence_number`` (int64).

        Raises:
            CorruptDataError: Bytes are not what was written; the message names object and offset.
            StateNotFoundError: An object is gone.

        Example: see the class.
        """
        part = None if key_groups is None else bounds_of(key_groups)
        return self._native.batches(handle._native, part)

    def close(self) -> None:
        """Closes the reader; running iterators may continue."""
        self._native.close()
