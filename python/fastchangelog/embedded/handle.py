"""Handles of an embedded state's checkpoints.

Owns: Python's view of what a handle names. Does not own: its bytes (the core, `handles`).
"""

from __future__ import annotations

from fastchangelog import _internal
from fastchangelog.handles import Handle

__all__ = ["StateHandle"]


class StateHandle(Handle):
    """A checkpoint of a state. Immutable; can be compared, hashed and pickled, and has a stable binary form.

    It names objects relative to its state's folder and holds no credentials.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/handles") as st:
        ...     handle = st.checkpoint()
        >>> fc.StateHandle.from_bytes(handle.to_bytes()) == handle
        True
        >>> handle.to_dict()["state_keys"]
        0
    """

    __slots__ = ()

    _NATIVE = _internal.StateHandle
    _native: _internal.StateHandle

    @property
    def version(self) -> str:
        """The random id of what it holds; the same for checkpoints between which nothing changed."""
        return self._native.version

    @property
    def state_keys(self) -> int:
        """Entries in all states: keys, of maps all their entries, a long list has several, a timer two."""
        return self._native.state_keys

    @property
    def state_bytes(self) -> int:
        """Bytes of their keys and values."""
        return self._native.state_bytes

    def __repr__(self) -> str:
        number = self._native.checkpoint_number
        return f"StateHandle({self.version}, checkpoint {number}, {self.state_keys} keys, {self.state_bytes} bytes)"
