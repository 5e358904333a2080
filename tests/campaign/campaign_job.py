"""The Spark program of the campaign: `python campaign_job.py plan.json`.

Owns: the aggregates of `campaign_query` as PySpark's columns. Does not own: the rest of the program (`kill_job`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import kill_job
from campaign_query import AGGREGATES, SPARK_SCHEMA
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def column(name: str, call: str) -> Column:
    """One aggregate.

    >>> column("total", "sum(v)")
    Column<'sum(v) AS total'>
    """
    function, _, rest = call.partition("(")
    arguments, _, nulls = rest.partition(")")
    made = getattr(F, function)(*arguments.split(", "), **({"ignorenulls": True} if nulls else {}))
    return made.alias(name)  # type: ignore[no-any-return]


def aggregates(grouping: Any) -> DataFrame:
    """All of them."""
    return grouping.agg(*[column(name, call) for name, call in AGGREGATES])  # type: ignore[no-any-return]


if __name__ == "__main__":
    kill_job.main(json.loads(Path(sys.argv[1]).read_text()), SPARK_SCHEMA, aggregates)
