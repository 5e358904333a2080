"""Which calls of user code get which rows: keys over several chunks, NaN, initial state, failures."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.errors import InternalError, InvalidArgumentError, RetryableError
from fastchangelog.spark.processor.user_code import is_from_user_code
from support.processor_runs import Runner


class Calls(StatefulProcessor):
    """Notes each call; `rows` may be given."""

    def __init__(self, calls: list[Any], rows: Callable[..., Any] | None = None) -> None:
        self.calls, self.on_rows = calls, rows

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.v = handle.getValueState("v", "n long")
        self.l = handle.getListState("l", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if self.on_rows is not None:
            return self.on_rows(self, key, rows)
        self.calls.append((key, [row.v for row in rows]))
        return ()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.calls.append((key, initialState))

    def close(self) -> None:
        self.calls.append("close")


def runner(calls: list[Any], rows: Callable[..., Any] | None = None, **settings: Any) -> Runner:
    return Runner(lambda: Calls(calls, rows), **settings)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, None])
def test_each_key_is_one_call_however_rows_are_cut(chunk_rows: int | None) -> None:
    calls: list[Any] = []
    rows = [(key, i) for i in range(10) for key in "abc" if not (key == "b" and i)]
    runner(calls, chunk_rows=chunk_rows).batch(rows)
    assert calls == [(("a",), list(range(10))), (("b",), [0]), (("c",), list(range(10))), "close"]


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, None])
@pytest.mark.parametrize("read", [0, 1, 3, 10, 11])
def test_rows_that_are_left_unread_are_skipped(chunk_rows: int | None, read: int) -> None:
    calls: list[Any] = []

    def rows(p: Calls, key: Any, rows: Any) -> Iterator[Row]:
        found = []
        for _ in range(read):
            row = next(rows, None)
            if row is not None:
                found.append(row.v)
        p.l.appendValue((len(found),))
        kept.append(rows)
        calls.append((key, found))
        yield Row(k=key[0], n=len(found))

    kept: list[Any] = []
    run = runner(calls, rows, chunk_rows=chunk_rows)
    assert run.batch([(key, i) for i in range(10) for key in "abc"]) == [(key, min(read, 10)) for key in "abc"]
    assert calls == [((key,), list(range(min(read, 10)))) for key in "abc"] + ["close"]
    if chunk_rows is not None and read < 3:
        assert next(kept[0], None) is None or chunk_rows > 10, "an iterator of a call is of no use after it"


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, None])
def test_states_are_the_keys_own_while_its_rows_are_read(chunk_rows: int | None) -> None:
    """Changes made before a chunk ends are seen after it; an iterator that was open goes on as it was."""
    seen: list[Any] = []

    def rows(p: Calls, key: Any, rows: Any) -> Iterator[Row]:
        before = p.l.get()
        first = next(before, None)
        for row in rows:
            old = p.v.get()
            p.v.update(((old[0] if old else 0) + row.v,))
            p.l.appendValue((row.v,))
            assert [x for (x,) in p.l.get()][-1] == row.v
        seen.append((key[0], p.v.get(), len(list(p.l.get())), ([first] if first else []) + list(before)))
        yield Row(k=key[0], n=0)

    run = runner([], rows, chunk_rows=chunk_rows)
    for _ in range(2):
        run.batch([(key, i) for i in range(5) for key in "ab"])
    five = [(i,) for i in range(5)]
    assert seen == [("a", (10,), 5, []), ("b", (10,), 5, []), ("a", (20,), 10, five), ("b", (20,), 10, five)]


def test_pages_that_are_not_read_yet_survive_the_end_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache._BYTES_AHEAD", 100)
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache._PAGE_BYTES", 100)

    def fill(p: Calls, key: Any, rows: Any) -> Any:
        p.l.put([(row.v,) for row in rows])
        return ()

    def read(p: Calls, key: Any, rows: Any) -> Any:
        before = p.l.get()
        assert next(before) == (0,)
        p.l.clear()
        for row in rows:
            p.l.appendValue((-row.v,))
        assert [x for (x,) in before] == list(range(1, 50))
        assert [x for (x,) in p.l.get()] == [-i for i in range(50)]
        return ()

    run = runner([], fill)
    rows = [(key, i) for i in range(50) for key in "ab"]
    run.batch(rows)
    run.make = lambda: Calls([], read)
    run.chunk_rows = 7
    run.batch(rows)


def test_each_nan_is_a_call_of_its_own_on_one_state() -> None:
    nan = float("nan")

    def rows(p: Calls, key: Any, rows: Any) -> Any:
        old = p.v.get()
        p.v.update(((old[0] if old else 0) + 1,))
        calls.append((repr(key), len(list(rows)), p.v.get()[0]))
        return ()

    for chunk_rows in (None, 2):
        calls: list[Any] = []
        run = runner(calls, rows, key="k double", output="k double, n long", chunk_rows=chunk_rows)
        run.batch([(nan, 1), (-0.0, 1), (0.0, 1), (nan, 2), (None, 1), (nan, 3)])
        assert sorted(map(repr, calls)) == sorted(
            map(repr, [("(0.0,)", 2, 1), ("(None,)", 1, 1), *(("(nan,)", 1, n) for n in (1, 2, 3)), "close"])
        )


def initial(calls: list[Any], rows: Callable[..., Any] | None = None, **settings: Any) -> Runner:
    return runner(calls, rows, initial="total long", **settings)


@pytest.mark.parametrize("chunk_rows", [1, 2, 5, None])
def test_initial_rows_come_before_the_rows_of_their_key(chunk_rows: int | None) -> None:
    calls: list[Any] = []
    run = initial(calls, chunk_rows=chunk_rows)
    run.batch(
        [("b", 1), ("c", 2), ("b", 3), ("e", 4)],
        initial=[("a", 10), ("b", 20), ("b", 21), ("d", 30), ("d", 31), ("d", 32), ("e", 40)],
    )
    assert calls == [
        (("a",), Row(k="a", total=10)),
        (("b",), Row(k="b", total=20)),
        (("b",), Row(k="b", total=21)),
        (("b",), [1, 3]),
        (("c",), [2]),
        (("d",), Row(k="d", total=30)),
        (("d",), Row(k="d", total=31)),
        (("d",), Row(k="d", total=32)),
        (("e",), Row(k="e", total=40)),
        (("e",), [4]),
        "close",
    ]
    assert [row.total for _, row in calls[:3]] == [10, 20, 21]


@pytest.mark.parametrize("chunk_rows", [3, 1000, None])
def test_calls_with_an_initial_state_have_bounded_rows(chunk_rows: int | None) -> None:
    calls: list[Any] = []
    run = initial(
        calls, lambda p, key, rows: calls.append(len(list(rows))) or (), max_records=10, chunk_rows=chunk_rows
    )
    run.batch([("a", i) for i in range(25)] + [("b", i) for i in range(10)], initial=[("a", 1)])
    assert [call for call in calls if isinstance(call, int)] == [9, 10, 6, 10]
    calls.clear()
    run.batch([("a", i) for i in range(25)])
    assert calls == [25, "close"]


def test_states_of_the_initial_state_are_there_for_the_rows() -> None:
    class Totals(Calls):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.v.update((initialState.total,))
            self.handle.registerTimer(5)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            old = self.v.get()
            total = (old[0] if old else 0) + sum(row.v for row in rows)
            self.v.update((total,))
            yield Row(k=key[0], n=total)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            value = self.v.get()
            assert value is not None
            yield Row(k=key.k, n=-value[0])

    for chunk_rows in (1, None):
        run = Runner(lambda: Totals([]), initial="total long", time_mode="processingtime", chunk_rows=chunk_rows)
        first = run.batch([("a", 1), ("b", 2), ("a", 3)], initial=[("a", 100), ("c", 200)], now=5)
        assert first == [("a", 104), ("b", 2), ("a", -104), ("c", -200)]
        assert run.batch([("c", 1)], now=5) == [("c", 201)]


class FrameCalls(Calls):
    """The same for the pandas API."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if self.on_rows is not None:
            return self.on_rows(self, key, rows)
        self.calls.append((key, [frame.v.tolist() for frame in rows]))
        return ()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.calls.append((key, initialState.total.tolist()))


def frames(calls: list[Any], rows: Callable[..., Any] | None = None, **settings: Any) -> Runner:
    return Runner(lambda: FrameCalls(calls, rows), **{"api": "pandas", **settings})


@pytest.mark.parametrize("chunk_rows", [1, 3, 4, 8, None])
def test_frames_have_at_most_so_many_rows(chunk_rows: int | None) -> None:
    calls: list[Any] = []
    run = frames(calls, max_records=4, chunk_rows=chunk_rows)
    run.batch([(key, i) for i in range(10) for key in "ab"] + [("c", 0)])
    cut = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert calls == [(("a",), cut), (("b",), cut), (("c",), [[0]]), "close"]


def test_frames_have_at_most_so_many_bytes() -> None:
    calls: list[Any] = []
    run = frames(calls, max_bytes=60)
    # A number and a text of one byte are about 13 bytes: the fifth row reaches the bound.
    run.batch([("a", i) for i in range(7)])
    assert [len(part) for part in calls[0][1]] == [5, 2]
    calls.clear()
    frames(calls, max_bytes=1).batch([("a", i) for i in range(3)])
    assert calls[0] == (("a",), [[0], [1], [2]])


@pytest.mark.parametrize("chunk_rows", [1, 3, None])
def test_frames_of_the_initial_state(chunk_rows: int | None) -> None:
    calls: list[Any] = []
    run = frames(calls, max_records=2, initial="total long", chunk_rows=chunk_rows)
    run.batch([("b", i) for i in range(3)] + [("c", 0)], initial=[("a", 1), ("b", 2), ("b", 3), ("b", 4)])
    assert calls == [
        (("a",), [1]),
        (("b",), [2, 3]),
        (("b",), [4]),
        (("b",), [[0, 1], [2]]),
        (("c",), [[0]]),
        "close",
    ]
    calls.clear()
    run.make = lambda: FrameCalls(calls, lambda p, key, rows: calls.append(len(next(rows))) or ())
    run.batch([("b", i) for i in range(5)] + [("c", 0)], initial=[("b", 2)])
    assert calls == [(("b",), [2]), 2, 1, "close"]


@pytest.mark.parametrize("chunk_rows", [1, 3, None])
def test_each_nan_is_a_call_of_its_own_beside_an_initial_state(chunk_rows: int | None) -> None:
    nan = float("nan")
    calls: list[Any] = []
    run = frames(calls, initial="total long", key="k double", output="k double, n long", chunk_rows=chunk_rows)
    run.batch([(nan, 1), (nan, 2), (0.5, 3), (0.5, 4)], initial=[(nan, 7), (nan, 8)])
    assert sorted(map(repr, calls[:-1])) == [
        "((0.5,), [[3, 4]])",
        "((nan,), [7])",
        "((nan,), [8])",
        "((nan,), [[1]])",
        "((nan,), [[2]])",
    ]


def test_an_instance_serves_one_batch_and_is_closed() -> None:
    calls: list[Any] = []
    run = runner(calls)
    run.batch()
    assert calls == ["close"]


@pytest.mark.parametrize("api", ["row", "pandas"])
@pytest.mark.parametrize("returned", [None, 5])
def test_callbacks_must_return_something_iterable(api: str, returned: Any) -> None:
    run = Runner(lambda: Calls([], lambda p, key, rows: returned), api=api)
    text = rf"handleInputRows returned {returned}; return an iterable of (Rows|pandas frames)"
    for chunk_rows in (1, None):
        run.chunk_rows = chunk_rows
        with pytest.raises(InvalidArgumentError, match=text) as caught:
            run.batch([("a", 1), ("a", 2)])
        assert not is_from_user_code(caught.value)

    class Fired(Calls):
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            return returned

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(1)
            return []

    run = Runner(lambda: Fired([]), api=api, time_mode="processingtime")
    with pytest.raises(InvalidArgumentError, match=f"handleExpiredTimer returned {returned}"):
        run.batch([("a", 1)])


def test_output_leaves_while_a_key_is_worked_on() -> None:
    closed = []

    def rows(p: Calls, key: Any, rows: Any) -> Iterator[Row]:
        try:
            for i in range(10**9):
                yield Row(k=key[0], n=i)
        finally:
            closed.append(key)

    calls: list[Any] = []
    batches = runner(calls, rows).output_of([("a", 1), ("b", 1)])
    first = next(batches)
    assert first.column(1).to_pylist() == list(range(first.num_rows))
    second = next(batches)
    assert second.column(1)[0].as_py() == first.num_rows
    before = gc.get_threshold()
    batches.close()  # type: ignore[attr-defined]
    assert closed == [("a",)]
    assert calls == [], "a run that ends early does not close the processor, as Spark does not"
    assert gc.get_threshold()[0] < before[0], "Python's collector is as it was"


def fails(p: Calls, key: Any, rows: Any) -> Iterator[Row]:
    for row in rows:
        raise ValueError(f"no {row.v}")
    yield Row()


def updates_wrongly(p: Calls, key: Any, rows: Any) -> Iterator[Row]:
    p.v.update(("x",))
    yield Row()


@pytest.mark.parametrize("chunk_rows", [1, None])
def test_errors_of_user_code_have_its_frames_alone(chunk_rows: int | None) -> None:
    calls: list[Any] = []
    run = runner(calls, fails, chunk_rows=chunk_rows)
    with pytest.raises(ValueError, match="no 1") as caught:
        run.batch([("a", 1), ("a", 2)])
    assert is_from_user_code(caught.value)
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if "fastchangelog" in frame.filename]
    ours = [frame.name for frame in frames if "/spark/processor/" in frame.filename]
    assert ours == ["run_batch", "raise_from_user_code"]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fails"
    assert calls == []
    assert run.store.catalog == "[]", "nothing is kept"


@pytest.mark.parametrize("kind", ["rows", "generator", "initial", "timer"])
def test_a_stop_iteration_of_a_call_has_the_users_frames(kind: str) -> None:
    class Stopping(Calls):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            if kind == "timer":
                self.handle.registerTimer(1)
                return ()
            if kind == "generator":
                return self.lazily()
            return next(self.l.get())

        def lazily(self) -> Iterator[Row]:
            yield next(self.l.get())

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            if kind == "initial":
                next(self.l.get())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            return next(self.l.get())

    run = Runner(Stopping([]), initial="total long", time_mode="processingtime")
    with pytest.raises(RuntimeError, match="generator raised StopIteration") as caught:
        run.batch([("a", 1)], initial=[("a", 1)] if kind == "initial" else None)
    assert is_from_user_code(caught.value)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__
    assert "next(self.l.get())" in str(traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].line)


def test_a_refused_value_points_to_the_users_line() -> None:
    run = runner([], updates_wrongly)
    with pytest.raises(InvalidArgumentError) as caught:
        run.batch([("a", 1)])
    assert is_from_user_code(caught.value)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("updates_wrongly", 'p.v.update(("x",))')


def test_errors_of_the_session_are_ours() -> None:
    class Lost(Calls):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            run.session.get = lost  # type: ignore[union-attr, method-assign, assignment]
            self.v.get()

    def lost(*_args: Any) -> None:
        raise RetryableError("the server is gone")

    run = Runner(lambda: Lost([]))
    with pytest.raises(RetryableError) as caught:
        run.batch([("a", 1)])
    assert not is_from_user_code(caught.value)


def test_errors_without_a_frame_of_user_code_are_ours() -> None:
    run = runner([], lambda p, key, rows: [Row(k="a", n="x")])
    with pytest.raises(InvalidArgumentError) as caught:
        run.batch([("a", 1)])
    assert not is_from_user_code(caught.value)


def test_a_method_with_other_parameters_is_an_error_of_user_code() -> None:
    class Few(Calls):
        def handleInputRows(self, key: Any, rows: Any) -> Any:  # type: ignore[override]
            return iter(())

    class OtherNames(Calls):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.handle.registerTimer(0)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, info: Any) -> Any:  # type: ignore[override]
            return iter(())

    for processor, text in ((Few, "takes 3 positional arguments but 4 were given"), (OtherNames, "'expiredTimerInfo'")):
        with pytest.raises(TypeError, match=text) as caught:
            Runner(lambda processor=processor: processor([]), time_mode="processingtime").batch([("a", 1)])
        assert is_from_user_code(caught.value)


def test_a_chunk_that_promises_too_much_is_a_bug() -> None:
    run = runner([])
    grouped = run.grouped([("a", 1)], run.columns)
    (chunk,) = grouped.finish(10, 10)
    chunk.more = True
    run.grouped = lambda *_: type("G", (), {"finish": lambda *_: iter([chunk])})()  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(InternalError, match="no chunk followed"):
        run.batch([("a", 1)])


def test_errors_of_init_and_close_are_user_codes() -> None:
    class Broken(Calls):
        def init(self, handle: Any) -> None:
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        Runner(lambda: Broken([])).batch()
    assert is_from_user_code(caught.value)

    class Slotted(Exception):
        __slots__ = ()

    class Closing(Calls):
        def close(self) -> None:
            raise Slotted

    with pytest.raises(Slotted):
        Runner(lambda: Closing([])).batch([("a", 1)])


def test_the_pandas_api_reads_frames_lazily() -> None:
    seen = []

    def rows(p: Calls, key: Any, rows: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            seen.append(len(frame))
            yield pd.DataFrame({"k": [key[0]], "n": [len(frame)]})
            if len(seen) == 2:
                return

    run = frames([], rows, max_records=3, chunk_rows=2)
    assert run.batch([("a", i) for i in range(20)] + [("b", 1)]) == [("a", 3), ("a", 3), ("b", 1)]
