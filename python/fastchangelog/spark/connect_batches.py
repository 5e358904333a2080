"""Functions of `foreachBatch` over Spark Connect: their jobs know the query and its batch.

Owns: what a job of such a function is told, and where that is known from.
Does not own: the methods that take the function, and tags (`internals_connect`), how tasks read a tag (`task`).

Connect calls the function in a process beside the server. Each thing that it does with a batch is an operation of a
client there: its tasks run the query's stateful operator, but have neither the query's properties nor, before Spark
4.3, the settings of its session. So a tag of each job has the query, the batch and the number of partitions. The
checkpoint knows them: Spark writes the id before the first batch, and the settings of a batch before it runs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastchangelog.checkpoints.files import plain_location
from fastchangelog.errors import StateNotFoundError, StoreError
from fastchangelog.spark import internals_connect, settings, task
from fastchangelog.spark.checkpoint.files import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchFunction", "follow"]


def follow(spark: SparkSession) -> None:
    """From here on the functions of `foreachBatch` of this session of Spark Connect tell their jobs what they must
    know."""
    internals_connect.wrap_functions(spark, BatchFunction)


class BatchFunction:
    """A function of `foreachBatch`, of one run of a query; pickled."""

    def __init__(self, function: Callable[[DataFrame, int], None], checkpoint: str | None) -> None:
        self._function = function
        self._checkpoint = checkpoint
        #: What the jobs of all batches are told. A query with a temporary checkpoint never starts again, so that any id
        #: of its own will do.
        self._told = {task.QUERY: str(uuid.uuid4())} if checkpoint is None else {}

    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        if task.FIRST_BATCH not in self._told:
            if self._checkpoint is not None:
                self._told |= _of_checkpoint(SparkFiles(spark, plain_location(self._checkpoint)), number)
            self._told[task.FIRST_BATCH] = str(number)
        with internals_connect.tagged_jobs(spark, task.tag_of({**self._told, task.BATCH: str(number)})):
            self._function(batch, number)


def _of_checkpoint(files: SparkFiles, batch: int) -> dict[str, str]:
    """The query of a checkpoint, and the number of its partitions."""
    found = {task.QUERY: str(_line(files, "metadata", 0)["id"])}
    partitions = _line(files, f"offsets/{batch}", 1).get("conf", {}).get(settings.SHUFFLE_PARTITIONS)
    return found if partitions is None else {**found, settings.PARTITIONS: str(partitions)}


def _line(files: SparkFiles, name: str, number: int) -> dict[str, Any]:
    lines = files.lines(name)
    if lines is None:
        raise StateNotFoundError(
            f"the query's checkpoint has no file {name}, which says what query a batch belongs to: start the query "
            "with the option checkpointLocation, and let nothing remove files of the folder"
        )
    try:
        return dict(json.loads(lines[number]))
    except (ValueError, TypeError, IndexError):
        raise StoreError(f"Spark did not write {name} of the query's checkpoint: {lines[:1]}") from None
