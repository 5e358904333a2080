"""The kinds of queries that are killed: a row for each.

Owns: what Spark runs of a kind, over which rows, and the model of what must come out. Does not own: the processors and
their models (`ledger`, `clock`), the queries of the campaign, which has a table of its own.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from support.kills import clock
from support.kills.clock import Clocked, ClockModel
from support.kills.ledger import DELAY_SECONDS, OUTPUT, SCHEMA, Ledger, LedgerModel
from support.kills.points import PROCESSOR_POINTS, WORKER_POINTS

Row = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of query."""

    name: str
    #: The columns of the input.
    schema: pa.Schema
    #: Makes the model of a seed: `batch` gives random rows, `apply` adds them and gives what must come out.
    model: Callable[[int], Any]
    #: Makes the result of the stream; the second argument groups a stream by its key.
    build: Callable[[DataFrame, Callable[[DataFrame], Any]], DataFrame]
    #: The failpoints of its workers, in their order.
    worker_points: list[str]
    #: Settings of Spark that it needs.
    conf: dict[str, str] = dataclasses.field(default_factory=dict)


class Numbers:
    """The model of the aggregates of the kill tests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._groups: dict[str | None, list[int]] = {}

    def batch(self, keys: int, count: int) -> list[Row]:
        """So many random rows of so many keys and null."""
        names = [None, *(f"key-{i}" for i in range(keys))]
        return [(self._random.choice(names), self._random.randint(-9, 9)) for _ in range(count)]

    def apply(self, rows: list[Row]) -> list[list[Any]]:
        """Adds a batch; what every changed key has after it."""
        for k, v in rows:
            n, s, m = self._groups.get(k, (0, 0, v))
            self._groups[k] = [n + 1, s + v, max(m, v)]
        return [[k, *self._groups[k]] for k in {k for k, _ in rows}]


def numbers(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """The aggregates of the kill tests."""
    columns = (F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))
    return group(stream).agg(*columns)  # type: ignore[no-any-return]


def ledger(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """The processor."""
    marked = group(stream.withWatermark("ts", f"{DELAY_SECONDS} seconds"))
    return marked.transformWithState(Ledger(), OUTPUT, "Update", "EventTime")  # type: ignore[no-any-return]


def clocked(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """The processor of frames."""
    initial = stream.sparkSession.createDataFrame(clock.INITIAL, clock.INITIAL_SCHEMA).groupBy("k")
    of_key = group(stream)
    return of_key.transformWithStateInPandas(  # type: ignore[no-any-return]
        Clocked(), clock.OUTPUT, "Update", "ProcessingTime", initial
    )


#: Every batch is one of the input's files.
BATCHES_OF_FILES = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

AGGREGATES = Kind("aggregates", pa.schema([("k", pa.string()), ("v", pa.int64())]), Numbers, numbers, WORKER_POINTS)
PROCESSOR = Kind("processor", SCHEMA, LedgerModel, ledger, PROCESSOR_POINTS, BATCHES_OF_FILES)
CLOCKED = Kind("clocked", clock.SCHEMA, ClockModel, clocked, PROCESSOR_POINTS, BATCHES_OF_FILES)
KINDS = {kind.name: kind for kind in (AGGREGATES, PROCESSOR, CLOCKED)}
