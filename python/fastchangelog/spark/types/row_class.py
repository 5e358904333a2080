"""Rows that are quick to make and to read.

Owns: classes of `Row` with the fields' names in the class.
Does not own: values of rows (`columns`).

PySpark's `Row` keeps the names in each row, and looks for a name in their list in Python code at each access. A class
for each list of names has them once, and its attributes are those of a named tuple. It is a `Row` in all else: in
`repr`, equality, `asDict`, pickling (it is pickled as a plain `Row`), and for `isinstance`.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.sql import Row

__all__ = ["row_class"]


def row_class(names: Sequence[str]) -> Callable[[Iterable[Any]], Row]:
    """What makes a row with these names of its values."""
    return functools.partial(tuple.__new__, _class_of(tuple(names)))


@functools.lru_cache(maxsize=256)
def _class_of(names: tuple[str, ...]) -> type[Row]:
    places: dict[str, int] = {}
    for i, name in enumerate(names):
        places.setdefault(name, i)
    get = tuple.__getitem__

    def item(self: Row, key: Any) -> Any:
        place = places.get(key) if key.__class__ is str else None
        return Row.__getitem__(self, key) if place is None else get(self, place)

    # Descriptors of a named tuple read a place of any tuple, without a call of Python code.
    # The class must live meanwhile: a garbage collection clears the `vars` of a class that nothing else refers to.
    getters = namedtuple("Getters", " ".join(f"f{i}" for i in range(len(names))))  # type: ignore[misc]
    attributes: dict[str, Any] = {
        # `count` and `index` of a tuple are found before a field of that name, as in a plain `Row`.
        name: vars(getters)[f"f{i}"]
        for name, i in places.items()
        if not hasattr(Row, name) and not name.startswith("__")
    }
    attributes |= {"__fields__": list(names), "__getitem__": item, "__module__": Row.__module__, "__doc__": Row.__doc__}
    return type("Row", (Row,), attributes)
