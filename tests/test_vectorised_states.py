"""Lists, maps and timers of vectorised processors, over a session in memory.

Owns: a model of timers over random batches, with restarts between batches; times to live, refusals.
Does not own: a model of each kind (`test_state_faces`), whole keys (`test_vectorised`), aggregates
(`test_vectorised_aggregates`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog.testing import run_processor
from fastchangelog.vectorised.context import Context
from support.fake_state_session import FakeSession

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class Code(fc.Processor):
    """Runs a function for each batch, another one for due timers."""

    def __init__(
        self, process: Callable[..., Any], on_timer: Callable[..., Any] | None = None, ttl: Any = None
    ) -> None:
        self.run, self.fire, self.ttl = process, on_timer, ttl

    def open(self, ctx: Any) -> None:
        self.ctx = ctx
        self.list = ctx.list_state("list", "long", ttl=self.ttl)
        self.map = ctx.map_state("map", "map<string, long>", ttl=self.ttl)
        self.pairs = ctx.map_state("pairs", pa.map_(pa.struct([("a", pa.int64())]), pa.struct([("b", pa.string())])))

    def process(self, batch: Any) -> Any:
        return self.run(self, batch) or ()

    def on_timer(self, timers: Any) -> Any:
        return self.fire(self, timers) if self.fire is not None else None


def rows(*pairs: tuple[Any, ...]) -> pa.Table:
    return pa.table(
        {"k": pa.array([k for k, _ in pairs], pa.string()), "v": pa.array([v for _, v in pairs], pa.int64())}
    )


def shown(keys: Any, **columns: Any) -> list[pa.RecordBatch]:
    return [pa.record_batch({"k": keys.field("k"), **columns})]


class AllReads(fc.Processor):
    """Reads values, aggregates and entries of all keys of a batch, then changes them."""

    def open(self, ctx: Any) -> None:
        self.value = ctx.value_state("value", "string")
        self.sums = ctx.aggregating_state("sums", "long", n=fc.sum("value"))
        self.map = ctx.map_state("map", "map<string, string>")

    def process(self, batch: Any) -> Any:
        texts = ["x" * n for n in batch.rows["v"].to_pylist()]
        found = {
            "value": self.value.get(batch.keys),
            "sums": self.sums.get(batch.keys),
            "entry": self.map.get(batch.row_keys, ["m"] * len(texts)),
            "is_there": self.map.contains(batch.row_keys, ["m"] * len(texts)),
        }
        self.value.put(batch.row_keys, texts)
        self.sums.add(batch.row_keys, batch.rows["v"])
        self.map.put(batch.row_keys, ["m"] * len(texts), texts)
        return shown(batch.keys, **found)


@pytest.mark.parametrize("most", [0, 300, 5000])
def test_large_values_come_in_several_answers(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [rows(*((f"k{i:03}", i + more) for i in range(600))) for more in range(3)]
    expected = run_processor(AllReads(), batches)
    assert expected[2].to_pylist()[599] == {
        "k": "k599",
        "value": "x" * 600,
        "sums": {"n": 599 + 600},
        "entry": "x" * 600,
        "is_there": True,
    }
    monkeypatch.setattr(FakeSession, "most_bytes", most)
    monkeypatch.setattr(_internal, "StateSession", FakeSession)
    assert run_processor(AllReads(), batches) == expected


def test_of_equal_keys_the_last_list_counts() -> None:
    def work(code: Code, batch: Any) -> Any:
        code.list.put(["a", "a", "b"], [[1], [2, 3], None])
        code.list.extend(["a", "b"], [None, []])
        return shown(batch.keys, found=code.list.get(batch.keys))

    [table] = run_processor(Code(work), [rows(("a", 1), ("b", 1))])
    assert table.to_pylist() == [{"k": "a", "found": [2, 3]}, {"k": "b", "found": None}]


def test_structs_in_maps() -> None:
    def work(code: Code, batch: Any) -> Any:
        code.pairs.put(["a", "a"], [{"a": 1}, {"a": None}], [{"b": "x"}, ("y",)])
        assert code.pairs.get(batch.keys, pa.record_batch({"a": [1]})).to_pylist() == [{"b": "x"}]
        return shown(batch.keys, found=code.pairs.entries(batch.keys))

    [table] = run_processor(Code(work), [rows(("a", 1))])
    assert table["found"].to_pylist() == [[({"a": None}, {"b": "y"}), ({"a": 1}, {"b": "x"})]]


@pytest.mark.parametrize("mode", ["none", "processingtime", "eventtime"])
def test_elements_and_entries_end_in_each_time_mode(mode: Any) -> None:
    def work(code: Code, batch: Any) -> Any:
        code.list.append(batch.keys, batch.rows["v"])
        code.map.put(batch.keys, pa.array([str(v) for v in batch.rows["v"].to_pylist()]), batch.rows["v"])
        return shown(batch.keys, found=code.list.get(batch.keys), names=code.map.length(batch.keys))

    times = iter([1.0, 5.0, 11.0])
    batches = [rows(("a", n)) for n in range(3)]
    answered = run_processor(Code(work, ttl="10s"), batches, clock=lambda: next(times), time_mode=mode)
    assert [table["found"].to_pylist() for table in answered] == [[[0]], [[0, 1]], [[1, 2]]]
    assert [table["names"].to_pylist() for table in answered] == [[1], [2], [2]]


@pytest.mark.parametrize("mode", ["processingtime", "eventtime"])
@pytest.mark.parametrize(("page", "kept"), [(100, 10**6), (1, 10**6), (1, 600), (2, 0)])
def test_timers_are_those_of_a_set(mode: Any, page: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether changes of due timers are kept in memory or not."""
    monkeypatch.setattr("fastchangelog.vectorised.run._TIMERS_PAGE", page)
    monkeypatch.setattr("fastchangelog.state.timers._NOTICED", page)
    monkeypatch.setattr("fastchangelog.state.due_timers._KEPT_BYTES", kept)
    rng = random.Random(7)
    batches, wanted, model = [], [], set()
    marks = [rng.randrange(100) for _ in range(30)]
    for now in marks:
        pairs = [(rng.choice("abcd"), rng.randrange(120)) for _ in range(rng.randrange(6))]
        batches.append(rows(*pairs))
        for k, v in sorted(pairs, key=lambda pair: pair[0]):
            (model.discard if v % 4 == 0 else model.add)((v if v % 4 == 0 else v - v % 4 + 4, k))
        due = sorted(timer for timer in model if timer[0] <= now)
        wanted.append(sorted(due))
        model -= set(due)
        # One that is due already goes with the one that fires.
        model |= {(time + 7, k) for time, k in due if time % 8 == 0} - set(due)

    def work(code: Code, batch: Any) -> Any:
        for key, v in zip(batch.row_keys.to_pylist(), batch.rows["v"].to_pylist()):
            if v % 4 == 0:
                code.ctx.delete_timers([key], [at(v)])
            else:
                code.ctx.register_timers([key], pa.array([at(v - v % 4 + 4)], pa.timestamp("us", "UTC")))

    def fire(code: Code, timers: Any) -> Any:
        assert len(set(timers.keys.field("k").to_pylist())) == len(timers)
        again = [i for i, time in enumerate(timers.times.to_pylist()) if (time - EPOCH).total_seconds() % 8 == 0]
        times = [timers.times[i].as_py() + timedelta(seconds=7) for i in again]
        code.ctx.register_timers(timers.keys.take(pa.array(again, pa.int64())), times)
        yield from shown(timers.keys, time=timers.times)

    if mode == "eventtime":
        answered = run_processor(Code(work, fire), batches, watermark=[at(now) for now in marks])
    else:
        clock = iter(marks)
        answered = run_processor(Code(work, fire), batches, clock=lambda: next(clock))
    found = [[((row["time"] - EPOCH).total_seconds(), row["k"]) for row in table.to_pylist()] for table in answered]
    assert [sorted(one) for one in found] == wanted
    for one in found:  # of each key, in the order of times
        assert sorted(one, key=lambda timer: timer[1]) == sorted(one, key=lambda timer: (timer[1], timer[0]))
    assert sum(map(len, wanted)) > 30


def test_rows_come_first_and_what_fires_is_settled() -> None:
    def work(code: Code, batch: Any) -> Any:
        if batch.rows["v"][0].as_py() == 1:
            code.ctx.register_timers(["a", "a", "a"], [at(1), at(2), at(3.0005)])
        return shown(batch.keys, time=pa.array([None], pa.timestamp("us", "UTC")))

    def fire(code: Code, timers: Any) -> Any:
        code.ctx.delete_timers(timers.keys, [at(2)])  # one that is due comes all the same
        code.ctx.register_timers(timers.keys, timers.times)  # goes with the fired one
        code.ctx.register_timers(timers.keys, [at(0.5)])  # comes in a later batch
        return shown(timers.keys, time=timers.times)

    batches = [rows(("a", 1)), rows(), rows()]
    answered = run_processor(Code(work, fire), batches, watermark=[at(2), at(3), at(3.001)])
    assert [table["time"].to_pylist() for table in answered] == [
        [None, at(1), at(2)],
        [at(0.5)],
        [at(3.001)],  # the one at 0.5 was registered by the call that it went with
    ]


def test_a_processor_without_on_timer_drops_them() -> None:
    def work(code: Code, batch: Any) -> Any:
        code.ctx.register_timers(batch.keys, [at(1)])

    answered = run_processor(Code(work), [rows(("a", 1))], watermark=at(5), output="k string")
    assert [table.num_rows for table in answered] == [0]


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (lambda code, batch: code.list.append(["b"], [1]), r"key \('b',\) is none of the batch"),
        (lambda code, batch: code.list.append(batch.keys, [None]), "an element is null"),
        (lambda code, batch: code.list.put(batch.keys, ["ab"]), "a text is no list"),
        (lambda code, batch: code.list.put(batch.keys, [[1], [2]]), "1 keys and 2 lists"),
        (lambda code, batch: code.list.append(batch.keys, ["x"]), "state `list`: elements: this is not int64"),
        (lambda code, batch: code.map.put(batch.keys, [None], [1]), "a map key is null"),
        (lambda code, batch: code.map.get(batch.keys, ["a", "b"]), "1 keys and 2 map keys"),
        (lambda code, batch: code.map.put(batch.keys, ["a"], ["x"]), "state `map`: values: this is not int64"),
        (lambda code, batch: code.ctx.map_state("m", "long"), "int64 is no map"),
        (lambda code, batch: code.ctx.aggregating_state("g", "long"), "state `g` has no aggregates; give them by"),
        (lambda code, batch: code.ctx.list_state("late", "long"), "declared too late"),
        (lambda code, batch: code.ctx.metrics.counter("late"), "declared too late"),
        (lambda code, batch: code.ctx.register_timers(["b"], [at(1)]), r"key \('b',\) is none of the batch"),
        (lambda code, batch: code.ctx.register_timers(batch.keys, [at(1), at(2)]), "1 keys and 2 times"),
        (lambda code, batch: code.ctx.register_timers(batch.keys, [datetime(2026, 1, 1)]), "aware datetime"),
        (lambda code, batch: code.ctx.delete_timers(batch.keys, pa.array([None], pa.timestamp("us", "UTC"))), "null"),
    ],
)
def test_refusals(process: Callable[..., Any], message: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=message):
        run_processor(Code(process), [rows(("a", 1))], time_mode="eventtime")


def test_timers_need_a_clock() -> None:
    with pytest.raises(fc.InvalidArgumentError, match=r'register_timers\(\) needs a clock; call with timeMode="proc'):
        run_processor(Code(lambda code, batch: code.ctx.register_timers(batch.keys, [at(1)])), [rows(("a", 1))])


def test_states_and_timers_belong_to_keys() -> None:
    class Early(Code):
        def open(self, ctx: Any) -> None:
            super().open(ctx)
            self.fire = None
            self.run(self, ctx)

    for early, message in (
        (lambda code, ctx: code.list.get(["a"]), "use it in process"),
        (lambda code, ctx: ctx.register_timers(["a"], [at(1)]), "use it in process"),
    ):
        with pytest.raises(fc.InvalidArgumentError, match=message):
            run_processor(Early(early), [rows(("a", 1))], time_mode="eventtime")


def test_counters() -> None:
    ctx = Context(pa.struct([("k", pa.string())]), "none", 0, 0)
    late = ctx.metrics.counter("late")
    assert ctx.metrics.counter("late") is late
    for name, message in (("9", "is no name"), ("input_rows", "is a metric of fastchangelog")):
        with pytest.raises(fc.InvalidArgumentError, match=message):
            ctx.metrics.counter(name)
    with pytest.raises(fc.InvalidArgumentError, match="only grows"):
        late.add(-1)
    ctx.close()
    assert ctx.metrics.counter("late") is late
    with pytest.raises(fc.InvalidArgumentError, match="declared too late"):
        ctx.metrics.counter("other")
