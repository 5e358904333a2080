"""Time to live and timers of embedded states, as Python programs use them.

Owns: what the Python face adds to the core: durations, clocks, datetimes, what commands show.
Does not own: when entries end and which timers are due (tested in `rust/core/src/embedded`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import fastchangelog as fc
from fastchangelog import cli
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError

FAST = {"file_sync": False}
UTC = dt.timezone.utc
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)
FORMATS = ["canonical", "native"]


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "states")


@pytest.fixture
def state(root: str, clock: Clock) -> Iterator[fc.State]:
    opened = fc.open_state(root, options=FAST, clock=clock)
    yield opened
    opened.close(checkpoint=False)


def reopened(root: str, clock: Clock, **how: Any) -> fc.State:
    return fc.open_state(root, options=FAST, clock=clock, **how)


@pytest.mark.parametrize("ttl", ["10s", "10 seconds", dt.timedelta(seconds=10)])
def test_what_has_ended_is_in_no_view(state: fc.State, clock: Clock, ttl: str | dt.timedelta) -> None:
    values = state.value_state("values", key="string", value="long", ttl=ttl)
    maps = state.map_state("maps", key="string", map_key="string", value="int", ttl=ttl)
    lists = state.list_state("lists", key="string", value="string", ttl=ttl)
    sums = state.aggregating_state("sums", fc.sum("value"), key="string", value="long", ttl=ttl)
    values.put_many(["ann", "bob"], [1, 2])
    maps["ann"].update(fig=1, kiwi=2)
    lists["ann"].extend(["/", "/pay"])
    sums.add_many(["ann", "ann"], [1, 2])
    clock.now += 6
    values["bob"] = 3
    maps["ann"]["kiwi"] = 3
    lists["ann"].append("/home")
    sums.add("bob", 7)
    clock.now += 4
    assert (dict(values), len(values), "ann" in values, list(values)) == ({"bob": 3}, 1, False, ["bob"])
    assert values.get_many(["ann", "bob"]).to_pylist() == [None, 3]
    assert values.contains_many(["ann", "bob"]).to_pylist() == [False, True]
    with pytest.raises(KeyError, match="ann"):
        values["ann"]
    with pytest.raises(KeyError, match="ann"):
        del values["ann"]
    assert (dict(maps["ann"]), len(maps["ann"]), "fig" in maps["ann"]) == ({"kiwi": 3}, 1, False)
    assert maps.length_many(["ann"]).to_pylist() == [1]
    assert (list(lists["ann"]), len(lists["ann"])) == (["/home"], 1)
    assert lists.get_many(["ann"]).to_pylist() == [["/home"]]
    assert dict(sums) == {"bob": 7}
    clock.now += 6
    assert not any((values, maps, lists, sums))
    assert (values.get("bob"), "ann" in maps, "ann" in lists, "bob" in sums) == (None, False, False, False)
    assert [list(one.scan()) for one in (values, maps, lists, sums)] == [[]] * 4


@pytest.mark.parametrize("ttl", [0, 10, 1.5, "soon", "", dt.timedelta(0), dt.timedelta(microseconds=1), "-1s", True])
def test_a_ttl_that_is_no_duration_is_refused(state: fc.State, ttl: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="ttl"):
        state.value_state("values", key="string", value="long", ttl=ttl)


def test_a_ttl_may_change_but_not_come_or_go(root: str, clock: Clock) -> None:
    with reopened(root, clock) as st:
        st.value_state("ending", key="string", value="long", ttl="10s")["ann"] = 1
        st.value_state("lasting", key="string", value="long")["ann"] = 1
    with reopened(root, clock) as st:
        ending = st.value_state("ending", key="string", value="long", ttl="1h")
        ending["bob"] = 2
        with pytest.raises(SchemaMismatchError, match=r"declared with a ttl.*give ttl="):
            st.value_state("ending", key="string", value="long")
        with pytest.raises(SchemaMismatchError, match=r"without a ttl.*leave ttl= out"):
            st.value_state("lasting", key="string", value="long", ttl="10s")
        clock.now += 60
        assert dict(ending) == {"bob": 2}


def test_a_reader_and_an_older_checkpoint_go_by_their_own_clock(root: str, clock: Clock) -> None:
    with reopened(root, clock) as st:
        values = st.value_state("values", key="string", value="long", ttl="10s")
        values["ann"] = 1
        first = st.checkpoint()
        clock.now += 60
        values["bob"] = 2
        assert st.checkpoint().state_keys == 1, "what has ended was removed"
        assert st.metrics()["entries_ended"] == 1
    early = Clock()
    for at, expected in ((early, {"ann": 1}), (clock, {})):
        with reopened(root, at, handle=first, read_only=True) as st:
            assert dict(st.value_state("values", key="string", value="long", ttl="10s")) == expected


def test_a_clock_that_fails_says_so(root: str) -> None:
    def broken() -> float:
        raise RuntimeError("no time")

    with fc.open_state(root, options=FAST, clock=broken) as st:
        values = st.value_state("values", key="string", value="long", ttl="10s")
        with pytest.raises(InvalidArgumentError, match=r"clock=.*no time"):
            values.get("ann")
        st.value_state("lasting", key="string", value="long")["ann"] = 1
        assert st.checkpoint().state_keys == 1, "without a clock nothing is removed"


def test_without_a_clock_the_machine_has_one(root: str) -> None:
    with fc.open_state(root, options=FAST) as st:
        values = st.value_state("values", key="string", value="long", ttl="1h")
        values["ann"] = 1
        assert dict(values) == {"ann": 1}
    past = Clock()
    past.now = dt.datetime.now(UTC).timestamp() + 3601
    with reopened(root, past) as st:
        assert dict(st.value_state("values", key="string", value="long", ttl="1h")) == {}


def taken(timers: fc.TimerState, until: dt.datetime, **how: int) -> list[tuple[dt.datetime, Any]]:
    batches = [batch.to_pydict() for batch in timers.due(until, **how)]
    return [pair for batch in batches for pair in zip(batch["time"], batch["key"], strict=True)]


def test_timers_are_due_in_order(root: str, clock: Clock) -> None:
    minute = dt.timedelta(minutes=1)
    with reopened(root, clock) as st:
        timers = st.timers("timers", key="shop string, item int")
        assert (timers.next_time(), timers.of(("a", 1)), taken(timers, NOON)) == (None, [], [])
        timers.register(("a", 1), NOON + minute)
        timers.register_many([("b", 1), ("a", 2)], [NOON, NOON])
        timers.register(("a", 1), NOON + minute / 7)
        timers.register(("a", 1), dt.datetime(2026, 1, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))))
        assert timers.of(("a", 1)) == [NOON, NOON + minute / 7, NOON + minute]
        assert timers.of_many([("b", 1), ("c", 1)]).type.value_type == pa.timestamp("us", tz="UTC")
        timers.delete(("a", 1), NOON)
        timers.delete_many([("c", 1)], [NOON])
        assert timers.next_time() == NOON
    with reopened(root, clock) as st:
        timers = st.timers("timers", key="shop string, item int")
        schema = next(iter(timers.scan())).schema
        assert schema.names == ["time", "key"]
        assert schema.field("time").type == pa.timestamp("us", tz="UTC")
        assert taken(timers, NOON - minute) == []
        a, b = {"shop": "a", "item": 1}, {"shop": "b", "item": 1}
        expected = [(NOON, {"shop": "a", "item": 2}), (NOON, b), (NOON + minute / 7, a)]
        assert taken(timers, NOON + minute / 2, batch_size=2) == expected
        assert taken(timers, NOON + minute / 2) == []
        assert st.metrics()["due_timers"] == 3
        assert timers.next_time() == NOON + minute
        assert repr(timers) == "TimerState('timers', key=struct<shop: string, item: int32>)"


def test_a_batch_is_removed_when_the_next_one_is_asked_for(root: str, clock: Clock) -> None:
    with reopened(root, clock) as st:
        timers = st.timers("timers", key="int")
        timers.register_many(range(5), [NOON] * 5)
        handles = []
        for batch in timers.due(NOON, batch_size=2):
            assert batch.num_rows <= 2
            timers.register(batch["key"][0], NOON)
            handles.append(st.checkpoint())
        last = st.checkpoint()
    for handle, left in zip([*handles, last], [5, 3, 1, 0], strict=True):
        with reopened(root, clock, handle=handle, read_only=True) as st:
            timers = st.timers("timers", key="int")
            assert sum(batch.num_rows for batch in timers.scan()) == left
            with pytest.raises(InvalidArgumentError, match="read-only"):
                timers.due(NOON)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NOON]),
        pa.array([NOON], pa.timestamp("ms", tz="Europe/Berlin")),
        pa.chunked_array([[NOON]]),
        [NOON],
        (NOON,),
    ],
    ids=["array", "milliseconds", "chunks", "list", "tuple"],
)
def test_times_come_in_any_usual_form(state: fc.State, times: Any) -> None:
    timers = state.timers("timers", key="int")
    timers.register_many([1], times)
    assert timers.of(1) == [NOON]


@pytest.mark.parametrize(
    "times",
    [
        [NOON.replace(tzinfo=None)],
        [NOON.timestamp()],
        ["2026-01-01"],
        [None],
        "x",
        pa.array([1]),
        pa.array([NOON.replace(tzinfo=None)]),
        np.array(["2026-01-01"], "datetime64[us]"),
        [NOON, NOON],
    ],
)
def test_what_is_no_time_is_refused(state: fc.State, times: Any) -> None:
    timers = state.timers("timers", key="int")
    with pytest.raises(InvalidArgumentError, match="time"):
        timers.register_many([1], times)
    assert timers.next_time() is None


def test_other_bad_input_of_timers_is_refused(state: fc.State) -> None:
    timers = state.timers("timers", key="int")
    naive: Any = NOON.replace(tzinfo=None)
    for call in (lambda: timers.due(naive), lambda: timers.scan(start=naive), lambda: timers.register(1, naive)):
        with pytest.raises(InvalidArgumentError, match="aware"):
            call()
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        timers.due(NOON, batch_size=0)
    with pytest.raises(InvalidArgumentError, match="key"):
        timers.register("ann", NOON)
    with pytest.raises(SchemaMismatchError, match="kind"):
        state.value_state("timers", key="int", value="long")


@pytest.mark.parametrize("format", FORMATS)
def test_savepoints_carry_ends_and_timers(
    tmp_path: Path, root: str, clock: Clock, capsys: pytest.CaptureFixture[str], format: Any
) -> None:
    savepoint = str(tmp_path / "savepoint")
    with reopened(root, clock) as st:
        values = st.value_state("values", key="string", value="long", ttl="10s")
        values["ann"] = 1
        st.list_state("lists", key="string", value="string", ttl="10s")["ann"] = ["/"]
        clock.now += 6
        values["bob"] = 2
        st.timers("timers", key="string").register_many(["ann", "bob"], [NOON, NOON - dt.timedelta(hours=1)])
        st.savepoint(savepoint, format)
    with reopened(str(tmp_path / "other"), clock, start_from=savepoint) as st:
        values = st.value_state("values", key="string", value="long", ttl="1h")
        assert dict(values) == {"ann": 1, "bob": 2}
        clock.now += 4
        assert dict(values) == {"bob": 2}
        assert list(st.list_state("lists", key="string", value="string", ttl="1h")) == []
        assert [key for _, key in taken(st.timers("timers", key="string"), NOON)] == ["bob", "ann"]

    assert cli.main(["inspect", savepoint, "--json"]) == cli.OK
    shown = json.loads(json.loads(capsys.readouterr().out)["schema"])
    assert [(one["name"], one["kind"], one.get("ttl", False)) for one in shown] == [
        ("values", "value", True),
        ("lists", "list", True),
        ("timers", "timers", False),
    ]

    def exported(name: str) -> list[dict[str, Any]]:
        out = tmp_path / f"{name}.parquet"
        assert cli.main(["export", savepoint, "--to", str(out), "--name", name]) == cli.OK
        return parquet.read_table(out).to_pylist()

    starts = dt.datetime.fromtimestamp(Clock().now, UTC)
    seconds = dt.timedelta(seconds=1)
    assert exported("values") == [
        {"key": "ann", "value": 1, "ends": starts + 10 * seconds},
        {"key": "bob", "value": 2, "ends": starts + 16 * seconds},
    ]
    assert exported("timers") == [
        {"time": NOON - dt.timedelta(hours=1), "key": "bob"},
        {"time": NOON, "key": "ann"},
    ]
    capsys.readouterr()
    to = str(tmp_path / "lists.parquet")
    assert cli.main(["export", savepoint, "--to", to, "--name", "lists"]) == cli.COULD_NOT_RUN
    assert "kind list" in capsys.readouterr().err
