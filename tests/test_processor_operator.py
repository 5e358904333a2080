"""The operator of a processor as Spark calls it, over a fake handle and sessions that keep a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from fastchangelog import _internal
from fastchangelog.spark import settings, task
from fastchangelog.spark.processor import operator
from fastchangelog.spark.processor.operator import ProcessorConfig, ProcessorOperator
from fastchangelog.spark.shard_task import OperatorConfig
from fastchangelog.spark.types.spark_arrow import spark_schema
from support.fake_state_session import FakeSession, Store
from support.processor_runs import Runner


class Counts(StatefulProcessor):
    """Counts rows; deletes the counts before each batch if it shall."""

    def __init__(self, deletes: bool) -> None:
        self.deletes = deletes

    def init(self, handle: Any) -> None:
        if self.deletes:
            handle.deleteIfExists("n")
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.n.get()
        self.n.update(((before[0] if before else 0) + len(list(rows)),))
        yield Row(k=key[0], n=self.n.get()[0])

    def close(self) -> None:
        pass


class Shard:
    """What Spark keeps for a shard, and the store that its handles stand for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        self.kept: tuple[Any, ...] | None = None
        self.stores: list[Store] = []
        monkeypatch.setattr(operator, "open_state_session", self.open)
        monkeypatch.setattr("fastchangelog.spark.processor.payloads.spill_folder", lambda: str(tmp_path))
        self.properties = {
            **settings.REQUIRED,
            task.QUERY: "query",
            task.QUERY_ID: "query",
            task.FIRST_BATCH: "0",
            task.BATCH_ID: "3",
        }
        monkeypatch.setattr(task, "local_property", self.properties.get)
        monkeypatch.setattr(_internal, "handle_json", lambda _: json.dumps({"batch": -1}))

    def open(self, request: str, *_: Any) -> Any:
        handle = json.loads(request)["handle"]
        shard = self

        class Session(FakeSession):
            def commit(self, watermark: int | None = None) -> Any:
                shard.stores.append(super().commit())
                return str(len(shard.stores) - 1), {}

            def close(self) -> None:
                pass

        return Session(None if handle is None else self.stores[int(handle)])

    def getValueState(self, *_: Any) -> Shard:
        return self

    def get(self) -> Any:
        return self.kept

    def update(self, value: tuple[Any, ...]) -> None:
        self.kept = value

    def batch(self, rows: list[tuple[Any, ...]], *, deletes: bool) -> list[Any]:
        """The results of a batch; without rows the shard gets a heartbeat."""
        return self.run(Runner(Counts(deletes)), rows, deletes=deletes)

    def run(self, runner: Runner, rows: list[tuple[Any, ...]], **settings: Any) -> list[Any]:
        """The results of a batch of any processor."""
        columns = runner.columns_of(rows, runner.columns)
        payloads = [b""]
        if rows:
            splitter = _internal.RowSplitter(1, columns.schema, 1, 128, 2**20)
            payloads += [payload for _, payload in [*splitter.push(columns), *splitter.finish()]]
        spec = runner.spec()
        config = OperatorConfig("", "file:///state", "default", spark_schema(spec.output, "the output"), {}, {}, 1)
        initial = None if runner.initial is None else runner.columns_of([], runner.initial).schema
        run = ProcessorOperator(ProcessorConfig(config, spec, columns.schema, None, initial, **settings))
        run.init(self)
        frames = run.handleInputRows((0,), iter([pd.DataFrame({"payload": payloads})]), TimerValues())
        found = [(key, n) for frame in frames for key, n in zip(frame["k"], frame["n"]) if not pd.isna(key)]
        run.close()
        return found


def test_a_shard_without_rows_deletes_what_init_deletes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    shard = Shard(monkeypatch, tmp_path)
    assert shard.batch([], deletes=True) == []
    assert shard.kept == ("0", None, None), "it has the states that `init` declares"
    assert shard.batch([("a", 1)], deletes=False) == [("a", 1)]
    assert shard.batch([], deletes=False) == []
    assert shard.batch([("a", 1)], deletes=False) == [("a", 2)]
    assert shard.batch([], deletes=True) == []
    assert shard.batch([("a", 1)], deletes=False) == [("a", 1)]


def test_calls_have_one_form_in_all_shards_of_a_first_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    class Sizes(Counts):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(k=key[0], n=len(list(rows)))

    shard = Shard(monkeypatch, tmp_path)
    runner = Runner(Sizes(False), initial="total long", max_records=2)
    rows = [("a", i) for i in range(5)]
    shard.properties[task.BATCH_ID] = "0"
    assert shard.run(runner, rows) == [("a", 2), ("a", 2), ("a", 1)], "this shard has no rows of the initial state"
    shard.properties[task.BATCH_ID] = "1"
    assert shard.run(runner, rows) == [("a", 5)]


def test_ansi_mode_is_that_of_the_query() -> None:
    asked = {"spark.sql.ansi.enabled": "false"}
    assert operator.spark_settings(asked.get) == {"ansi": False}
    assert operator.spark_settings({}.get) == {}
