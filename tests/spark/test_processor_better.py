"""Where Spark's operator hangs, loses data or hides the cause: what a user would expect instead.

Owns: such cases on our operator alone; Spark's own answers are in `docs/processors.md`. Does not own: what is equal.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from support.spark.lacks import needs
from support.spark.processor_harness import Job, by_value, sides
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)

SCHEMA = "k string, v bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 3)]]


class Does(StatefulProcessor):
    """Runs a function with the states of the processor; answers with the text of what it gave."""

    def __init__(self, work: Callable[[Any], Any], value: str = "f float, d double"):
        self.work = work
        self.schema = value

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", self.schema)
        self.list = handle.getListState("list", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], said=repr(self.work(self)))

    def close(self) -> None:
        """Nothing to end."""


def answers(feed: Any, spark: Any, tmp_path: pathlib.Path, processor: Callable[[], Any], **more: Any) -> list[str]:
    ours, _ = sides(spark, tmp_path)
    ran = ours.run(Job(processor, "k string, said string", **more), feed(SCHEMA, *BATCHES).stream())
    return [row.said for _, rows in sorted(ran.rows.items()) for row in sorted(rows)]


def test_an_empty_list_is_a_cleared_one(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    def work(p: Any) -> Any:
        p.list.appendValue((1,))
        p.list.appendList([])
        before = list(p.list.get())
        p.list.put([])
        return before, list(p.list.get()), p.list.exists()

    assert answers(feed, spark, tmp_path, lambda: Does(work)) == ["([(1,)], [], False)"] * 3


def test_numbers_that_fit_are_kept(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """Spark keeps (None, None)."""

    def work(p: Any) -> Any:
        p.value.update((1, 2))
        return p.value.get()

    assert answers(feed, spark, tmp_path, lambda: Does(work)) == ["(1.0, 2.0)"] * 3


@pytest.mark.parametrize(
    ("value", "schema", "told"),
    [
        ((1,), "f float, d double", ("`value`", "2")),
        (("x", 1.0), "f float, d double", ("`value`", "`f`", "'x'")),
        ((2**70,), "n long", ("`n`",)),
        ((decimal.Decimal("123456.7"),), "d decimal(4,1)", ("`d`", "123456.7")),
        ((1.5,), "n long", ("`n`", "1.5")),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    feed: Any, spark: Any, tmp_path: pathlib.Path, value: Any, schema: str, told: tuple[str, ...]
) -> None:
    with pytest.raises(Exception) as error:
        answers(feed, spark, tmp_path, lambda: Does(lambda p: p.value.update(value), schema))
    for text in told:
        assert text in str(error.value)


def test_a_refused_call_may_be_caught_and_made_again(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    def work(p: Any) -> Any:
        told = []
        for call in (
            lambda: p.handle.registerTimer(1),
            lambda: list(p.handle.listTimers()),
            lambda: p.handle.getValueState("late", "n long"),
            lambda: p.handle.deleteIfExists("value"),
        ):
            try:
                call()
            except Exception as error:
                told.append((type(error).__name__, "STATEFUL_PROCESSOR_CANNOT_PERFORM" in str(error)))
        p.value.update((1.0, 2.0))
        return told, p.value.get()

    expected = repr(([("PySparkRuntimeError", True)] * 4, (1.0, 2.0)))
    assert answers(feed, spark, tmp_path, lambda: Does(work)) == [expected] * 3


class Counts(StatefulProcessor):
    """Counts calls and rows of a key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "calls long, n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        calls, n = self.count.get() or (0, 0)
        for item in rows:
            n += len(item) if isinstance(item, pd.DataFrame) else 1
        self.count.update((calls + 1, n))
        yield self.answer(key, calls + 1, n)

    def answer(self, key: Any, calls: int, n: int) -> Any:
        return Row(key=repr(tuple(key)), calls=calls, n=n)

    def close(self) -> None:
        """Nothing to end."""


class CountsInPandas(Counts):
    """The same with frames."""

    def answer(self, key: Any, calls: int, n: int) -> Any:
        return pd.DataFrame({"key": [repr(tuple(key))], "calls": [calls], "n": [n]})


def counted(feed: Any, spark: Any, tmp_path: pathlib.Path, schema: str, batches: Any, **more: Any) -> list[Any]:
    ours, _ = sides(spark, tmp_path)
    job = Job(**{"processor": Counts, "output": "key string, calls long, n long", **more})
    ran = ours.run(job, feed(schema, *batches).stream())
    return rows_of(ran.rows[max(ran.rows)])


def test_nan_is_one_key_with_a_call_for_each_row(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """As with Spark, where it depends on how NaN compares."""
    rows = [(math.nan, 1), (math.nan, 2), (-0.0, 3), (0.0, 4)]
    got = counted(feed, spark, tmp_path, "k double, v int", [rows, rows])
    assert got == rows_of([("(0.0,)", 2, 4), ("(nan,)", 3, 3), ("(nan,)", 4, 4)])


@pytest.mark.parametrize(("api", "processor"), [("row", Counts), ("pandas", CountsInPandas)])
def test_zero_and_its_negative_are_one_key(
    feed: Any, spark: Any, tmp_path: pathlib.Path, api: str, processor: type[Counts]
) -> None:
    """Spark keeps a state for each; where both are in one batch, one gets all rows."""
    batches = [[(-0.0, 1)], [(0.0, 2), (-0.0, 3)], [(-0.0, 4)]]
    got = counted(feed, spark, tmp_path, "k double, v int", batches, processor=processor, api=api)
    assert got == [("(0.0,)", 3, 4)]


def test_two_times_that_a_clock_shows_alike_are_two_keys(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """Spark's operator calls once for both, at the end of summer time."""
    rows = [(dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.timezone.utc), 1) for hour in (5, 6)]
    got = counted(feed, spark, tmp_path, "k timestamp, v int", [rows, rows])
    assert [row[1:] for row in got] == [(2, 2), (2, 2)]


def test_null_is_a_key_of_its_own_in_pandas(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    rows = [(None, 1), (2, 2), (None, 3)]
    got = counted(feed, spark, tmp_path, "k bigint, v int", [rows], processor=CountsInPandas, api="pandas")
    assert got == [("(2,)", 1, 1), ("(None,)", 1, 2)]


@needs("rows")
def test_keys_that_spark_cannot_take(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    rows = [([1, 2], 1), ([1, 2], 2), (None, 3)]
    got = counted(feed, spark, tmp_path, "`K 1` array<int>, v int", [rows], keys=("K 1",))
    assert got == rows_of([("([1, 2],)", 1, 2), ("(None,)", 1, 1)])


class Frames(Counts):
    """Yields frames without rows, and rows that do not fit."""

    def __init__(self, frame: pd.DataFrame):
        self.frame = frame

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield self.frame


def test_frames_without_rows(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    for n, frame in enumerate([pd.DataFrame(), pd.DataFrame({"k": [], "said": []})]):
        got = answers(
            lambda *a, n=n: feed(*a, name=f"in{n}"), spark, tmp_path / str(n), lambda f=frame: Frames(f), api="pandas"
        )
        assert got == []


def test_a_row_that_does_not_fit_the_output_is_named(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    class Wrong(Counts):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            yield Row(k=key[0], said=object())

    with pytest.raises(Exception, match=r"said"):
        answers(feed, spark, tmp_path, Wrong)


def test_an_exception_in_init_is_raised_where_the_query_is_built(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    class Fails(Counts):
        def init(self, handle: Any) -> None:
            raise LookupError("there is no such table")

    ours, _ = sides(spark, tmp_path)
    with pytest.raises(LookupError, match="there is no such table"):
        Job(Fails, "k string, said string").build(feed(SCHEMA, *BATCHES).stream(), ours.group)
