"""Why a value does not fit its type.

Owns: the error inside this package, with the place in the value. Does not own: what users see of it (`typed`).
"""

from __future__ import annotations

__all__ = ["Misfit", "shown"]


class Misfit(Exception):
    """A value does not fit its type: why, and where in it, from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []

    def within(self, part: str) -> Misfit:
        """The same, of this field, element or entry."""
        self.path.append(part)
        return self

    def __str__(self) -> str:
        if not self.path:
            return self.why
        parts = reversed(self.path)
        return f"`{''.join(part if part.startswith('[') else f'.{part}' for part in parts).lstrip('.')}`: {self.why}"


def shown(value: object) -> str:
    """A value in an error: its text on one line, cut at a hundred characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class of the user's
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."
