"""Timers: which fire, in which order, and what user code sees of them, whatever the handlers do."""

from __future__ import annotations

import ast
import datetime
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.processor.states.order import number_bytes, spark_order, spark_places
from support.fake_state_session import FakeSession
from support.processor_runs import Runner


class Timed(StatefulProcessor):
    """Registers each row's `v`; `fired(self, key, time)` runs in the handler."""

    def __init__(self, fired: Callable[..., Any] | None = None, rows: Callable[..., Any] | None = None) -> None:
        self.on_fired, self.on_rows = fired, rows

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.v = handle.getValueState("v", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(row.v)
        if self.on_rows is not None:
            self.on_rows(self, key)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        if self.on_fired is not None:
            self.on_fired(self, key, time)
        yield Row(k=key.k, n=time)


def timed(*args: Any, **settings: Any) -> Runner:
    return Runner(lambda: Timed(*args), **{"time_mode": "processingtime", **settings})


def test_timers_fire_in_their_batch_ascending_by_time() -> None:
    runner = timed()
    rows = [("b", 90), ("a", 100), ("a", 50), ("c", 101), ("b", -5), ("b", -5)]
    assert runner.batch(rows, now=100) == [("b", -5), ("a", 50), ("b", 90), ("a", 100)]
    assert runner.batch(now=100) == []
    assert runner.batch(now=101) == [("c", 101)]


def test_timers_of_one_time_fire_in_the_order_of_sparks_store() -> None:
    """Texts by length first, numbers by their lowest byte."""
    texts = ["10", "é", "b", "", "a", "long key of many bytes", None, "9"]
    rows = [(text, time) for text in texts for time in (7, 5)]
    sorted_texts = ["", None, "9", "a", "b", "10", "é", "long key of many bytes"]
    assert timed().batch(rows, now=10) == [(text, time) for time in (5, 7) for text in sorted_texts]
    assert timed().batch([*rows, ("b", 6)], now=10)[8:10] == [("b", 6), ("", 7)]
    numbers = [3, None, 256, -5, 0, 300]
    runner = timed(key="k long", output="k long, n long")
    assert [k for k, _ in runner.batch([(n, 5) for n in numbers], now=5)] == [0, 256, 3, 300, -5, None]


def test_the_order_of_many_texts_is_that_of_the_sort_key() -> None:
    rng = random.Random(5)
    lengths = [0, 1, 7, 8, 9, 16, 17, 255, 256, 257, 300]
    texts = {"".join(rng.choice("aé\0\U0001f600") for _ in range(rng.choice(lengths))) for _ in range(500)}
    values: list[str | None] = [*texts, None]
    rng.shuffle(values)
    struct = T.StructType([T.StructField("k", T.StringType())])
    order, places = spark_order(struct), spark_places(struct)
    assert order is not None
    assert places is not None
    found = places(pa.array([{"k": value} for value in values], pa.struct([("k", pa.string())])))
    assert sorted(zip(found.tolist(), values)) == list(enumerate(sorted(values, key=lambda value: order((value,)))))


@pytest.mark.parametrize(("mode", "expected"), [("processingtime", [("a", 5)]), ("eventtime", [("a", 0)])])
def test_the_mode_decides_which_time_counts(mode: str, expected: Any) -> None:
    runner = timed(time_mode=mode)
    assert runner.batch([("a", 5), ("a", 0)] if mode == "eventtime" else [("a", 5)], now=5, watermark=0) == expected
    assert runner.batch(now=5, watermark=5) == ([("a", 5)] if mode == "eventtime" else [])


def test_handlers_see_rows_as_keys_and_the_batchs_times() -> None:
    seen: list[Any] = []

    class Seeing(Timed):
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            seen.append((key, type(key), timerValues.getCurrentProcessingTimeInMs()))
            seen.append((timerValues.getCurrentWatermarkInMs(), type(timerValues), type(expiredTimerInfo)))
            return iter(())

    runner = Runner(Seeing, key="k string, n array<double>", time_mode="processingtime")
    runner.batch([("a", [1.0], 3)], now=7, watermark=2)
    (key, cls, now), (watermark, values, info) = seen
    assert (repr(key), key.k, key["n"], now, watermark) == ("Row(k='a', n=[1.0])", "a", [1.0], 7, 2)
    assert issubclass(cls, Row)
    assert (values, info) == (TimerValues, ExpiredTimerInfo)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_in_keys_of_frames_are_those_of_rows(zone: str) -> None:
    """With frames Spark takes the session's clock for that of the process, and gives it back."""
    seen: list[Any] = []

    class Frames(Timed):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            seen.append(key)
            self.handle.registerTimer(5)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            seen.append(key)
            return iter(())

    key = "t timestamp, s struct<t:timestamp>, n timestamp_ntz"
    runner = Runner(Frames, key=key, api="pandas", timezone=zone, time_mode="processingtime")
    noon = datetime.datetime(2024, 7, 1, 12)
    runner.batch([(noon, {"t": noon}, noon, 1)], now=5)
    of_rows, of_timer = seen
    clock = noon.replace(tzinfo=datetime.timezone.utc).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert of_rows == (clock, {"t": clock}, noon)
    assert repr(of_timer) == repr(Row(t=clock, s=Row(t=clock), n=noon))


def test_listed_timers_are_those_of_the_key() -> None:
    def rows(p: Timed, key: Any) -> None:
        lazy = p.handle.listTimers()
        p.handle.deleteTimer(60)
        p.handle.deleteTimer(12345)
        p.handle.registerTimer(10)
        assert list(lazy) == [10, 50, 70]
        started = p.handle.listTimers()
        next(started)
        p.handle.registerTimer(80)
        assert list(started) == [50, 70]
        p.handle.deleteTimer(80)

    runner = timed(None, rows)
    runner.batch([("a", 50), ("a", 60), ("a", 70)], now=0)
    assert sorted(time for time, _ in runner.store.timers) == [10, 50, 70]
    runner.batch([("a", 60)], now=0)
    assert sorted(time for time, _ in runner.store.timers) == [10, 50, 70]


def test_timers_are_listed_in_the_order_of_sparks_store() -> None:
    """By the bytes of their times, the lowest first: a program may take the first one."""
    seen: list[Any] = []
    runner = timed(None, lambda p, key: seen.append(list(p.handle.listTimers())))
    base = 1_700_000_000_000
    stored = [("a", 5), ("a", base + 40_000), ("a", base + 15_000), ("a", base)]
    runner.batch(stored, now=0)
    runner.batch([("a", 256), ("a", -1)], now=-2)
    assert seen == [
        [base, 5, base + 40_000, base + 15_000],
        [256, base, 5, base + 40_000, base + 15_000, -1],
    ]


def test_a_handler_still_lists_the_timer_that_fires() -> None:
    seen: list[Any] = []
    runner = timed(lambda p, key, time: seen.append(list(p.handle.listTimers())))
    runner.batch([("a", 50), ("a", 60), ("b", 55)], now=60)
    assert seen == [[50, 60], [55], [60]]
    assert not runner.store.timers


def test_a_timer_that_a_handler_deletes_fires_if_it_was_due() -> None:
    def fired(p: Timed, key: Any, time: int) -> None:
        for other in (50, 60, 70):
            p.handle.deleteTimer(other)

    runner = timed(fired)
    assert runner.batch([("a", 50), ("a", 60), ("a", 70)], now=60) == [("a", 50), ("a", 60)]
    assert not runner.store.timers, "70 was not due, so it is gone"


def test_a_timer_registered_in_the_past_waits_for_the_next_batch() -> None:
    def fired(p: Timed, key: Any, time: int) -> None:
        if time in (50, 60):
            p.handle.registerTimer(time - 20)
            p.handle.registerTimer(time + 5)

    runner = timed(fired)
    assert runner.batch([("a", 50), ("a", 60)], now=100) == [("a", 50), ("a", 60)]
    assert runner.batch(now=100) == [("a", 30), ("a", 40), ("a", 55), ("a", 65)]
    assert runner.batch(now=100) == []


def test_a_timer_registered_anew_at_the_firing_time_goes_with_it() -> None:
    runner = timed(lambda p, key, time: p.handle.registerTimer(time))
    assert runner.batch([("a", 50)], now=50) == [("a", 50)]
    assert runner.batch(now=50) == []


def test_states_in_a_handler_are_those_of_its_key() -> None:
    def rows(p: Timed, key: Any) -> None:
        p.v.update((ord(key[0]),))

    def fired(p: Timed, key: Any, time: int) -> None:
        assert p.v.get() == (ord(key.k) + (time > 50),)
        p.v.update((ord(key.k) + 1,))

    runner = timed(fired, rows)
    batch = runner.batch([(key, time) for key in "abc" for time in (50, 60)], now=100)
    assert [time for _, time in batch] == [50] * 3 + [60] * 3


def test_reading_ahead_leaves_what_another_key_changed() -> None:
    seen: list[Any] = []

    def fired(p: Timed, key: Any, time: int) -> None:
        if (key.k, time) == ("b", 2):
            p.v.update((7,))
        if time >= 3:
            seen.append((key.k, p.v.get()))

    runner = timed(fired)
    runner.batch([("a", 1), ("b", 2), ("a", 3), ("b", 4)], now=10)
    assert seen == [("a", None), ("b", (7,))]


def test_without_a_handler_timers_vanish() -> None:
    class Silent(Timed):
        handleExpiredTimer = StatefulProcessor.handleExpiredTimer

    runner = Runner(Silent, time_mode="processingtime")
    assert runner.batch([("a", 50)], now=50) == []
    assert not runner.store.timers


@pytest.mark.parametrize(
    ("time", "sparks", "why"),
    [
        (1.5, TypeError, "1.5 is no time"),
        ("5", TypeError, "'5' is no time"),
        (True, TypeError, "True is no time"),
        (None, TypeError, "no time"),
        (2**63, ValueError, "beyond"),
    ],
)
def test_times_that_are_none_are_refused(time: Any, sparks: type[Exception], why: str) -> None:
    """As an error of ours, and of the class that Spark raises, if it raises one."""
    for call in ("registerTimer", "deleteTimer"):
        runner = timed(None, lambda p, key, call=call: getattr(p.handle, call)(time))
        with pytest.raises(sparks) as caught:
            runner.batch([("a", 1)])
        assert isinstance(caught.value, InvalidArgumentError)
        assert why in str(caught.value)


def test_times_may_be_numpys_and_floats_without_fraction() -> None:
    def rows(p: Timed, key: Any) -> None:
        p.handle.registerTimer(np.int64(7))
        p.handle.registerTimer(8.0)
        p.handle.registerTimer(-(2**63))
        p.handle.registerTimer(2**63 - 1)

    runner = timed(None, rows)
    assert runner.batch([("a", 5)], now=10) == [("a", -(2**63)), ("a", 5), ("a", 7), ("a", 8)]


def test_mode_none_has_no_times() -> None:
    seen: list[Any] = []

    class Plain(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            seen.append((timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()))
            return []

        def close(self) -> None:
            pass

    Runner(Plain).batch([("a", 1)])
    assert seen == [(-1, -1)]


class Settled:
    """A model that has all due timers at hand when the first handler runs, and random changes of timers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.timers: set[tuple[int, str]] = set()
        self.due: list[tuple[int, str]] = []

    def change(self, p: Timed, key: str) -> None:
        for _ in range(self.rng.randrange(4)):
            time = self.now + self.rng.randrange(-30, 30)
            if self.rng.random() < 0.5:
                p.handle.registerTimer(time)
                self.timers.add((time, key))
            else:
                p.handle.deleteTimer(time)
                self.timers.discard((time, key))


class Changing(Timed):
    """Changes timers at random in all callbacks."""

    def __init__(self, model: Settled) -> None:
        super().__init__()
        self.model = model

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            self.handle.registerTimer(row.v)
            self.model.timers.add((row.v, key[0]))
        self.model.change(self, key[0])
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        model, time = self.model, expiredTimerInfo.getExpiryTimeInMs()
        if not model.due:
            model.due = sorted(timer for timer in model.timers if timer[0] <= model.now)
        listed = list(self.handle.listTimers())
        assert listed == sorted((t for t, k in model.timers if k == key.k), key=number_bytes)
        model.change(self, key.k)
        model.timers.discard((time, key.k))
        yield Row(k=key.k, n=time)


class ShortPages(FakeSession):
    """Ends pages before they are full, as those of long keys do, and reads two keys at once."""

    def due_timers(self, until: int, after: tuple[int, bytes] | None, limit: int) -> Any:
        return super().due_timers(until, after, min(limit, 2))

    def timers_of(self, keys: Any) -> Any:
        return super().timers_of(keys.slice(0, 2))


@pytest.mark.parametrize("session", [FakeSession, ShortPages])
@pytest.mark.parametrize("page", [1, 2, 5, 100])
@pytest.mark.parametrize("kept", [0, 3, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_pages_change_nothing(
    session: type, page: int, kept: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do changes that are more than may be kept."""
    monkeypatch.setattr("support.processor_runs.FakeSession", session)
    monkeypatch.setattr("fastchangelog.spark.processor.run._TIMERS_PAGE", page)
    monkeypatch.setattr("fastchangelog.spark.processor.run.spill_folder", lambda: str(tmp_path))
    monkeypatch.setattr("fastchangelog.state.due_timers._KEPT_BYTES", 300 * kept)
    model = Settled(seed)
    rng = model.rng
    runner = Runner(lambda: Changing(model), time_mode="processingtime")
    for _ in range(12):
        model.now += rng.randrange(25)
        model.due = []
        rows = [(rng.choice("abcdef"), model.now + rng.randrange(-20, 40)) for _ in range(rng.randrange(8))]
        found = runner.batch(rows, now=model.now)
        assert sorted((time, key) for key, time in found) == model.due
        assert [time for _, time in found] == [time for time, _ in model.due]
        assert {(time, ast.literal_eval(key.decode())["k"]) for time, key in runner.store.timers} == model.timers
