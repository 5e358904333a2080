"""What is refused when a query starts, with real rows: output modes, and one operator twice.

Owns: the verdicts, and that no sink got a row before one.
Does not own: what is checked when a query is built (`test_build`).
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import grouped, internals_queries, starts
from fastchangelog.spark.failures import explain_error
from support.spark.stream_harness import rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 10)]]
TOTALS = {0: [("a", 1, 1), ("b", 1, 2)], 1: [("a", 2, 11)]}
TRACEBACK = "fastchangelog.errors.InvalidArgumentError: the query writes the result of grouped() in append mode"


def build(source: Any, tmp_path: pathlib.Path, **kwargs: Any) -> Any:
    out = grouped(source.stream(), "k", state=str(tmp_path / "state"), **kwargs)
    return out.agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def start(writer: Any, tmp_path: pathlib.Path) -> None:
    """Starts the query, without an output mode unless the writer has one, and waits for its end."""
    query = writer.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start()
    try:
        query.awaitTermination(120)
    finally:
        query.stop()


def refused(writer: Any, tmp_path: pathlib.Path) -> str:
    with pytest.raises(Exception, match=r"fastchangelog\.errors\.InvalidArgumentError") as error:
        start(writer, tmp_path)
    return explain_error(error.value)


def test_a_slow_checkpoint_in_s3_is_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    starts._advise("file:/data/checkpoint", {}.get)
    assert not caplog.records
    starts._advise("s3a://bucket/checkpoint", {}.get)
    [record] = caplog.records
    assert "AbortableStreamBasedCheckpointFileManager" in record.message
    assert "fs.s3a.performance.flags=create,mkdir" in record.message
    assert "spark-hadoop-cloud" in record.message


def test_the_settings_of_a_query_are_read_where_it_has_them(spark: Any, feed: Any, tmp_path: pathlib.Path) -> None:
    seen: dict[str, str | None] = {}
    names = ("spark.sql.streaming.checkpoint.fileChecksum.enabled", "spark.hadoop.fs.s3a.performance.flags", "nothing")
    spark.conf.set("fs.s3a.performance.flags", "create")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(starts, "is_in_s3", lambda _: True)
            patch.setattr(starts, "missing_settings", lambda get: seen.update({name: get(name) for name in names}))
            start(build(feed(SCHEMA, *BATCHES), tmp_path).writeStream.format("noop").outputMode("update"), tmp_path)
    finally:
        spark.conf.unset("fs.s3a.performance.flags")
    assert list(seen.values()) == ["false", "create", None]


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [p for p in folder.rglob("*.parquet") if p.is_file()]


def test_append_is_refused_before_the_memory_sink_has_a_row(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    message = refused(frame.writeStream.format("memory").queryName("appended"), tmp_path)
    assert message.startswith("InvalidArgumentError: the query writes the result of grouped() in append mode")
    assert 'outputMode("update")' in message
    assert spark.table("appended").count() == 0


def test_append_is_refused_before_a_file_is_written(feed: Any, tmp_path: pathlib.Path) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    message = refused(frame.writeStream.format("parquet").option("path", str(tmp_path / "out")), tmp_path)
    assert "append mode" in message
    assert not files(tmp_path / "out")
    assert not files(tmp_path / "state")


@pytest.mark.parametrize("sink", ["console", "noop"])
def test_append_is_refused_by_any_sink(feed: Any, tmp_path: pathlib.Path, sink: str) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    assert "append mode" in refused(frame.writeStream.format(sink).outputMode("append"), tmp_path)


def test_append_is_refused_after_further_steps_and_by_views(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    build(feed(SCHEMA, *BATCHES), tmp_path).withColumn("n", F.col("n") + 1).createOrReplaceTempView("totals")
    frame = spark.sql("with t as (select * from totals where s > 0) select k, n * 2 as twice from t")
    assert "append mode" in refused(frame.writeStream.format("noop"), tmp_path)


def test_append_is_refused_in_foreach_batch_and_update_goes_on(feed: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA, *BATCHES), []
    writer = build(source, tmp_path).writeStream.foreachBatch(lambda d, n: got.append((n, d.collect())))
    assert "append mode" in refused(writer, tmp_path)
    assert got == []
    ran = run(build(source, tmp_path), tmp_path / "ckpt")
    assert {n: rows_of(r) for n, r in ran.batches.items()} == TOTALS, "the same checkpoint, each row once"


def test_complete_mode_is_refused_where_spark_lets_it_pass(feed: Any, tmp_path: pathlib.Path) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    with pytest.raises(AnalysisException) as error:
        start(frame.writeStream.format("noop").outputMode("complete"), tmp_path)
    assert 'outputMode("update")' in explain_error(error.value), str(error.value)
    counted = frame.groupBy("n").agg(F.count("*"))  # with an aggregate of its own behind it, Spark takes complete mode
    assert "complete mode" in refused(counted.writeStream.format("noop").outputMode("complete"), tmp_path)


def test_a_limit_in_complete_mode_is_refused(feed: Any, tmp_path: pathlib.Path) -> None:
    """Spark would count it over all batches: the second one would return nothing."""
    frame = build(feed(SCHEMA, *BATCHES), tmp_path, output_mode="complete")
    with pytest.raises(InvalidArgumentError, match="take the limit in foreachBatch"):
        start(frame.orderBy("n").limit(1).writeStream.format("noop").outputMode("complete"), tmp_path)
    start(frame.orderBy("n").writeStream.format("noop").outputMode("complete"), tmp_path)


def test_other_queries_of_the_session_may_append(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *BATCHES)
    build(source, tmp_path)
    start(source.stream().writeStream.format("memory").queryName("plain"), tmp_path)
    assert spark.table("plain").count() == 3


def test_a_query_that_was_started_from_the_jvm_is_refused(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    writer = frame._jdf.writeStream().format("memory").queryName("from_jvm")
    query = writer.option("checkpointLocation", str(tmp_path / "ckpt")).start()
    with pytest.raises(Exception, match="append mode"):
        query.awaitTermination()
    assert spark.table("from_jvm").count() == 0


def twice_union(frame: Any) -> Any:
    return frame.where("k = 'a'").unionByName(frame.where("k = 'b'"))


def twice_join(frame: Any) -> Any:
    other = frame.select(F.col("k").alias("k2"), F.col("n").alias("n2"))
    return frame.join(other, F.expr("k = k2"))


@pytest.mark.parametrize(("twice", "mode"), [(twice_union, "update"), (twice_join, "append")])
def test_one_operator_twice_is_refused(
    feed: Any, spark: Any, tmp_path: pathlib.Path, twice: Callable[[Any], Any], mode: str
) -> None:
    frame = twice(build(feed(SCHEMA, *BATCHES), tmp_path, name="totals"))
    message = refused(frame.writeStream.format("memory").queryName("twice").outputMode(mode), tmp_path)
    assert ("'totals' is 2 times" if mode == "update" else "append mode") in message
    assert spark.table("twice").count() == 0


def test_one_operator_twice_through_a_common_table_is_refused(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    build(feed(SCHEMA, *BATCHES), tmp_path).createOrReplaceTempView("totals")
    frame = spark.sql("with t as (select * from totals) select k, n from t union all select k, s from t")
    assert "2 times" in refused(frame.writeStream.format("noop").outputMode("update"), tmp_path)


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        ("update", "ours", "sparks"),
        ("complete", "ours", "ours"),
        ("complete", "ours", "sparks"),
        ("complete", "sparks", "ours"),
    ],
)
def test_aggregates_of_changing_groups_are_refused(
    feed: Any, tmp_path: pathlib.Path, mode: str, first: str, second: str
) -> None:
    def group(df: Any, whose: str, name: str, key: str) -> Any:
        if whose == "sparks":
            return df.groupBy(key)
        return grouped(df, key, state=str(tmp_path / "state"), name=name, output_mode=mode)

    totals = group(feed(SCHEMA, *BATCHES).stream(), first, "totals", "k").agg(F.count("*").alias("n"))
    again = group(totals.where("n > 0"), second, "again", "n").agg(F.count("*").alias("keys"))
    message = refused(again.writeStream.format("noop").outputMode(mode), tmp_path)
    assert f"the groups that an aggregate returns in {mode} mode go into another" in message


def test_a_join_with_a_batch_frame_may_follow(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    names = spark.createDataFrame([("a", "Ann")], "k string, name string")
    ran = run(build(feed(SCHEMA, *BATCHES), tmp_path).join(names, "k"), tmp_path / "ckpt")
    assert [rows_of(rows) for rows in ran.batches.values()] == [[("a", 1, 1, "Ann")], [("a", 2, 11, "Ann")]]


def test_two_operators_need_two_names(feed: Any, tmp_path: pathlib.Path) -> None:
    one, two = feed(SCHEMA, *BATCHES, name="one"), feed(SCHEMA, *BATCHES, name="two")
    with pytest.raises(AnalysisException, match=r"fastchangelog\.default") as error:
        build(one, tmp_path).unionByName(build(two, tmp_path))
    assert "same name" in explain_error(error.value)
    other = build(one, tmp_path).unionByName(build(two, tmp_path, name="other"))
    ran = run(other, tmp_path / "ckpt")
    assert {n: rows_of(r) for n, r in ran.batches.items()} == {n: sorted(r * 2) for n, r in TOTALS.items()}


def test_a_session_has_one_listener(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *BATCHES)
    build(source, tmp_path)
    listeners = spark._jsparkSession.streams().listListeners
    before = len(listeners())
    build(source, tmp_path)
    assert len(listeners()) == before


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is warned of, by a logger that nothing else in this process has configured."""
    texts: list[str] = []
    logger = logging.Logger("a test")
    logger.addFilter(lambda record: texts.append(record.getMessage()) or False)  # type: ignore[func-returns-value]
    for module in (starts, internals_queries):
        monkeypatch.setattr(module, "_log", logger)
    return texts


def test_what_cannot_be_seen_is_logged_and_the_query_runs(
    feed: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    def hidden(*_: Any) -> Any:
        raise AttributeError("analyzedPlan is not there")

    monkeypatch.setattr(internals_queries, "_observed", hidden)
    ran = run(build(feed(SCHEMA, *BATCHES), tmp_path), tmp_path / "ckpt")
    assert {n: rows_of(r) for n, r in ran.batches.items()} == TOTALS
    assert any('outputMode("update")' in text and "analyzedPlan is not there" in text for text in warned)


def test_spark_connect_is_told_to_mind_the_output_mode(warned: list[str]) -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "session_id": "one"})()
    starts.watch(session)
    assert any('outputMode("update")' in text for text in warned)


@pytest.mark.parametrize(
    ("mode", "observed", "said"),
    [
        ("update", ("fastchangelog.a", "fastchangelog.b", "x", "x"), None),
        ("append", ("x",), None),
        ("append", (), None),
        ("append", ("x", "fastchangelog.a"), "append mode"),
        ("complete", ("fastchangelog.a",), "complete mode"),
        ("update", ("fastchangelog.a", "fastchangelog.b", "fastchangelog.a"), "'a' is 2 times"),
    ],
)
def test_verdicts(mode: str, observed: tuple[str, ...], said: str | None) -> None:
    found = starts.refusal_reason(internals_queries.StartingQuery(mode, observed))
    assert found is None if said is None else said in str(found)
