"""Handles and states as user code calls them: results, errors and conditions of Spark, and how many calls they cost."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from fastchangelog.errors import ArgumentTypeError, InvalidArgumentError
from fastchangelog.spark.processor import run
from fastchangelog.spark.processor.run import init_on_driver
from fastchangelog.spark.processor.spec import QueryInfo
from support.fake_state_session import FakeCodec, FakeSession
from support.processor_runs import Runner, Script, runs


def test_handles_and_states_are_pysparks() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        assert isinstance(p.handle, StatefulProcessorHandle)
        assert isinstance(p.v, ValueState)
        assert isinstance(p.l, ListState)
        assert isinstance(p.m, MapState)
        assert p.handle.getQueryInfo().getBatchId() == 7
        assert p.handle.getQueryInfo().getQueryId() == "q"
        assert p.handle.getQueryInfo().getRunId() == "r"
        return [1]

    runner = Runner(Script(rows))
    grouped = runner.grouped([("a", 1)], runner.columns)
    info = QueryInfo("q", "r", 7)
    batches = run.run_batch(runner.spec(), FakeSession(), grouped, TimerValues(), query_info=info, make_codec=FakeCodec)
    assert [batch.to_pylist() for batch in batches] == [[{"k": "a", "n": 1}]]
    public = [name for name in vars(StatefulProcessorHandle) if not name.startswith("_")]
    assert all(name in vars(run.ProcessorHandle) for name in public)


def test_value_states() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        seen = []
        if values == [0]:
            assert p.v.exists() is False
            assert p.v.get() is None
            p.v.clear()
            p.v.update((1, 2))
            assert p.v.exists() is True
            seen.append(p.v.get())
            p.v.clear()
            assert (p.v.exists(), p.v.get()) == (False, None)
            p.v.update(Row(d=5, n=1.5))
        else:
            seen.append(p.v.get())
            p.v.clear() if values == [1] else p.v.update([values[0], None])
        assert all(type(value) is tuple for value in seen if value is not None)
        found.append(seen)

    found: list[Any] = []
    runs(rows, 4)
    assert found == [[(1, 2.0)], [(5, 1.5)], [None], [(2, None)]]


def test_list_states() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        found.append((p.l.exists(), list(p.l.get())))
        p.l.appendValue((values[0],))
        p.l.appendList([(10,), [20.0]])
        p.l.appendList([])
        found.append((p.l.exists(), list(p.l.get())))
        if values[0] == 1:
            p.l.put(iter([(7,)]))
            p.l.appendValue((8,))
        if values[0] == 2:
            p.l.put([])
            assert p.l.exists() is False
        if values[0] == 3:
            p.l.clear()
            p.l.clear()
            p.l.appendValue((9,))

    found: list[Any] = []
    runs(rows, 5)
    assert found == [
        (False, []), (True, [(0,), (10,), (20,)]),
        (True, [(0,), (10,), (20,)]), (True, [(0,), (10,), (20,), (1,), (10,), (20,)]),
        (True, [(7,), (8,)]), (True, [(7,), (8,), (2,), (10,), (20,)]),
        (False, []), (True, [(3,), (10,), (20,)]),
        (True, [(9,)]), (True, [(9,), (4,), (10,), (20,)]),
    ]  # fmt: skip


def test_map_states() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        m = p.m
        if values == [0]:
            assert (m.exists(), m.getValue(("x",)), m.containsKey(("x",))) == (False, None, False)
            assert (list(m.iterator()), list(m.keys()), list(m.values())) == ([], [], [])
            m.removeKey(("x",))
            m.updateValue(("x",), (1,))
            m.updateValue(("y",), (2.0,))
            value = m.getValue(("y",))
            assert (value, value.b, value["b"], repr(value)) == ((2,), 2, 2, "Row(b=2)")
        if values == [1]:
            assert m.exists()
            assert m.getValue(["x"]) == (1,)
            assert m.getValue(("x",)).b == 1
            m.removeKey(("x",))
            assert not m.containsKey(("x",))
            m.updateValue(("z",), (3,))
            m.updateValue(("y",), (None,))
        if values == [2]:
            m.clear()
            assert not m.exists()
            assert not m.containsKey(("y",))
            m.updateValue(("w",), (4,))
        found.append((sorted(m.iterator()), sorted(m.keys()), list(m.values())))
        assert all(type(k) is tuple and type(v) is tuple for k, v in m.iterator())

    found: list[Any] = []
    runs(rows, 4)
    assert found == [
        ([(("x",), (1,)), (("y",), (2,))], [("x",), ("y",)], [(1,), (2,)]),
        ([(("y",), (None,)), (("z",), (3,))], [("y",), ("z",)], [(None,), (3,)]),
        ([(("w",), (4,))], [("w",)], [(4,)]),
        ([(("w",), (4,))], [("w",)], [(4,)]),
    ]


def test_keys_of_maps_are_equal_as_spark_has_it() -> None:
    def init(p: Script, handle: Any) -> None:
        p.m = handle.getMapState("m", "f double, b binary, a array<double>, t timestamp", "n int")

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        nan = float("nan")
        if values == [0]:
            p.m.updateValue((nan, b"x", [nan], None), (1,))
            p.m.updateValue((-0.0, bytearray(b"y"), [-0.0], None), (2,))
        for _ in range(2):
            assert p.m.getValue((float("nan"), bytearray(b"x"), (float("nan"),), None)).n == 1
            assert p.m.getValue((0.0, b"y", [0], None)).n == 2
            assert p.m.getValue((1, b"y", [0], None)) is None
            assert sorted(len(list(p.m.keys())[i]) for i in range(2)) == [4, 4]
        keys = sorted(p.m.keys(), key=repr)
        assert (
            repr(keys).replace("bytearray(b'y')", "b'y'").replace("bytearray(b'x')", "b'x'")
            == "[(0.0, b'y', [0.0], None), (nan, b'x', [nan], None)]"
        )

    runner = Runner(lambda: Script(rows, init))
    runner.batch([("a", 0)])
    runner.batch([("a", 1)])


def test_iterators_show_what_was_there_at_their_first_next() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        if values == [0]:
            p.l.appendList([(i,) for i in range(3000)])
            for i in range(3000):
                p.m.updateValue((f"{i:05}",), (i,))
        else:
            lazy, started = p.l.get(), p.l.get()
            next(started)
            keys, items = p.m.keys(), p.m.iterator()
            next(keys)
            p.l.clear()
            p.l.appendValue((-1,))
            p.m.clear()
            p.m.updateValue(("new",), (-1,))
            assert [x for (x,) in started] == list(range(1, 3000))
            assert list(lazy) == [(-1,)]
            assert len(list(keys)) == 2999
            assert list(items) == [(("new",), (-1,))]
            removed = p.m.keys()
            for entry in removed:
                p.m.removeKey(entry)
            assert not p.m.exists()

    runs(rows, 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda p: p.v.update((1,)),
            "state `v`, key ('a'): `struct<n:bigint,d:double>`: (1,) has 1 values for the 2 fields n, d",
        ),
        (lambda p: p.v.update(("x", 1.0)), "state `v`, key ('a'): field `n`: 'x' is no bigint"),
        (lambda p: p.v.update(None), "is no tuple of the fields n, d"),
        (
            lambda p: p.l.appendValue((2**70,)),
            "state `l`, key ('a'): field `x`: 1180591620717411303424 is beyond bigint",
        ),
        (lambda p: p.l.appendList([(1,), ("y",)]), "state `l`, key ('a'): field `[1].x`: 'y' is no bigint"),
        (lambda p: p.l.put(5), "state `l`, key ('a'): 5 is no list of tuples"),
        (lambda p: p.m.updateValue(("k",), (1, 2)), "state `m`, key ('a'): field `[('k',)]`: (1, 2) has 2 values"),
        (lambda p: p.m.updateValue((1, 2), (1,)), "state `m`, key ('a'): `struct<a:string>`: (1, 2) has 2 values"),
        (lambda p: p.m.getValue(([],)), "state `m`, key ('a'): field `a`: [] is no string"),
    ],
)
def test_refused_values_name_state_key_and_field(call: Callable[[Script], Any], text: str) -> None:
    caught: list[str] = []

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        with pytest.raises(InvalidArgumentError) as info:
            call(p)
        caught.append(str(info.value))
        p.v.update((1, 1.0))

    runs(rows)
    assert text in caught[0]
    assert "\n" not in caught[0]


def test_what_is_no_row_is_a_type_error_as_in_spark() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        for call, *args in (
            *((p.v.update, None), (p.v.update, 5), (p.l.put, None), (p.l.put, [None]), (p.l.appendValue, None)),
            *((p.l.appendList, 5), (p.m.getValue, None), (p.m.updateValue, None, (1,)), (p.m.removeKey, 5)),
        ):
            with pytest.raises(TypeError) as info:
                call(*args)
            assert isinstance(info.value, InvalidArgumentError)
        p.v.update((1, 1.0))

    runs(rows)


def test_text_that_is_no_unicode_is_named_with_its_key() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        p.m.updateValue(("fine",), (1,))
        if key[0] == "b":
            p.m.updateValue(("\ud800",), (1,))

    runner = Runner(Script(rows))
    with pytest.raises(InvalidArgumentError, match=r"state `m`, key \('b'\): field `a`: '\\ud800' cannot be stored"):
        runner.batch([("a", 1), ("b", 1), ("c", 1)])


def refused_in_init(init: Callable[[Script, Any], Any], **settings: Any) -> str:
    """The error of an `init`, the same on the driver and in a worker but for the handle's state."""
    runner = Runner(lambda: Script(None, init), **settings)
    texts = []
    for call in (lambda: runner.batch([("a", 1)]), lambda: init_on_driver(runner.spec())):
        with pytest.raises(PySparkRuntimeError) as caught:
            call()
        texts.append(str(caught.value))
    assert texts[0].replace("CREATED", "PRE_INIT") == texts[1]
    return texts[1]


def test_declarations_are_checked_as_spark_checks_them() -> None:
    def twice(p: Script, handle: Any) -> None:
        handle.getValueState("s", "n int")
        handle.getListState("s", "n int")

    text = refused_in_init(twice)
    assert "initializing list state: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with" in text
    for name in ("", " s", "default"):
        text = refused_in_init(lambda p, h, name=name: h.getValueState(name, "n int"))
        assert "[STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME]" in text
    text = refused_in_init(lambda p, h: h.getMapState("$s", "n int", "n int"))
    assert "[STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS]" in text
    assert "[UNSUPPORTED_DATATYPE]" in refused_in_init(lambda p, h: h.getValueState("s", "n lnog"))
    collated = T.StructType([T.StructField("n", T.StringType("UTF8_LCASE"))])
    text = refused_in_init(lambda p, h: h.getMapState("s", collated, "n int"))
    assert "[STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY]" in text
    for call in (lambda h: h.registerTimer(5), lambda h: h.deleteTimer(5), lambda h: next(h.listTimers())):
        text = refused_in_init(lambda p, h, call=call: call(h), time_mode="processingtime")
        assert "_timer" in text
        assert "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE]" in text


@pytest.mark.parametrize(
    ("use", "operation", "doing"),
    [
        (lambda h: h.getValueState("s", "n int").get(), "get", "getting value state"),
        (lambda h: h.getValueState("s", "n int").exists(), "exists", "checking value state exists"),
        (lambda h: h.getValueState("s", "n int").update((1,)), "update", "updating value state"),
        (lambda h: list(h.getListState("s", "n int").get()), "get", "get of list state"),
        (lambda h: h.getListState("s", "n int").put([(1,)]), "put", "updating value state"),
        (lambda h: h.getMapState("s", "n int", "n int").clear(), "clear", "clearing map state"),
        (lambda h: list(h.getMapState("s", "n int", "n int").keys()), "keys", "keys of map state"),
    ],
)
def test_states_are_of_no_use_in_init(use: Callable[[Any], Any], operation: str, doing: str) -> None:
    runner = Runner(lambda: Script(None, lambda p, h: use(h)))
    with pytest.raises(PySparkRuntimeError) as caught:
        runner.batch([("a", 1)])
    assert str(caught.value).startswith(
        f"Error {doing}: [INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName=s SQLSTATE: XX000"
    )
    with pytest.raises(PySparkRuntimeError) as caught:
        init_on_driver(runner.spec())
    assert "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE]" in str(caught.value)
    assert f"operation=s.{operation} with invalid handle state=PRE_INIT" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "why"),
    [(5, "5 is no schema"), (T.LongType(), "LongType() is no schema"), (T.StructType([]), "has no fields")],
)
def test_schemas_that_are_none_are_refused(schema: Any, why: str) -> None:
    runner = Runner(lambda: Script(None, lambda p, h: h.getValueState("s", schema)))
    with pytest.raises(InvalidArgumentError) as caught:
        runner.batch()
    assert why in str(caught.value)


def test_ttls_are_checked_as_spark_checks_them() -> None:
    for mode, name in (("none", "NoTime"), ("eventtime", "EventTime")):
        for ttl in (5, -5):
            text = refused_in_init(lambda p, h, ttl=ttl: h.getValueState("s", "n int", ttl), time_mode=mode)
            assert "[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL]" in text
            assert f"timeMode={name}" in text
    text = refused_in_init(lambda p, h: h.getListState("s", "n int", -1), time_mode="processingtime")
    assert "[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero" in text
    for ttl in (0, None):
        runner = Runner(lambda ttl=ttl: Script(None, lambda p, h: h.getValueState("s", "n int", ttl)))
        runner.batch([("a", 1)])
        assert json.loads(runner.store.catalog)[0]["ttl"] is False
    for wrong in ("1 hour", 1.5, True):
        runner = Runner(lambda wrong=wrong: Script(None, lambda p, h: h.getValueState("s", "n int", wrong)))
        with pytest.raises(ArgumentTypeError, match=f"{wrong!r} is no TTL; give milliseconds"):
            runner.batch()
    runner = Runner(lambda: Script(v=2**63 - 1), time_mode="processingtime")
    with pytest.raises(InvalidArgumentError, match="a TTL of 9223372036854775807 ms is too long"):
        runner.batch()
    runner = Runner(
        lambda: Script(lambda p, key, values, times: p.v.update((1, 1.0)), v=2**62), time_mode="processingtime"
    )
    runner.batch([("a", 1)], now=2**41)


def test_calls_out_of_place_have_sparks_condition() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        for call in (
            lambda: p.handle.getValueState("other", "n int"),
            lambda: p.handle.getListState("other", "n int"),
            lambda: p.handle.getMapState("other", "n int", "n int"),
            lambda: p.handle.deleteIfExists("v"),
        ):
            with pytest.raises(PySparkRuntimeError, match=r"INVALID_HANDLE_STATE.*handle state=INITIALIZED"):
                call()
        for name, call in (
            ("register_timer", lambda: p.handle.registerTimer(1)),
            ("delete_timer", lambda: p.handle.deleteTimer(1)),
            ("list_timers", lambda: list(p.handle.listTimers())),
        ):
            with pytest.raises(
                PySparkRuntimeError, match=rf"INVALID_TIME_MODE\].*operation={name} with invalid timeMode=NoTime"
            ):
                call()
        p.v.update((1, 1.0))
        return [1]

    class Closing(Script):
        def close(self) -> None:
            for call in (
                self.v.get, lambda: self.v.update((1, 1.0)), self.v.clear, lambda: list(self.l.get()),
                lambda: self.l.appendValue((1,)), lambda: self.m.getValue(("x",)), lambda: list(self.m.keys()),
            ):  # fmt: skip
                with pytest.raises(PySparkRuntimeError, match="Implicit key not found in state store"):
                    call()
            closed.append(True)

    closed: list[bool] = []
    assert Runner(Closing(rows)).batch([("a", 1)]) == [("a", 1)]
    assert closed == [True]


def test_a_state_that_init_deletes_is_empty_in_every_batch() -> None:
    def init(p: Script, handle: Any) -> None:
        handle.deleteIfExists("missing")
        handle.deleteIfExists("v")
        p.v = handle.getValueState("v", "n long, d double")
        p.l = handle.getListState("l", "x long")

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        found.append((p.v.get(), len(list(p.l.get()))))
        p.v.update((1, 1.0))
        assert p.v.exists()
        p.l.appendValue((1,))

    found: list[Any] = []
    runner = Runner(lambda: Script(rows, init))
    for _ in range(3):
        runner.batch([("a", 1)])
    assert found == [(None, 0), (None, 1), (None, 2)]
    assert len(json.loads(runner.store.catalog)) == 2


def test_timers_are_no_state_that_init_may_delete() -> None:
    for name, condition in (
        ("$timers", "[STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS]"),
        ("default", "[STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME] Failed to perform column family "
                    "operation=remove_col_family with invalid name=default"),
        ("", "[STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME]"),
    ):  # fmt: skip
        text = refused_in_init(lambda p, h, name=name: h.deleteIfExists(name), time_mode="processingtime")
        assert text.startswith("Error deleting state: ")
        assert condition in text


def test_a_state_that_was_declared_and_deleted_is_none() -> None:
    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "n long")
        handle.deleteIfExists("v")

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        for call in (p.v.get, p.v.exists, p.v.clear, lambda: p.v.update((1,))):
            with pytest.raises(PySparkRuntimeError, match="Value state v is not initialized"):
                call()

    Runner(Script(rows, init)).batch([("a", 1)])


def test_ttl_of_values_elements_and_entries() -> None:
    found: list[Any] = []

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        found.append((p.v.get(), list(p.l.get()), sorted(p.m.keys()), p.v.exists(), p.l.exists(), p.m.exists()))
        for value in values:
            if value:
                p.v.update((value, 0.0))
                p.l.appendValue((value,))
                p.m.updateValue((str(value),), (value,))
        if values == [9]:
            p.l.put([(9,)])

    runner = Runner(lambda: Script(rows, v=10, l=10, m=10), time_mode="processingtime")
    for now, value in (
        (100, 1),
        (105, 2),
        (109, 0),
        (110, 0),
        (114, 3),
        (115, 0),
        (200, 0),
        (201, 9),
        (210, 0),
        (211, 0),
    ):
        runner.batch([("a", value)], now=now)
    assert found == [
        (None, [], [], False, False, False),
        ((1, 0.0), [(1,)], [("1",)], True, True, True),
        ((2, 0.0), [(1,), (2,)], [("1",), ("2",)], True, True, True),
        ((2, 0.0), [(2,)], [("2",)], True, True, True),
        ((2, 0.0), [(2,)], [("2",)], True, True, True),
        ((3, 0.0), [(3,)], [("3",)], True, True, True),
        (None, [], [], False, False, False),
        (None, [], [], False, False, False),
        ((9, 0.0), [(9,)], [("9",)], True, True, True),
        (None, [], [], False, False, False),
    ]


def test_the_driver_hears_what_init_declares() -> None:
    class Locked(Script):
        def init(self, handle: Any) -> None:
            self.lock = threading.Lock()
            super().init(handle)

    runner = Runner(Locked(v=5), time_mode="processingtime")
    found, deleted, _ = init_on_driver(runner.spec())
    assert not deleted
    deleting = Runner(Script(None, lambda p, handle: handle.deleteIfExists("v")))
    assert init_on_driver(deleting.spec()) == ([], {"v"}, ())
    assert [(d.name, d.kind, d.value.names, d.ttl_millis) for d in found] == [
        ("v", "value", ["n", "d"], 5),
        ("l", "list", ["x"], None),
        ("m", "map", ["b"], None),
    ]
    assert found[2].map_key == T.StructType([T.StructField("a", T.StringType())])
    assert not hasattr(runner.make(), "lock"), "it ran on a copy"
    broken = Locked()
    broken.lock = threading.Lock()
    with pytest.raises(pickle.PicklingError, match="Could not serialize object"):
        init_on_driver(Runner(broken).spec())
