"""Handles of an embedded state's checkpoints.

Owns: Python's view of a handle. Does not own: its bytes (the core).
"""

from __future__ import annotations

import json
from typing import Any

from fastchangelog import _internal

__all__ = ["Handle"]


class Handle:
    """A checkpoint of a state. Immutable; can be compared, hashed and pickled, and has a stable binary form.

    It names objects relative to its state's folder and holds no credentials.

    >>> import fastchangelog as fc
    >>> with fc.open_state("memory://docs/handles") as st:
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
