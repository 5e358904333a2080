"""How many calls states cost: reads of many keys in one, blind writes, pages of large lists and maps, bounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.fake_state_session import FakeSession
from support.processor_runs import Runner, Script


def test_reads_and_writes_are_one_call_for_many_keys() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        p.v.update((len(values), float(p.v.get() is None)))
        list(p.l.get())
        p.l.appendValue((1,))
        p.m.getValue(("x",))
        p.m.updateValue(("x",), (1,))

    runner = Runner(lambda: Script(rows))
    for _ in range(2):
        runner.batch([(str(i), i) for i in range(250)])
        assert runner.session is not None
        # Values are read in growing parts: the first ones tell how large they are.
        assert runner.session.calls == {"get": 3, "read_entries": 2, "write": 3}


def test_blind_writes_read_nothing() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        p.v.update((1, 1.0))
        p.v.get()
        p.l.appendValue((1,))
        p.l.appendList([(2,)])
        p.m.updateValue(("x",), (1,))
        p.m.removeKey(("y",))
        p.m.getValue(("x",))
        p.m.containsKey(("y",))
        p.m.exists()
        p.l.exists()
        if key[0] == "b":
            p.l.put([(1,)])
            list(p.l.get())
            p.m.clear()
            list(p.m.keys())
            p.l.clear()
            p.v.clear()

    runner = Runner(lambda: Script(rows))
    runner.batch([("a", 1), ("b", 1)])
    assert runner.session is not None
    assert runner.session.calls == {"write": 3}


def test_what_is_not_touched_costs_nothing() -> None:
    runner = Runner(lambda: Script(lambda *_: [1]))
    assert len(runner.batch([("a", 1), ("b", 1)])) == 2
    assert runner.session is not None
    assert not runner.session.calls


def test_few_touched_lists_of_many_keys_are_read_a_few_at_a_time() -> None:
    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        if values[0] % 100 == 0:
            list(p.l.get())

    runner = Runner(lambda: Script(rows), key="k long")
    runner.batch([(i, i) for i in range(5000)])
    assert runner.session is not None
    read = runner.session.calls["read_entries"]
    assert 20 <= read <= 50, "each touch reads fewer keys ahead than the one before"


@pytest.mark.parametrize(("most_bytes", "most_calls"), [(8 * 1024 * 1024, 9), (32 * 1024, 22)])
def test_more_lists_are_read_in_a_call_if_they_are_short(
    most_bytes: int, most_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache._ALL_BYTES_AHEAD", most_bytes)

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        assert list(p.l.get()) in ([], [(1,)])
        p.l.put([(1,)])

    runner = Runner(lambda: Script(rows), key="k long")
    for _ in range(2):
        runner.batch([(i, 1) for i in range(5000)])
    assert runner.session is not None
    assert most_calls - 3 <= runner.session.calls["read_entries"] <= most_calls


def test_large_lists_and_maps_are_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache._BYTES_AHEAD", 200)
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache._PAGE_BYTES", 300)

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        if values == [0]:
            p.l.appendList([(i,) for i in range(100)])
            for i in range(100):
                p.m.updateValue((f"{i:03}",), (i,))
        else:
            assert list(p.l.get()) == [(i,) for i in range(100)]
            assert list(p.m.iterator()) == [((f"{i:03}",), (i,)) for i in range(100)]
            p.m.removeKey(("050",))
            p.m.updateValue(("099",), (-1,))
            p.m.updateValue(("new",), (-2,))
            assert p.m.getValue(("060",)) == (60,)
            assert p.m.getValue(("060",)).b == 60
            assert p.m.containsKey(("nothing",)) is False
            assert [v for (v,) in p.m.values()] == [*range(50), *range(51, 99), -1, -2]
            some = p.m.keys()
            next(some)

    runner = Runner(lambda: Script(rows))
    runner.batch([("a", 0)])
    runner.batch([("a", 1)])
    assert runner.session is not None
    assert runner.session.calls["get_entries"] == 2
    assert runner.session.calls["read_entries"] == 2
    assert runner.session.calls["read_page"] > 20


def test_many_changes_are_written_before_the_keys_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache.MOST_PENDING", 10)

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        for i in range(35):
            p.l.appendValue((i,))
            p.m.updateValue((str(i),), (i,))
            p.handle.registerTimer(10_000 + i)
        assert len(list(p.l.get())) == len(list(p.m.keys())) == len(list(p.handle.listTimers())) == 35
        p.l.put([(1,)] * 35)
        assert list(p.l.get()) == [(1,)] * 35

    runner = Runner(lambda: Script(rows), time_mode="processingtime")
    runner.batch([("a", 0)])
    assert runner.session is not None
    assert runner.session.calls["write"] == 3 * (3 + 1)


def test_large_writes_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache._WRITE_BYTES", 1000)

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        p.l.appendList([(i,) for i in range(100)])
        p.m.removeKey(("x",))
        p.m.clear()
        p.m.updateValue(("x",), (1,))

    runner = Runner(lambda: Script(rows))
    runner.batch([("a", 0), ("b", 0)])
    assert runner.session is not None
    assert runner.session.calls["write"] > 5
    elements = Counter(key for _, key, _, _ in runner.store.rows("list"))
    assert list(elements.values()) == [100, 100]
    assert len(runner.store.rows("map")) == 2


def test_large_values_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache.PENDING_BYTES", 10_000)
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache.MOST_READ_BYTES", 10_000)
    monkeypatch.setattr("fastchangelog.spark.processor.states.value._READ_BYTES", 10_000)

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "s string")
        p.m = handle.getMapState("m", "n long", "s string")

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        old, entry = p.v.get(), p.m.getValue((0,))
        text = "x" * 1000 + str(values[0])
        p.v.update((text,))
        p.m.updateValue((0,), (text,))
        assert p.v.get() == p.m.getValue((0,)) == (text,)
        seen.append((old, entry))
        held.append(max(len(p.v._changed), sum(len(found.changed) for found in p.m._maps.values())))
        known.append(sum(found.known is not None for found in p.m._maps.values()))

    seen: list[Any] = []
    held: list[int] = []
    known: list[int] = []
    runner = Runner(lambda: Script(rows, init), key="k long")
    for _ in range(2):
        runner.batch([(i, i) for i in range(1000)])
    assert max(held[:1000]) == 255, "the first changes tell how large they are"
    assert max(held[300:1000]) < 20
    assert max(known[1300:]) < 300
    assert seen[:1000] == [(None, None)] * 1000
    expected = sorted("x" * 1000 + str(i) for i in range(1000))
    assert sorted(old for (old,), _ in seen[1000:]) == sorted(entry for _, (entry,) in seen[1000:]) == expected


def test_values_that_become_large_come_in_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSession, "most_bytes", 20_000)
    monkeypatch.setattr("fastchangelog.spark.processor.states.value._READ_BYTES", 10_000)

    def answered(session: FakeSession, state: int, keys: Any) -> Any:
        found = get(session, state, keys)
        answers.append((len(keys), len(found)))
        return found

    get, answers = FakeSession.get, []
    monkeypatch.setattr(FakeSession, "get", answered)

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "s string")

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        if values == [0]:
            p.v.update(("x" * (1 if key[0] < "k200" else 1000) + key[0],))
        else:
            seen[key[0]] = p.v.get()

    seen: dict[str, Any] = {}
    runner = Runner(lambda: Script(rows, init))
    runner.batch([(f"k{i:03}", 0) for i in range(400)])
    runner.batch([(f"k{i:03}", 1) for i in range(400)])
    names = [f"k{i:03}" for i in range(400)]
    assert seen == {name: ("x" * (1 if name < "k200" else 1000) + name,) for name in names}
    cut = [i for i, (asked, found) in enumerate(answers) if found < asked]
    assert 1 <= len(cut) <= 2, "answers tell how large values have become"
    assert all(asked < 20 for asked, _ in answers[cut[-1] + 1 :])


@pytest.mark.parametrize("kind", ["v", "l", "m"])
def test_a_failed_write_that_user_code_catches_fails_the_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastchangelog.spark.processor.states.cache.MOST_PENDING", 10)

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "s string")
        p.l = handle.getListState("l", "s string")
        p.m = handle.getMapState("m", "n long", "s string")

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        text = ("\ud83d" if key == (3,) else "x",)
        changes = {
            "v": lambda: p.v.update(text),
            "l": lambda: p.l.appendValue(text),
            "m": lambda: p.m.updateValue((0,), text),
        }
        try:
            changes[kind]()
        except Exception:
            caught.append(key)

    caught: list[Any] = []
    runner = Runner(lambda: Script(rows, init), key="k long")
    with pytest.raises(Exception, match=rf"state `{kind}`, key \(3\)"):
        runner.batch([(i, i) for i in range(30)])
    assert len(caught) == 1, "the write failed while a key was worked on"
