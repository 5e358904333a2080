"""What a task knows of its query; what a worker does once, and only once; a worker of another version.

Owns: tests of `spark.task`. Does not own: tasks inside Spark (tests/spark).
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest

from fastchangelog import _internal
from fastchangelog.errors import InternalError, InvalidArgumentError
from fastchangelog.spark import task
from fastchangelog.spark.aggregates.batch import BatchOperator
from fastchangelog.spark.aggregates.operator import ShardProcessor
from fastchangelog.spark.aggregates.split import Split
from fastchangelog.spark.shard_task import OperatorConfig, batch_number, open_request, run_once

_SCRIPT = """
import gc, weakref
import pandas, pyarrow
from fastchangelog.spark import task

class Ring:
    def __init__(self):
        self.itself = self

garbage = weakref.ref(Ring())
gc.disable()
task.freeze_modules("split")
assert garbage() is None, "unreachable objects must go before the rest is frozen"
first = gc.get_freeze_count()
assert first > 50_000, first
assert len(gc.get_objects()) < 1_000, len(gc.get_objects())
later = [Ring() for _ in range(5_000)]
task.freeze_modules("split")
assert gc.get_freeze_count() <= first, "once for each kind: a task's own objects stay tracked"
task.freeze_modules("operator")
assert gc.get_freeze_count() > first, "the first task of another kind may have loaded more modules"
"""


def test_a_worker_freezes_its_modules_once_for_each_kind_of_task() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=120)


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The local properties of the task, and a worker that has seen no run."""
    found: dict[str, str] = {}
    monkeypatch.setattr(task, "local_property", found.get)
    monkeypatch.setattr(task, "is_first_partition", lambda: True)
    monkeypatch.setattr(task, "_first_batches", {})
    return found


#: Ids of runs.
A, B = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


def test_the_first_batch_of_a_run_is_told_apart_from_later_ones(properties: dict[str, str]) -> None:
    """Over Spark Connect, whose queries have no settings of ours."""
    for run, batch, first in [(A, 7, True), (A, 7, True), (B, 0, True), (A, 8, False), (B, 1, False)]:
        properties.update({task.RUN_ID: run, task.BATCH_ID: str(batch)})
        assert task.is_first_of_run() is first
    for number in range(1_000):
        properties[task.RUN_ID] = str(uuid.UUID(int=10 + number))
        assert task.is_first_of_run()
    assert len(task._first_batches) < 300


def query(number: int, first: int = 0) -> dict[str, str]:
    """The settings of a query's session, in a function of `foreachBatch`."""
    return {task.QUERY: "q", task.RUN: A, task.FIRST_BATCH: str(first), task.BATCH: str(number)}


def test_the_first_batch_is_known_in_any_job_group(properties: dict[str, str]) -> None:
    own = {task.QUERY_ID: "q", task.RUN_ID: "etl"}
    for first, batch, of_run in [(0, 0, True), (0, 1, False), (5, 5, True), (5, 6, False), (0, 0, True)]:
        properties.clear()
        properties.update({**query(batch, first), **own, task.BATCH_ID: str(batch)})
        assert task.is_first() is (batch == 0)
        assert task.is_first_of_run() is of_run, "also in a worker that has seen the group in another query"
        assert task.this_query() == task.TaskQuery("q", A, batch, first)


def test_a_thread_with_another_batch_or_query_is_not_believed(properties: dict[str, str]) -> None:
    stale = {task.QUERY_ID: "other", task.RUN_ID: B, task.BATCH_ID: "3"}
    properties.update({**stale, **query(7)})
    assert task.this_query() == task.TaskQuery("q", A, 7, 0)
    del properties[task.BATCH]
    assert task.this_query() == task.TaskQuery("q", A, None, 0), "the thread's batch is of another query"
    properties.update({task.QUERY_ID: "q", task.FIRST_BATCH: "4"})
    assert task.this_query().batch is None, "the thread is older than the run"
    assert task.is_first()
    assert task.is_first_of_run(), "an unknown batch may be the first one"


def test_a_thread_without_properties_knows_what_the_session_says(properties: dict[str, str]) -> None:
    properties.update(query(7))
    assert task.this_query() == task.TaskQuery("q", A, 7, 0)
    assert not task.is_first()
    assert not task.is_first_of_run()


def test_a_job_group_is_no_run(properties: dict[str, str]) -> None:
    properties.update({task.QUERY_ID: "q", task.RUN_ID: "etl", task.BATCH_ID: "1"})
    assert task.this_query().run is None
    properties[task.RUN_ID] = B
    assert task.this_query().run == B


@pytest.mark.parametrize(
    "shipped",
    [
        Split("{}", pa.schema([]), {}, 1, 2),
        ShardProcessor(OperatorConfig("{}", "file:///s", "default", pa.schema([]), {}, {}, 2)),
        BatchOperator(OperatorConfig("{}", "file:///s", "default", pa.schema([]), {}, {}, 2)),
    ],
    ids=["split", "operator", "batch"],
)
def test_a_worker_with_another_version_says_so(shipped: object, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(shipped)
    same = pickle.loads(data)
    assert type(same) is type(shipped)
    assert "fastchangelog version" not in vars(same)
    monkeypatch.setattr(_internal, "__version__", "0.0.9")
    with pytest.raises(InvalidArgumentError, match=r"two fastchangelog versions.*has 0\.1\.0, this worker has 0\.0\.9"):
        pickle.loads(data)


def test_a_task_of_no_query_is_refused_by_name() -> None:
    """Over Spark Connect, functions of foreachBatch work outside of the query: a tag names it, or nothing does."""
    config = OperatorConfig("{}", "file:///state", "default", pa.schema([]), {}, {}, 2)
    with pytest.raises(InvalidArgumentError, match=r"foreachBatch.*batch\.persist\(\).*InheritableThread") as error:
        open_request(config, 0, None)
    assert "Connect" not in str(error.value)
    with pytest.raises(InvalidArgumentError, match=r"over Spark Connect.*told of it where grouped\(\)"):
        open_request(dataclasses.replace(config, connect=True), 0, None)


def test_a_tag_of_the_job_names_the_query_where_spark_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"spark.sql.shuffle.partitions": "9", task.TAGS: "Connect_Operation_1"}
    context = SimpleNamespace(getLocalProperty=given.get)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
    assert task.this_query().query is None
    told = {task.QUERY: "q", task.BATCH: "7", task.FIRST_BATCH: "5", "spark.sql.shuffle.partitions": "2"}
    given[task.TAGS] += f",Session_s_Tag_{task.tag_of(told)},of the user"
    assert task.this_query() == task.TaskQuery("q", None, 7, 5)
    assert task.local_property("spark.sql.shuffle.partitions") == "2"
    assert not task.is_first_of_run()
    given.update({task.QUERY_ID: "inner", task.BATCH_ID: "0"})
    assert task.this_query() == task.TaskQuery("inner", None, 0, None), "started by the function"
    assert task.local_property("spark.sql.shuffle.partitions") == "9"


def test_an_rdd_of_another_thread_is_refused_before_a_split(properties: dict[str, str]) -> None:
    """It has no settings: neither the query nor the number of partitions, by which rows find their shard."""
    split = Split("{}", pa.schema([]), {}, 1, 2, streaming=True)
    with pytest.raises(InvalidArgumentError, match=r"does not know its query.*another thread.*InheritableThread"):
        list(split(iter([])))


def test_a_batch_comes_after_the_one_that_its_handle_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_internal, "handle_json", lambda handle: json.dumps({"batch": int(handle)}))
    assert batch_number(4, None) == 4
    assert batch_number(None, None) == 0
    assert batch_number(4, "3") == 4
    assert batch_number(None, "3") == 4, "unknown, but later than the one of the handle"
    with pytest.raises(InvalidArgumentError, match=r"batch 3 got the state of batch 3.*InheritableThread"):
        batch_number(3, "3")


def test_a_shard_runs_once_in_a_task() -> None:
    ran: set[int] = set()
    run_once(ran, 1)
    run_once(ran, 2)
    with pytest.raises(InternalError, match="twice for the shard 1"):
        run_once(ran, 1)
