"""Sweeps of a state server: which states are its own, what it logs and counts, what it cannot read.

Owns: these, at a server in this process whose sweeper a test calls. Does not own: sweeps of the checkpoints of Spark
beside a running query (`spark/test_sweep_spark`), the sweep itself (`test_gc_background`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastchangelog.layout import GC_STATE
from fastchangelog.server.sweeper import server_sweeper
from support.swept import Engine


class Swept:
    """An engine whose sweeper's clock is a test's."""

    def __init__(self, base: Path, **options: str) -> None:
        self.engine = Engine(base / "e", base / "state", **({"options": options} if options else {}))
        self.log = base / "e" / "log"
        self.now = 0.0
        self.sweeper = server_sweeper(self.engine.server, base / "e", lambda: self.now)

    def sweep(self) -> None:
        self.sweeper.poll()
        self.now += 100_000.0
        self.sweeper.poll()

    def lines(self) -> list[dict[str, object]]:
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [event for event in events if event["event"] == "sweep"]


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[Callable[..., Swept]]:
    made: list[Swept] = []

    def make(**options: str) -> Swept:
        made.append(Swept(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.engine.stop()


@pytest.mark.case("P6")
def test_a_checkpoint_only_spark_reads_is_said_once_and_counted(swept: Callable[..., Swept], tmp_path: Path) -> None:
    one = swept()
    one.engine.batch(0, None, checkpoint="hdfs://host/ckpt")
    one.sweep()
    for mark in tmp_path.rglob(GC_STATE):
        os.utime(mark, (0, 0))  # its note is of another day
    one.sweep()
    (line,) = one.lines()
    assert "fastchangelog sweep" in str(line["kept_because"])
    assert "hdfs://host/ckpt" in str(line["kept_because"])
    assert line["level"] == "WARN"
    counted = one.engine.server.metrics()
    assert (counted["sweeps"], counted["sweeps_in_doubt"], counted["sweep_deleted"]) == (2, 2, 0)
    assert counted["sweep_requests"] > 0


def test_a_server_sweeps_a_query_whose_first_shard_it_holds(swept: Callable[..., Swept], tmp_path: Path) -> None:
    one = swept(sweep_interval="2s")
    assert one.engine.server.swept_states() == []
    one.engine.batch(0, None, checkpoint="hdfs://host/ckpt")
    ((root, query, name, options, storage),) = one.engine.server.swept_states()
    assert (root, query, name, storage) == (f"file://{tmp_path / 'state'}", "query", "default", {})
    assert options["sweep_interval"] == "2s"


def test_a_query_that_is_switched_off_is_not_swept(swept: Callable[..., Swept]) -> None:
    one = swept(sweep="off")
    one.engine.batch(0, None, checkpoint="hdfs://host/ckpt")
    one.sweep()
    assert one.lines() == []
    assert one.engine.server.metrics()["sweeps"] == 0


def test_a_folder_of_a_caller_that_is_no_query_is_left_alone(swept: Callable[..., Swept]) -> None:
    """It keeps handles in a place of its own."""
    one = swept()
    one.engine.batch(0, None)
    one.sweep()
    (line,) = one.lines()
    assert "this query's checkpoint is unknown" in str(line["kept_because"])
