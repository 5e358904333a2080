"""Numbers that user code counts.

Owns: counters by name. Does not own: where their sums are shown (`fastchangelog.spark.metrics`).
"""

from __future__ import annotations

import operator
import re

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError

__all__ = ["Counter", "Metrics"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


class Counter:
    """A number that only grows; made by `Context.metrics.counter`.

    Example:
        >>> late = Metrics().counter("late_clicks")
        >>> late.add(3)
        >>> late.add()
        >>> late.value
        4
    """

    def __init__(self) -> None:
        self.value = 0
        """What was counted in this batch of the shard."""

    def add(self, count: int = 1) -> None:
        """Adds to the number.

        Args:
            count: How much, 0 or more.

        Raises:
            InvalidArgumentError: It is negative, or no whole number.

        Example: see the class.
        """
        try:
            whole = operator.index(count)
        except TypeError:
            raise InvalidArgumentError(f"a counter takes whole numbers, not {count!r}") from None
        if whole < 0:
            raise InvalidArgumentError(f"a counter only grows; add 0 or more, not {count}")
        self.value += whole


class Metrics:
    """The counters of a processor: `Context.metrics`.

    Example: see `Counter`.
    """

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        """All counters, by name; of this package."""
        self._is_open = True

    def counter(self, name: str) -> Counter:
        """Declares a counter, within `open` only; later it gives one that was declared.

        Args:
            name: Its name in the metrics of a batch: letters, digits and ``_``.

        Returns:
            The counter; the same for the same name.

        Raises:
            InvalidArgumentError: It is no name, or the name of a metric of fastchangelog.

        Example: see `Counter`.
        """
        if not self._is_open:
            if name in self.counters:
                return self.counters[name]
            raise InvalidArgumentError(f"counter {name!r} is declared too late; declare counters in open()")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise InvalidArgumentError(f"{name!r} is no name of a counter; give letters, digits and _, a letter first")
        if any(name == known for known, *_ in _internal.metrics_table()):
            raise InvalidArgumentError(f"`{name}` is a metric of fastchangelog; give the counter another name")
        return self.counters.setdefault(name, Counter())

    def close(self) -> None:
        """Ends declarations; of this package."""
        self._is_open = False
