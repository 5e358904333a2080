"""Functions of `foreachBatch` that use their batch in their own way: from other threads, in a job group, in part.

Owns: the counts after each of them, what a processor is told of its query, the errors. Does not own: the same over
objects that stand for Spark's (tests/test_followed_batches, tests/test_task).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark import InheritableThread
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark import grouped
from fastchangelog.spark.failures import explain_error
from support.spark.processor_harness import by_value, finish
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)

SCHEMA = "k string"
KEYS = [(key,) for key in "abcdefgh"]


class Told(StatefulProcessor):
    """Counts rows, and says what it was told of its query."""

    def init(self, handle: Any) -> None:
        info = handle.getQueryInfo()
        self.run = info.getRunId()
        self.info = info
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self.total.get()
        n = (before[0] if before else 0) + sum(len(frame) for frame in rows)
        self.total.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "run": [self.run], "batch": [self.info.getBatchId()]})

    def close(self) -> None:
        """Nothing to end."""


def build(kind: str, stream: Any, root: str) -> Any:
    group = grouped(stream, "k", state=root)
    if kind == "aggregation":
        return group.agg(F.count("*").alias("n"))
    output = "k string, n bigint, run string, batch bigint"
    return group.transformWithStateInPandas(Told(), output, "Update", "None")


class Serving:
    """A thread with the properties of the batch that it was made in, for ever."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread: Any = None

    def __call__(self, job: Callable[[], Any]) -> Any:
        if self.thread is None:
            self.thread = InheritableThread(target=self.serve, daemon=True)
            self.thread.start()
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.work.put((job, future))
        return future.result(120)

    def serve(self) -> None:
        while True:
            job, future = self.work.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)


def in_a_pool(batch: Any) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = (future.result() for future in [pool.submit(batch.collect), pool.submit(batch.collect)])
    assert rows_of(one) == rows_of(other), "two sinks get the same rows"
    return one


def in_asyncio(batch: Any) -> list[Any]:
    return asyncio.run(asyncio.to_thread(batch.collect))


def kept_when_first_used(batch: Any) -> list[Any]:
    batch.persist()
    rows = in_a_pool(batch)
    batch.unpersist()
    return rows


def in_an_rdd(batch: Any) -> list[Any]:
    return batch.rdd.map(tuple).collect()


def in_a_job_group(batch: Any) -> list[Any]:
    batch.sparkSession.sparkContext.setJobGroup("etl", "the user's own")
    return batch.collect()


@pytest.mark.parametrize("kind", ["aggregation", "processor"])
def test_a_batch_may_be_used_from_any_thread_and_job_group(feed: Any, tmp_path: pathlib.Path, kind: str) -> None:
    serving = Serving()
    ways: list[Callable[[Any], list[Any]]] = [
        lambda batch: serving(batch.collect),
        in_a_job_group,
        in_a_pool,
        lambda batch: serving(batch.collect),
        in_an_rdd,
        in_asyncio,
        kept_when_first_used,
    ]
    frame = build(kind, feed(SCHEMA, *[KEYS] * len(ways)).stream(), str(tmp_path / "state"))
    got: dict[int, list[Any]] = {}

    def use(batch: Any, number: int) -> None:
        got[number] = ways[number](batch)

    query = start(frame, tmp_path, use)
    finish(query)
    told = [] if kind == "aggregation" else [str(query.runId)]
    for number in range(len(ways)):
        want = [(key, number + 1, *told, *([number] if told else [])) for (key,) in KEYS]
        assert rows_of(got[number]) == rows_of(want), number
    assert len(got) == len(ways)


def start(frame: Any, tmp_path: pathlib.Path, use: Callable[[Any, int], None]) -> Any:
    writer = frame.writeStream.foreachBatch(use).outputMode("update").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()


def refused(query: Any) -> str:
    with pytest.raises(Exception, match=r"fastchangelog\.errors\.InvalidArgumentError") as error:
        finish(query)
    return explain_error(error.value)


def test_a_batch_that_cannot_be_right_fails_the_query_goes_on(feed: Any, tmp_path: pathlib.Path) -> None:
    def rdd_in_a_thread(batch: Any) -> Any:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: batch.rdd.map(tuple).collect()).result()

    def cut(batch: Any) -> Any:
        return batch.limit(1).write.format("noop").mode("overwrite").save()

    frame = build("aggregation", feed(SCHEMA, KEYS, KEYS).stream(), str(tmp_path / "state"))
    for wrong, said in (
        (cut, "the result was not read to its end in batch 0"),
        (lambda batch: batch.take(1), "the result was not read to its end in batch 0"),
        (lambda batch: None, "the result was not read to its end in batch 0"),
        (rdd_in_a_thread, "this task does not know its query"),
    ):
        message = refused(start(frame, tmp_path, lambda batch, number, wrong=wrong: wrong(batch)))
        assert said in message
        assert "batch.persist()" in message
    got: dict[int, list[Any]] = {}

    def whole(batch: Any, number: int) -> None:
        batch.persist().count()
        if number == 0:
            assert cut(batch) is None
        got[number] = [(row.k, row.n) for row in rdd_in_a_thread_of(batch)]
        batch.unpersist()

    def rdd_in_a_thread_of(batch: Any) -> Any:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: batch.rdd.collect()).result()

    finish(start(frame, tmp_path, whole))
    assert {number: rows_of(rows) for number, rows in got.items()} == {
        number: rows_of([(key, number + 1) for (key,) in KEYS]) for number in (0, 1)
    }
