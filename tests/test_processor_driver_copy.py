"""The driver's copy of a processor: what `init` does to it, to its class and to its globals stays in the copy."""

from __future__ import annotations

import abc
import enum
import pathlib
import pickle
import sys
import threading
from typing import Any, Generic, TypeVar

import pytest
from pyspark import cloudpickle
from pyspark.accumulators import INT_ACCUMULATOR_PARAM, Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark.processor.driver_copy import driver_copy

LIMIT = 1
Kind = TypeVar("Kind")


class Color(enum.Enum):
    RED = 1


class Changing(StatefulProcessor):
    made: list[int] = []

    def __init__(self, **more: Any) -> None:
        self.calls: list[int] = []
        vars(self).update(more)

    def init(self, handle: Any) -> None:
        self.calls.append(1)
        self.made.append(1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return LIMIT, Color.RED

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def by_value() -> Any:
    """As with a class of a notebook or of a program's `__main__`."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def test_the_copy_shares_nothing(by_value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Changing()
    for _ in range(2):
        copy: Any = driver_copy(processor)
        copy.init(None)
        assert (copy.calls, copy.made) == ([1], [1])
        assert (processor.calls, Changing.made) == ([], [])
    assert type(copy) is not Changing
    assert isinstance(copy, StatefulProcessor)


def test_methods_still_see_the_programs_globals(by_value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of a notebook sets a global and builds the query again."""
    processor = Changing()
    assert driver_copy(processor).handleInputRows(None, None, None)[0] == 1
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 2)
    assert processor.handleInputRows(None, None, None) == (2, Color.RED)
    assert driver_copy(processor).handleInputRows(None, None, None)[0] == 2


def test_broadcast_variables_are_there(by_value: Any, tmp_path: pathlib.Path) -> None:
    kept = tmp_path / "value"
    kept.write_bytes(pickle.dumps({"a": 1}))
    copy = driver_copy(Changing(names=Broadcast(path=str(kept))))
    assert copy.names.value == {"a": 1}


def test_accumulators_do_not_count(by_value: Any) -> None:
    counted: Accumulator[int] = Accumulator(-77, 5, INT_ACCUMULATOR_PARAM)
    copy = driver_copy(Changing(counted=counted))
    copy.counted.add(3)
    copy.counted += 1
    assert counted.value == 5


registered: list[type] = []


class Meta(abc.ABCMeta):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        registered.append(made := super().__new__(cls, name, bases, namespace))
        return made


class Base(StatefulProcessor, metaclass=Meta):
    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        registered.append(cls)

    def close(self) -> None:
        """Nothing to end."""


class Refusal(Exception):
    def __init_subclass__(cls) -> None:
        registered.append(cls)


class TooMuch(Refusal):
    pass


class Registered(Base, Generic[Kind]):
    seen: list[object] = []

    def init(self, handle: Any) -> None:
        super().__init__()
        self.seen.append(handle)
        self.kinds = (Color.RED, TooMuch, Base)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return isinstance(self, Base), isinstance(self, StatefulProcessor)


def test_no_class_is_created_again(by_value: Any) -> None:
    before = list(registered)
    assert before.count(Registered) == 2, "by the metaclass and by the base"
    copy: Any = driver_copy(Registered())
    copy.init("handle")
    assert registered == before
    assert (copy.seen, Registered.seen) == (["handle"], [])
    assert copy.handleInputRows(None, None, None) == (True, True)
    assert copy.kinds[:2] == (Color.RED, TooMuch), "what has a layout of its own is the program's"
    assert copy.kinds[2] in type(copy).__mro__
    assert type(type(copy)) is Meta


def test_what_no_worker_could_get_has_pysparks_error(by_value: Any) -> None:
    with pytest.raises(pickle.PicklingError, match="Could not serialize object"):
        driver_copy(Changing(lock=threading.Lock()))
