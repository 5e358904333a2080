"""What is checked and decided on the driver when `grouped(…).agg(…)` is built: no query runs here."""

from __future__ import annotations

import pathlib
import sys
import warnings
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.window import Window

import fastchangelog as fc
from fastchangelog.spark import grouped, settings
from support.spark.stream_harness import FORMAT, PROVIDER

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = (
    "k string, g int, price decimal(12,2), qty bigint, f float, d double, b boolean, s string, ts timestamp, "
    "day date, m map<string,int>, st struct<a:int,b:string>, arr array<string>, bin binary"
)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.fixture
def df(spark: Any) -> Any:
    return spark.createDataFrame([], SCHEMA)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


EXPRESSIONS = {
    "count": lambda: [F.count("*"), F.count(F.lit(1)).alias("n"), F.count("price"), F.count("s").alias("s")],
    "sum": lambda: [F.sum("price"), F.sum("qty"), F.sum("f"), F.sum(F.col("qty") * 2 + 1), F.sum("g").alias("x.y")],
    "min max": lambda: [F.min("s"), F.max("ts"), F.max("bin"), F.min("st"), F.max("arr"), F.max("day"), F.min("b")],
    "avg": lambda: [F.avg("price"), F.mean("qty"), F.avg("f")],
    "first last": lambda: [F.first("s"), F.last("m", True), F.first("price", ignorenulls=True), F.first_value("s")],
    "bools": lambda: [F.bool_and("b"), F.bool_or(F.col("qty") > 1), F.every("b"), F.some("b")],
    "by": lambda: [F.max_by("s", "price"), F.min_by(F.col("st"), F.col("ts"))],
}


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_names_and_types_are_sparks_own(df: Any, root: str, kind: str) -> None:
    keys = ["k", F.col("g"), (F.col("qty") % 7), F.col("st.a").alias("sta")]
    ours = grouped(df, *keys, state=root).agg(*EXPRESSIONS[kind]())
    assert ours.schema == df.groupBy(*keys).agg(*EXPRESSIONS[kind]()).schema


def test_a_dict_and_names_mean_what_they_mean_in_pyspark(df: Any, root: str) -> None:
    aggregates = {"price": "max", "*": "count", "qty": "mean", "s": "first"}
    ours = grouped(df, "k", state=root).agg(aggregates)
    assert ours.schema == df.groupBy("k").agg(aggregates).schema
    named = grouped(df, "k", state=root).agg(F.sum("qty"), n=fc.count(), total=fc.sum("price"), top=F.max("qty"))
    assert named.columns == ["k", "sum(qty)", "n", "total", "top"]


@pytest.mark.parametrize("form", ["count", "sum", "avg", "mean", "min", "max"])
def test_short_forms_are_those_of_grouped_data(df: Any, root: str, form: str) -> None:
    narrow = df.select("k", "g", "price", "qty", "d")
    ours = getattr(grouped(narrow, "k", state=root), form)
    sparks = getattr(narrow.groupBy("k"), form)
    assert ours().schema == sparks().schema
    if form != "count":
        assert ours("qty", "d").schema == sparks("qty", "d").schema
        with pytest.raises(fc.InvalidArgumentError, match="not numeric"):
            getattr(grouped(df, "k", state=root), form)("s")


def test_builders_have_sparks_names(df: Any, root: str) -> None:
    ours = grouped(df, "k", state=root).agg(
        fc.count(), fc.sum("price"), fc.first("s", ignorenulls=True), fc.max_by("s", F.col("qty") + 1)
    )
    sparks = df.groupBy("k").agg(
        F.count("*"), F.sum("price"), F.first("s", ignorenulls=True), F.max_by("s", F.col("qty") + 1)
    )
    assert ours.schema == sparks.schema


def test_a_condition_is_in_the_name_as_sparks_filter_is(df: Any, root: str) -> None:
    ours = grouped(df, "k", state=root).agg(fc.sum("qty", where="g > 0 and b"), fc.count(where=F.col("g") > 0))
    sparks = df.groupBy("k").agg(F.expr("sum(qty) filter (where g > 0 and b)"), F.expr("count(1) filter (where g > 0)"))
    assert ours.dtypes == sparks.dtypes


REFUSED = {
    "an SQL text": lambda: F.expr("sum(price)"),
    "an SQL FILTER": lambda: F.expr("sum(price) FILTER (WHERE qty > 0)"),
    "arithmetic with a column": lambda: F.sum("price") + F.col("qty"),
    "distinct count": lambda: F.countDistinct("s"),
    "distinct sum": lambda: F.sum_distinct("qty"),
    "a window": lambda: F.sum("qty").over(Window.partitionBy("k")),
    "another function": lambda: F.hll_sketch_agg("qty"),
    "no aggregate": lambda: F.col("price"),
    "a constant": lambda: F.lit(1),
    "a called function": lambda: F.call_function("sum", F.col("qty")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_refused_by_its_text(df: Any, root: str, what: str) -> None:
    column = REFUSED[what]()
    with pytest.raises(fc.InvalidArgumentError) as error:
        grouped(df, "k", state=root).agg(column)
    text = str(column)[len("Column<'") : -2]
    assert f"`{text}`" in str(error.value)
    assert "supported are" in str(error.value)


@pytest.mark.parametrize("bad", [{"price": "percentile_approx"}, {"price": "max_by"}, {"*": "sum"}, "price", 3, ["x"]])
def test_other_shapes_are_refused(df: Any, root: str, bad: Any) -> None:
    with pytest.raises(fc.InvalidArgumentError):
        grouped(df, "k", state=root).agg(bad)
    with pytest.raises(fc.InvalidArgumentError, match="at least one aggregate"):
        grouped(df, "k", state=root).agg()
    with pytest.raises(fc.InvalidArgumentError, match="initial_state is for a stream's first batch"):
        grouped(df, "k", state=root).agg(F.count("*"), initial_state=df)


def test_session_windows_as_keys_of_processors_are_refused(df: Any, root: str) -> None:
    windows = grouped(df, F.session_window("ts", "5 minutes"), state=root)
    with pytest.raises(fc.InvalidArgumentError, match=r"session_window.* makes windows, which a processor"):
        windows.transformWithStateInArrow(cast("Any", object()), "k string")


def test_collated_strings_are_refused(spark: Any, root: str) -> None:
    collated = spark.sql("select 'a' collate UTF8_LCASE as c, struct('a' collate UNICODE as x) as st, 1 as k")
    for key in ("c", "st"):
        with pytest.raises(fc.InvalidArgumentError, match="collat"):
            grouped(collated, key, state=root).agg(F.count("*"))
    for aggregate in (F.max("c"), F.min_by("k", "c")):
        with pytest.raises(fc.InvalidArgumentError, match="collat"):
            grouped(collated, "k", state=root).agg(aggregate)
    assert grouped(collated, "k", state=root).agg(F.first("c"), F.max_by("c", "k")).columns[0] == "k"


def test_sparks_own_errors_come_early(df: Any, root: str) -> None:
    with pytest.raises(AnalysisException, match="prise"):
        grouped(df, "prise", state=root)
    with pytest.raises(AnalysisException, match="prise"):
        grouped(df, "k", state=root).agg(F.sum("prise"))
    with pytest.raises(AnalysisException, match="prise"):
        grouped(df, "k", state=root).agg(fc.count(where="prise > 1"))
    with pytest.raises(AnalysisException):
        grouped(df, "k", state=root).agg(F.sum("st"))
    with pytest.raises(AnalysisException):
        grouped(df, F.explode("arr"), state=root).agg(F.count("*"))
    with pytest.raises(AnalysisException, match="GROUP_EXPRESSION_TYPE_IS_NOT_ORDERABLE"):
        grouped(df, F.parse_json("s"), state=root).agg(F.count("*"))


def test_a_condition_must_be_boolean(df: Any, root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="must be boolean"):
        grouped(df, "k", state=root).agg(fc.count(where="qty"))


def test_keys_are_names_or_columns(df: Any, root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="at least one key"):
        grouped(df, state=root)
    with pytest.raises(fc.InvalidArgumentError, match="a column name or a Column"):
        grouped(df, 3.5, state=root)
    with pytest.raises(fc.InvalidArgumentError, match="DataFrame"):
        grouped("k", df, state=root)
    assert grouped(df, ["k", "g"], state=root).count().columns == ["k", "g", "count"]


@pytest.mark.case("N-01")
def test_no_state_shows_both_ways(df: Any, conf: Any, root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError) as error:
        grouped(df, "k")
    assert "state=" in str(error.value)
    assert "spark.fastchangelog.state" in str(error.value)
    conf("spark.fastchangelog.state", root)
    assert grouped(df, "k").count().columns == ["k", "count"]


@pytest.mark.parametrize("state", ["ftp://x/y", "s3://", "/proc/1/no/such", "file:///proc/nothing"])
def test_a_wrong_root_is_found_at_once(df: Any, state: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="the state's"):
        grouped(df, "k", state=state)


def test_options_are_checked(df: Any, conf: Any, root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="did you mean `memory_budget`"):
        grouped(df, "k", state=root, options={"memory_bugdet": "1GiB"})
    with pytest.raises(fc.InvalidArgumentError):
        grouped(df, "k", state=root, options={"memory_budget": "lots"})
    conf("spark.fastchangelog.memory_bugdet", "1GiB")
    with pytest.raises(fc.InvalidArgumentError, match="memory_bugdet"):
        grouped(df, "k", state=root)


@pytest.mark.parametrize("name", ["", "a/b", "..", " ", "x" * 101])
def test_a_name_must_fit_a_folder(df: Any, root: str, name: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="name="):
        grouped(df, "k", state=root, name=name)


@pytest.fixture
def stream(feed: Any) -> Any:
    return feed("k string", [("a",)]).stream()


def test_settings_are_set_where_unset_and_refused_where_other(stream: Any, spark: Any, conf: Any, root: str) -> None:
    conf(PROVIDER, None)
    conf(FORMAT, None)
    grouped(stream, "k", state=root)
    assert spark.conf.get(PROVIDER) == ROCKSDB
    assert spark.conf.get(FORMAT) == "2"
    conf(PROVIDER, HDFS)
    with pytest.raises(fc.InvalidArgumentError, match=PROVIDER):
        grouped(stream, "k", state=root)
    conf(PROVIDER, ROCKSDB)
    conf(FORMAT, "1")
    with pytest.raises(fc.InvalidArgumentError, match=FORMAT):
        grouped(stream, "k", state=root)


@pytest.mark.parametrize(("key", "ours"), settings.HELPFUL.items())
def test_a_users_tuning_is_not_overridden(stream: Any, spark: Any, conf: Any, root: str, key: str, ours: str) -> None:
    conf(key, None)
    grouped(stream, "k", state=root)
    assert spark.conf.get(key) == ours
    other = {"true": "false", "false": "true"}[ours]
    conf(key, other)
    grouped(stream, "k", state=root)
    assert spark.conf.get(key) == other


@pytest.mark.case("P7")
@pytest.mark.parametrize("key", [settings.ARROW_BYTES, settings.ARROW_ROWS])
def test_sparks_bounds_of_arrow_batches_stay_as_they_are(
    stream: Any, spark: Any, conf: Any, root: str, key: str
) -> None:
    conf(key, None)
    grouped(stream, "k", state=root).count()
    assert spark.conf.get(key, None) is None


def test_a_batch_frame_needs_no_settings_and_sets_none(spark: Any, conf: Any, root: str) -> None:
    state_store = "org.apache.spark.sql.execution.streaming.state.NoSuchProvider"
    for key, value in {PROVIDER: state_store, FORMAT: "1", **dict.fromkeys(settings.HELPFUL)}.items():
        conf(key, value)
    counted = grouped(spark.createDataFrame([("a",), ("b",), ("a",)], "k string"), "k", state=root).count()
    assert sorted(map(tuple, counted.collect())) == [("a", 2), ("b", 1)]
    assert [spark.conf.get(key, None) for key in settings.HELPFUL] == [None, None]
    assert (spark.conf.get(PROVIDER), spark.conf.get(FORMAT)) == (state_store, "1")


def test_in_local_mode_workers_run_this_interpreter(
    df: Any, spark: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "python3")
    grouped(df, "k", state=root)
    assert context.pythonExec == "python3", "PYSPARK_PYTHON is set"
    monkeypatch.delenv("PYSPARK_PYTHON")
    grouped(df, "k", state=root)
    assert context.pythonExec == sys.executable
    monkeypatch.setattr(context, "pythonExec", "/somewhere/python")
    grouped(df, "k", state=root)
    assert context.pythonExec == "/somewhere/python"


def test_many_waves_warn(feed: Any, conf: Any, root: str) -> None:
    stream = feed("k string", [("a",)]).stream()
    conf("spark.sql.shuffle.partitions", "9")
    with pytest.warns(UserWarning, match="9 with 2 slots"):
        grouped(stream, "k", state=root)
    conf("spark.sql.shuffle.partitions", "8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grouped(stream, "k", state=root)


def test_each_wave_after_the_first_is_a_round_trip_to_a_bucket(feed: Any, conf: Any) -> None:
    stream = feed("k string", [("a",)]).stream()
    conf("spark.sql.shuffle.partitions", "5")
    with pytest.warns(UserWarning, match="3 waves.*2 round trips"):
        grouped(stream, "k", state="s3://bucket/state")
    conf("spark.sql.shuffle.partitions", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grouped(stream, "k", state="s3://bucket/state")


def test_one_name_twice_in_a_query_is_an_error(feed: Any, root: str) -> None:
    stream = feed("k string, v int", [("a", 1)]).stream()
    one = grouped(stream, "k", state=root).agg(F.count("*").alias("n"))
    two = grouped(stream, "k", state=root).agg(F.sum("v").alias("n"))
    with pytest.raises(AnalysisException, match=r"fastchangelog\.default"):
        one.union(two).schema
    other = grouped(stream, "k", state=root, name="other").agg(F.sum("v").alias("n"))
    assert one.union(other).columns == ["k", "n"]


def test_credentials_are_not_shown(df: Any, root: str) -> None:
    built = grouped(df, "k", state=root, storage_options={"aws_secret_access_key": "hunter2"})
    plan = built.count()._jdf.queryExecution().toString()
    assert "hunter2" not in plan
    assert "hunter2" not in repr(built.grouping)
