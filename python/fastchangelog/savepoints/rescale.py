"""Rescaling a query: a savepoint, and a new start from it with another number of partitions.

Owns: the check of the number, the lines that start the new query. Does not own: the savepoint (`savepoints.savepoint`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.savepoints.source import StateSource, find_handles

__all__ = ["check_partitions", "rescale_lines"]


def check_partitions(source: StateSource, partitions: int) -> None:
    """Refuses a number of partitions before anything is written."""
    groups = int(json.loads(_internal.handle_json(find_handles(source).handles[0]))["max_parallelism"])
    if not 1 <= partitions <= groups:
        raise InvalidArgumentError(
            f"the state cannot be rescaled to {partitions} partitions: ask for 1 to {groups}, its number of key groups "
            "(max_parallelism), which is fixed at its first start"
        )


def rescale_lines(taken: Mapping[str, Any], root: str, partitions: int) -> list[str]:
    """The code that starts the query again from a savepoint with another number of partitions."""
    name = "" if taken["name"] == "default" else f", name={taken['name']!r}"
    return [
        f'spark.conf.set("spark.sql.shuffle.partitions", {partitions})',
        f"grouped(df, …, state={root!r}{name}, start_from={taken['uri']!r}).…  # agg or transformWithState, as before",
        '.writeStream.outputMode("update").option("checkpointLocation", "…")  # a new one; sources begin after batch '
        f"{taken['batch']}",
    ]
