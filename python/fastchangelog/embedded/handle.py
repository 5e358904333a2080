"""Handles of an embedded state's checkpoints.

Owns: Python's view of a handle. Does not own: its bytes (the core).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastchangelog import _internal

if TYPE_CHECKING:
    from fastchangelog.types import JsonDict

__all__ = ["StateHandle"]


class StateHandle:
    """A checkpoint of a state. Immutable; can be compared, hashed and pickled, and has a stable binary form.

    It names objects relative to its state's folder and holds no credentials.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/handles") as st:
        ...     handle = st.checkpoint()
        >>> fc.StateHandle.from_bytes(handle.to_bytes()) == handle
        True
    """

    __slots__ = ("_native",)

    def __init__(self, native: _internal.StateHandle) -> None:
        self._native = native

    @classmethod
    def from_bytes(cls, data: bytes) -> StateHandle:
        """The handle of `to_bytes`.

        Args:
            data: The bytes.

        Returns:
            A handle that is equal to the one that was written.

        Raises:
            CorruptDataError: The bytes are not what was written.
            InvalidArgumentError: A newer release wrote them.

        Example: see the class.
        """
        return cls(_internal.StateHandle.from_bytes(bytes(data)))

    def to_bytes(self) -> bytes:
        """A compact, versioned form with a checksum.

        Returns:
            The bytes, the same for equal handles.

        Example: see the class.
        """
        return self._native.to_bytes()

    def to_dict(self) -> JsonDict:
        """A readable form: plain numbers, texts, lists and dicts. Ids are 128-bit numbers.

        Returns:
            A new dict.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.open_state("memory://docs/handles/dict") as st:
            ...     st.value_state("visits", key="string", value="long")["ann"] = 1
            ...     st.checkpoint().to_dict()["state_keys"]
            1
        """
        shown: JsonDict = json.loads(self._native.to_json())
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
        return isinstance(other, StateHandle) and self._native == other._native

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[object, ...]:
        return StateHandle.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        number = self._native.checkpoint_number
        return f"StateHandle({self.version}, checkpoint {number}, {self.state_keys} keys, {self.state_bytes} bytes)"
