"""Queries that began on Spark 4.0: newer versions refuse their checkpoints, and a savepoint moves them on, exactly.

Owns: the way from a stored checkpoint of 4.0 through a savepoint to this version. Does not own: the queries and their
model (`support.spark.older_query`), reading a checkpoint without Spark (`rust/spark/tests/checkpoints.rs`).
"""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest

from fastchangelog import cli
from fastchangelog.checkpoints.files import UnreadableStateError
from fastchangelog.spark import read_state
from fastchangelog.spark.checkpoint.files import SparkFiles
from support.spark import older_query
from support.spark.older_query import BATCHES, BEFORE, NAMES, SCHEMA, expected
from support.spark.processor_harness import NO_DATA_BATCHES
from support.spark.stream_harness import end_state_server, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

STORED = pathlib.Path(__file__).parent / "stored" / "spark-4.0"
LAST = BEFORE - 1


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    """Checkpoints and states of Spark 4.0."""
    folder = tmp_path / "old"
    shutil.copytree(STORED, folder)
    for name in NAMES:  # Spark names the files of schemas by their paths
        metadata = folder / name / "checkpoint" / "state" / "0" / "_metadata" / "v2" / "0"
        metadata.write_text(metadata.read_text().replace("file:/queries", f"file:{folder / name}"))
    return folder


def answers(ran: Any, batch: int) -> dict[str, Any]:
    """By key, without what timers say."""
    rows = [tuple(row) for row in ran.batches[batch]]
    return {k: rest[0] if isinstance(rest[0], str) else tuple(rest) for k, *rest in rows if rest[0] != "fired"}


@pytest.mark.parametrize("format", ["canonical", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_a_savepoint_moves_a_query_of_4_0_on(
    spark: Any, feed: Any, conf: Any, old: pathlib.Path, tmp_path: pathlib.Path, name: str, format: str
) -> None:
    conf(NO_DATA_BATCHES, "false")
    taken = tmp_path / "savepoint"
    base = ["savepoint", str(old / name / "checkpoint"), "--state", str(old / name / "state"), "--format", format]
    assert cli.main([*base, "--to", str(taken)]) == cli.OK
    shutil.rmtree(old)
    conf("spark.sql.shuffle.partitions", "3")
    source, where = feed(SCHEMA, *BATCHES[BEFORE:]), {"state": str(tmp_path / "state")}
    ran = run(older_query.build(name, source.stream(), **where, start_from=str(taken)), tmp_path / "checkpoint")
    assert [answers(ran, batch) for batch in (0, 1)] == expected(name)[BEFORE:]
    if name == "processor":  # timers that the last batch of 4.0 has set
        fired = [row.k for batch in (0, 1) for row in ran.batches[batch] if row.said == "fired"]
        assert set(fired) >= {k for k, _ in BATCHES[LAST]}
    end_state_server(spark)


def test_the_states_of_4_0_are_read(spark: Any, old: pathlib.Path) -> None:
    where = old / "processor"
    totals = read_state(spark, where / "checkpoint", state=where / "state", variable="total").collect()
    model: dict[str, list[int]] = {}
    for k, v in (row for batch in BATCHES[:BEFORE] for row in batch):
        model.setdefault(k, []).append(v)
    assert {row.key.k: tuple(row.value) for row in totals} == {k: (len(v), sum(v)) for k, v in model.items()}


@pytest.mark.parametrize("name", NAMES)
def test_spark_itself_does_not_read_the_checkpoint(spark: Any, old: pathlib.Path, name: str) -> None:
    """The reason why it cannot go on: see the table of docs/deploying.md. Spark 4.0 reads no state of format 2."""
    files = SparkFiles(spark, str(old / name / "checkpoint"))
    with files.variable(0, "handle", LAST) as variable, pytest.raises(UnreadableStateError):
        variable.after(LAST)
