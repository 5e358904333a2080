"""Handles of a changelog: durable ranges of one writer's changes.

Owns: Python's view of a handle. Does not own: its bytes (the core).
"""

from __future__ import annotations

import json
from typing import Any

from fastchangelog import _internal

__all__ = ["ChangelogHandle"]


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
