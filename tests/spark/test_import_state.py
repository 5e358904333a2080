"""A query of Spark's own, stopped after some batches, goes on here: later batches are those of Spark's query going on.

Owns: what `import_state` and `initial_state` bring along, for aggregates and for processors, and what they refuse.
Not: functions (`test_functions_equal_to_spark`), initial states of user code (`test_processor_plan`), `test_migrate`.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import pathlib
import random
from collections.abc import Callable, Iterator
from decimal import Decimal as D
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import fastchangelog as fc
from fastchangelog import functions as ff
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError, StateNotFoundError
from fastchangelog.spark import grouped, import_state, versions
from fastchangelog.spark.settings import REQUIRED
from support.spark import processors
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, finish, start
from support.spark.processors import BASE, SCRIPT_OUTPUT, SCRIPT_SCHEMA, STATES, Script, ScriptInPandas, script
from support.spark.stream_harness import FORMAT, PROVIDER, needs_readable_checkpoints, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), needs_readable_checkpoints]
by_value("support.spark.processors")
by_value(__name__)

SCHEMA = (
    "k int, t string, i int, l bigint, d double, f float, p decimal(7,2), q decimal(20,5), w decimal(11,3), "
    "b boolean, s string, iv interval day to second, a array<int>"
)


def row(rng: random.Random) -> tuple[Any, ...]:
    values: tuple[Any, ...] = (
        rng.randrange(-50, 50),
        rng.randrange(-(10**12), 10**12),
        rng.uniform(-10, 10),
        rng.choice([0.5, -0.25, 3.0]),
        D(rng.randrange(-99999, 99999)).scaleb(-2),
        D(rng.randrange(-(10**17), 10**17)).scaleb(-5),
        D(rng.randrange(-(10**10), 10**10)).scaleb(-3),
        rng.random() < 0.5,
        rng.choice(["", "ä", "long enough to be no inline text", "b"]),
        dt.timedelta(seconds=rng.randrange(10**5)),
        [rng.randrange(5), None],
    )
    key = rng.choice([(1, "x"), (1, None), (None, "y"), (2, ""), (3, "x"), (4, "only in the first batches")])
    return (*key, *(None if rng.random() < 0.25 else value for value in values))


def batches_of(seed: int, count: int = 4, size: int = 30) -> list[list[Any]]:
    rng = random.Random(seed)
    made = [[row(rng) for _ in range(size)] for _ in range(count)]
    late = [[r for r in batch if r[0] != 4] for batch in made[2:]]
    return [*made[:2], *late]


def aggregates() -> list[Any]:
    """Every function that Spark keeps in columns of its own; some of them are kept once for two results."""
    return [
        *(F.count("*"), F.count("i"), F.count(F.lit(1)).alias("ones"), F.count_if("b"), F.sum("i"), F.sum("l")),
        *(F.sum("d"), F.sum("f"), F.sum("p"), F.sum("q"), F.sum("w"), F.sum("iv"), F.avg("i"), F.avg("d"), F.avg("p")),
        *(F.avg("q"), F.avg("w"), F.avg("iv"), F.min("s"), F.max("q"), F.min("b"), F.max("iv"), F.max("a")),
        *(F.first("s"), F.last("s", ignorenulls=True), F.first("i", ignorenulls=True), F.last("l"), F.any_value("q")),
        *(F.max_by("s", "d"), F.min_by("i", "l"), F.bool_and("b"), F.bool_or("b"), F.sum("i").alias("again")),
        *(F.var_samp("d"), F.var_pop("i"), F.stddev("d"), F.stddev_pop("d"), F.skewness("d"), F.kurtosis("d")),
        *(F.covar_samp("d", "f"), F.covar_pop("d", "f"), F.bit_and("i"), F.bit_or("i"), F.bit_xor("l")),
        # Older versions fail on equal values.
        *([F.corr("d", "f")] if versions.STATISTICS_OF_EQUAL_VALUES(versions.PYSPARK) else []),
        F.product("d"),
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return type(a) is type(b) and bool(a == b)


def ran(df: Any, checkpoint: pathlib.Path) -> list[list[Any]]:
    got: dict[int, list[Any]] = {}
    finish(start(df, checkpoint, got))
    return [got[number] for number in sorted(got)]


def check_rows(found: list[list[Any]], expected: list[list[Any]], keys: int) -> None:
    assert len(found) == len(expected)
    for number, (ours, sparks) in enumerate(zip(found, expected)):
        by_key = {tuple(r[:keys]): r for r in sparks}
        assert len(by_key) == len(sparks)
        assert sorted(map(repr, by_key)) == sorted(repr(tuple(r[:keys])) for r in ours), f"batch {number}"
        for r in ours:
            for name, a, b in zip(r.__fields__, r, by_key[tuple(r[:keys])]):
                assert same(a, b), f"batch {number}, {tuple(r[:keys])}, {name}: {a!r}, Spark has {b!r}"


class Moved:
    """A query of Spark's own over the first batches; the rest waits for it, and for ours."""

    def __init__(self, feed: Callable[..., Any], tmp_path: pathlib.Path, schema: Any, batches: list[list[Any]]) -> None:
        self.all = feed(schema, *batches[:2], name="old")
        self.later = feed(schema, *batches[2:], name="new")
        self.batches = batches
        self.checkpoint = tmp_path / "sparks"
        self.folder = tmp_path

    def begin(self, query: Callable[[Any], Any]) -> None:
        ran(query(self.all.stream()), self.checkpoint)

    def compare(self, query: Callable[[Any], Any], ours: Callable[[Any], Any], keys: int) -> None:
        """Ours over the later batches, then Spark's going on."""
        found = ran(ours(self.later.stream()), self.folder / "ours")
        check_rows(found, self.go_on(query), keys)

    def go_on(self, query: Callable[[Any], Any]) -> list[list[Any]]:
        for batch in self.batches[2:]:
            self.all.add(batch)
        got: dict[int, list[Any]] = {}
        finish(start(query(self.all.stream()), self.checkpoint, got))
        return [got[number] for number in sorted(got)]


STORES = {
    "hdfs": ("org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider", "1"),
    "rocksdb 1": (REQUIRED[PROVIDER], "1"),
    "rocksdb 2": (REQUIRED[PROVIDER], "2"),
}


@pytest.mark.parametrize("store", [*STORES, "rocksdb 2 by Spark"])
def test_every_function_goes_on(
    feed: Any, tmp_path: pathlib.Path, conf: Any, request: pytest.FixtureRequest, store: str
) -> None:
    if store.endswith(" by Spark"):
        request.getfixturevalue("only_spark_reads")
        store = store.removesuffix(" by Spark")
    moved = Moved(feed, tmp_path, SCHEMA, batches_of(1 if store == "hdfs" else 2))

    def query(df: Any) -> Any:
        return df.groupBy("k", F.struct("t").alias("u")).agg(*aggregates())

    def ours(df: Any) -> Any:
        return grouped(df, "k", F.struct("t").alias("u"), state=str(tmp_path / "state")).agg(
            *aggregates(), initial_state=import_state(moved.checkpoint, operator=0)
        )

    for name, value in zip((PROVIDER, FORMAT), STORES[store]):
        conf(name, value)
    moved.begin(query)
    for name, value in REQUIRED.items():
        conf(name, value)
    found = ran(ours(moved.later.stream()), tmp_path / "ours")
    for name, value in zip((PROVIDER, FORMAT), STORES[store]):
        conf(name, value)
    check_rows(found, moved.go_on(query), 2)


def test_our_functions_with_filters_and_a_restart(feed: Any, tmp_path: pathlib.Path) -> None:
    """Keys that no later batch has are kept as well: they come in the batch after a restart."""
    batches = batches_of(3)
    batches.append([row(random.Random(5)) for _ in range(5)] + [(4, "only in the first batches", 7, *[None] * 10)])
    moved = Moved(feed, tmp_path, SCHEMA, batches[:4])

    def query(df: Any) -> Any:
        return df.groupBy("k", "t").agg(
            F.expr("count(i) filter (where d > 0)").alias("n"), F.first("i").alias("first"), F.max("w").alias("best")
        )

    def ours(df: Any) -> Any:
        return grouped(df, "k", "t", state=str(tmp_path / "state")).agg(
            n=ff.count("i", where="d > 0"),
            first=ff.first("i"),
            best=ff.max("w"),
            initial_state=import_state(moved.checkpoint),
        )

    moved.begin(query)
    moved.compare(query, ours, 2)
    moved.batches = [[], [], batches[4]]
    moved.later.add(batches[4])
    again = ran(ours(moved.later.stream()), tmp_path / "ours")
    check_rows(again[-1:], moved.go_on(query)[-1:], 2)
    assert any(r.k == 4 for r in again[-1])


def test_counts_of_columns_that_are_never_null(feed: Any, tmp_path: pathlib.Path) -> None:
    moved = Moved(feed, tmp_path, "k int, v int", [[(1, 1), (2, 2)], [(1, 3)], [(1, 4)], [(2, 5)]])

    def made(df: Any) -> Any:
        return df.withColumn("never", F.coalesce("v", F.lit(0)))

    counts = [F.count("never"), F.count("*"), F.count("v")]

    def query(df: Any) -> Any:
        return made(df).groupBy("k").agg(*counts)

    moved.begin(query)
    state = import_state(moved.checkpoint)
    moved.compare(
        query, lambda df: grouped(made(df), "k", state=str(tmp_path / "s")).agg(*counts, initial_state=state), 1
    )


def test_results_as_initial_state(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    moved = Moved(feed, tmp_path, SCHEMA, batches_of(4))
    made = [
        *(F.count("*").alias("n"), F.count_if("b"), F.sum("i"), F.sum("d"), F.sum("p"), F.sum("q"), F.sum("iv")),
        *(F.min("s"), F.max("a"), F.first("i"), F.last("s"), F.last("l", ignorenulls=True), F.bool_and("b")),
        *(F.bit_or("i"), F.product("f")),
    ]

    def query(df: Any) -> Any:
        return df.groupBy("k", "t").agg(*made)

    moved.begin(query)
    known = spark.createDataFrame([r for batch in moved.batches[:2] for r in batch], SCHEMA).coalesce(1)
    results = query(known).select("n", "*").drop("nothing")
    results = results.select(*dict.fromkeys(reversed(query(known).columns)))  # in another order: by name

    def ours(df: Any) -> Any:
        return grouped(df, "k", "t", state=str(tmp_path / "state")).agg(*made, initial_state=results)

    moved.compare(query, ours, 2)


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (ff.avg("v"), "cannot continue from its result, which does not determine the accumulator of avg"),
        (ff.stddev_samp("v"), "the accumulator of stddev_samp"),
        (ff.max_by("k", "v"), "the accumulator of max_by"),
        (ff.corr("v", "v"), "the accumulator of corr"),
        (ff.first("v", where="v > 0"), "a null may be the first value"),
    ],
    ids=repr,
)
def test_results_that_determine_no_accumulator(
    feed: Any, spark: Any, tmp_path: pathlib.Path, aggregate: Any, says: str
) -> None:
    stream = feed("k int, v int", [(1, 1)]).stream()
    with pytest.raises(InvalidArgumentError, match=says):
        grouped(stream, "k", state=str(tmp_path)).agg(aggregate, initial_state=spark.createDataFrame([], "k int"))


def test_results_that_do_not_fit(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    stream = feed("k int, v int", [(1, 1)]).stream()
    grouping = grouped(stream, "k", state=str(tmp_path))
    total = F.sum("v").alias("total")
    of = functools.partial(spark.createDataFrame, [])
    for given, says in ((of("k int, v int"), "no column `total`"), (of("k int, total int"), "`total` is int, but")):
        with pytest.raises(SchemaMismatchError, match=says):
            grouping.agg(total, initial_state=given)
    with pytest.raises(SchemaMismatchError, match="no column `k`, a key of the query"):
        grouping.agg(total, initial_state=of("total bigint"))
    with pytest.raises(InvalidArgumentError, match="give a batch DataFrame"):
        grouping.agg(total, initial_state=stream)
    with pytest.raises(InvalidArgumentError, match="not int"):
        grouping.agg(total, initial_state=5)
    with pytest.raises(InvalidArgumentError, match="for a stream's first batch"):
        grouped(spark.createDataFrame([(1, 1)], "k int, v int"), "k", state=str(tmp_path)).agg(
            total, initial_state=of("k int, total bigint")
        )


def test_checkpoints_that_do_not_fit(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed("k int, v int, s string", [(1, 1, "a")])
    checkpoint, ours = tmp_path / "sparks", tmp_path / "ours"
    ran(source.stream().groupBy("k").agg(F.sum("v"), F.avg("v")), checkpoint)
    state = str(tmp_path / "state")
    ran(grouped(source.stream(), "k", state=state).count(), ours)

    def build(*aggregates: Any, keys: tuple[str, ...] = ("k",), **given: Any) -> Any:
        old = import_state(given.pop("checkpoint", checkpoint), **given)
        return grouped(source.stream(), *keys, state=state).agg(*aggregates, initial_state=old)

    build(F.sum("v"), F.avg("v"))
    for aggregates, says in (
        ([F.avg("v"), F.sum("v")], r"keeps `sum` bigint where avg\(v\) keeps `sum` double"),
        ([F.sum("v")], "keeps `sum` double, `count` bigint beyond"),
        ([F.sum("v"), F.avg("v"), F.max("s")], r"keeps nothing more where max\(s\) keeps `max` string"),
        ([F.min("v"), F.avg("v")], r"keeps `sum` bigint where min\(v\) keeps `min` int32"),
    ):
        with pytest.raises(SchemaMismatchError, match=says):
            build(*aggregates)
    with pytest.raises(SchemaMismatchError, match="the key `k` is int there"):
        build(F.sum("v"), F.avg("v"), keys=("s",))
    with pytest.raises(StateNotFoundError, match="has no committed batch"):
        build(F.sum("v"), checkpoint=tmp_path / "nothing")
    with pytest.raises(InvalidArgumentError, match="is a checkpoint of fastchangelog"):
        build(F.count("*"), checkpoint=ours)
    with pytest.raises(InvalidArgumentError, match=r"has no operator 3; it has 0 \(stateStoreSave\)"):
        build(F.sum("v"), operator=3)
    with pytest.raises(InvalidArgumentError, match="has no committed batch 7; Spark keeps the batches 0 to 0"):
        build(F.sum("v"), batch=7)
    for wrong in (-1, True, "0"):
        with pytest.raises(InvalidArgumentError, match="as a number from 0 on"):
            import_state(checkpoint, operator=wrong)  # type: ignore[arg-type]
    ran(source.stream().dropDuplicates(["k"]), tmp_path / "distinct")
    with pytest.raises(InvalidArgumentError, match="keeps distinct rows: give its state to drop_duplicates"):
        build(F.sum("v"), checkpoint=tmp_path / "distinct", operator=0)
    with pytest.raises(InvalidArgumentError, match="is an aggregation: give its state to agg"):
        grouped(source.stream(), "k", state=state).transformWithState(
            Script(), SCRIPT_OUTPUT, "Update", "None", import_state(checkpoint)
        )


APIS = {"row": Script, "pandas": ScriptInPandas}


def moved_job(feed: Any, spark: Any, tmp_path: pathlib.Path, job: Job, ops: tuple[str, ...], seed: int) -> list[Any]:
    """Spark's job over two batches, then ours and Spark's over two more: equal rows, which are returned."""
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    moved = Moved(feed, tmp_path, SCRIPT_SCHEMA, script(seed, 4, 60, ops, BASE))

    def query(df: Any) -> Any:
        return job.build(df, lambda frame, *keys: frame.groupBy(*keys))

    moved.begin(query)
    call = "transformWithState" if job.api == "row" else "transformWithStateInPandas"
    processed = getattr(grouped(moved.later.stream(), *job.keys, state=str(tmp_path / "state")), call)
    old = import_state(moved.checkpoint)
    ours = processed(job.processor(), job.output, job.output_mode, job.time_mode, initialState=old)
    found = ran(ours, tmp_path / "ours")
    expected = moved.go_on(query)
    assert [rows_of(rows) for rows in found] == [rows_of(rows) for rows in expected]
    return [r for rows in found for r in rows]


@pytest.mark.parametrize("reader", ["core", "spark"])
@pytest.mark.parametrize("api", APIS)
def test_states_of_a_processor_go_on(
    feed: Any, spark: Any, tmp_path: pathlib.Path, request: pytest.FixtureRequest, api: str, reader: str
) -> None:
    if reader == "spark":
        request.getfixturevalue("only_spark_reads")
    job = Job(APIS[api], SCRIPT_OUTPUT, keys=("k",), api=api)
    said = moved_job(feed, spark, tmp_path, job, STATES, 11)
    assert len(said) == 120


def test_several_keys_of_a_processor(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    job = Job(Script, "k bigint, i bigint, said string", keys=("x", "k"))
    moved_job(feed, spark, tmp_path, job, STATES, 12)


@pytest.mark.parametrize("reader", ["core", "spark"])
def test_timers_and_ttls_go_on(
    feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any, request: pytest.FixtureRequest, reader: str
) -> None:
    """Timers that were due when Spark's query had stopped fire in the first batch; others are listed."""
    conf(NO_DATA_BATCHES, "false")
    if reader == "spark":
        request.getfixturevalue("only_spark_reads")
    ops = (*processors.VALUE, "append", "read", "soon", "some day", "how many")
    said = moved_job(
        feed, spark, tmp_path, Job(processors.ScriptByClock, SCRIPT_OUTPUT, time_mode="ProcessingTime"), ops, 13
    )
    assert any("fired" in r.said for r in said)
    assert any(r.said not in ("0", "None") and r.said.isdigit() for r in said), "timers of some day are listed"


@pytest.mark.parametrize("ttl", [1, 86_400_000], ids=["ended", "alive"])
def test_ends_of_values_go_on(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any, ttl: int) -> None:
    conf(NO_DATA_BATCHES, "false")
    job = Job(lambda: Script(ttl), SCRIPT_OUTPUT, time_mode="ProcessingTime")
    moved_job(feed, spark, tmp_path, job, STATES, 14)


class Typed(StatefulProcessor):
    """Keeps values of many types, and long lists."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState(
            "value", "n decimal(20,5), at timestamp, m map<string,int>, s struct<a:int,b:array<string>>, x binary"
        )
        self.list = handle.getListState("list", "n long, t string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        import datetime

        before = self.value.get()
        read = [n for n, _ in self.list.get()]
        for r in rows:
            at = datetime.datetime(2024, 1, 1, 0, 0, 0, r.v)
            self.value.update((D(r.v).scaleb(-3), at, {"a": r.v, "b": None}, (r.v, ["x", None]), b"\x00\xff"))
            self.list.appendList([(r.v * 1000 + i, None if i % 7 == 0 else "text") for i in range(900)])
        yield Row(k=key[0], before=repr(before), read=repr(read))

    def close(self) -> None:
        """Nothing to end."""


def test_types_and_long_lists_go_on(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    moved = Moved(feed, tmp_path, "k string, v int", [[("a", 1)], [("a", 2), (None, 3)], [("a", 4)], [(None, 5)]])
    job = Job(Typed, "k string, before string, read string")

    def query(df: Any) -> Any:
        return job.build(df, lambda frame, *keys: frame.groupBy(*keys))

    moved.begin(query)
    ours = grouped(moved.later.stream(), "k", state=str(tmp_path / "state")).transformWithState(
        Typed(), job.output, "Update", "None", import_state(moved.checkpoint, operator=0)
    )
    found = ran(ours, tmp_path / "ours")
    assert [rows_of(rows) for rows in found] == [rows_of(rows) for rows in moved.go_on(query)]
    assert "Decimal('0.00200')" in found[0][0].before
    assert found[0][0].read.count(",") == 1799


class Declares(StatefulProcessor):
    """Declares what it is told."""

    def __init__(self, declare: Callable[[Any], None]):
        self.declare = declare

    def init(self, handle: Any) -> None:
        self.declare(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return iter(())

    def close(self) -> None:
        """Nothing to end."""


def test_states_that_do_not_fit(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    conf(NO_DATA_BATCHES, "false")
    source = feed(SCRIPT_SCHEMA, script(1, 1, 20, STATES, BASE)[0])
    checkpoint = tmp_path / "sparks"
    old = Script(86_400_000)
    ran(source.stream().groupBy("k").transformWithState(old, SCRIPT_OUTPUT, "Update", "ProcessingTime"), checkpoint)
    day = 86_400_000

    def value(h: Any) -> Any:
        return h.getValueState("value", "x long, s string", day)

    def list_(h: Any) -> Any:
        return h.getListState("list", "x long, s string", day)

    def map_(h: Any) -> Any:
        return h.getMapState("map", "x long", "s string", day)

    def build(*states: Callable[[Any], Any], mode: str = "ProcessingTime", key: str = "k", **given: Any) -> Any:
        def declare(handle: Any) -> Any:
            return [state(handle) for state in states]

        return grouped(source.stream(), key, state=str(tmp_path / "state")).transformWithState(
            Declares(declare), SCRIPT_OUTPUT, "Update", mode, import_state(checkpoint, **given)
        )

    build(value, list_, map_)
    build(value, variables=["value"])
    for states, says in (
        ([value, list_], "has the state `map`, which the processor does not declare"),
        ([value, map_, lambda h: h.getValueState("list", "x long, s string", day)], "`list` is a list state, but"),
        ([value, list_, lambda h: h.getMapState("map", "x long", "s string")], "`map` has a TTL, but"),
        ([list_, map_, lambda h: h.getValueState("value", "x int, s string", day)], "field `x` int, but it is bigint"),
        ([list_, map_, lambda h: h.getValueState("value", "x long, t string", day)], "field `t` string, but there is"),
        ([list_, map_, lambda h: h.getValueState("value", "x long", day)], "has the field `s` in the checkpoint"),
        ([list_, map_, lambda h: h.getValueState("value", "s string, x long", day)], "has the order x, s in the"),
        ([value, list_, lambda h: h.getMapState("map", "y long", "s string", day)], "the keys of the state `map`"),
    ):
        with pytest.raises(SchemaMismatchError, match=says):
            build(*states)
    plain = [lambda h: h.getValueState("value", "x long, s string")]
    with pytest.raises(SchemaMismatchError, match="has the time mode processingtime, but the processor none"):
        build(*plain, mode="None")
    with pytest.raises(SchemaMismatchError, match=r"has state by \(string\), but the query groups by \(bigint\)"):
        build(value, list_, map_, key="x")
    with pytest.raises(InvalidArgumentError, match="has no state `other`; it has list, map, value"):
        build(value, variables=["other"])
    with pytest.raises(InvalidArgumentError, match="is a processor: give its state to transformWithState"):
        grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(
            F.count("*"), initial_state=import_state(checkpoint)
        )
    assert fc.spark.import_state is import_state
