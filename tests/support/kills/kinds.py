"""The kinds of queries that are killed, by tests and by campaigns: a row for each.

Owns: what Spark runs of a kind, over which rows, and the model of what must come out. Does not own: the processors and
their models (`ledger`, `clock`, `windows`), the rows and the model of the aggregates (`aggregates`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from support.kills import aggregates, clock, windows
from support.kills.aggregates import Model
from support.kills.clock import Clocked, ClockModel
from support.kills.ledger import DELAY_SECONDS, OUTPUT, SCHEMA, Ledger, LedgerModel
from support.kills.windows import WindowModel, windowed
from support.spark.frames_of_rows import with_state


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of query."""

    name: str
    #: The columns of the input.
    schema: pa.Schema
    #: Makes the model of a seed: `batch` gives random rows, `apply` adds them and gives what must come out, `snapshot`
    #: is the state after it.
    model: Callable[[int], Any]
    #: Makes the result of the stream; the second argument groups a stream by its key, or by others.
    build: Callable[[DataFrame, Any], DataFrame]
    #: Settings of Spark that it needs.
    conf: dict[str, str] = dataclasses.field(default_factory=dict)
    output_mode: str = "update"
    #: Names of its states, one for each stateful operator.
    states: tuple[str, ...] = ("default",)


def column(name: str, call: str) -> Column:
    """One aggregate.

    >>> column("total", "sum(v)")
    Column<'sum(v) AS total'>
    """
    function, _, rest = call.partition("(")
    arguments, _, nulls = rest.partition(")")
    made = getattr(F, function)(*arguments.split(", "), **({"ignorenulls": True} if nulls else {}))
    return made.alias(name)  # type: ignore[no-any-return]


def all_aggregates(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """All of them."""
    return group(stream).agg(*[column(name, call) for name, call in aggregates.AGGREGATES])  # type: ignore[no-any-return]


def ledger(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """The processor."""
    marked = group(stream.withWatermark("ts", f"{DELAY_SECONDS} seconds"))
    return with_state(marked, Ledger(), OUTPUT, "Update", "EventTime")  # type: ignore[no-any-return]


def clocked(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """The processor of frames."""
    initial = stream.sparkSession.createDataFrame(clock.INITIAL, clock.INITIAL_SCHEMA).groupBy("k")
    of_key = group(stream)
    return of_key.transformWithStateInPandas(  # type: ignore[no-any-return]
        Clocked(), clock.OUTPUT, "Update", "ProcessingTime", initial
    )


#: Every batch is one of the input's files.
BATCHES_OF_FILES = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

AGGREGATES = Kind("aggregates", aggregates.SCHEMA, Model, all_aggregates)
PROCESSOR = Kind("processor", SCHEMA, LedgerModel, ledger, BATCHES_OF_FILES)
CLOCKED = Kind("clocked", clock.SCHEMA, ClockModel, clocked, BATCHES_OF_FILES)
WINDOWS = Kind(
    "windows", windows.SCHEMA, WindowModel, windowed, BATCHES_OF_FILES, "append", (windows.CLOSING, windows.DISTINCT)
)
KINDS = {kind.name: kind for kind in (AGGREGATES, PROCESSOR, CLOCKED, WINDOWS)}
