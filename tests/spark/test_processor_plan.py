"""Building a query with a processor: what is refused at once, modes, sinks, batch frames, savepoints, Spark's versions.

Owns: checks on the driver, and the plans around the operator. Does not own: what the operator answers in streams
(`test_processor_states` and its siblings), watermarks behind it (`test_processor_chains`).
"""

from __future__ import annotations

import functools
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import fastchangelog as fc
from fastchangelog.spark import grouped, internals_queries, starts
from fastchangelog.spark.failures import explain_error
from fastchangelog.spark.processor.call import ProcessorCall
from fastchangelog.spark.processor.stream import _check_version
from support.spark.frames_of_rows import METHOD, with_state
from support.spark.lacks import needs
from support.spark.processor_harness import Job, by_value, compare, finish, sides, start
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)

SCHEMA = "k string, v bigint"
OUTPUT = "k string, n bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 10)]]
TOTALS = {0: [("a", 1), ("b", 2)], 1: [("a", 11)]}


class Total(StatefulProcessor):
    """The sum of a key's values."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.total.get()
        n = (before[0] if before else 0) + sum(row.v for row in rows)
        self.total.update((n,))
        yield Row(k=key[0], n=n)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.total.update((initialState.v,))

    def close(self) -> None:
        """Nothing to end."""


class TotalInPandas(Total):
    """The same with frames."""

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        before = self.total.get()
        n = (before[0] if before else 0) + sum(int(frame["v"].sum()) for frame in rows)
        self.total.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})


def total(group: Any, mode: str = "Update", time: str = "None", **more: Any) -> Any:
    return with_state(group, Total(), OUTPUT, mode, time, **more)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def stream(feed: Any) -> Any:
    return feed(SCHEMA, *BATCHES).stream()


def refused(group: Any, *args: Any, api: str = METHOD, **more: Any) -> str:
    with pytest.raises(fc.InvalidArgumentError) as error:
        getattr(group, api)(*args, **more)
    return str(error.value)


def test_arguments_are_checked(stream: Any, root: str) -> None:
    group = grouped(stream, "k", state=root)
    assert "complete" in refused(group, Total(), OUTPUT, "Complete", "None")
    assert "Total()" in refused(group, Total, OUTPUT, "Update", "None")
    assert "StatefulProcessor" in refused(group, object(), OUTPUT, "Update", "None")
    assert "outputStructType" in refused(group, Total(), "long", "Update", "None")
    assert "is a text" in refused(group, Total(), OUTPUT, None, "None")
    assert "initialState" in refused(group, Total(), OUTPUT, "Update", "None", "k")
    assert "a stream" in refused(group, Total(), OUTPUT, "Update", "None", stream.groupBy("k"))


def test_modes_that_spark_does_not_know_have_its_own_condition(stream: Any, root: str) -> None:
    group = grouped(stream, "k", state=root)
    for mode, time in (("Sideways", "None"), ("Update", "Sidereal")):
        with pytest.raises(PySparkException) as theirs:
            total(stream.groupBy("k"), mode, time)
        with pytest.raises(type(theirs.value)) as ours:
            total(group, mode, time)
        assert ours.value.getCondition() == theirs.value.getCondition()


def test_modes_are_read_in_any_case(spark: Any, root: str) -> None:
    df = spark.createDataFrame(BATCHES[0], SCHEMA)
    for mode, time in (("update", "none"), ("APPEND", "NONE"), ("Append", "processingTime")):
        assert total(grouped(df, "k", state=root), mode, time).columns == ["k", "n"]


def test_keys_of_the_initial_state_must_be_of_the_same_types(stream: Any, spark: Any, root: str) -> None:
    group = grouped(stream, "k", state=root)
    other = spark.createDataFrame([(1, 2)], "k int, v bigint")
    assert "grouped by int" in refused(group, Total(), OUTPUT, "Update", "None", other.groupBy("k"))
    assert "string, bigint" in refused(
        group, Total(), OUTPUT, "Update", "None", spark.createDataFrame([("a", 2)], SCHEMA).groupBy("k", "v")
    )


def test_collated_keys_are_refused(spark: Any, root: str) -> None:
    df = spark.sql("select 'a' collate UTF8_LCASE as c, 1L as v")
    assert "collat" in refused(grouped(df, "c", state=root), Total(), OUTPUT, "Update", "None")


def test_what_cannot_be_pickled_is_found_at_once(stream: Any, root: str) -> None:
    class Locked(Total):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(Exception, match="pickle"):
        with_state(grouped(stream, "k", state=root), Locked(), OUTPUT, "Update", "None")


def test_init_is_called_at_once_and_not_on_the_users_object(stream: Any, root: str) -> None:
    class Twice(Total):
        def init(self, handle: Any) -> None:
            handle.getValueState("x", "n long")
            handle.getValueState("x", "n long")

    with pytest.raises(Exception, match="STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED"):
        with_state(grouped(stream, "k", state=root), Twice(), OUTPUT, "Update", "None")
    processor = Total()
    with_state(grouped(stream, "k", state=root), processor, OUTPUT, "Update", "None")
    assert vars(processor) == {}


def test_the_result_has_the_schema_that_was_given(stream: Any, spark: Any, root: str) -> None:
    output = Job(Total, "k string not null comment 'the key', `n n` array<int> not null, t timestamp not null").output
    for df in (stream, spark.createDataFrame(BATCHES[0], SCHEMA)):
        ours = with_state(grouped(df, "k", state=root), Total(), output, "Update", "None")
        sparks = with_state(df.groupBy("k"), Total(), output, "Update", "None")
        assert ours.schema == sparks.schema


def test_columns_that_hold_no_null(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """No row of ours with nulls in such columns leaves the operator: Spark's code does not look for them."""

    class All(Total):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            row = next(iter(rows))
            yield Row(k=key[0], **{name: row[name] for name in row.__fields__[2:]})

    fields = (
        "b boolean not null, i int not null, d double not null, e decimal(9,2) not null, s string not null, "
        "y binary not null, a array<int> not null, t timestamp not null, u date not null, "
        "r struct<x:int not null,y:string not null> not null"
    )
    import datetime as dt
    import decimal

    row = (
        True,
        1,
        1.5,
        decimal.Decimal("1.25"),
        "s",
        b"y",
        [1],
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
        dt.date(2024, 1, 1),
        (1, "z"),
    )
    source = feed("k string, v bigint, " + fields.replace(" not null", ""), [("a", 1, *row)])
    ours, _ = sides(spark, tmp_path)
    out = ours.run(
        Job(All, "k string not null, " + fields, after=lambda df: df.withColumn("l", F.length("s"))), source.stream()
    )
    assert [tuple(r)[:3] for r in out.rows[0]] == [("a", True, 1)]


@pytest.mark.parametrize("mode", ["Update", "Append"])
@pytest.mark.parametrize("sink", ["update", "append"])
def test_sinks_of_any_mode_as_with_spark(feed: Any, spark: Any, tmp_path: pathlib.Path, mode: str, sink: str) -> None:
    for side in sides(spark, tmp_path):
        job = Job(Total, OUTPUT, output_mode=mode, sink_mode=sink)
        assert {
            n: rows_of(r) for n, r in side.run(job, feed(SCHEMA, *BATCHES, name=side.name).stream()).rows.items()
        } == TOTALS


def test_the_default_sink_mode_and_files(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    ours, _ = sides(spark, tmp_path)
    out = total(ours.group(feed(SCHEMA, *BATCHES).stream(), "k"), "Append")
    finish(
        out.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(ours.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert rows_of(spark.read.parquet(str(tmp_path / "out")).collect()) == [("a", 1), ("a", 11), ("b", 2)]


def test_an_aggregation_beside_a_processor_still_needs_update() -> None:
    query = internals_queries.StartingQuery(
        "append",
        ("fastchangelog.p", "fastchangelog.a"),
        {"fastchangelog.p": frozenset({"__m_processor"}), "fastchangelog.a": frozenset({"__m"})},
    )
    assert "append mode" in str(starts.refusal_reason(query))
    alone = internals_queries.StartingQuery(
        "append", ("fastchangelog.p",), {"fastchangelog.p": frozenset({"__m_processor"})}
    )
    assert starts.refusal_reason(alone) is None


def test_one_processor_twice_is_refused(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    ours, _ = sides(spark, tmp_path)
    frame = total(ours.group(feed(SCHEMA, *BATCHES).stream(), "k"))
    twice = frame.where("k = 'a'").unionByName(frame.where("k = 'b'"))
    with pytest.raises(Exception, match=r"fastchangelog\.errors\.InvalidArgumentError") as error:
        finish(start(twice, ours.checkpoint, {}))
    assert "2 times" in explain_error(error.value)


@pytest.mark.parametrize("processor", [Total, TotalInPandas])
@pytest.mark.parametrize("time", ["None", "ProcessingTime", "EventTime"])
def test_a_batch_frame_is_one_batch(spark: Any, root: str, processor: type[Total], time: str) -> None:
    df = spark.createDataFrame([*BATCHES[0], *BATCHES[1], (None, 7)], SCHEMA)
    initial = spark.createDataFrame([("a", 100), ("z", 5)], SCHEMA)
    group = grouped(df, "k", state=root)
    call = functools.partial(with_state, group) if processor is Total else group.transformWithStateInPandas
    ours = call(processor(), OUTPUT, "Update", time)
    assert rows_of(ours.collect()) == rows_of([("a", 11), ("b", 2), (None, 7)])
    if processor is Total:
        ours = total(grouped(df, "k", state=root), time=time, initialState=initial.groupBy("k"))
        assert rows_of(ours.collect()) == rows_of([("a", 111), ("b", 2), (None, 7)])


@needs("single stores")
def test_a_batch_frame_has_sparks_times_and_fires_what_is_due(spark: Any, root: str) -> None:
    class Times(Total):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            clock = timerValues.getCurrentProcessingTimeInMs()
            if clock > 0:
                for time in (5, clock, clock + 10**9):
                    self.handle.registerTimer(time)
            yield Row(k=f"{key[0]} {clock > 0 or clock} {timerValues.getCurrentWatermarkInMs()}", n=0)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(k="fired", n=min(expiredTimerInfo.getExpiryTimeInMs(), 6))

    df = spark.createDataFrame(BATCHES[0], SCHEMA)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", sides_provider())
    _ = spark.streams.active  # a session that has run no stream has no coordinator of state stores
    for time in ("None", "ProcessingTime", "EventTime"):
        ours = with_state(grouped(df, "k", state=root), Times(), OUTPUT, "Update", time)
        theirs = with_state(df.groupBy("k"), Times(), OUTPUT, "Update", time)
        assert rows_of(ours.collect()) == rows_of(theirs.collect())


def sides_provider() -> str:
    return "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def test_keys_may_be_expressions(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """Spark's own refuses them."""
    ours, _ = sides(spark, tmp_path)
    got: dict[int, list[Any]] = {}
    frame = total(ours.group(feed(SCHEMA, *BATCHES).stream(), F.upper("k").alias("K K")))
    finish(start(frame, ours.checkpoint, got))
    assert rows_of(got[0]) == [("A", 1), ("B", 2)]


class Shows(Total):
    """Answers with the rows as they are."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=repr((key, sorted(map(repr, rows)))), n=0)


@needs("plain keys")
def test_a_key_that_is_no_column_by_name_is_in_rows(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    schema, batches = "k string, s struct<a:string,b:timestamp>", [[("x", ("y", None)), ("x", ("y", None))]]
    compare(feed, spark, tmp_path, Job(Shows, OUTPUT, keys=("K", "s.b", "s.a")), schema, batches)


def test_a_savepoint_carries_a_processors_states(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    from fastchangelog.cli import main

    source = feed(SCHEMA, *BATCHES)
    ours, _ = sides(spark, tmp_path)
    ours.run(Job(Total, OUTPUT), source.stream())
    state, taken = str(tmp_path / "state"), str(tmp_path / "sp")
    assert main(["savepoint", str(ours.checkpoint), "--state", state, "--to", taken]) == 0
    source.add([("a", 100), ("b", 100)])
    later = feed(SCHEMA, [("a", 100), ("b", 100), ("c", 1)], name="later")
    again, _ = sides(spark, tmp_path / "again", start_from=taken)
    answered = again.run(Job(Total, OUTPUT), later.stream())
    assert rows_of(answered.rows[0]) == [("a", 111), ("b", 102), ("c", 1)]
    group = grouped(later.stream(), "k", state=str(tmp_path / "other"), start_from=taken)
    for processor, mode, said in [
        (Total(), "EventTime", "timeMode from NoTime to EventTime"),
        (Arrays(), "None", "`n` was"),
    ]:
        with pytest.raises(fc.SchemaMismatchError, match=said) as error:
            with_state(group, processor, OUTPUT, "Update", mode)
        assert "`start_from`" in str(error.value)


class Arrays(Total):
    """With another type of state."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n array<long>")


class Parts(Total):
    """The sum of a key's values, once in each of some states."""

    def __init__(self, *names: str):
        self.names = names

    def init(self, handle: Any) -> None:
        self.states = [handle.getValueState(name, "n long") for name in self.names]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        added, said = sum(row.v for row in rows), 0
        for state in self.states:
            n = (state.get() or (0,))[0] + added
            state.update((n,))
            said = said * 1000 + n
        yield Row(k=key[0], n=said)


def test_a_savepoint_of_shards_without_rows_since_a_change(
    feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any
) -> None:
    """Each shard has the states of the program from the first batch on, in one order."""
    from fastchangelog.cli import main

    source = feed(SCHEMA)
    ours, _ = sides(spark, tmp_path)
    keys = "abcdefgh"  # of both shards
    for batch, names in [
        ([("a", 1)], "x"),
        ([("a", 10)], "xy"),
        ([("a", 20)], "zxy"),
        ([(k, 5) for k in keys], "yzx"),
    ]:
        source.add(batch)
        ours.run(Job(lambda names=names: Parts(*names), OUTPUT), source.stream())
        taken = str(tmp_path / f"savepoint of {names}")
        assert main(["savepoint", str(ours.checkpoint), "--state", str(tmp_path / "state"), "--to", taken]) == 0
    conf("spark.sql.shuffle.partitions", "3")
    again, _ = sides(spark, tmp_path / "again", start_from=taken)
    later = feed(SCHEMA, [(k, 100) for k in keys], name="later")
    answered = again.run(Job(lambda: Parts("x", "y", "z"), OUTPUT), later.stream())
    assert rows_of(answered.rows[0]) == [("a", 136_135_125), *((k, 105_105_105) for k in keys[1:])]


def test_a_version_without_the_method_is_named(stream: Any, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = grouped(stream, "k", state=root)
    kind = type(stream.groupBy())
    for owner in kind.__mro__:
        if "transformWithState" in vars(owner):
            monkeypatch.delattr(owner, "transformWithState")
    assert "has no transformWithState()" in refused(group, Total(), OUTPUT, "Update", "None", api="transformWithState")


def test_a_version_without_the_method_over_connect_is_named() -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe", "groupBy": lambda self: object()})()
    call = ProcessorCall("pandas", Total(), OUTPUT, "Update", "None", None, "")
    with pytest.raises(fc.InvalidArgumentError, match=r"no transformWithStateInPandas\(\) over Spark Connect"):
        _check_version(frame, call)
