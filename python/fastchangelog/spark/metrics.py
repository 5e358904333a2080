"""The metrics of a batch, as they appear in `StreamingQueryProgress.observedMetrics["fastchangelog.<name>"]`.

Owns: their order on the wire, and the expressions that add them up over shards.
Does not own: their names (the core's table of metrics), their values (the state server counts), nor Spark's progress.

The operator returns them in one extra row per shard: every column null but `__m`, an array of numbers in the order of
`NAMES`. Spark's `observe` adds them up, and the row is dropped after it. Like all of Spark's observed metrics they are
for people only: a discarded attempt may be counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastchangelog import _internal

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["COLUMN", "NAMES", "PREFIX", "PROCESSOR_COLUMN", "observed", "observed_name", "row"]

#: The column of metrics in the result of an aggregation; by its name it is told apart from a processor's.
COLUMN = "__m"
#: The same in the result of a stateful processor.
PROCESSOR_COLUMN = "__m_processor"
#: Of the name under which the metrics of an operator appear.
PREFIX = "fastchangelog."

#: In the order of the table of metrics (rust/store/src/metrics.rs). Both ends of the wire are the same version.
NAMES = tuple(name for name, _, in_batch, _ in _internal.metrics_table() if in_batch)


def row(counted: Mapping[str, int], more: Sequence[str] = ()) -> list[int]:
    """The numbers in the order of `NAMES`, then those of user code; what was not counted is 0."""
    return [int(counted.get(name, 0)) for name in (*NAMES, *more)]


def observed_name(name: str) -> str:
    """The name under which the metrics of the operator `name` appear."""
    return PREFIX + name


def observed(column: str = COLUMN, more: Sequence[str] = ()) -> list[Column]:
    """One sum per metric, over all shards, those of user code last; `column` holds them."""
    from pyspark.sql import functions as F

    return [F.coalesce(F.sum(F.col(column)[i]), F.lit(0)).alias(name) for i, name in enumerate((*NAMES, *more))]
