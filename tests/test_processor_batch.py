"""A processor over a batch DataFrame, in one task with several shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog import _internal
from fastchangelog.spark.processor import batch, payloads
from fastchangelog.spark.processor.operator import ProcessorConfig
from fastchangelog.spark.shard_ids import shard_ids
from fastchangelog.spark.shard_task import OperatorConfig
from fastchangelog.spark.types.spark_arrow import spark_schema
from support.fake_state_session import FakeSession
from support.processor_runs import Runner


class Once(StatefulProcessor):
    """Counts the calls of `init` in an attribute, and the rows in another."""

    def __init__(self) -> None:
        self.inits = 0
        self.rows = 0

    def init(self, handle: Any) -> None:
        self.inits += 1

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.rows += len(list(rows))
        yield Row(k=key[0], n=self.inits * 1000 + self.rows)

    def close(self) -> None:
        pass


class Session(FakeSession):
    def close(self) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Runs rows of a runner in one task with four shards, over sessions that keep nothing."""
    monkeypatch.setattr(batch, "open_state_session", lambda *_: Session())
    monkeypatch.setattr(payloads, "spill_folder", lambda: str(tmp_path))

    def answers(runner: Runner, rows: Sequence[Any], initial: Sequence[Any] | None = None) -> list[Any]:
        spec = runner.spec()
        given = [(False, runner.columns_of(rows, runner.columns))]
        if initial is not None:
            assert runner.initial is not None
            given.append((True, runner.columns_of(initial, runner.initial)))
        arrived = []
        for is_initial, columns in given:
            splitter = _internal.RowSplitter(1, columns.schema, 4, 128, 2**20)
            split = [*splitter.push(columns), *splitter.finish()]
            arrived += [(shard_ids(4)[shard], not is_initial, payload) for shard, payload in split]
        arrived.sort()
        assert len({shard for shard, _, _ in arrived}) > 1
        table = pa.record_batch(
            [
                pa.array([shard for shard, _, _ in arrived]),
                pa.array([not is_input for _, is_input, _ in arrived]),
                pa.array([payload for _, _, payload in arrived], pa.binary()),
                pa.array([5] * len(arrived)),
            ],
            names=["shard", "initial", "payload", "now"],
        )
        operator = OperatorConfig("", "file:///state", "default", spark_schema(spec.output, "the output"), {}, {}, 4)
        first = None if initial is None else given[1][1].schema
        task = batch.BatchProcessor(ProcessorConfig(operator, spec, given[0][1].schema, None, first))
        return [tuple(row.values()) for answer in task(iter([table])) for row in answer.to_pylist()]

    return answers


def test_each_shard_of_a_task_has_an_instance_of_its_own(run: Callable[..., list[Any]]) -> None:
    found = run(Runner(Once), [(name, i) for i, name in enumerate("abcdefgh")])
    assert sorted(key for key, _ in found) == list("abcdefgh")
    assert all(n // 1000 == 1 for _, n in found)
    assert sum(1 for _, n in found if n == 1001) > 1


def test_calls_have_one_form_in_all_shards_of_a_first_batch(run: Callable[..., list[Any]]) -> None:
    class Sizes(Once):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(k=key[0], n=len(list(rows)))

    rows = [(name, i) for i in range(5) for name in "abcdefgh"]
    found = run(Runner(Sizes, initial="total long", max_records=2), rows, [("a", 1)])
    assert [n for key, n in found if key == "a"] == [1, 2, 2]
    for name in "bcdefgh":
        assert [n for key, n in found if key == name] == [2, 2, 1]
