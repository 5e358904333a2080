"""Checkpoints of live queries: the core reads them as Spark's own source does.

Owns: the comparison, over changelogs and snapshots, compression, restarts, maintenance and files of others.
Does not own: stored checkpoints and damage to them (`rust/spark/tests/checkpoints.rs`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog import InvalidArgumentError
from fastchangelog.checkpoints.core import CoreFiles
from fastchangelog.checkpoints.files import CheckpointFiles, UnreadableStateError
from fastchangelog.checkpoints.handles import QueryCheckpoints
from fastchangelog.hidden import Hidden
from fastchangelog.spark import grouped
from fastchangelog.spark.checkpoint.files import SparkFiles
from support.spark.stream_harness import STORE, needs_readable_checkpoints, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, n bigint"
OPERATOR, VARIABLE = 0, "handle"


def read(files: CheckpointFiles) -> dict[int, list[tuple[int, str]]]:
    """The handles of all batches but those whose state Spark has removed."""
    batches, found = sorted(files.log("commits")), {}
    with files.variable(OPERATOR, VARIABLE, batches[-1]) as variable:
        for batch in batches:
            with contextlib.suppress(UnreadableStateError):
                found[batch] = sorted(variable.after(batch))
    return found


@needs_readable_checkpoints
@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy"])
@pytest.mark.parametrize("changelog", ["true", "false"])
def test_handles_are_those_that_spark_reads(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, codec: str, changelog: str
) -> None:
    conf(STORE + "rocksdb.changelogCheckpointing.enabled", changelog)
    conf(STORE + "compression.codec", codec)
    conf(STORE + "minDeltasForSnapshot", "2")
    conf(STORE + "maintenanceInterval", "100ms")
    conf("spark.sql.streaming.minBatchesToRetain", "4")
    rng = random.Random(f"{codec}{changelog}")
    checkpoint, source = tmp_path / "a checkpoint", feed(SCHEMA)
    for _ in range(3):  # restarts
        for _ in range(rng.randint(1, 4)):
            source.add([(f"k{rng.randrange(50)}", 1) for _ in range(rng.randint(1, 30))])
        run(grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(F.sum("n").alias("n")), checkpoint)
        (checkpoint / "state/0/0/notes.txt").write_text("not Spark's")
        core = CoreFiles(f"file://{tmp_path}/a%20checkpoint", Hidden({}))
        by_spark = SparkFiles(spark, str(checkpoint))
        newest = max(core.log("commits"))
        found, expected = read(core), read(by_spark)
        common = found.keys() & expected.keys()  # Spark may have removed some between the two
        assert newest in common
        assert {batch: found[batch] for batch in common} == {batch: expected[batch] for batch in common}
        assert [(o.number, o.name) for o in core.operators(newest)] == [
            (o.number, o.name) for o in by_spark.operators(newest)
        ]
        assert core.log("offsets").keys() == by_spark.log("offsets").keys()
        assert core.lines(f"offsets/{newest}") == by_spark.lines(f"offsets/{newest}")
        assert core.unreadable_form(newest) is None


def test_the_core_needs_no_session(feed: Any, tmp_path: pathlib.Path) -> None:
    """On Spark 4.0, too, whose own source cannot read its checkpoints."""
    source = feed(SCHEMA, [("a", 1), ("b", 2)], [("a", 3)])
    run(grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(F.sum("n").alias("n")), tmp_path / "ckpt")
    checkpoints = QueryCheckpoints(_refused, default_fs="file:///")
    _, batch, operators = checkpoints.handles(str(tmp_path / "ckpt"))
    assert batch == 1
    assert checkpoints.roots(str(tmp_path / "ckpt")).batches == (0, 1)
    assert set(operators) == {OPERATOR}
    for folder in (tmp_path / "ckpt/commits", tmp_path / "ckpt/state"):
        assert os.path.isdir(folder), "nothing was moved"


def _refused(location: str) -> CheckpointFiles:
    raise InvalidArgumentError(f"{location} is read without Spark")
