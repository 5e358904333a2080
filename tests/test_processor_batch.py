"""A processor over a batch DataFrame, in one task with several shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_state_session import FakeSession
from processor_runs import Runner
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog import _internal
from fastchangelog.spark.operator import OperatorConfig
from fastchangelog.spark.processor import batch, payloads
from fastchangelog.spark.processor.exact_types import exact_schema
from fastchangelog.spark.processor.operator import ProcessorConfig
from fastchangelog.spark.shard_ids import shard_ids


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


def test_each_shard_of_a_task_has_an_instance_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "open_state_session", lambda *_: Session())
    monkeypatch.setattr(payloads, "_spill_folder", lambda: str(tmp_path))
    runner = Runner(Once)
    rows = runner.columns_of([(name, i) for i, name in enumerate("abcdefgh")], runner.columns)
    spec = runner.spec()
    operator = OperatorConfig("", "file:///state", "default", exact_schema(spec.output, "the output"), {}, {}, 4)
    splitter = _internal.RowSplitter(1, rows.schema, 4, 128, 2**20)
    split = sorted([*splitter.push(rows), *splitter.finish()])
    assert len({shard for shard, _ in split}) > 1
    arrived = pa.record_batch(
        [
            pa.array([shard_ids(4)[shard] for shard, _ in split]),
            pa.array([False] * len(split)),
            pa.array([payload for _, payload in split], pa.binary()),
            pa.array([5] * len(split)),
        ],
        names=["shard", "initial", "payload", "now"],
    )
    task = batch.BatchProcessor(ProcessorConfig(operator, spec, rows.schema, None, None))
    found = [row for answer in task(iter([arrived])) for row in answer.to_pylist()]
    assert sorted(row["k"] for row in found) == list("abcdefgh")
    assert sorted(row["n"] for row in found if row["n"] % 1000 == 1) == [1001] * len({shard for shard, _ in split})
    assert all(row["n"] // 1000 == 1 for row in found)
