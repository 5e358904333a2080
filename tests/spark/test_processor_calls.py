"""What Spark's operator calls, with what, and what it takes back: calls per key, instances, iterators, initial state.

Owns: the comparison of calls with Spark's operator, exceptions of user code, states that come and go between restarts.
Does not own: states and timers themselves (`test_processor_states`, `test_processor_time`).
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from support.spark.lacks import needs
from support.spark.processor_harness import Job, by_value, compare, sides

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
by_value(__name__)

SCHEMA = "k string, v bigint"
OUTPUT = "k string, said string"
BATCHES = [[("a", 1), ("b", 2), ("a", 3), (None, 4)], [("b", 5)], [("c", 6), (None, 7), ("a", 8)]]


class Calls(StatefulProcessor):
    """Tells how it is called; holds things that cannot be pickled, from `init` on."""

    def __init__(self) -> None:
        self.made = "by the user"

    def init(self, handle: Any) -> None:
        self.lock = threading.Lock()
        self.file = open("/dev/null")  # noqa: SIM115
        self.function = lambda x: x + 1
        self.rows = 0
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        values = sorted(row.v for row in rows)
        self.rows += len(values)
        with self.lock:
            before = self.total.get()
        self.total.update(((before or (0,))[0] + sum(values),))
        times = (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())
        said = f"{self.made} {type(key).__name__} {key} {values} {before} {self.function(1)} {times}"
        yield self.answer(key, said)

    def answer(self, key: Any, said: str) -> Any:
        """A row of the result."""
        return Row(k=key[0], said=said)

    def close(self) -> None:
        self.file.close()


class CallsInPandas(Calls):
    """The same with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        frames = list(rows)
        names = {tuple(frame.columns) for frame in frames}
        flat = [Row(v=int(v)) for frame in frames for v in frame["v"]]
        for row in super().handleInputRows(key, iter(flat), timerValues):
            yield pd.DataFrame({"k": [row.k], "said": [f"{row.said} {names}"]})


@pytest.mark.parametrize(("api", "processor"), [("row", Calls), ("pandas", CallsInPandas)])
def test_calls(feed: Any, spark: Any, tmp_path: pathlib.Path, api: str, processor: type[Calls]) -> None:
    compare(feed, spark, tmp_path, Job(processor, OUTPUT, api=api), SCHEMA, BATCHES, restart=True)


class Returns(Calls):
    """Gives what is yielded in other ways, by key."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        answer = Row(k=key[0], said="x")
        return {
            "list": [answer, answer],
            "tuple": (answer,),
            "empty": [],
            "iterator": iter([answer]),
            "first row only": (Row(k=key[0], said=str(next(rows).v)) for _ in range(1)),
            "no row": iter(()),
            "more names": [Row(k=key[0], said="y", more=1)],
            "fewer names": [Row(k=key[0])],
        }[key[0]]


@needs("rows")
def test_ways_to_return(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    keys = ["list", "tuple", "empty", "iterator", "first row only", "no row", "more names", "fewer names"]
    batches = [[(key, 1), (key, 1)] for key in keys]
    compare(feed, spark, tmp_path, Job(Returns, OUTPUT), SCHEMA, [[r for b in batches for r in b], [("list", 1)]])


class Lazy(Calls):
    """Opens iterators and changes the state while they are read."""

    def init(self, handle: Any) -> None:
        self.list = handle.getListState("list", "v long")
        self.map = handle.getMapState("map", "v long", "v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = sorted(row.v for row in rows)
        listed, items, keys = self.list.get(), self.map.iterator(), self.map.keys()
        for v in values:  # before the first `next`: what is written now is seen
            self.list.appendValue((v,))
            self.map.updateValue((v,), (v,))
        first = next(listed, None), next(items, None) is None
        self.list.clear()
        for v in values:
            self.map.removeKey((v,))
        rest = list(listed), len(list(items)), len(list(keys))
        yield Row(k=key[0], said=repr((first, rest, self.list.exists(), self.map.exists())))
        for v in values:
            self.list.appendValue((v,))
            self.map.updateValue((v * 2,), (v,))

    def close(self) -> None:
        """Nothing to end."""


def test_iterators_are_opened_late_and_keep_what_they_saw(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = [[("a", v) for v in range(300)], [("a", v) for v in range(3)], [("b", 1)]]
    compare(feed, spark, tmp_path, Job(Lazy, OUTPUT), SCHEMA, batches)


class Started(Calls):
    """Takes an initial state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        frames = [initialState] if isinstance(initialState, pd.DataFrame) else None
        rows = [row.asDict() for row in [initialState]] if frames is None else frames[0].to_dict("records")
        before = (self.total.get() or (0,))[0]
        self.total.update((before + sum(int(row["start"]) for row in rows),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before, n = (self.total.get() or (0,))[0], sum(1 for _ in rows)
        self.total.update((before + 1000,))
        yield Row(k=key[0], said=f"{before} {n > 0}")

    def close(self) -> None:
        """Nothing to end."""


class StartedInPandas(Started):
    """The same with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield pd.DataFrame([row.asDict()])


@pytest.mark.parametrize(("api", "processor"), [("row", Started), ("pandas", StartedInPandas)])
def test_an_initial_state(feed: Any, spark: Any, tmp_path: pathlib.Path, api: str, processor: type[Started]) -> None:
    """Keys with rows, keys without, keys that get rows later; in the first batch only, also after a restart."""

    def initial() -> Any:
        rows = [(3, "a"), (4, "a"), (5, "z"), (6, None), (7, "c")]
        return spark.createDataFrame(rows, "start int, k string")

    job = Job(processor, OUTPUT, api=api, initial=initial)
    compare(feed, spark, tmp_path, job, SCHEMA, [*BATCHES, [("z", 9)]], restart=True)


def test_timers_of_an_initial_state_fire_in_the_first_batch(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    class Timed(Started):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.handle.registerTimer(0)
            self.handle.registerTimer(10**15)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(k=key[0], said=f"fired {expiredTimerInfo.getExpiryTimeInMs()} {list(self.handle.listTimers())}")

    job = Job(Timed, OUTPUT, time_mode="EventTime", initial=lambda: spark.createDataFrame([("z",), ("a",)], "k string"))
    compare(feed, spark, tmp_path, job, SCHEMA, BATCHES)


def test_an_initial_state_of_ours_grouped_by_ours(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    job = Job(Started, OUTPUT, initial=lambda: spark.createDataFrame([("a", 5), ("q", 7)], "k string, start int"))
    ours, sparks = sides(spark, tmp_path, job)
    source = feed(SCHEMA, *BATCHES)
    from support.spark.processor_harness import finish, start

    finish(start(job.build(source.stream(), ours.group, ours_initial=True), ours.checkpoint, ours.answers.rows))
    sparks.run(job, source.stream())
    assert {n: sorted(map(tuple, r), key=repr) for n, r in ours.answers.rows.items()} == {
        n: sorted(map(tuple, r), key=repr) for n, r in sparks.answers.rows.items()
    }


class Broken(Calls):
    """Fails at a value, and was mended."""

    def __init__(self, fails_at: int | None):
        self.fails_at = fails_at
        super().__init__()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        rows = list(rows)
        yield from super().handleInputRows(key, iter(rows), timerValues)
        if any(row.v == self.fails_at for row in rows):
            raise LookupError(f"the user's own words about {key[0]}")


def test_nothing_of_a_failed_batch_is_kept(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    ours, sparks = sides(spark, tmp_path)
    source = feed(SCHEMA, *BATCHES)
    for side in (ours, sparks):
        with pytest.raises(Exception, match="the user's own words about b") as error:
            side.run(Job(lambda: Broken(5), OUTPUT), source.stream())
        text = str(error.value)
        if side is ours:
            assert "LookupError" in text
            assert text.rindex("handleInputRows") < text.index("the user's own words about b")
            assert "fastchangelog/spark/processor/run.py" not in text
        side.run(Job(lambda: Broken(None), OUTPUT), source.stream())
    assert {n: sorted(map(tuple, r), key=repr) for n, r in ours.answers.rows.items()} == {
        n: sorted(map(tuple, r), key=repr) for n, r in sparks.answers.rows.items()
    }


class Another(Calls):
    """The same query after a change: one state more, and the first gone."""

    def __init__(self, step: int):
        self.step = step

    def init(self, handle: Any) -> None:
        if self.step == 2:
            handle.deleteIfExists("total")
            self.total = handle.getValueState("second", "n long")
        else:
            self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = (self.total.get() or (0,))[0]
        self.total.update((before + sum(row.v for row in rows),))
        yield Row(k=key[0], said=str(before))

    def close(self) -> None:
        """Nothing to end."""


def test_states_come_and_go_between_restarts(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    ours, sparks = sides(spark, tmp_path)
    source = feed(SCHEMA)
    for step in (1, 1, 2, 2, 1):
        source.add([("a", step), ("b", 10 * step)])
        for side in (ours, sparks):
            side.run(Job(lambda step=step: Another(step), OUTPUT), source.stream())
    assert {n: sorted(map(tuple, r)) for n, r in ours.answers.rows.items()} == {
        n: sorted(map(tuple, r)) for n, r in sparks.answers.rows.items()
    }
