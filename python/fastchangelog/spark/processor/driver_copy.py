"""A copy of a processor for the driver, where `init` runs only to be looked at.

Owns: the copy, by pickle, that shares nothing that user code changes, and the twins of the program's classes.
Does not own: what runs on it (`run`), the copies of the workers (Spark).

Spark runs `init` in a process of its own; here it runs in the program's process. There, cloudpickle alone would return
the program's own class for a class of `__main__`, with methods that no longer see the program's globals.

A twin is made without running the code that creates a class: neither `__init_subclass__` nor a metaclass is called, so
registries see only the program's classes. A class with a layout of its own, such as an enum or an exception, has no
twin: the copy uses the program's.
"""

from __future__ import annotations

import abc
import io
import pickle
import types
from collections.abc import Iterable
from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer

__all__ = ["driver_copy"]


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
        if isinstance(obj, type) and not _by_reference(obj) and not _has_twin(obj):
            return self._share(obj)
        return None

    def _share(self, obj: Any) -> int:
        self.shared.append(obj)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    """Makes twins of the pickled classes."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("pyspark.cloudpickle"):
            if name == "_make_skeleton_class":
                return lambda kind, name, bases, namespace, *_: _twin(kind, name, bases, namespace)
            if name == "_class_setstate":
                return _fill
        return super().find_class(module, name)

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]


def _by_reference(kind: type) -> bool:
    by_reference: Any = cloudpickle.cloudpickle._should_pickle_by_reference
    return bool(by_reference(kind))


def _has_twin(kind: type) -> bool:
    """True if the class has the layout of plain ones, so that its twin can be made."""
    if issubclass(kind, type) or "__slots__" in vars(kind):
        return False
    try:
        _twin(type(kind), kind.__name__, vars(kind).get("__orig_bases__", kind.__bases__), {})
    except TypeError:
        return False
    return True


def _twin(kind: type, name: str, given: Iterable[Any], namespace: dict[str, Any]) -> type:
    """A class of these bases, with the module that the namespace names, whose creation nothing of the program sees."""
    given = tuple(given)
    bases = tuple(types.resolve_bases(given))
    namespace = {"__module__": namespace.get("__module__", __name__)}
    if bases != given:
        namespace["__orig_bases__"] = given
    if not any(map(_has_hook, bases)):
        return _made(kind, name, bases, namespace)
    # A base that is set later calls no hook. Until then the twin has one with the same layout.
    root = next(part for part in reversed(bases[0].__mro__) if "__dict__" in vars(part))
    if any(map(_has_hook, root.__bases__)):
        raise TypeError(f"{root} has a hook below it")
    blank = _made(type(root.__base__), "Blank", root.__bases__, {})
    made = _made(kind, name, (blank,), namespace)
    type.__setattr__(made, "__bases__", bases)
    return made


def _made(kind: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    make: Any = abc.ABCMeta.__new__ if issubclass(kind, abc.ABCMeta) else type.__new__
    made: type = make(kind, name, bases, namespace)
    return made


def _has_hook(base: type) -> bool:
    """True if the creation of a subclass calls code that is not Python's own."""
    owner = next(part for part in base.__mro__ if "__init_subclass__" in vars(part))
    return owner.__module__ not in ("abc", "builtins", "typing")


def _fill(made: type, state: tuple[dict[str, Any], Any]) -> type:
    """Gives a twin the attributes of its class."""
    attributes, _ = state
    for name, value in attributes.items():
        if name != "_abc_impl":
            type.__setattr__(made, name, value)
    for known in attributes.get("_abc_impl") or ():
        abc.ABCMeta.register(made, known)  # type: ignore[arg-type]
    return made


def _detached(accumulator: Any) -> Any:
    """A copy of an accumulator: what is added to it is not added to the program's."""
    twin = object.__new__(type(accumulator))
    vars(twin).update(vars(accumulator))
    twin._value = accumulator.accum_param.zero(accumulator._value)
    return twin
