"""What a worker does once, and only once; a worker of another version.

Owns: tests of `spark.task`. Does not own: tasks inside Spark (tests/spark).
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import pyarrow as pa
import pytest

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import task
from fastchangelog.spark.batch import BatchOperator
from fastchangelog.spark.operator import OperatorConfig, ShardProcessor, open_request
from fastchangelog.spark.split import Split

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


def test_the_first_batch_of_a_run_is_told_apart_from_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    properties: dict[str, str] = {}
    monkeypatch.setattr(task, "local_property", properties.get)
    monkeypatch.setattr(task, "_first_batches", {})
    assert not task.is_first_of_run(), "no batch of a stream"
    for run, batch, first in [("a", 7, True), ("a", 7, True), ("b", 0, True), ("a", 8, False), ("b", 1, False)]:
        properties.update({task.RUN_ID: run, task.BATCH_ID: str(batch)})
        assert task.is_first_of_run() is first
    for number in range(1_000):
        properties[task.RUN_ID] = f"run {number}"
        assert task.is_first_of_run()
    assert len(task._first_batches) < 300


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
    """Spark Connect runs the writes of foreachBatch outside of the query: such tasks have none of its properties."""
    config = OperatorConfig("{}", "file:///state", "default", pa.schema([]), {}, {}, 2)
    with pytest.raises(InvalidArgumentError, match="foreachBatch"):
        open_request(config, 0, None)
