"""A copy of a processor for the driver, where `init` runs only to be looked at.

Owns: the copy, by pickle, that shares nothing which user code changes.
Does not own: what runs on it (`run`), the copies of the workers (Spark).

Spark runs `init` in a process of its own. Here it runs in the program's process. There cloudpickle alone gives back the
program's own class for one of its `__main__`, and its methods do not see the program's globals any more.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer

__all__ = ["driver_copy"]

#: What makes classes in cloudpickle's texts. The last argument but one is the mark by which a known class is found.
_CLASS_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")


def driver_copy(processor: Any) -> Any:
    """The processor as a worker would have it; broadcast variables are the driver's, accumulators are copies.

    Raises `pickle.PicklingError`, with PySpark's text, for a processor that no worker could get.
    """
    data = io.BytesIO()
    pickler = _Pickler(data)
    try:
        pickler.dump(processor)
    except Exception:
        serializer: Any = CloudPickleSerializer
        serializer().dumps(processor)
        raise
    data.seek(0)
    return _Unpickler(data, pickler.shared).load()


_CloudPickler: Any = cloudpickle.CloudPickler


class _Pickler(_CloudPickler):  # type: ignore[misc]
    """Leaves out what belongs to the driver's process."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shared: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if str(kind.__module__).startswith("pyspark."):
            if kind.__name__ == "Broadcast":
                return self._share(obj)
            if kind.__name__ == "Accumulator":
                return self._share(_detached(obj))
        return None

    def _share(self, obj: Any) -> int:
        self.shared.append(obj)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    """Makes new classes of the pickled ones."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name in _CLASS_MAKERS and module.startswith("pyspark.cloudpickle"):
            return _unknown(found)
        return found

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]


def _unknown(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: make(*args[:-2], None, args[-1])


def _detached(accumulator: Any) -> Any:
    """A copy of an accumulator: what is added to it is not added to the program's."""
    twin = object.__new__(type(accumulator))
    vars(twin).update(vars(accumulator))
    twin._value = accumulator.accum_param.zero(accumulator._value)
    return twin
