"""Objects that are closed at the end of a ``with`` block.

Owns: the block. Does not own: the effect of a close (each class).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Closing"]


class Closing:
    """Base of objects with a ``close()``, which a ``with`` block calls at its end."""

    @abstractmethod
    def close(self) -> None:
        """Closes the object. A second call has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
