"""The metrics of a batch, as they appear in `StreamingQueryProgress.observedMetrics["fastchangelog.<name>"]`.

Owns: their names, their order on the wire, and the expressions that add them up over shards.
Does not own: their values (the state server counts), nor Spark's progress.

The operator returns them in one extra row per shard: every column null but `__m`, an array of numbers in the order of
`NAMES`. Spark's `observe` adds them up, and the row is dropped after it. Like all of Spark's observed metrics they are
for people only: a discarded attempt may be counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["COLUMN", "NAMES", "PREFIX", "observed", "observed_name", "row"]

COLUMN = "__m"
#: Of the name under which the metrics of an operator appear.
PREFIX = "fastchangelog."

#: Counted by the state server for this commit unless the comment says otherwise. Append only: the order is the wire.
NAMES = (
    "shards",  # that had input in this batch
    "rows_merged",
    "keys_updated",
    "state_keys",
    "state_bytes",
    "hot_hits",
    "hot_misses",
    "log_bytes",
    "store_requests",
    "open_micros",  # the server made the shard live: nothing to do, replay, or restore
    "finish_micros",  # until the last row was handed to Spark
    "commit_micros",  # until the change set was durable
    "restores",
    "restore_micros",
    "materializations_completed",
    "spilled_bytes",
)


def row(counted: Mapping[str, int]) -> list[int]:
    """The numbers in the order of `NAMES`; what was not counted is 0."""
    return [int(counted.get(name, 0)) for name in NAMES]


def observed_name(name: str) -> str:
    """The name under which the metrics of the operator `name` appear."""
    return PREFIX + name


def observed() -> list[Column]:
    """One sum per metric, over all shards."""
    from pyspark.sql import functions as F

    return [F.coalesce(F.sum(F.col(COLUMN)[i]), F.lit(0)).alias(name) for i, name in enumerate(NAMES)]
