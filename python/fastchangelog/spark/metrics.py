"""The metrics of a batch, as they appear in `StreamingQueryProgress.observedMetrics["fastchangelog.<name>"]`.

Owns: their order on the wire, and the expressions that add them up over shards.
Does not own: their names (the core's table of metrics), their values (the state server counts), nor Spark's progress.

The operator returns them in one extra row per shard: every column null but `__m`, an array of numbers in the order of
`Reported.names`. Spark's `observe` adds them up, and the row is dropped after it. Like all of Spark's observed metrics
they are for people only: a discarded attempt may be counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastchangelog import _internal

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "COLUMN",
    "OF_AGGREGATION",
    "PREFIX",
    "PROCESSOR_COLUMN",
    "Reported",
    "observed_name",
    "of_aggregation",
    "of_processor",
    "output_mode_of",
]

#: The column of metrics in the result of an aggregation; by its name it is told apart from a processor's.
COLUMN = "__m"
#: The same in the result of a stateful processor.
PROCESSOR_COLUMN = "__m_processor"
#: Of the name under which the metrics of an operator appear.
PREFIX = "fastchangelog."


@dataclasses.dataclass(frozen=True)
class Reported:
    """The metrics that batches of one kind of operator report: each one costs every batch time.

    Args:
        column: The column that holds them.
        names: In the order of the table of metrics (rust/store/src/metrics.rs), behind them those of user code. Both
            ends of the wire are the same version.
    """

    column: str
    names: tuple[str, ...]

    def row(self, counted: Mapping[str, int]) -> list[int]:
        """The numbers in the order of `names`; what was not counted is 0."""
        return [int(counted.get(name, 0)) for name in self.names]

    def observed(self) -> list[Column]:
        """One sum per metric, over all shards."""
        from pyspark.sql import functions as F

        # `get` and not an index, which checks its bounds: Spark makes source code of each sum in each task.
        sums = [F.sum(F.get(F.col(self.column), F.lit(i))) for i in range(len(self.names))]
        return [F.coalesce(total, F.lit(0)).alias(name) for total, name in zip(sums, self.names, strict=True)]


def _names(operator: str) -> tuple[str, ...]:
    return tuple(name for name, _, operators, _ in _internal.metrics_table() if operators in ("all", operator))


OF_AGGREGATION = Reported(COLUMN, _names("aggregation"))
#: The output modes of aggregations, by the column of their metrics: a starting query shows it (`starts`).
_MODES = {"update": COLUMN, "append": f"{COLUMN}_append", "complete": f"{COLUMN}_complete"}
#: The column of metrics of distinct rows, which a sink of any mode takes.
_NEW = f"{COLUMN}_new"
_OF_PROCESSOR = _names("processor")


def of_aggregation(output_mode: str) -> Reported:
    """Those of an aggregation that returns groups in this mode."""
    return dataclasses.replace(OF_AGGREGATION, column=_MODES.get(output_mode, _NEW))


def output_mode_of(column: str) -> str | None:
    """The mode of an aggregation whose metrics are in this column; None of a processor.

    >>> output_mode_of("__m_append"), output_mode_of("__m_processor")
    ('append', None)
    """
    return next((mode for mode, known in _MODES.items() if known == column), None)


def of_processor(counters: Sequence[str] = ()) -> Reported:
    """Those of a stateful processor; `counters` are the names that its user code counts."""
    return Reported(PROCESSOR_COLUMN, (*_OF_PROCESSOR, *counters))


def observed_name(name: str) -> str:
    """The name under which the metrics of the operator `name` appear."""
    return PREFIX + name
