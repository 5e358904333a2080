"""Both faces of each kind of state: embedded ones (`…_many`), and those of processors over a session in plain Python.

Owns: what they do alike, against a model with restarts, and what both refuse.
Does not own: single keys and mappings (`test_embedded_collections`), when user code of processors is called
(`test_vectorised`, `test_vectorised_states`), what the core does with entries (`rust/core/src/kinds`).
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog.state import in_session
from fastchangelog.state import session as sessions
from fastchangelog.testing.processors import _declaring
from fastchangelog.vectorised.run import Times, VectorRun
from support.fake_state_session import FakeSession, Store
from support.model import Model, States

KEYS = ["a", "b", "c", "d"]
AGGREGATES = {"n": fc.count(), "total": fc.sum("v")}


def at(seconds: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)


class Embedded:
    """Calls of embedded states."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.begin()

    def begin(self) -> None:
        st = fc.open_state(self.root, options={"file_sync": False})
        self.state = st
        self.states: dict[str, Any] = {
            "value": st.value_state("value", key="string", value="long"),
            "list": st.list_state("list", key="string", value="string"),
            "map": st.map_state("map", key="string", map_key="string", value="long"),
            "aggregates": st.aggregating_state("aggregates", key="string", value="v long", **AGGREGATES),
            "timers": st.timers("timers", key="string"),
        }

    def restart(self) -> None:
        """The next calls find what is stored."""
        self.state.close()
        self.begin()

    def call(self, state: str, operation: str, *data: Any) -> Any:
        return getattr(self.states[state], f"{operation}_many")(*data)

    def maps(self) -> list[Any]:
        found = dict(self.states["map"].items())
        return [found.get(key) for key in KEYS]

    def times(self) -> list[list[datetime]]:
        return self.call("timers", "of", KEYS).to_pylist()  # type: ignore[no-any-return]


class Declares(fc.Processor):
    def open(self, ctx: Any) -> None:
        self.states: dict[str, Any] = {
            "value": ctx.value_state("value", "long"),
            "list": ctx.list_state("list", "string"),
            "map": ctx.map_state("map", "map<string, long>"),
            "aggregates": ctx.aggregating_state("aggregates", "v long", **AGGREGATES),
            "timers": ctx.timers,
        }

    def process(self, batch: Any) -> Any:
        """No batch comes: the test calls the states itself."""


class Processors:
    """Calls of the states of a processor while keys are in work."""

    def __init__(self) -> None:
        self.store = Store()
        self.begin()

    def begin(self) -> None:
        kind, key = Declares(), pa.struct([("k", pa.string())])
        self.session = FakeSession(self.store)
        declare = _declaring(self.session, "eventtime", 0)
        run = VectorRun(kind, key, Times("eventtime", 0, 0), self.session, _internal.StateCodec, declare)
        keys = pa.array([{"k": name} for name in KEYS], key)
        self.encoded = _internal.StateCodec(key, pa.struct([])).encode_keys(keys)
        run.context.batch_keys.move(keys, self.encoded)
        self.states = kind.states

    def restart(self) -> None:
        """The next calls find what is stored."""
        self.store = self.session.commit()
        self.begin()

    def call(self, state: str, operation: str, *data: Any) -> Any:
        return getattr(self.states[state], operation)(*data)

    def maps(self) -> list[Any]:
        return [None if one is None else dict(one) for one in self.call("map", "entries", KEYS).to_pylist()]

    def times(self) -> list[list[datetime]]:
        epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
        found = self.session.timers_of(self.encoded).to_pylist()
        return [[epoch + timedelta(milliseconds=time) for time in times] for times in found]


@pytest.fixture(params=["embedded", "processors", "processors with short pages"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "embedded":
        opened = Embedded(str(tmp_path / "states"))
        yield opened
        opened.state.close(checkpoint=False)
        return
    if request.param != "processors":
        for module, name, value in (
            (sessions, "_BYTES_PER_KEY", 6),
            (sessions, "_PAGE_BYTES", 4),
            (sessions, "_KEYS", 2),
            (in_session, "_FIRST_READ", 1),
            (in_session, "_MESSAGE_BYTES", 60),
        ):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(FakeSession, "most_bytes", 10)
    yield Processors()


class Sums:
    """The aggregates of the model."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = collections.defaultdict(list)

    def of(self, key: str) -> dict[str, int] | None:
        return {"n": len(self.rows[key]), "total": sum(self.rows[key])} if self.rows[key] else None


def change(rng: random.Random, host: Any, model: Model, sums: Sums) -> None:
    """A random change of a random kind, of the host and of the model."""
    keys = [rng.choice(KEYS) for _ in range(rng.randrange(6))]
    numbers = [rng.choice([None, *range(9)]) for _ in keys]
    whole = [number or 0 for number in numbers]
    names = [f"m{rng.randrange(6)}" for _ in keys]
    texts = [None if n is None else [f"{n}-{i}" for i in range(n)] for n in numbers]
    states = [model.of(key) for key in keys]

    def each(what: Any, *columns: Any) -> None:
        for of_key, *row in zip(states, *columns):
            what(of_key, *row)

    match rng.randrange(13):
        case 0 | 1:
            host.call("value", "put", keys, numbers)
            each(lambda one, n: one.clear() if n is None else one.update(n), numbers)
        case 2:
            host.call("value", "delete", keys)
            each(States.clear)
        case 3:
            host.call("list", "append", keys, names)
            each(States.append, names)
        case 4 | 5:
            host.call("list", "extend", keys, texts)
            each(lambda one, more: one.append(*(more or ())), texts)
        case 6:
            host.call("list", "put", keys, texts)
            each(lambda one, new: one.replace(*(new or ())), texts)
        case 7:
            state = rng.choice(["list", "map", "aggregates"])
            host.call(state, "clear", keys)
            for key, one in zip(keys, states):
                if state == "aggregates":
                    sums.rows[key].clear()
                else:
                    (one.elements if state == "list" else one.entries).clear()
        case 8 | 9:
            host.call("map", "put", keys, names, numbers)
            each(lambda one, name, n: one.remove(name) if n is None else one.put(name, n), names, numbers)
        case 10:
            host.call("map", "delete", keys, names)
            each(States.remove, names)
        case 11:
            host.call("aggregates", "add", keys, pa.record_batch({"other": names, "v": pa.array(whole, pa.int64())}))
            for key, n in zip(keys, whole):
                sums.rows[key].append(n)
        case _:
            is_there = rng.random() < 0.7
            host.call("timers", "register" if is_there else "delete", keys, [at(n) for n in whole])
            each(lambda one, n: (one.timers.add if is_there else one.timers.discard)(n), whole)


def test_a_random_history(host: Any) -> None:
    rng, model, sums = random.Random(11), Model(), Sums()
    longest = 0
    for _ in range(250):
        change(rng, host, model, sums)
        if rng.random() < 0.1:
            host.restart()
        states = [model.of(key) for key in KEYS]
        assert host.call("value", "get", KEYS).to_pylist() == [one.held for one in states]
        assert host.call("list", "get", KEYS).to_pylist() == [one.listed or None for one in states]
        assert host.call("list", "length", KEYS).to_pylist() == [len(one.listed) for one in states]
        assert host.maps() == [one.mapped or None for one in states]
        assert host.call("map", "length", KEYS).to_pylist() == [len(one.mapped) for one in states]
        names = [f"m{rng.randrange(6)}" for _ in KEYS]
        found = [one.mapped.get(name) for one, name in zip(states, names)]
        assert host.call("map", "get", KEYS, names).to_pylist() == found
        assert host.call("map", "contains", KEYS, names).to_pylist() == [one is not None for one in found]
        assert host.call("aggregates", "get", KEYS).to_pylist() == [sums.of(key) for key in KEYS]
        assert host.times() == [[at(time) for time in sorted(one.timers)] for one in states]
        longest = max(longest, *(len(one.listed) for one in states))
    assert longest > 20


def test_of_no_keys_nothing_comes_and_nothing_changes(host: Any) -> None:
    for state, operation, *data in (
        ("value", "put", [], []),
        ("value", "delete", []),
        ("list", "append", [], []),
        ("list", "extend", [], []),
        ("list", "put", [], []),
        ("list", "clear", []),
        ("map", "put", [], [], []),
        ("map", "delete", [], []),
        ("map", "clear", []),
        ("aggregates", "add", [], []),
        ("aggregates", "clear", []),
        ("timers", "register", [], []),
        ("timers", "delete", [], []),
    ):
        assert host.call(state, operation, *data) is None
    assert [host.call(state, "get", []).to_pylist() for state in ("value", "list", "aggregates")] == [[], [], []]
    assert [host.call(state, "length", []).to_pylist() for state in ("list", "map")] == [[], []]
    assert host.call("map", "get", [], []).to_pylist() == host.call("map", "contains", [], []).to_pylist() == []


@pytest.mark.parametrize(
    ("state", "operation", "data", "message"),
    [
        ("value", "get", ["a", None], "a key is null|None,. is none of the batch"),
        ("value", "get", "a", "is one value; give an array"),
        ("value", "put", (["a", "b"], [1]), "2 keys and 1 values"),
        ("value", "put", (["a"], ["x"]), "values: this is not int64"),
        ("value", "put", (["a"], [2**63]), "values: this is not int64"),
        ("list", "append", (["a"], [None]), "an element is null; leave it out"),
        ("list", "append", (["a"], ["x", "y"]), "1 keys and 2 elements"),
        ("list", "append", (["a"], [1]), "elements: this is not string"),
        ("list", "extend", (["a", "b"], [["x"], [None]]), "an element is null; leave it out"),
        ("list", "extend", (["a"], ["xy"]), "lists: a text is no list; append"),
        ("list", "put", (["a"], [["x"], ["y"]]), "1 keys and 2 lists"),
        ("map", "put", (["a"], [None], [1]), "key is null; leave"),
        ("map", "put", (["a"], ["x"], ["y"]), "values: this is not int64"),
        ("map", "put", (["a"], [1], [1]), "map keys: this is not string"),
        ("map", "put", (["a", "b"], ["x"], [1, 2]), "2 keys and 1 map keys"),
        ("map", "get", (["a", "b"], ["x"]), "2 keys and 1 map keys"),
        ("aggregates", "add", (["a"], [{"w": 1}]), "rows: this is not struct"),
        ("aggregates", "add", (["a"], pa.table({"w": [1]})), "no column `v`"),
        ("aggregates", "add", (["a", "b"], [{"v": 1}]), "2 keys and 1 rows"),
        ("aggregates", "add", (["a", "a"], [{"v": 2**63 - 1}, {"v": 1}]), "overflow"),
        ("timers", "register", (["a"], [None]), "times: a time is null; leave its key out"),
        ("timers", "register", (["a"], [datetime(2026, 1, 1)]), "give an aware datetime"),
        ("timers", "delete", (["a"], [at(1), at(2)]), "1 keys and 2 times"),
    ],
)
def test_what_both_refuse_changes_nothing(host: Any, state: str, operation: str, data: Any, message: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=message):
        host.call(state, operation, *(data if isinstance(data, tuple) else (data,)))
    assert host.call("value", "get", KEYS).null_count == len(KEYS)
    assert host.call("list", "get", KEYS).null_count == len(KEYS)
    assert host.maps() == [None] * len(KEYS)
    assert host.call("aggregates", "get", KEYS).null_count == len(KEYS)
    assert host.times() == [[]] * len(KEYS)
