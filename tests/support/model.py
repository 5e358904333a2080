"""The model of keyed states in plain Python: a value, a list, a map and timers for each key.

Owns: what each state holds after a change, and what of it has expired. Does not own: which changes are drawn, and what
they are compared with (the tests).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

#: When something expires that has no TTL.
NEVER = 1 << 62

Entry = tuple[Any, int]
"""A value, and the time at which it expires."""


@dataclasses.dataclass
class States:
    """The states of one key."""

    value: Entry | None = None
    elements: list[Entry] = dataclasses.field(default_factory=list)
    entries: dict[Any, Entry] = dataclasses.field(default_factory=dict)
    timers: set[int] = dataclasses.field(default_factory=set)

    def update(self, value: Any, expires: int = NEVER) -> None:
        """Sets the value."""
        self.value = (value, expires)

    def clear(self) -> None:
        """Removes the value."""
        self.value = None

    def append(self, *values: Any, expires: int = NEVER) -> None:
        """Adds elements to the list."""
        self.elements += [(value, expires) for value in values]

    def replace(self, *values: Any, expires: int = NEVER) -> None:
        """The list has these elements and no others."""
        self.elements = [(value, expires) for value in values]

    def put(self, name: Any, value: Any, expires: int = NEVER) -> None:
        """Sets an entry of the map."""
        self.entries[name] = (value, expires)

    def remove(self, name: Any) -> None:
        """Removes an entry of the map, if there is one."""
        self.entries.pop(name, None)

    @property
    def held(self) -> Any:
        """The value, or None."""
        return None if self.value is None else self.value[0]

    @property
    def listed(self) -> list[Any]:
        """The elements of the list."""
        return [value for value, _ in self.elements]

    @property
    def mapped(self) -> dict[Any, Any]:
        """The entries of the map."""
        return {name: value for name, (value, _) in self.entries.items()}

    def expire(self, now: int) -> None:
        """Removes what has expired."""
        if self.value is not None and self.value[1] <= now:
            self.value = None
        self.elements = [element for element in self.elements if element[1] > now]
        self.entries = {name: entry for name, entry in self.entries.items() if entry[1] > now}


@dataclasses.dataclass
class Model:
    """The states of all keys, at a time that the test moves on."""

    now: int = 0
    keys: dict[Any, States] = dataclasses.field(default_factory=dict)

    def of(self, key: Any) -> States:
        """The states of a key, without what has expired."""
        states = self.keys.setdefault(key, States())
        states.expire(self.now)
        return states

    def held(self, what: Callable[[States], Any]) -> dict[Any, Any]:
        """What each key holds of one kind of state; keys that hold nothing are left out."""
        found = {key: what(self.of(key)) for key in list(self.keys)}
        return {key: value for key, value in found.items() if value is not None and value != [] and value != {}}

    def fire(self, until: int) -> Iterator[tuple[Any, States, int]]:
        """Keys, their states and times of the timers that are due; each is gone when the next one is asked for.

        What is registered meanwhile waits for the next call, what is deleted fires all the same.
        """
        for key in list(self.keys):
            for time in sorted(time for time in self.keys[key].timers if time <= until):
                yield key, self.of(key), time
                self.keys[key].timers.discard(time)

    def snapshot(self, value: str, elements: str, entries: str, timers: str) -> dict[Any, Any]:
        """Every entry of every state, by the names of the states."""
        found: dict[Any, Any] = {}
        for key, states in self.keys.items():
            states.expire(self.now)
            found.update({} if states.value is None else {(value, key): states.held})
            found.update({(elements, key): states.listed} if states.elements else {})
            found.update({(entries, key, name): held for name, held in states.mapped.items()})
            found.update({(timers, key, time): None for time in states.timers})
        return found
