"""`accelerate(spark)`: aggregates of a session's PySpark code and SQL text, beside Spark's own results.

Owns: which aggregates are taken and which stay with Spark, what is said about it, what a checkpoint decides; the rows
of each batch, with a restart in the middle.
Does not own: the meaning of windows and functions (`test_windows`, `test_equal_to_spark`), processors
(`test_accelerate`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.spark import grouped, internals, settings
from fastchangelog.spark.accelerated_operators import choice_of
from fastchangelog.spark.acceleration import _accelerated, _built, _went_back
from support.spark.lacks import skip_if_lacking
from support.spark.stream_harness import Feed, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, ts timestamp, v long, price decimal(10,2)"
NOON = dt.datetime(2024, 3, 10, 6, 59, 30, tzinfo=dt.timezone.utc)
LOGGER = "fastchangelog.spark"


def row(key: str | None, seconds: float | None, value: int) -> tuple[Any, ...]:
    time = None if seconds is None else NOON + dt.timedelta(seconds=seconds)
    return key, time, value, decimal.Decimal(value) / 4


#: Runs of the query, each with its batches.
RUNS = [
    [
        [row("a", 1, 1), row("b", 3, 2), row("a", 12, 3), row(None, 4, 4), row("a", None, 5)],
        [row("a", 31, 6), row("a", 29.9, 7), row("b", 11, 8), row("a", 2, 9)],
    ],
    [
        [row("b", 41, 15), row("a", 29, 16), row("c", 75, 17), row("a", 2, 18)],
        [row("a", 200, 23), row("a", 140, 24)],
    ],
]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture(autouse=True)
def undone(conf: Any) -> Iterator[None]:
    [conf(key, None) for key in settings.REQUIRED]  # other tests set them, as a user may
    yield
    _accelerated.clear()
    _built.clear()
    _went_back.clear()


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was said of operators since the last call."""
    caplog.set_level(logging.INFO, LOGGER)

    def said() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.name == LOGGER]
        caplog.clear()
        return [line for line in found if "runs on fastchangelog" in line or "stays on Spark's" in line]

    return said


def marked(df: Any) -> Any:
    return df.withWatermark("ts", "10 seconds")


def sql(text: str) -> Callable[[Any], Any]:
    """A query as SQL text over a view of the stream."""

    def plan(df: Any) -> Any:
        df.createOrReplaceTempView("events")
        return df.sparkSession.sql(text)

    return plan


def history(feed: Any, folder: pathlib.Path, name: str, mode: str, plan: Callable[[Any], Any]) -> dict[int, list[Any]]:
    """The rows of each batch that has some, over all runs; the job builds its query anew for each."""
    source, found = feed(SCHEMA, name=name), {}
    for batches in RUNS:
        for rows in batches:
            source.add(rows)
        found.update(run(plan(source.stream()), folder / f"{name}-checkpoint", mode=mode).batches)
    return {number: rows_of(rows) for number, rows in found.items() if rows}


def states(root: str) -> set[str]:
    """The names of operators that have kept state with us."""
    return {folder.name for folder in pathlib.Path(root).glob("*/*") if folder.is_dir()}


def chained(df: Any) -> Any:
    inner = marked(df).groupBy(F.window("ts", "5 seconds"), "k").agg(F.sum("v").alias("v"))
    return inner.groupBy(F.window("window", "10 seconds")).agg(F.sum("v").alias("v"), F.count("*").alias("keys"))


def joined(df: Any) -> Any:
    """Two aggregates, and behind both an operator of Spark's."""
    sums = marked(df).groupBy(F.window("ts", "10 seconds"), "k").agg(F.sum("v").alias("total"))
    most = marked(df).groupBy(F.window("ts", "10 seconds"), "k").agg(F.max("v").alias("most"))
    return sums.join(most, ["window", "k"])


WINDOW_SQL = (
    "SELECT window(ts, '10 seconds', '2 seconds') AS w, k, count(*) AS n, sum(v) + 1 AS more FROM events "
    "GROUP BY window(ts, '10 seconds', '2 seconds'), k"
)
TABLES_SQL = (
    "WITH sums AS (SELECT k, sum(v) AS total, count_if(v > 5) AS large FROM events GROUP BY k HAVING sum(v) > 3) "
    "SELECT upper(k) AS k, total FROM sums UNION ALL SELECT k, large FROM sums"
)
#: The modes, the job, and the names of the operators that take its aggregates.
CASES: dict[str, tuple[tuple[str, ...], Callable[[Any], Any], set[str]]] = {
    "windows": (
        ("append", "update"),
        lambda df: marked(df).groupBy(F.window("ts", "10 seconds"), "k").agg(F.count("*").alias("n"), F.max("v")),
        {"default"},
    ),
    "sliding windows": (
        ("append",),
        lambda df: marked(df).groupBy("k", F.window("ts", "20 seconds", "5 seconds", "1 second").alias("w")).count(),
        {"default"},
    ),
    "a window's end": (
        ("update",),
        lambda df: (
            marked(df)
            .groupBy(F.window("ts", "10 seconds"), "k")
            .agg(F.avg("price"), F.first("v", ignorenulls=True))
            .select("window.end", F.col("avg(price)") * 2, F.col("first(v)").alias("first"), "k")
        ),
        {"default"},
    ),
    "count": (("update", "complete"), lambda df: df.groupBy("k").count(), {"default"}),
    "sum of expressions": (
        ("update",),
        lambda df: df.groupBy(F.upper("k"), (F.col("v") % 2).alias("odd")).agg(
            (F.sum(F.col("v") * 2) + F.count("ts")).alias("x"), F.min("price")
        ),
        {"default"},
    ),
    "estimates": (
        ("update",),
        lambda df: df.groupBy("k").agg(
            F.approx_count_distinct("v"),
            F.approx_count_distinct("v", 0.39),
            F.percentile_approx("v", [0.1, 0.5], 100),
            F.histogram_numeric("v", F.lit(2)),
        ),
        {"default"},
    ),
    "a dict": (("update",), lambda df: df.groupBy("k").agg({"v": "max", "*": "count"}), {"default"}),
    "sum": (("update",), lambda df: df.groupBy("k").sum(), {"default"}),
    "a filter": (
        ("update",),
        sql("SELECT k, sum(10 / (v - 2)) FILTER (WHERE v > 2), count(*) FILTER (WHERE v > 2) FROM events GROUP BY k"),
        {"default"},
    ),
    "SQL with windows": (("append",), lambda df: sql(WINDOW_SQL)(marked(df)), {"default"}),
    "SQL with a table used twice": (("update",), sql(TABLES_SQL), {"default", "default-2"}),
    "rollup": (("update",), lambda df: df.rollup("k", F.col("v") % 2).agg(F.sum("v")), {"default"}),
    "sessions": (
        ("append",),
        lambda df: (
            marked(df).groupBy("k", F.session_window("ts", "5 seconds")).agg(F.count("*").alias("n"), F.sum("v"))
        ),
        {"default"},
    ),
    "sessions of each row": (
        ("append",),
        lambda df: (
            marked(df)
            .groupBy("k", F.session_window("ts", F.expr("case when v > 5 then '3 seconds' else '9 seconds' end")))
            .agg(F.count("*").alias("n"), F.max("v"))
        ),
        {"default"},
    ),
    "a chain": (("append",), chained, {"default", "default-2"}),
    "a filter by a key": (
        ("update",),
        lambda df: marked(df.where("v != 12")).groupBy(F.window("ts", "10 seconds"), "k").count().where("k != 'a'"),
        {"default"},
    ),
    "a join of two": (("append",), joined, {"default", "default-2"}),
    "ordered in complete mode": (("complete",), lambda df: df.groupBy("k").count().orderBy("count", "k"), {"default"}),
}


@pytest.mark.parametrize(("case", "mode"), [(case, mode) for case, (modes, _, _) in CASES.items() for mode in modes])
def test_rows_are_sparks(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Callable[[], list[str]], case: str, mode: str
) -> None:
    plan, names = CASES[case][1:]
    sparks = history(feed, tmp_path, "sparks", mode, plan)
    assert lines() == []
    fc.spark.accelerate(spark, state=root, operators="all")
    ours = history(feed, tmp_path, "ours", mode, plan)
    said = lines()
    assert ours == sparks
    assert len(ours) > 2
    assert states(root) == names
    assert [line for line in said if "stays" in line] == []
    assert len(said) == len(names) * len(RUNS)


def test_a_line_names_the_operator(feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any) -> None:
    fc.spark.accelerate(spark, state=root, operators=["windows"])
    source = feed(SCHEMA, RUNS[0][0])
    frame = marked(source.stream()).groupBy(F.window("ts", "10 seconds"), "k").count()
    assert internals.observed_names(frame) == set(), "it is Spark's until the query starts"
    run(frame, tmp_path / "checkpoint")
    assert lines() == ["the aggregate by window, k runs on fastchangelog, under the name default"]
    assert internals.observed_names(frame) == set()


#: The mode, the job that stays with Spark, and the reason.
STAYS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a function": (
        "update",
        lambda df: df.groupBy("k").agg(F.hll_sketch_agg("v").alias("h")).select("k", F.hll_sketch_estimate("h")),
        "hll_sketch_agg(v, 12) is not supported",
    ),
    "no key": ("update", lambda df: df.groupBy().agg(F.sum("v")), "it has no key"),
    "a limit in complete mode": (
        "complete",
        lambda df: df.groupBy("k").count().orderBy(F.desc("count"), "k").limit(2),
        "behind it is a limit",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_is_not_supported_stays_with_spark(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any, case: str
) -> None:
    if case == "no key":
        skip_if_lacking("single stores")
    mode, plan, reason = STAYS[case]
    sparks = history(feed, tmp_path, "sparks", mode, plan)
    fc.spark.accelerate(spark, state=root, operators="all")
    assert history(feed, tmp_path, "ours", mode, plan) == sparks
    said = lines()
    assert len(said) == len(RUNS), said
    assert all("stays on Spark's operator: " in line for line in said), said
    assert reason in said[0]
    assert "holds its state" in said[1]
    assert not states(root)


def test_what_spark_refuses_is_refused(feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any) -> None:
    from pyspark.errors import AnalysisException

    stream = feed(SCHEMA, RUNS[0][0]).stream()
    jobs = [
        (stream.groupBy("k").count(), "append"),
        (stream.groupBy("k").count().groupBy("count").count(), "update"),
        (stream.groupBy("k").count().orderBy("k"), "update"),
    ]
    for frame, mode in jobs:
        with pytest.raises(AnalysisException) as theirs:
            run(frame, tmp_path / "checkpoint", mode=mode)
        fc.spark.accelerate(spark, state=root, operators="all")
        with pytest.raises(AnalysisException) as ours:
            run(frame, tmp_path / "checkpoint", mode=mode)
        fc.spark.accelerate(spark, enabled=False)
        assert ours.value.getCondition() == theirs.value.getCondition()
    assert lines() == []
    with pytest.raises(Exception, match="sideways"):
        stream.writeStream.start(outputMode="sideways")


def test_auto_takes_what_is_not_expected_to_be_slower(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any
) -> None:
    fc.spark.accelerate(spark, state=root)
    source = feed(SCHEMA, RUNS[0][0])
    jobs = {
        "plain": (source.stream().groupBy("k").count(), "update"),
        "tumbling": (marked(source.stream()).groupBy(F.window("ts", "10 seconds"), "k").count(), "append"),
        "sliding": (marked(source.stream()).groupBy(F.window("ts", "8 seconds", "2 seconds")).count(), "append"),
        "complete": (marked(source.stream()).groupBy(F.window("ts", "8 seconds", "2 seconds")).count(), "complete"),
    }
    said = {}
    for name, (frame, mode) in jobs.items():
        run(frame, tmp_path / name, mode=mode)
        [said[name]] = lines()
    assert "leaves aggregates without windows to Spark" in said["plain"]
    assert "takes windows from an overlap of 4 on" in said["tumbling"]
    assert said["sliding"] == "the aggregate by window runs on fastchangelog, under the name default"
    assert "leaves complete mode to Spark" in said["complete"]
    fc.spark.accelerate(spark, state=root, operators=["processors", "deduplication"])
    run(jobs["sliding"][0], tmp_path / "another", mode="append")
    assert "does not name windows" in lines()[0]


def test_auto_takes_all_windows_on_rocksdb(feed: Any, spark: Any, tmp_path: Any, root: str, lines: Any) -> None:
    source, sessions = feed(SCHEMA, RUNS[0][0]), (spark.newSession(), spark.newSession())
    sessions[0].conf.set(settings.PROVIDER, settings.REQUIRED[settings.PROVIDER])
    settings.prepare_session(sessions[1])  # set by us, not by the user
    for session, expected in zip(sessions, ("runs on fastchangelog", "stays on Spark's operator"), strict=True):
        fc.spark.accelerate(session, state=root)
        rows = marked(Feed(session, source.folder, SCHEMA).stream())
        run(rows.groupBy(F.window("ts", "10 seconds")).count(), tmp_path / expected)
        assert expected in lines()[0]


def test_the_choice_is_checked(spark: Any, root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="did you mean 'windows'"):
        fc.spark.accelerate(spark, state=root, operators=["window"])
    with pytest.raises(fc.InvalidArgumentError, match="neither 'auto' nor 'all'"):
        fc.spark.accelerate(spark, state=root, operators="windows")
    assert not _accelerated
    assert choice_of(("processors",)).refusal("processors") is None


def test_a_checkpoint_of_spark_stays_with_spark(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any
) -> None:
    source, checkpoint = feed(SCHEMA, RUNS[0][0]), tmp_path / "checkpoint"
    run(source.stream().groupBy("k").count(), checkpoint)
    source.add([row("a", 5, 1)])
    fc.spark.accelerate(spark, state=root, operators="all")
    ran = run(source.stream().groupBy("k").count(), checkpoint)
    assert rows_of(ran.batches[1]) == [("a", 4)]
    [line] = lines()
    assert "holds its state" in line
    assert "import_state" in line
    assert not states(root)


def test_a_checkpoint_of_ours_stays_ours(feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any) -> None:
    """Whatever is chosen later; and where ours cannot go on, nothing begins without the state."""
    source, checkpoint = feed(SCHEMA, RUNS[0][0]), tmp_path / "checkpoint"
    fc.spark.accelerate(spark, state=root, operators="all")
    run(source.stream().groupBy("k").count(), checkpoint)
    source.add([row("a", 5, 1)])
    fc.spark.accelerate(spark, state=root, operators="auto")
    ran = run(source.stream().groupBy("k").count(), checkpoint)
    assert rows_of(ran.batches[1]) == [("a", 4)]
    assert ["runs on fastchangelog" in line for line in lines()] == [True, True]
    source.add([row("a", 5, 1)])
    other = source.stream().groupBy("k").agg(F.hll_sketch_agg("v"))
    with pytest.raises(fc.InvalidArgumentError, match="holds the state of fastchangelog's operator"):
        run(other, checkpoint)
    fc.spark.accelerate(spark, enabled=False)
    with pytest.raises(Exception, match="STATE"):
        run(source.stream().groupBy("k").count(), checkpoint)
    fc.spark.accelerate(spark, state=root)
    ran = run(source.stream().groupBy("k").count(), checkpoint)
    assert rows_of(ran.batches[2]) == [("a", 5)]


def test_operators_of_both_kinds_in_a_query(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any
) -> None:
    """One on Spark's operator, one on ours; each goes on with its own state, whatever is chosen later."""

    def plan(df: Any) -> Any:
        plain = marked(df).groupBy("k").agg(F.sum("v").alias("n"))
        windows = marked(df).groupBy(F.window("ts", "8 seconds", "2 seconds"), "k").agg(F.sum("v").alias("n"))
        return plain.unionByName(windows.select("k", "n"))

    sparks = history(feed, tmp_path, "sparks", "update", plan)
    source, found = feed(SCHEMA, name="ours"), {}
    for batches, operators in zip(RUNS, ("auto", "all"), strict=True):
        for rows in batches:
            source.add(rows)
        fc.spark.accelerate(spark, state=root, operators=operators)
        found.update(run(plan(source.stream()), tmp_path / "checkpoint").batches)
    assert {number: rows_of(rows) for number, rows in found.items() if rows} == sparks
    assert states(root) == {"default"}
    assert ["runs" in line for line in lines()] == [False, True] * 2


@pytest.mark.parametrize("is_first", [True, False])
def test_chains_of_both_kinds(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any, is_first: bool
) -> None:
    """Ours before Spark's operator, and behind it."""
    sliding, tumbling = ("8 seconds", "2 seconds"), ("10 seconds",)

    def plan(df: Any) -> Any:
        first, second = (sliding, tumbling) if is_first else (tumbling, sliding)
        inner = marked(df).groupBy(F.window("ts", *first), "k").agg(F.sum("v").alias("v"))
        return inner.groupBy(F.window("window", *second)).agg(F.sum("v"), F.count("*"))

    sparks = history(feed, tmp_path, "sparks", "append", plan)
    fc.spark.accelerate(spark, state=root)
    assert history(feed, tmp_path, "ours", "append", plan) == sparks
    assert states(root) == {"default"}
    assert ["runs" in line for line in lines()] == [not is_first, is_first] * 2


def test_it_is_undone_and_other_sessions_keep_sparks(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any
) -> None:
    source = feed(SCHEMA, RUNS[0][0])
    fc.spark.accelerate(spark, state=root, operators="all")
    fc.spark.accelerate(spark, enabled=False)
    ran = run(source.stream().groupBy("k").count(), tmp_path / "first")
    assert rows_of(ran.batches[0]) == rows_of([("a", 3), ("b", 1), (None, 1)])
    fc.spark.accelerate(spark.newSession(), state=root, operators="all")
    run(source.stream().groupBy("k").count(), tmp_path / "second")
    assert lines() == []
    assert not states(root)


def test_batch_frames_are_left_alone(spark: Any, root: str, lines: Any) -> None:
    fc.spark.accelerate(spark, state=root, operators="all")
    frame = spark.createDataFrame(RUNS[0][0], SCHEMA).groupBy("k").count()
    assert rows_of(frame.collect()) == rows_of([("a", 3), ("b", 1), (None, 1)])
    assert lines() == []


def test_all_ways_to_start(feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any) -> None:
    """A mode and a checkpoint that are given to `start`, a folder of checkpoints, a table as the sink."""
    fc.spark.accelerate(spark, state=root, operators="all")
    source = feed(SCHEMA, *RUNS[0])

    def finished(query: Any) -> None:
        query.awaitTermination(120)
        query.stop()

    writer = source.stream().groupBy("k").count().writeStream.trigger(availableNow=True)
    location = str(tmp_path / "first")
    finished(writer.start(format="noop", outputMode="update", checkpointLocation=location))
    source.add([row("a", 5, 1)])
    writer = source.stream().groupBy("k").count().writeStream.trigger(availableNow=True)
    finished(writer.format("memory").queryName("counted").outputMode("complete").start())
    assert rows_of(spark.table("counted").collect()) == rows_of([("a", 7), ("b", 2), (None, 1)])
    windows = marked(source.stream()).groupBy(F.window("ts", "10 seconds")).agg(F.count("*").alias("n"))
    writer = windows.select("window.end", "n").writeStream.trigger(availableNow=True)
    finished(writer.toTable("windows", format="parquet", checkpointLocation=str(tmp_path / "second")))
    assert [row.n for row in spark.table("windows").orderBy("end").collect()] == [5, 2]
    spark.sql("DROP TABLE windows")
    assert ["runs on fastchangelog" in line for line in lines()] == [True] * 3


def test_names_of_operators_of_ours_are_left_out(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Any
) -> None:
    fc.spark.accelerate(spark, state=root, operators="all")
    stream = marked(feed(SCHEMA, *RUNS[0]).stream())
    mine = grouped(stream, F.window("ts", "5 seconds"), state=root, output_mode="append").agg(v=fc.sum("v"))
    run(mine.groupBy(F.window("window", "10 seconds")).agg(F.sum("v")), tmp_path / "checkpoint", mode="append")
    assert states(root) == {"default", "default-2"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [(settings.FORMAT_VERSION, "1"), ("spark.sql.streaming.statefulOperator.allowMultiple", "false")],
)
def test_settings_of_spark_stay_as_they_are(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, root: str, lines: Any, setting: str, value: str
) -> None:
    conf(setting, value)
    fc.spark.accelerate(spark, state=root, operators="all")
    ran = run(feed(SCHEMA, RUNS[0][0]).stream().groupBy("k").count(), tmp_path / "checkpoint")
    assert rows_of(ran.batches[0]) == rows_of([("a", 3), ("b", 1), (None, 1)])
    [line] = lines()
    assert setting in line
    assert spark.conf.get(setting) == value


DISTINCT: dict[str, Callable[[Any], Any]] = {
    "dropDuplicates": lambda df: df.select("k", "v").dropDuplicates(["k"]),
    "dropDuplicates with the time": lambda df: marked(df).dropDuplicates(["ts", "k"]),
    "dropDuplicatesWithinWatermark": lambda df: marked(df).dropDuplicatesWithinWatermark(["k"]),
    "before an aggregate": lambda df: (
        marked(df).dropDuplicates(["ts", "k"]).groupBy(F.window("ts", "8 seconds", "2 seconds")).agg(F.sum("v"))
    ),
}


@pytest.mark.parametrize("case", DISTINCT)
def test_distinct_rows_are_sparks(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, lines: Callable[[], list[str]], case: str
) -> None:
    sparks = history(feed, tmp_path, "sparks", "append", DISTINCT[case])
    fc.spark.accelerate(spark, state=root)
    assert history(feed, tmp_path, "ours", "append", DISTINCT[case]) == sparks
    assert all("runs on fastchangelog" in line for line in lines())
    assert states(root) == ({"default", "default-2"} if case == "before an aggregate" else {"default"})
