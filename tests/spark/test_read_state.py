"""`read_state`: what operators kept after any batch, beside what they answered and beside Spark's own reader.

Owns: reading by Spark. Does not own: kinds, types and versions of one shard's state (`tests/test_state_scan.py`).
"""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import shutil
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog import cli
from fastchangelog.errors import InvalidArgumentError, StateNotFoundError
from fastchangelog.spark import grouped, read_state
from fastchangelog.spark.checkpoint.files import query_checkpoints
from support.spark.frames_of_rows import with_state
from support.spark.lacks import needs
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, finish, sides, start
from support.spark.processors import BASE, SCRIPT_OUTPUT, SCRIPT_SCHEMA, SEED, Script, script
from support.spark.stream_harness import rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
by_value("support.spark.processors")
by_value(__name__)

PLAIN = ("put", "put", "clear", "append", "extend", "replace", "empty list", "set", "set", "remove", "empty map")
TIMERS = ("at", "at", "not at")
TIMER_VARIABLE = "$timers"


def spark_reads(spark: Any, checkpoint: pathlib.Path, batch: int, variable: str) -> Any:
    """What Spark's source gives of Spark's own operator."""
    source = spark.read.format("statestore").option("path", str(checkpoint)).option("batchId", batch)
    if variable == TIMER_VARIABLE:
        return source.option("readRegisteredTimers", True).load()
    return source.option("stateVarName", variable).load()


def seen(frame: Any) -> tuple[str, list[Any]]:
    """Columns and rows, without the partition: ours has the keys in others."""
    frame = frame.drop("partition_id")
    return frame.schema.simpleString(), rows_of(frame.collect())


@needs("own checkpoints")
def test_all_states_and_timers_are_those_of_sparks_reader(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    job = Job(Script, SCRIPT_OUTPUT, time_mode="EventTime", watermark=("ts", "10 seconds"))
    ours, sparks = sides(spark, tmp_path, job)
    source = feed(SCRIPT_SCHEMA, *script(SEED + 40, 3, 60, (*PLAIN, *TIMERS), BASE))
    for side in (ours, sparks):
        side.run(job, source.stream())
    newest = max(ours.answers.rows)
    assert newest == max(sparks.answers.rows) > 1
    for batch in (newest, 0, 1):
        for variable in ("value", "list", "map", TIMER_VARIABLE):
            own = read_state(spark, ours.checkpoint, tmp_path / "state", batch=batch, variable=variable)
            found = seen(own)
            assert found == seen(spark_reads(spark, sparks.checkpoint, batch, variable)), (batch, variable)
            assert found[1] or batch == newest, variable
    own = read_state(spark, str(ours.checkpoint), str(tmp_path / "state"), variable="value")
    assert seen(own) == seen(spark_reads(spark, sparks.checkpoint, newest, "value")), "the newest batch, by default"
    partitions = read_state(spark, ours.checkpoint, tmp_path / "state", batch=1, variable="list").select("partition_id")
    assert {row.partition_id for row in partitions.collect()} == {0, 1}
    with pytest.raises(InvalidArgumentError, match=r"value \(value\), list \(list\), map \(map\), and timers as \$tim"):
        read_state(spark, ours.checkpoint, tmp_path / "state")
    with pytest.raises(InvalidArgumentError, match=r"'valeu'.* has value \(value\), list"):
        read_state(spark, ours.checkpoint, tmp_path / "state", variable="valeu")
    with pytest.raises(InvalidArgumentError, match=r"no committed batch 77; Spark keeps the batches 0 to"):
        read_state(spark, ours.checkpoint, tmp_path / "state", batch=77, variable="value")
    with pytest.raises(InvalidArgumentError, match="Spark's own, of transformWithStateInPySparkExec, and not fastch"):
        read_state(spark, sparks.checkpoint, tmp_path / "state", variable="value")


TYPED = (
    "i int, t timestamp, n timestamp_ntz, d decimal(10,2), m map<string,array<int>>, s struct<a:binary,b:date>, "
    "f float, b boolean"
)


class Typed(StatefulProcessor):
    """Keeps the last row of a key, of many types."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", TYPED)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.i is None:
                self.last.update((None,) * 8)
                continue
            at = dt.datetime(2024, 5, 1, 12, 0, row.i)
            many = {"a": [row.i, None], "": None}
            pair = (b"\xff", dt.date(2024, 2, 29))
            self.last.update((row.i, at, at, Decimal("1.50"), many, pair, 1.5, row.i % 2 == 0))
        return iter(())

    def close(self) -> None:
        """Nothing to end."""


@needs("own checkpoints")
def test_types_null_keys_composite_keys_and_a_state_by_default(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    job = Job(Typed, "k string", keys=("k", "w", "at"))
    ours, sparks = sides(spark, tmp_path, job)
    at = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
    rows = [("a", 1, at, 5), (None, None, None, 6), ("b", None, at, None), ("", 2, None, 7)]
    source = feed("k string, w bigint, at timestamp, i int", rows, rows[:1])
    for side in (ours, sparks):
        side.run(job, source.stream())
    found = seen(read_state(spark, ours.checkpoint, tmp_path / "state"))
    assert found == seen(spark_reads(spark, sparks.checkpoint, 1, "last"))
    assert len(found[1]) == 4


class Wild(StatefulProcessor):
    """Has no list of Spark's reader beside it: keys that Spark's operator refuses."""

    def init(self, handle: Any) -> None:
        self.months = handle.getMapState("months", "m interval year to month, n void", "v varchar(5)")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.months.updateValue((row.i, None), ("x",))
        return iter(())

    def close(self) -> None:
        """Nothing to end."""


def test_what_sparks_operator_cannot_have(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    frame = feed("a array<map<string,int>>, `K 1` string, i int", [([{"x": 1}], "k", 14), (None, None, 2)]).stream()
    ours, _ = sides(spark, tmp_path)
    ours.run(Job(Wild, "k string", keys=("a", "`K 1`")), frame)
    read = read_state(spark, ours.checkpoint, tmp_path / "state")
    names = {field.name: field.dataType.simpleString() for field in read.schema.fields}
    assert names == {
        "key": "struct<a:array<map<string,int>>,K 1:string>",
        "user_map_key": "struct<m:interval year to month,n:void>",
        "user_map_value": "struct<v:string>",
        "partition_id": "int",
    }
    months = read.select("key", F.expr("user_map_key.m = interval '1-2' year to month"), "user_map_value")
    assert rows_of(months.collect()) == rows_of([((None, None), False, ("x",)), (([{"x": 1}], "k"), True, ("x",))])


#: The names of the aggregation below in the state, in the order of its results.
COLUMNS = ("key_1", "key_2", "`count(*)`", "`sum(v)`", "`avg(v)`", "`max(t)`")


def aggregates(source: Any, state: pathlib.Path) -> Any:
    frame = grouped(source.stream(), "k", "d", state=str(state))
    return frame.agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.avg("v"), F.max("t").alias("last"))


def test_aggregates_after_each_batch_while_the_query_runs(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed("k string, d decimal(5,1), v int, t timestamp")
    at = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
    for batch in range(4):
        keys = [("a", Decimal("1.5")), (None, None), ("", Decimal("-1.0")), (f"only {batch}", None)]
        source.add([(k, d, batch * i, at) for i, (k, d) in enumerate(keys)] + [("a", Decimal("1.5"), None, None)])
    checkpoint, state = tmp_path / "checkpoint", tmp_path / "state"
    answered: dict[int, dict[Any, Any]] = {}
    read: dict[int, list[Any]] = {}

    def take(batch: Any, number: int) -> None:
        # Within a batch of the running query: the newest committed one is the one before.
        if number:
            frame = read_state(spark, checkpoint, state)
            read[number - 1] = rows_of(frame.select(*COLUMNS).collect())
        rows = batch.collect()
        answered[number] = {**answered.get(number - 1, {}), **{(row.k, row.d): row for row in rows}}

    ran = run(aggregates(source, state), checkpoint, take)
    assert set(answered) == {0, 1, 2, 3}
    for batch, rows in read.items():
        assert rows == rows_of(list(answered[batch].values())), batch
    assert len(read) == 3
    for batch in (3, 0):
        frame = read_state(spark, str(checkpoint), str(state), batch=batch)
        assert rows_of(frame.select(*COLUMNS).collect()) == rows_of(list(answered[batch].values()))
    restores = [progress["observedMetrics"]["fastchangelog.default"].restores for progress in ran.progress]
    assert sum(restores) == 0, "the server had the query's own version all the time"
    assert {field.name: field.dataType.simpleString() for field in read_state(spark, checkpoint, state).schema} == {
        "key_1": "string",
        "key_2": "decimal(5,1)",
        "count(*)": "bigint",
        "sum(v)": "bigint",
        "avg(v)": "double",
        "max(t)": "timestamp",
        "partition_id": "int",
    }
    with pytest.raises(InvalidArgumentError, match="holds aggregates, which have no variables"):
        read_state(spark, checkpoint, state, variable="n")


class Ending(StatefulProcessor):
    """Keeps what it gets in each kind of state, for a day; and for a millisecond, which the next batch is after."""

    def init(self, handle: Any) -> None:
        self.states = [
            (
                handle.getValueState(f"value {ttl}", "x bigint", ttl),
                handle.getListState(f"list {ttl}", "x bigint", ttl),
                handle.getMapState(f"map {ttl}", "x bigint", "s string", ttl),
            )
            for ttl in (DAY, 1)
        ]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.x):
            for value, elements, entries in self.states:
                value.update((row.x,))
                elements.appendValue((row.x,))
                entries.updateValue((row.x,), ("s",))
        return iter(())

    def close(self) -> None:
        """Nothing to end."""


DAY = 86_400_000


@needs("own checkpoints")
def test_values_that_end_are_what_sparks_reader_gives(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    conf(NO_DATA_BATCHES, "false")
    job = Job(Ending, "k string", time_mode="ProcessingTime")
    ours, sparks = sides(spark, tmp_path, job)
    source = feed("k string, x bigint", [("a", 1), ("b", 2), ("a", 3)], [("a", 4), (None, 5)])
    for side in (ours, sparks):
        side.run(job, source.stream())
    for batch in (1, 0):
        planned = json.loads((ours.checkpoint / "offsets" / str(batch)).read_text().splitlines()[1])
        for ttl in (DAY, 1):
            for kind, column in (("value", "value"), ("list", "list_element"), ("map", "user_map_value")):
                own = read_state(spark, ours.checkpoint, tmp_path / "state", batch=batch, variable=f"{kind} {ttl}")
                theirs = spark_reads(spark, sparks.checkpoint, batch, f"{kind} {ttl}")
                assert own.schema == theirs.schema
                shown = [
                    frame.withColumn(column, F.col(column).getField("value")).drop("partition_id")
                    for frame in (own, theirs)
                ]
                found = rows_of(shown[0].collect())
                assert found == rows_of(shown[1].collect()), (batch, ttl, kind)
                assert found
                last = own.agg(F.max(F.col(column).getField("ttlExpirationMs"))).first()[0]
                assert last == planned["batchTimestampMs"] + ttl


class Counts(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        old = self.n.get()
        new = (old[0] if old else 0) + sum(1 for _ in rows)
        self.n.update((new,))
        yield Row(k=str(key[0]), n=new)

    def close(self) -> None:
        """Nothing to end."""


def test_a_processor_while_it_runs_and_two_states_of_one_query(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed("k string", *[[(f"k{i % (batch + 2)}",) for i in range(20)] for batch in range(4)])
    checkpoint, state = tmp_path / "checkpoint", tmp_path / "state"
    spark.conf.set("spark.fastchangelog.state", str(state))
    try:
        first = with_state(grouped(source.stream(), "k", name="first"), Counts(), "k string, n bigint")
        second = with_state(grouped(first, "n", name="second"), Counts(), "k string, n bigint", "Append")
        first_read: dict[int, list[Any]] = {}
        expected: dict[str, int] = {}
        wanted: dict[int, list[Any]] = {}

        def take(batch: Any, number: int) -> None:
            batch.collect()
            if number:
                frame = read_state(spark, checkpoint, name="first")
                first_read[number - 1] = rows_of(frame.select("key.k", "value.n").collect())
            for i in range(20):
                expected[f"k{i % (number + 2)}"] = expected.get(f"k{i % (number + 2)}", 0) + 1
            wanted[number] = rows_of(list(expected.items()))

        ran = run(second.selectExpr("k", "n"), checkpoint, take)
        assert len(ran.batches) == 4
        assert first_read == {number: rows for number, rows in wanted.items() if number < 3}
        key = read_state(spark, checkpoint, name="second").select("key.n").schema
        assert key.simpleString() == "struct<n:bigint>"
        with pytest.raises(InvalidArgumentError, match=r"has the states first, second; say which one with name="):
            read_state(spark, checkpoint)
    finally:
        spark.conf.unset("spark.fastchangelog.state")


def test_what_is_not_there(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    checkpoint, state = tmp_path / "checkpoint", tmp_path / "state"
    counted = feed("k string", [("a",)], [("b",)])
    job = Job(Counts, "k string, n bigint")
    finish(start(job.build(counted.stream(), lambda df, *k: grouped(df, *k, state=state)), checkpoint, {}))
    with pytest.raises(InvalidArgumentError, match="no place for the state is given"):
        read_state(spark, checkpoint)
    with pytest.raises(StateNotFoundError, match="there is no folder"):
        read_state(spark, checkpoint, tmp_path / "stat")
    assert not (tmp_path / "stat").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StateNotFoundError, match="holds no state of the query"):
        read_state(spark, checkpoint, tmp_path / "empty")
    with pytest.raises(StateNotFoundError, match="there is no checkpoint"):
        read_state(spark, tmp_path / "nothing", state)
    newest = read_state(spark, checkpoint, state)
    assert rows_of(newest.select("key.k", "value.n").collect()) == [("a", 1), ("b", 1)]
    (log,) = state.glob("*/default/log")
    shutil.rmtree(log)
    with pytest.raises(StateNotFoundError, match=r"none of its objects was deleted|were deleted, by a sweep"):
        read_state(spark, checkpoint, state)
    with pytest.raises(Exception, match=r"log/[0-9a-f]+"):
        newest.collect()


def test_checkpoints_whose_path_spark_escapes_are_read(
    spark: Any, feed: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's source looks for a folder of the escaped name, and its readers of files take brackets for a pattern."""
    source = feed("k string, v bigint", [("a", 1), ("b", 2), ("a", 3)])
    for name in ("plain", "a b%20 #c@d", "état [x] {y}"):
        checkpoint, state = tmp_path / name / "checkpoint", tmp_path / name / "state"
        run(grouped(source.stream(), "k", state=str(state)).agg(F.sum("v").alias("s")), checkpoint)
        found = read_state(spark, checkpoint, state)
        assert sorted(tuple(row)[:2] for row in found.collect()) == [("a", 4), ("b", 2)], name
        assert query_checkpoints(spark).roots(str(checkpoint)).batches == (0,), name
        missing = str(checkpoint) + " gone"
        assert query_checkpoints(spark).query_id(missing) is None
        code = cli.main(["sweep", str(state), "--checkpoint", str(checkpoint), "--json"])
        said = capsys.readouterr()
        assert code == cli.OK, said.err
