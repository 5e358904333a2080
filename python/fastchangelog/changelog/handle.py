"""Handles of a changelog: durable ranges of one writer's changes.

Owns: Python's view of what a handle names. Does not own: its bytes (the core, `handles`).
"""

from __future__ import annotations

from fastchangelog import _internal
from fastchangelog.handles import Handle

__all__ = ["ChangelogHandle"]


class ChangelogHandle(Handle):
    """A durable range ``[from_sequence_number, to_sequence_number)`` of one writer's changes.

    It is immutable, can be compared, hashed and pickled, and has a stable binary form. It names objects relative to its
    storage and holds no credentials. ``len(…)`` is its number of changes.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.ChangelogStorage("memory://docs/handle") as storage:
        ...     writer = storage.writer("operator-1", key_groups=range(0, 128))
        ...     writer.append(7, b"seven")
        ...     handle = writer.persist(0, checkpoint_id=1).result()
        >>> handle.from_sequence_number, handle.to_sequence_number, len(handle)
        (0, 1, 1)
        >>> fc.ChangelogHandle.from_bytes(handle.to_bytes()) == handle
        True
        >>> handle.to_dict()["checkpoint_id"]
        1
    """

    __slots__ = ()

    _NATIVE = _internal.ChangelogHandle
    _native: _internal.ChangelogHandle

    def moved_to(self, uri: str) -> ChangelogHandle:
        """The same handle for a storage whose objects were copied.

        Args:
            uri: The folder of the copies.

        Returns:
            A new handle.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.ChangelogStorage("memory://docs/moved") as storage:
            ...     with storage.writer("operator-1", key_groups=range(0, 128)) as writer:
            ...         writer.append(7, b"seven")
            ...         handle = writer.persist(0, checkpoint_id=1).result()
            >>> handle.moved_to("s3://bucket/copy").storage
            's3://bucket/copy'
        """
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

    def __repr__(self) -> str:
        return (
            f"ChangelogHandle({self.writer!r}, [{self.from_sequence_number}, {self.to_sequence_number}), "
            f"checkpoint_id={self.checkpoint_id}, {len(self)} changes, {self.size} bytes)"
        )
