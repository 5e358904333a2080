"""A call of `transformWithState`: what `grouped` was given, and the arguments.

Owns: the two records that `grouped_stream` hands to `stream`.
Does not own: their checks and the plan (`stream`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import types as T
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from fastchangelog.hidden import HiddenOptions
    from fastchangelog.vectorised.processor import Processor

__all__ = ["Grouping", "ProcessorCall"]


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


@dataclasses.dataclass(frozen=True)
class ProcessorCall:
    """The arguments of `transformWithState`, or of `transformWithStateInPandas` or `transformWithStateInArrow`."""

    api: Literal["row", "pandas", "arrow"]
    processor: StatefulProcessor | Processor
    output: T.StructType | str
    output_mode: str
    time_mode: str
    #: PySpark's `groupBy`, ours, or an `ImportedState`.
    initial_state: object | None
    event_time_column: str

    @property
    def method(self) -> str:
        """Its name."""
        return "transformWithState" + {"row": "", "pandas": "InPandas", "arrow": "InArrow"}[self.api]
