"""`fastchangelog.testing.run_processor`.

Owns: what it adds to a run: groups, copies, times, checks; that it needs no PySpark.
Does not own: what runs (`test_vectorised`, `test_vectorised_states`).
"""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog.testing import run_processor


class Sessions(fc.Processor):
    """The example of the documentation: counts and last times, kept for an hour."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n long, last timestamp", ttl="1 hour")
        self.calls = 0

    def process(self, batch: Any) -> Any:
        self.calls += 1
        assert self.calls == 1
        agg = batch.aggregate(n=fc.count(), last=fc.max("ts"))
        old = self.seen.get(batch.keys).field("n").fill_null(0)
        self.seen.put(batch.keys, agg)
        yield pa.record_batch({"user": batch.keys.field("user"), "n": agg["n"], "before": old})


UTC = timezone.utc
CLICKS = pa.table(
    {"ts": pa.array([datetime(2026, 1, 1, h, tzinfo=UTC) for h in (1, 2, 3)]), "user": ["ann", "bob", "ann"]}
)


def test_states_are_kept_from_batch_to_batch_and_end() -> None:
    times = iter([0, 3599, 3600 + 3599])
    answered = run_processor(Sessions(), [CLICKS, CLICKS, CLICKS], key="user", clock=lambda: next(times))
    before = [[0, 0], [2, 1], [0, 0]]
    assert [table["before"].to_pylist() for table in answered] == before
    assert [table["n"].to_pylist() for table in answered] == [[2, 1]] * 3


@pytest.mark.parametrize("mode", [None, "ProcessingTime", "EventTime", "None"])
def test_time_modes_are_sparks_and_clocks_give_datetimes(mode: str | None) -> None:
    class Times(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.ctx = ctx

        def process(self, batch: Any) -> Any:
            if mode != "None":
                self.ctx.register_timers(batch.keys, pa.array([0] * len(batch.keys), pa.timestamp("us", "UTC")))
            yield pa.record_batch({"now": [self.ctx.processing_time] * len(batch.keys)})

    now = datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
    [table] = run_processor(Times(), [CLICKS], key="user", clock=lambda: now, time_mode=mode)
    assert table["now"].to_pylist() == [now, now]


def test_several_keys_and_rows_in_their_order() -> None:
    class Rows(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.ctx = ctx

        def process(self, batch: Any) -> Any:
            assert self.ctx.watermark == datetime(2026, 1, 1, tzinfo=UTC)
            yield pa.record_batch({"a": batch.keys.field("a"), "v": batch.lists("v")})

    rows = pa.table({"v": [1, 2, 3, 4], "a": ["x", None, "x", None], "b": [1, 1, 1, 2]})
    mark = datetime(2026, 1, 1, tzinfo=UTC)
    [table] = run_processor(Rows(), [rows], key=["a", "b"], watermark=mark, output="a string, v array<long>")
    assert sorted(table.to_pydict()["v"]) == [[1, 3], [2], [4]]
    assert run_processor(Rows(), []) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": "missing"}, "no column `missing` to group by; they have: ts, user"),
        ({"key": []}, r"no column `\(none\)`"),
        ({"watermark": [datetime(2026, 1, 1, tzinfo=UTC)] * 2}, "1 batches and 2 watermarks"),
        ({"watermark": datetime(2026, 1, 1)}, "aware datetime"),
        ({"output": "long"}, "has no columns"),
        ({"clock": 1.0}, r"clock=1.0 is no function"),
        ({"clock": lambda: datetime(2026, 1, 1)}, "aware datetime"),
        ({"clock": lambda: "noon"}, r"clock\(\) returned 'noon'; it returns seconds"),
        ({"time_mode": "event"}, "time_mode='event' is none of"),
        ({"time_mode": 1}, "time_mode=1 is none of"),
        ({"initial": CLICKS.select(["ts"]), "key": "user"}, "rows have the columns of the key, user, once each"),
        ({"key": "user", "output": "user string"}, "yielded the columns user, n, before; the output has user"),
    ],
)
def test_refusals(given: Any, message: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=message):
        run_processor(Sessions(), [CLICKS], **given)


def test_an_initial_state_comes_first() -> None:
    class Started(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.texts = ctx.value_state("texts", "array<string>")
            self.maps = ctx.map_state("maps", "map<array<long>, array<struct<a: long>>>")

        def initial_state(self, batch: Any) -> None:
            self.texts.put(batch.keys, batch.lists("text"))
            self.maps.put(batch.keys, [[1, 2]] * len(batch.keys), [[{"a": 1}]] * len(batch.keys))

        def process(self, batch: Any) -> Any:
            maps, texts = self.maps.entries(batch.keys), self.texts.get(batch.keys)
            yield pa.record_batch({"user": batch.keys.field("user"), "texts": texts, "maps": maps})
            self.texts.delete(batch.keys)

    first = pa.table({"text": ["x", "y", "z"], "user": ["bob", "cid", "bob"]})
    answered = run_processor(Started(), [CLICKS, CLICKS], key="user", initial=first)
    assert [table["texts"].to_pylist() for table in answered] == [[None, ["x", "z"]], [None, None]]
    assert answered[1]["maps"].to_pylist() == [None, [([1, 2], [{"a": 1}])]]


def test_other_batches_are_refused() -> None:
    with pytest.raises(fc.InvalidArgumentError, match="different columns"):
        run_processor(Sessions(), [CLICKS, CLICKS.select(["ts"])], key="user")
    with pytest.raises(fc.InvalidArgumentError, match="a int is no batch of rows"):
        run_processor(Sessions(), [1])
    for one in (CLICKS, CLICKS.to_batches()[0], {"user": ["ann"]}):
        with pytest.raises(fc.InvalidArgumentError, match=r"batches is one .*; give a list of batches"):
            run_processor(Sessions(), one)


def test_a_class_is_no_processor() -> None:
    with pytest.raises(fc.InvalidArgumentError, match="takes an instance of a subclass of"):
        run_processor(Sessions, [CLICKS])  # type: ignore[arg-type]


def test_what_is_yielded_has_one_schema() -> None:
    class Two(fc.Processor):
        def open(self, ctx: Any) -> None:
            pass

        def process(self, batch: Any) -> Any:
            yield batch.rows
            yield pa.record_batch({"n": [1]})

    message = r"record batches of ts timestamp\[us, tz=UTC\], user string and of n int64"
    with pytest.raises(fc.InvalidArgumentError, match=message):
        run_processor(Two(), [CLICKS])


def test_it_needs_no_pyspark() -> None:
    program = """
import sys
sys.modules["pyspark"] = None
import pyarrow as pa
import fastchangelog as fc
from fastchangelog.testing import run_processor
class Echo(fc.Processor):
    def open(self, ctx): pass
    def process(self, batch): yield batch.rows
print(run_processor(Echo(), [pa.table({"k": [1]})])[0].to_pylist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[{'k': 1}]"
