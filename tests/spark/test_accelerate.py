"""`accelerate(spark)`: PySpark's own `groupBy(…).transformWithState…` of a session, on our operator.

Owns: which calls are taken and which stay with Spark, what is said about it, names of operators, restarts.
Does not own: what the operator answers (`test_processor_states` and its siblings), Spark Connect (`test_connect`).
"""

from __future__ import annotations

import concurrent.futures
import logging
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import fastchangelog as fc
from fastchangelog.spark import grouped, internals, settings, versions
from fastchangelog.spark.acceleration import _accelerated, _built, _went_back
from fastchangelog.spark.failures import explain_error
from support.spark.lacks import skip_if_lacking
from support.spark.processor_harness import by_value, finish, start
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)

SCHEMA = "k string, v bigint"
OUTPUT = "k string, n bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 10)]]


class Total(StatefulProcessor):
    """The sum of a key's values, by frames: PySpark 4.0 has no Rows."""

    column = "v"

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self.total.get()
        n = (before[0] if before else 0) + sum(int(frame[self.column].sum()) for frame in rows)
        self.total.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.total.update((int(initialState["v"].iloc[0]),))

    def close(self) -> None:
        """Nothing to end."""


class TotalOfTotals(Total):
    """Behind another one."""

    column = "n"


class Declares(Total):
    """With a state of another type."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def init(self, handle: Any) -> None:
        handle.getValueState("total", self.schema)


class TotalOfRows(Total):
    """The same with Rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # type: ignore[override]
        before = self.total.get()
        n = (before[0] if before else 0) + sum(row.v for row in rows)
        self.total.update((n,))
        yield Row(k=key[0], n=n)


def total(df: Any, mode: str = "Update", processor: Any = None, **more: Any) -> Any:
    """As a job has it that knows nothing of fastchangelog."""
    return df.groupBy("k").transformWithStateInPandas(processor or Total(), OUTPUT, mode, "None", **more)


def operators(df: Any) -> set[str]:
    """Names of our operators in a plan."""
    return {name.removeprefix("fastchangelog.") for name in internals.observed_names(df)}


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    _accelerated.clear()
    _built.clear()
    _went_back.clear()


@pytest.fixture
def accelerated(spark: Any, root: str) -> Any:
    fc.spark.accelerate(spark, state=root)
    return spark


@pytest.fixture
def stream(feed: Any) -> Any:
    return feed(SCHEMA, *BATCHES).stream()


def test_a_job_as_it_is(feed: Any, spark: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    source = feed(SCHEMA, *BATCHES)
    root, got = tmp_path / "state", {}  # type: tuple[pathlib.Path, dict[int, list[Any]]]
    caplog.set_level(logging.INFO, "fastchangelog.spark")
    fc.spark.accelerate(spark, state=root)
    for _ in range(2):  # built anew, as after a restart
        caplog.clear()
        frame = total(source.stream())
        finish(start(frame, tmp_path / "checkpoint", got))
        said = [record.message for record in caplog.records if "runs on fastchangelog" in record.message]
        assert said == ["transformWithStateInPandas() of Total runs on fastchangelog, under the name default"]
        source.add([("a", 100)])
    assert {n: rows_of(rows) for n, rows in got.items()} == {
        0: [("a", 1), ("b", 2)],
        1: [("a", 11)],
        2: [("a", 111)],
    }
    assert [folder.name for folder in root.glob("*/*") if folder.is_dir()] == ["default"]


def test_both_methods(spark: Any, accelerated: Any, stream: Any) -> None:
    assert operators(total(stream)) == {"default"}
    skip_if_lacking("rows")
    group = stream.groupBy("k")
    assert operators(group.transformWithState(TotalOfRows(), OUTPUT, "Append", "None")) == {"default"}
    by_name = group.transformWithState(
        statefulProcessor=TotalOfRows(), outputStructType=OUTPUT, outputMode="Update", timeMode="None"
    )
    assert operators(by_name) == {"default"}


def test_it_is_undone(spark: Any, accelerated: Any, stream: Any) -> None:
    fc.spark.accelerate(spark, enabled=False)
    assert operators(total(stream)) == set()
    fc.spark.accelerate(spark, enabled=False)  # once more does no harm
    fc.spark.accelerate(spark, state=accelerated.conf.get("spark.sql.warehouse.dir").removeprefix("file:") + "/state")
    assert operators(total(stream)) == {"default"}


def test_other_sessions_are_not_accelerated(spark: Any, accelerated: Any, tmp_path: pathlib.Path) -> None:
    other = spark.newSession()
    schema = spark.createDataFrame([], SCHEMA).schema
    other.conf.set(settings.PROVIDER, settings.REQUIRED[settings.PROVIDER])
    folder = str(tmp_path)
    assert operators(total(other.readStream.schema(schema).json(folder))) == set()
    assert operators(total(spark.readStream.schema(schema).json(folder))) == {"default"}
    fc.spark.accelerate(other, state=tmp_path / "elsewhere")
    fc.spark.accelerate(spark, enabled=False)
    assert operators(total(other.readStream.schema(schema).json(folder))) == {"default"}
    assert operators(total(spark.readStream.schema(schema).json(folder))) == set()


def test_the_methods_are_replaced_once(spark: Any, root: str, stream: Any) -> None:
    kind = type(stream.groupBy("k"))
    fc.spark.accelerate(spark, state=root)
    replaced = kind.transformWithStateInPandas
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: fc.spark.accelerate(spark, state=root), range(20)))
    assert kind.transformWithStateInPandas is replaced
    native = internals.native_method(stream.groupBy("k"), "transformWithStateInPandas")
    assert native.func.__module__ == "pyspark.sql.pandas.group_ops"  # type: ignore[attr-defined]
    assert replaced.__doc__ == native.func.__doc__  # type: ignore[attr-defined]
    assert not internals.is_diverted(native.func)  # type: ignore[attr-defined]


def test_what_is_not_supported_stays_with_spark_and_says_why(
    accelerated: Any, stream: Any, conf: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastchangelog.spark")

    def stays(build: Any, reason: str) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            built = build()
        ours = [w for w in caught if "stays on Spark's operator" in str(w.message)]
        assert len(ours) == 1, [str(w.message) for w in caught]
        assert reason in str(ours[0].message)
        assert ours[0].filename == __file__
        assert operators(built) == set()
        assert built.columns == ["k", "n"]

    stays(lambda: total(stream, "Complete"), "is complete")
    stays(lambda: stream.groupBy().transformWithStateInPandas(Total(), OUTPUT, "Update", "None"), "at least one key")
    stays(lambda: stream.rollup("k").transformWithStateInPandas(Total(), OUTPUT, "Update", "None"), "a rollup, a cube")
    months = stream.withColumn("months", F.expr("interval '1' month * v"))
    stays(lambda: total(months), "interval")
    for dtype in ("interval", "variant", *(["geometry(4326)"] if versions.HAS_SPATIAL_TYPES else [])):
        declares = Declares(f"n {dtype}")
        stays(lambda declares=declares: total(stream, processor=declares), f"state `total` has the type {dtype}")
    two = stream.select("k", "v", F.current_timestamp().alias("t")).withWatermark("t", "1 second")
    two = two.withColumn("u", F.col("t"))
    stays(lambda: total(two), "carry a watermark each")
    conf(settings.FORMAT_VERSION, "1")
    stays(lambda: total(stream), settings.FORMAT_VERSION)
    assert not [record for record in caplog.records if "runs on fastchangelog" in record.message]


def test_an_unsupported_query_runs_as_spark_runs_it(
    accelerated: Any, feed: Any, conf: Any, tmp_path: pathlib.Path, root: str
) -> None:
    conf(settings.PROVIDER, settings.REQUIRED[settings.PROVIDER])
    conf(settings.FORMAT_VERSION, "1")
    got: dict[int, list[Any]] = {}
    with pytest.warns(UserWarning, match="stays on Spark's operator"):
        frame = total(feed(SCHEMA, *BATCHES).stream())
    finish(start(frame, tmp_path / "checkpoint", got))
    assert {n: rows_of(rows) for n, rows in got.items()} == {0: [("a", 1), ("b", 2)], 1: [("a", 11)]}
    assert not pathlib.Path(root).exists() or not list(pathlib.Path(root).iterdir())


def test_a_checkpoint_of_ours_never_goes_on_with_sparks_operator(
    accelerated: Any, feed: Any, conf: Any, tmp_path: pathlib.Path, root: str
) -> None:
    """Whatever brings the query there: a setting of the cluster, a type of the source, another library's patch."""
    source = feed(SCHEMA, BATCHES[0])
    got: dict[int, list[Any]] = {}
    finish(start(total(source.stream()), tmp_path / "checkpoint", got))
    source.add(BATCHES[1])

    def falls_back() -> Any:
        conf(settings.FORMAT_VERSION, "1")
        with pytest.warns(UserWarning, match="stays on Spark's operator"):
            return total(source.stream())

    def is_switched_off() -> Any:
        fc.spark.accelerate(accelerated, enabled=False)
        return total(source.stream())

    def is_patched() -> Any:
        group = source.stream().groupBy("k")
        return internals.native_method(group, "transformWithStateInPandas")(Total(), OUTPUT, "Update", "None")

    for build in (falls_back, is_switched_off, is_patched):
        of_spark = build is falls_back and not versions.READS_LOGS_OF_BOTH_FORMATS(versions.PYSPARK)
        refusal = "INVALID_LOG_VERSION" if of_spark else "would begin with empty states"
        with pytest.raises(Exception, match=refusal) as error:
            finish(start(build(), tmp_path / "checkpoint", got))
        if not of_spark:
            assert explain_error(error.value).startswith("InvalidArgumentError: the checkpoint holds the state of fast")
        conf(settings.FORMAT_VERSION, "2")
        fc.spark.accelerate(accelerated, state=root)
    finish(start(total(source.stream()), tmp_path / "checkpoint", got))
    assert {n: rows_of(rows) for n, rows in got.items()} == {0: [("a", 1), ("b", 2)], 1: [("a", 11)]}


def test_a_query_that_accelerate_has_not_seen_is_warned_of(accelerated: Any, feed: Any, tmp_path: pathlib.Path) -> None:
    group = feed(SCHEMA, BATCHES[0]).stream().groupBy("k")
    frame = internals.native_method(group, "transformWithStateInPandas")(Total(), OUTPUT, "Update", "None")
    with pytest.warns(UserWarning, match="was not called through accelerate"):
        finish(start(frame, tmp_path / "checkpoint", {}))


def test_errors_of_the_user_stay_errors(accelerated: Any, stream: Any) -> None:
    class Failing(Total):
        def init(self, handle: Any) -> None:
            raise LookupError("no such table")

    group = stream.groupBy("k")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(fc.InvalidArgumentError, match="give an instance"):
            total(stream, processor=Total)
        with pytest.raises(LookupError, match="no such table"):
            total(stream, processor=Failing())
        with pytest.raises(fc.InvalidArgumentError, match="outputStructType"):
            group.transformWithStateInPandas(Total(), "long", "Update", "None")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'timeMode'"):
            group.transformWithStateInPandas(Total(), OUTPUT, "Update")
        with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
            group.transformWithStateInPandas(Total(), OUTPUT, "Update", "None", mode="x")
        for mode, time in (("Sideways", "None"), ("Update", "Sidereal")):
            native = internals.native_method(group, "transformWithStateInPandas")
            with pytest.raises(Exception) as theirs:
                native(Total(), OUTPUT, mode, time)
            with pytest.raises(type(theirs.value)) as ours:
                group.transformWithStateInPandas(Total(), OUTPUT, mode, time)
            assert ours.value.getCondition() == theirs.value.getCondition()


def test_keys_of_all_kinds(accelerated: Any, spark: Any, feed: Any) -> None:
    """As Spark's operator takes them: qualified names, columns of the frame, names that need quotes, other cases."""
    schema = "k string, v bigint, `a b` string, `c.d` string"
    stream = feed(schema, [("a", 1, "x", "y")]).stream().alias("t")
    for key in ("t.k", "K", stream["k"], F.col("t.k"), "a b", "`c.d`", ["k"]):
        group = stream.groupBy(key)
        out = group.transformWithStateInPandas(Total(), OUTPUT, "Update", "None")
        assert operators(out) == {"default"}


def test_keys_that_spark_refuses_are_refused(accelerated: Any, stream: Any) -> None:
    for key in (F.upper("k"), F.upper("k").alias("other")):
        group = stream.groupBy(key)
        native = internals.native_method(group, "transformWithStateInPandas")
        with pytest.raises(Exception) as theirs:
            _ = native(Total(), OUTPUT, "Update", "None").schema
        with pytest.raises(type(theirs.value)) as ours:
            group.transformWithStateInPandas(Total(), OUTPUT, "Update", "None")
        assert ours.value.getCondition() == theirs.value.getCondition()


def test_arguments_are_checked(spark: Any, root: str, conf: Any) -> None:
    conf(settings.STATE, None)
    with pytest.raises(fc.InvalidArgumentError, match=r"spark\.fastchangelog\.state"):
        fc.spark.accelerate(spark)
    with pytest.raises(fc.InvalidArgumentError, match="hot_memori"):
        fc.spark.accelerate(spark, state=root, options={"hot_memori": "1GiB"})
    with pytest.raises(fc.InvalidArgumentError, match="SparkSession"):
        fc.spark.accelerate("spark", state=root)  # type: ignore[arg-type]
    assert not _accelerated
    conf(settings.STATE, root)
    fc.spark.accelerate(spark)
    assert len(_accelerated) == 1


def test_options_reach_the_operators(spark: Any, root: str, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "fastchangelog.spark.processor.stream.transform",
        lambda grouping, call: seen.append((grouping, call)) or stream,
    )
    fc.spark.accelerate(
        spark, state="s3://bucket/state", options={"payload_size": "1MiB"}, storage_options={"region": "x"}
    )
    total(stream)
    grouping, call = seen[0]
    assert grouping.root == "s3://bucket/state"
    assert grouping.options["payload_size"] == "1MiB"
    assert grouping.storage_options.show()["region"] == "x"
    assert (call.api, call.output_mode, call.time_mode) == ("pandas", "Update", "None")
    assert (call.initial_state, call.event_time_column) == (None, "")


def test_chained_processors_have_names_of_their_own(
    feed: Any, spark: Any, tmp_path: pathlib.Path, accelerated: Any, root: str
) -> None:
    """The same names after a restart: each processor finds its own state."""
    source = feed("k string, v bigint, t timestamp")
    got: dict[int, list[Any]] = {}

    def build() -> Any:
        first = total(source.stream(), "Append").withColumn("v", F.col("n"))
        second = total(first, "Append", TotalOfTotals())
        assert (operators(first), operators(second)) == ({"default"}, {"default", "default-2"})
        return second

    for rows in ([("a", 1, None), ("b", 2, None)], [("a", 10, None)]):
        source.add(rows)
        finish(start(build(), tmp_path / "checkpoint", got, "append"))
    assert {n: rows_of(rows) for n, rows in got.items()} == {0: [("a", 1), ("b", 2)], 1: [("a", 12)]}
    folders = {folder.name for folder in pathlib.Path(root).glob("*/*") if folder.is_dir()}
    assert folders == {"default", "default-2"}


def test_names_that_grouped_was_given_are_left_out(accelerated: Any, stream: Any, root: str) -> None:
    explicit = grouped(stream, "k", state=root, name="mine").transformWithStateInPandas(
        Total(), OUTPUT, "Append", "None"
    )
    assert operators(explicit) == {"mine"}
    assert operators(total(explicit, "Append", TotalOfTotals())) == {"mine", "default"}
    both = grouped(explicit, "k", state=root).transformWithStateInPandas(TotalOfTotals(), OUTPUT, "Append", "None")
    assert operators(both) == {"mine", "default"}
    assert operators(total(both, "Append", TotalOfTotals())) == {"mine", "default", "default-2"}


def test_a_frame_behind_a_view_is_seen(accelerated: Any, stream: Any, spark: Any) -> None:
    total(stream, "Append").createOrReplaceTempView("totals")
    assert operators(total(spark.table("totals"), "Append", TotalOfTotals())) == {"default", "default-2"}


def test_processors_beside_each_other_keep_states_of_their_own(
    feed: Any, accelerated: Any, root: str, tmp_path: pathlib.Path
) -> None:
    """Two results in a union, then all of it twice: four operators, the same ones after a restart."""
    source = feed(SCHEMA)
    got: dict[int, list[Any]] = {}

    def build() -> Any:
        one = total(source.stream(), "Append")
        other = total(source.stream().where("v > 1"), "Append").select(F.upper("k").alias("k"), "n").where("n > 0")
        union = one.union(other)
        twice = union.unionByName(other=union.withColumn("n", F.col("n") * 1000))
        assert (operators(one), operators(other)) == ({"default"}, {"default"})
        assert operators(union) == {"default", "default-2"}
        assert operators(twice) == {"default", "default-2", "default-3", "default-4"}
        return twice

    for rows in BATCHES:
        source.add(rows)
        finish(start(build(), tmp_path / "checkpoint", got, "append"))
    first, second = [("a", 1), ("b", 2), ("B", 2)], [("a", 11), ("A", 10)]
    assert {n: rows_of(rows) for n, rows in got.items()} == {
        n: rows_of([(k, v * times) for k, v in rows for times in (1, 1000)]) for n, rows in ((0, first), (1, second))
    }
    folders = {folder.name for folder in pathlib.Path(root).glob("*/*") if folder.is_dir()}
    assert folders == {"default", "default-2", "default-3", "default-4"}


def test_chains_beside_each_other(accelerated: Any, stream: Any) -> None:
    def chain() -> Any:
        return total(total(stream, "Append").withColumn("v", F.col("n")), "Append", TotalOfTotals())

    one, other = chain(), chain()
    both = one.union(other)
    assert operators(both) == {"default", "default-2", "default-3", "default-4"}
    assert both.columns == ["k", "n"]
    other = other.withColumnRenamed("n", "m")
    assert one.join(other, "k").columns == ["k", "n", "m"]
    assert operators(one.join(other, one["k"] == other["k"])) == operators(both)


def test_names_of_grouped_are_left_as_they_are(accelerated: Any, stream: Any, root: str) -> None:
    one = total(stream, "Append")
    named = grouped(stream.where("v > 1"), "k", state=root, name="other")
    other = named.transformWithStateInPandas(Total(), OUTPUT, "Append", "None")
    assert operators(one.union(other)) == {"default", "other"}
    same = grouped(stream.where("v > 1"), "k", state=root).transformWithStateInPandas(Total(), OUTPUT, "Append", "None")
    assert operators(same.union(one)) == {"default", "default-2"}
    with pytest.raises(Exception, match="DUPLICATED_METRICS_NAME") as error:
        finish(one.union(same).writeStream.format("noop").start())
    assert "name=" in explain_error(error.value)


def test_batch_frames_run_on_ours_too(accelerated: Any, spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastchangelog.spark")
    df = spark.createDataFrame([*BATCHES[0], *BATCHES[1]], SCHEMA)
    initial = spark.createDataFrame([("a", 100)], SCHEMA).groupBy("k")
    assert rows_of(total(df, initialState=initial).collect()) == [("a", 111), ("b", 2)]
    assert [r for r in caplog.records if "runs on fastchangelog" in r.message]


def test_the_initial_state_of_a_stream(accelerated: Any, spark: Any, feed: Any, tmp_path: pathlib.Path) -> None:
    got: dict[int, list[Any]] = {}
    initial = spark.createDataFrame([("a", 100)], SCHEMA).groupBy("k")
    frame = total(feed(SCHEMA, *BATCHES).stream(), initialState=initial)
    assert operators(frame) == {"default"}
    finish(start(frame, tmp_path / "checkpoint", got))
    assert {n: rows_of(rows) for n, rows in got.items()} == {0: [("a", 101), ("b", 2)], 1: [("a", 111)]}


def test_an_initial_state_of_ours_cannot_go_to_spark(accelerated: Any, spark: Any, stream: Any, root: str) -> None:
    initial = grouped(spark.createDataFrame([("a", 100)], SCHEMA), "k", state=root)
    for given in (initial, fc.spark.import_state(root)):
        with pytest.raises(fc.InvalidArgumentError, match="is complete"):
            total(stream, "Complete", initialState=given)


def test_a_checkpoint_of_sparks_operator_is_refused(
    feed: Any, spark: Any, tmp_path: pathlib.Path, root: str, conf: Any
) -> None:
    for key, value in settings.REQUIRED.items():
        conf(key, value)
    source = feed(SCHEMA, *BATCHES)
    finish(start(total(source.stream()), tmp_path / "checkpoint", {}))
    source.add([("a", 1)])
    fc.spark.accelerate(spark, state=root)
    with pytest.raises(Exception) as error:
        finish(start(total(source.stream()), tmp_path / "checkpoint", {}))
    assert "new checkpoint" in explain_error(error.value), str(error.value)[:3000]
