"""The common base of the handles of changelogs and of embedded states.

Owns: their bytes, equality, hash and pickling in Python. Does not own: what a handle names (each kind's module), its
layout (the core).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastchangelog.types import JsonDict

__all__ = ["Handle"]


class Handle:
    """Base of handles. They are immutable, can be compared, hashed and pickled, and have a stable binary form."""

    __slots__ = ("_native",)

    _NATIVE: ClassVar[Any]
    """The core's class."""

    def __init__(self, native: Any) -> None:
        self._native = native

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The handle of `to_bytes`.

        Args:
            data: The bytes.

        Returns:
            A handle that is equal to the one that was written.

        Raises:
            CorruptDataError: The bytes differ from the written ones.
            InvalidArgumentError: A newer release wrote them.

        Example: see the class.
        """
        return cls(cls._NATIVE.from_bytes(bytes(data)))

    def to_bytes(self) -> bytes:
        """A compact, versioned form with a checksum.

        Returns:
            The bytes, the same for equal handles.

        Example: see the class.
        """
        data: bytes = self._native.to_bytes()
        return data

    def to_dict(self) -> JsonDict:
        """A readable form: plain numbers, texts, lists and dicts. Ids are 128-bit numbers.

        Returns:
            A new dict.

        Example: see the class.
        """
        shown: JsonDict = json.loads(self._native.to_json())
        return shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and bool(self._native == other._native)

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).from_bytes, (self.to_bytes(),)
