"""The aggregate functions from the core's table.

Owns: the look-up by name or alias. Does not own: the table (`rust/columns/src/aggregate/functions`), the builders
(`functions`).
"""

from __future__ import annotations

import dataclasses

from fastchangelog import _internal

__all__ = ["DEVIATIONS", "FUNCTIONS", "NAMES", "Function"]


@dataclasses.dataclass(frozen=True)
class Function:
    """A row of the table.

    >>> FUNCTIONS["mean"].name, FUNCTIONS["mean"].takes(1), FUNCTIONS["mean"].takes(2)
    ('avg', True, False)
    >>> FUNCTIONS["max_by"].kind(1), FUNCTIONS["count"].kind(7)
    ('ordered', 'presence')
    """

    name: str
    """Spark's name, which stored states have."""
    aliases: tuple[str, ...]
    """Spark's other names of the same function."""
    arguments: tuple[str, ...]
    """The kind of each argument: presence, any, hashed, ordered, quantity, double, measured, integer, boolean, text,
    percentages or deviation."""
    more: str | None
    """The kind of its variadic arguments, if it takes any."""
    ignores_nulls: bool
    """True if it can skip nulls or keep them."""
    result: str
    """The type of its result, for readers."""
    doc: str
    """A description of its result, for readers."""

    def takes(self, arguments: int) -> bool:
        """True if it takes this number of arguments."""
        return arguments == len(self.arguments) or (self.more is not None and arguments > len(self.arguments))

    def kind(self, position: int) -> str:
        """The kind of one of its arguments."""
        return self.arguments[position] if position < len(self.arguments) else self.more or "any"


_ALL = [Function(*row) for row in _internal.aggregate_functions()]

FUNCTIONS: dict[str, Function] = {name: row for row in _ALL for name in (row.name, *row.aliases)}
"""Name or alias -> the function."""

NAMES: str = ", ".join(row.name for row in _ALL)
"""All names, for errors."""

DEVIATIONS: tuple[float, float] = _internal.DEVIATIONS
"""The least and the greatest relative deviation for which the core has registers."""
