"""What `grouped` was given, checked: what aggregations and processors are planned from.

Owns: the record, and what both plans do with it alike.
Does not own: the checks (`grouped_stream`), the plans (`aggregates.plan`, `processor.stream`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.spark import internals, metrics, settings
from fastchangelog.spark.shard_task import OperatorConfig

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from fastchangelog.hidden import HiddenOptions

__all__ = ["Grouping"]


@dataclasses.dataclass(frozen=True)
class Grouping:
    """What `grouped` was given, checked."""

    df: DataFrame
    keys: Sequence[Column]
    #: Names and types of the keys, as Spark selects them from the frame.
    key: T.StructType
    root: str
    name: str
    options: Mapping[str, str]
    storage_options: HiddenOptions
    confs: Mapping[str, str]
    partitions: int
    #: The description of the states in the savepoint that the query begins with, if there is one.
    start_schema: str | None

    @property
    def is_streaming(self) -> bool:
        """False for a batch DataFrame."""
        return bool(self.df.isStreaming)

    @property
    def payload_bytes(self) -> int:
        """The size of a payload."""
        return settings.size_option(self.options, "payload_size")

    def operator(self, spec: str, output: pa.Schema, initial_spec: str = "") -> OperatorConfig:
        """What tasks get of it; `spec` is that of an aggregation, `initial_spec` that of its initial state."""
        return OperatorConfig(
            spec,
            self.root,
            self.name,
            output,
            self.options,
            self.storage_options,
            self.partitions,
            confs=self.confs,
            connect=internals.is_connect(self.df),
            initial_spec=initial_spec,
        )

    def through_state(
        self,
        payloads: DataFrame,
        initial: DataFrame | None,
        processor: StatefulProcessor,
        output: T.StructType,
        counted: metrics.Reported,
        modes: tuple[str, str] = ("Update", "None"),
        event_time: str = "",
    ) -> DataFrame:
        """The rows of Spark's stateful operator over payloads, whose rows of metrics are counted and left out."""
        rows = T.StructType([*output.fields, T.StructField(counted.column, T.ArrayType(T.LongType()))])
        spark_operator = internals.native_method(payloads.groupBy("shard"), "transformWithStateInPandas")
        first = None if initial is None else initial.groupBy("shard")
        answered = spark_operator(processor, rows, *modes, first, event_time)
        answered = answered.observe(metrics.observed_name(self.name), *counted.observed())
        return answered.where(F.col(counted.column).isNull()).drop(counted.column)
