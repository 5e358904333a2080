"""PySpark's methods that run a processor, replaced by us and by other libraries, in any order.

Owns: which method takes a call, that no order ends in a recursion. Does not own: the calls themselves, with Spark
(tests/spark/test_accelerate).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest

from fastchangelog.spark import internals, internals_plans

NAME = "transformWithStateInPandas"
ARGUMENTS = ("processor", "k long", "Update", "None")
_OWN = f"""
def {NAME}(self, statefulProcessor, outputStructType, outputMode, timeMode, initialState=None, eventTimeColumnName=""):
    calls.append("spark")
    return "spark"

def unionAll(self, other):
    return self.union(other)
"""
_OWN += "".join(f"def {name}(self, other): return other\n" for name in ("union", "unionByName", "join", "crossJoin"))


class World:
    """A class with PySpark's methods, as it looks to our code, and what is called of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        namespace: dict[str, Any] = {"__name__": "pyspark.sql.pandas.group_ops", "calls": self.calls}
        exec(_OWN, namespace)  # a function of PySpark's is known by the module that it was defined in
        mixin = type("Mixin", (), {name: namespace[name] for name in (NAME, *internals_plans.COMBINING)})
        self.kind: Any = type("Group", (mixin,), {"groupBy": lambda group: group})
        #: The answer of our operator; None: it does not support the call.
        self.answer: str | None = "ours"
        self.given: Mapping[str, Any] = {}

    def range(self, _: int) -> Any:
        return self.kind()

    def divert(self, group: Any, name: str, arguments: Mapping[str, Any], native: Callable[[], Any]) -> Any:
        assert name == NAME
        self.given = arguments
        if self.answer is None:
            return native()
        self.calls.append("ours")
        assert internals.native_method(self.kind(), NAME)(*ARGUMENTS) == "spark", "ours runs in Spark's own operator"
        self.calls.pop()
        return self.answer

    def accelerate(self) -> None:
        internals.divert_processors(self, self.divert)  # type: ignore[arg-type]

    def call(self, **more: Any) -> list[str]:
        """Which methods a call of the user runs."""
        self.calls.clear()
        getattr(self.kind(), NAME)(*ARGUMENTS, **more)
        return list(self.calls)


class Tracer:
    """Another library's patch, which keeps what it found, and can be switched on and off."""

    def __init__(self, world: World, *, wraps: bool) -> None:
        self.world = world
        self.wraps = wraps
        self.found: Any = None

    def on(self) -> None:
        self.found = getattr(self.world.kind, NAME)

        def traced(*args: Any, **kwargs: Any) -> Any:
            self.world.calls.append("traced")
            return self.found(*args, **kwargs)

        setattr(self.world.kind, NAME, functools.wraps(self.found)(traced) if self.wraps else traced)

    def off(self) -> None:
        setattr(self.world.kind, NAME, self.found)


@pytest.fixture(params=[True, False], ids=["wraps", "bare"])
def tracer(request: pytest.FixtureRequest) -> Tracer:
    return Tracer(World(), wraps=request.param)


def test_a_patch_before_ours(tracer: Tracer) -> None:
    world = tracer.world
    tracer.on()
    world.accelerate()
    assert world.call(initialState="rows") == ["ours"]
    assert world.given["initialState"] == "rows"
    assert world.given["statefulProcessor"] == "processor", "by PySpark's names, whatever the patch calls them"
    world.answer = None
    assert world.call() == ["traced", "spark"]


def test_a_patch_behind_ours(tracer: Tracer) -> None:
    world = tracer.world
    world.accelerate()
    tracer.on()
    assert world.call() == ["traced", "ours"]
    world.accelerate()
    world.accelerate()
    assert "ours" in world.call()
    assert world.calls.count("ours") == 1, "not twice, however often accelerate() is called"
    world.answer = None
    assert world.call() == ["traced", "spark"]
    tracer.off()
    world.answer = "ours"
    assert world.call() == ["ours"]


def test_a_patch_switched_off_takes_ours_until_the_next_call(tracer: Tracer) -> None:
    world = tracer.world
    tracer.on()
    world.accelerate()
    tracer.off()
    assert world.call() == ["spark"]
    world.accelerate()
    assert world.call() == ["ours"]


def test_patches_in_a_ring_end(tracer: Tracer) -> None:
    """Switched on twice, with one function: it calls ours, which was put around it."""
    world = tracer.world
    tracer.on()
    traced = getattr(world.kind, NAME)
    world.accelerate()
    tracer.found = getattr(world.kind, NAME)
    setattr(world.kind, NAME, traced)
    assert world.call() == ["traced", "ours"]
    world.answer = None
    assert world.call() == ["traced", "traced", "spark"]


def test_a_patch_of_the_class_that_defines_the_method(tracer: Tracer) -> None:
    world = tracer.world
    group, world.kind = world.kind, world.kind.__mro__[1]
    tracer.on()
    world.kind = group
    world.accelerate()
    if tracer.wraps:
        assert world.call() == ["ours"]
    else:  # PySpark's own is hidden: ours runs in what is there
        world.accelerate()
        world.answer = None
        assert world.call() == ["traced", "spark"]
        world.answer = "ours"
        world.kind().__class__.transformWithStateInPandas(world.kind(), *ARGUMENTS)
        assert world.given["outputMode"] == "Update"


def test_a_mock_in_the_place_of_the_method() -> None:
    world = World()
    with mock.patch.object(world.kind, NAME) as mocked:
        world.accelerate()
        assert world.call() == ["ours"], "a mock has every attribute, and is ours no more for it"
        assert not mocked.called
        world.answer = None
        world.call()
        assert mocked.called
    world.answer = "ours"
    world.accelerate()
    assert world.call() == ["ours"]
    with mock.patch.object(world.kind, NAME, autospec=True):
        world.accelerate()
        assert world.call() == ["ours"]


def test_wrong_arguments_get_pysparks_error(tracer: Tracer) -> None:
    tracer.on()
    tracer.world.accelerate()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'timeMode'"):
        getattr(tracer.world.kind(), NAME)(*ARGUMENTS[:3])
    assert not internals._passed.objects


def test_combinations_are_prepared_once_whoever_patched_them() -> None:
    world = World()
    prepared: list[Any] = []

    def prepare(first: Any, second: Any) -> Any:
        prepared.append(second)
        return second

    for patched in (False, True):
        internals_plans.divert_combinations(world, prepare)  # type: ignore[arg-type]
        one, other = world.kind(), world.kind()
        for name in internals_plans.COMBINING:
            prepared.clear()
            assert getattr(one, name)(other=other) is other
            assert prepared == [other], name
        if not patched:
            for name in internals_plans.COMBINING:
                there = getattr(world.kind, name)
                setattr(world.kind, name, lambda self, *args, there=there, **kwargs: there(self, *args, **kwargs))
