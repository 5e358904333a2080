"""A call of `transformWithState`: its arguments.

Owns: the record that `grouped_stream` hands to `stream`. Does not own: its check and the plan (`stream`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import types as T
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from fastchangelog.vectorised.processor import Processor

__all__ = ["ProcessorCall"]


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
