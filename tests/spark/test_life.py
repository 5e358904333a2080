"""The life of a query: restarts, failures, settings in checkpoints, sinks that run a batch several times, metrics."""

from __future__ import annotations

import pathlib
import re
import shutil
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog.spark import grouped, metrics, settings
from fastchangelog.spark.failures import explain_error
from support.spark.stream_harness import FORMAT, PROVIDER, end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
BATCHES = [[("a", 1), ("b", 2), ("c", 3)], [("a", 10)], [("b", 20), ("d", 4)], [("a", 100), ("d", 40), (None, 7)]]


def build(feed: Any, tmp_path: pathlib.Path, **kwargs: Any) -> Any:
    out = grouped(feed.stream(), "k", state=str(tmp_path / "state"), **kwargs)
    return out.agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def expected(batches: list[list[Any]]) -> dict[int, list[Any]]:
    """What update mode answers: the changed keys of each batch with all they have."""
    state: dict[Any, tuple[int, int]] = {}
    out = {}
    for number, rows in enumerate(batches):
        for k, v in rows:
            n, s = state.get(k, (0, 0))
            state[k] = (n + 1, s + v)
        out[number] = rows_of([(k, *state[k]) for k in {k for k, _ in rows}])
    return out


def answers(ran: Any) -> dict[int, list[Any]]:
    return {n: rows_of(r) for n, r in ran.batches.items()}


def test_a_restart_goes_on_where_it_ended(feed: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA), {}
    for rows in BATCHES:
        source.add(rows)
        got.update(answers(run(build(source, tmp_path), tmp_path / "ckpt")))
    assert got == expected(BATCHES)


@pytest.mark.case("E-02")
def test_a_restart_with_an_empty_disk_restores_from_the_store(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA), {}
    for rows in BATCHES:
        source.add(rows)
        ran = run(build(source, tmp_path), tmp_path / "ckpt")
        got.update(answers(ran))
        for child in end_state_server(spark).iterdir():  # the server is gone; now everything it had on disk goes
            shutil.rmtree(child, ignore_errors=True)
    assert got == expected(BATCHES)
    restored = [p.observedMetrics["fastchangelog.default"]["restores"] for p in ran.progress if p.numInputRows]
    assert sum(restored) > 0


def test_other_partitions_after_a_restart_change_nothing(feed: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    rows = [[(f"key{i}", i) for i in range(60)] for _ in range(3)]
    source, got = feed(SCHEMA), {}
    for partitions, batch in zip(("2", "5", "1"), rows, strict=True):
        conf("spark.sql.shuffle.partitions", partitions)
        source.add(batch)
        got.update(answers(run(build(source, tmp_path), tmp_path / "ckpt")))
    assert got == expected(rows)


def test_tuned_settings_may_change_between_restarts(feed: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA), {}
    for number, rows in enumerate(BATCHES):
        for key, ours in settings.HELPFUL.items():
            conf(key, ours if number % 2 else {"true": "false", "false": "true"}[ours])
        source.add(rows)
        got.update(answers(run(build(source, tmp_path), tmp_path / "ckpt")))
    assert got == expected(BATCHES)


@pytest.mark.parametrize(
    "action",
    {
        "collect twice": lambda d: (d.collect(), d.collect())[1],
        "isEmpty first": lambda d: (d.isEmpty(), d.collect())[1],
        "limit first": lambda d: (d.limit(1).collect(), d.collect())[1],
        "orderBy": lambda d: d.orderBy("k").collect(),
        "count and orderBy": lambda d: (d.count(), d.orderBy("s").collect(), d.collect())[1],
        "persist": lambda d: (d.persist(), d.count(), d.collect(), d.unpersist())[2],
    }.items(),
    ids=lambda item: item[0],
)
def test_a_sink_may_run_a_batch_several_times(feed: Any, tmp_path: pathlib.Path, action: Any) -> None:
    ran = run(build(feed(SCHEMA, *BATCHES), tmp_path), tmp_path / "ckpt", lambda d, _: action[1](d))
    assert answers(ran) == expected(BATCHES)


def test_a_sink_that_fails_once_gets_the_same_batch_again(feed: Any, tmp_path: pathlib.Path) -> None:
    source, got, failed = feed(SCHEMA, *BATCHES), {}, []

    def sink(batch: Any, number: int) -> Any:
        rows = batch.collect()
        if number == 2 and not failed:
            failed.append(number)
            raise RuntimeError("sink down")
        return rows

    with pytest.raises(Exception, match="sink down"):
        run(build(source, tmp_path), tmp_path / "ckpt", lambda d, n: got.setdefault(n, rows_of(sink(d, n))))
    run(build(source, tmp_path), tmp_path / "ckpt", lambda d, n: got.update({n: rows_of(sink(d, n))}))
    assert failed
    assert got == expected(BATCHES)


def test_several_queries_share_a_session_and_a_root(feed: Any, tmp_path: pathlib.Path) -> None:
    one, two = feed(SCHEMA, *BATCHES, name="one"), feed(SCHEMA, *BATCHES[1:], name="two")
    a = run(build(one, tmp_path), tmp_path / "ckpt-one")
    b = run(build(two, tmp_path), tmp_path / "ckpt-two")
    assert answers(a) == expected(BATCHES)
    assert answers(b) == expected(BATCHES[1:])
    folders = {p.name for p in (tmp_path / "state").iterdir() if p.is_dir()}
    assert len(folders) >= 2, "one folder per query id under the root"


@pytest.mark.case("N-06")
def test_one_operator_feeds_another(feed: Any, tmp_path: pathlib.Path) -> None:
    changes = build(feed(SCHEMA, *BATCHES), tmp_path)
    size = F.when(F.col("n") > 1, "many").otherwise("one").alias("size")
    frame = grouped(changes, size, state=str(tmp_path / "state"), name="second").agg(F.count("*").alias("changes"))
    got = answers(run(frame, tmp_path / "ckpt"))
    assert got == {0: [("one", 3)], 1: [("many", 1)], 2: [("many", 2), ("one", 4)], 3: [("many", 4), ("one", 5)]}


def test_the_memory_sink_in_update_mode(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    query = frame.writeStream.format("memory").queryName("mem").outputMode("update").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "ckpt")).start().awaitTermination(120)
    assert rows_of(spark.table("mem").collect()) == rows_of([r for b in expected(BATCHES).values() for r in b])


def test_complete_mode_is_refused_by_spark(feed: Any, tmp_path: pathlib.Path) -> None:
    frame = build(feed(SCHEMA, *BATCHES), tmp_path)
    with pytest.raises(Exception, match=r"(?i)complete"):
        frame.writeStream.format("noop").outputMode("complete").option(
            "checkpointLocation", str(tmp_path / "ckpt")
        ).start().awaitTermination(60)


def test_metrics_are_in_the_users_progress(feed: Any, tmp_path: pathlib.Path) -> None:
    ran = run(build(feed(SCHEMA, *BATCHES), tmp_path, name="sales"), tmp_path / "ckpt")
    seen = [p.observedMetrics["fastchangelog.sales"].asDict() for p in ran.progress if p.numInputRows]
    assert [m["rows_merged"] for m in seen] == [3, 1, 2, 3]
    assert [m["keys_updated"] for m in seen] == [3, 1, 2, 3]
    assert all(m["log_bytes"] > 0 and m["commit_micros"] >= 0 for m in seen)
    assert seen[0]["state_keys"] == 3
    assert tuple(seen[0]) == metrics.OF_AGGREGATION.names


def _last_line_of_the_traceback(error: BaseException) -> str:
    text = str(error)
    trace = text[text.index("Traceback (most recent call last)") :]
    trace = re.split(r"\n\s*(?:at |Driver stacktrace|===)", trace)[0]
    return [line for line in trace.splitlines() if line.strip() and "SQLSTATE" not in line][-1]


@pytest.mark.parametrize("key", [FORMAT, PROVIDER])
def test_a_checkpoint_with_other_settings_is_refused_in_the_task(
    feed: Any, conf: Any, tmp_path: pathlib.Path, key: str
) -> None:
    source = feed(SCHEMA, *BATCHES)
    frame = build(source, tmp_path)  # the settings are right when it is built …
    other = {FORMAT: "1", PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
    conf(key, other[key])  # … and wrong when it starts
    with pytest.raises(Exception) as error:
        run(frame, tmp_path / "ckpt")
    if key == PROVIDER:  # Spark's own operator refuses it before a task runs, each Spark version in its own words
        assert "a state store other than RocksDB" in explain_error(error.value)
    else:
        assert key in str(error.value)
        assert _last_line_of_the_traceback(error.value).startswith("fastchangelog.errors.InvalidArgumentError: ")
        assert "must be" in explain_error(error.value)


def test_a_failure_in_a_task_ends_with_our_line(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *BATCHES)

    def provider() -> dict[str, str]:
        try:
            raise KeyError("inner")
        except KeyError as cause:
            raise ValueError("no\ncredentials today") from cause

    with pytest.raises(Exception, match="no credentials today") as error:
        run(build(source, tmp_path, storage_options={"credential_provider": provider}), tmp_path / "ckpt")
    last = _last_line_of_the_traceback(error.value)
    said = "credentials could not be fetched: ValueError: no credentials today; find out why"
    assert last.startswith(f"fastchangelog.errors.RetryableError: {said}")
    assert 'KeyError("inner")' in str(error.value), "the stack of the user's own function is shown"
    assert "During handling" not in str(error.value)


def test_inside_foreach_batch_it_warns(feed: Any, tmp_path: pathlib.Path) -> None:
    def sink(batch: Any, number: int) -> Any:
        with pytest.warns(UserWarning, match="inside a foreachBatch"):
            return grouped(batch, "k", state=str(tmp_path / "state")).agg(F.sum("v")).collect()

    ran = run(feed(SCHEMA, BATCHES[0]).stream(), tmp_path / "ckpt", sink)
    assert rows_of(ran.batches[0]) == [("a", 1), ("b", 2), ("c", 3)]


def test_empty_batches_and_shards_without_rows(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, [("a", 1)], [], [("a", 2)])
    ran = run(build(source, tmp_path), tmp_path / "ckpt")
    got = {n: r for n, r in answers(ran).items() if r}
    assert sorted(got.values(), key=repr) == [[("a", 1, 1)], [("a", 2, 3)]]


def test_a_watermark_upstream_passes_through(feed: Any, tmp_path: pathlib.Path) -> None:
    stream = feed("k string, ts timestamp", *[[("a", None)]]).stream().withWatermark("ts", "5 seconds")
    frame = grouped(stream, "k", state=str(tmp_path / "state")).agg(F.count("*").alias("n"), F.max("ts").alias("t"))
    assert rows_of(run(frame, tmp_path / "ckpt").batches[0]) == [("a", 1, None)]


def test_credential_provider_is_asked_in_the_task(feed: Any, tmp_path: pathlib.Path) -> None:
    marks = tmp_path / "asked"
    marks.mkdir()

    def provider() -> dict[str, str]:
        import tempfile

        tempfile.mkstemp(dir=marks)
        return {}

    source = feed(SCHEMA, *BATCHES)
    run(build(source, tmp_path, storage_options={"credential_provider": provider}), tmp_path / "ckpt")
    assert len(list(marks.iterdir())) >= len(BATCHES)
