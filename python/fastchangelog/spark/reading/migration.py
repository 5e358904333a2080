"""What moving a Spark query over would import, and the lines that change.

Owns: the description of a checkpoint for people and machines: operators, variables, schemas, counts, source offsets,
and why an operator's state cannot be imported, as far as the checkpoint shows.
Does not own: reading the checkpoint (`checkpoint.spark_states`), the import itself, its output (`cli.migrate`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.aggregates.keys import check_key
from fastchangelog.spark.aggregates.seed import kept_names
from fastchangelog.spark.checkpoint.spark_states import DISTINCT_WITHIN_WATERMARK, Checkpoint, Operator
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql import types as T

__all__ = ["describe"]

#: The key that Spark adds to those of a rollup, a cube or grouping sets.
_GROUPING_ID = "spark_grouping_id"


def describe(spark: SparkSession, location: str, batch: int | None = None) -> dict[str, Any]:
    """What would be imported from the checkpoint of a query of Spark's own, ready for JSON."""
    checkpoint = Checkpoint(spark, location, batch)
    there = checkpoint.operators()
    operators = [_operator(checkpoint, operator) for operator in there]
    sources = [_source(text) for text in checkpoint.source_offsets()]
    return {
        "checkpoint": checkpoint.location,
        "batch": checkpoint.batch,
        "watermark_ms": checkpoint.watermark_millis(),
        "operators": operators,
        "sources": sources,
        "lines": _lines(checkpoint, operators, sources),
    }


def _operator(checkpoint: Checkpoint, operator: Operator) -> dict[str, Any]:
    said: dict[str, Any] = {"operator": operator.number, "name": operator.name, "kind": operator.kind}
    if checkpoint.holds_handles(operator):
        return {**said, "kind": "fastchangelog", "imported": False, "reasons": []}
    if operator.kind == "aggregate":
        rows = checkpoint.rows(operator)
        value = cast("T.StructType", rows.others["value"])
        reasons = _of_aggregate(rows.key, value)
        said |= {"key": _fields(rows.key), "value": _fields(value)}
        if rows.key.fields:  # without keys there is one row, in one of the partitions that Spark would have
            said["rows"] = rows.count()
    elif operator.kind == "distinct":
        rows, reasons = checkpoint.rows(operator), []
        said |= {"key": _fields(rows.key), "rows": rows.count()}
    elif operator.kind == "processor":
        said |= {"time_mode": operator.time_mode, "output_mode": operator.output_mode, "variables": []}
        reasons = [] if operator.variables or operator.has_timers else ["it has no state variables"]
        for variable in operator.variables:
            rows = checkpoint.variable(operator, variable)
            said["key"] = _fields(rows.key)
            schema = ", ".join(f"{name} {dtype.simpleString()}" for name, dtype in rows.others.items())
            said["variables"].append(
                {
                    "name": variable.name,
                    "kind": variable.kind,
                    "ttl": variable.has_ttl,
                    "schema": schema,
                    "rows": rows.count(),
                }
            )
        said["timers"] = checkpoint.timers(operator).count() if operator.has_timers else 0
    else:
        reasons = [
            "only states of groupBy().agg(), of dropDuplicates, of dropDuplicatesWithinWatermark and of "
            "transformWithState can be imported"
        ]
    return {**said, "imported": not reasons, "reasons": reasons}


def _of_aggregate(key: T.StructType, value: T.StructType) -> list[str]:
    """Why the state of an aggregation cannot be imported."""
    reasons = [] if key.fields else ["it groups by no key, and grouped() needs at least one"]
    for field in key.fields:
        if field.name == _GROUPING_ID:
            reasons.append("it is a rollup, a cube or has grouping sets, which grouped() does not know")
        else:
            reasons += _refusals(check_key, f"`{field.name}`", field)
    known = kept_names()
    if foreign := [field for field in value.fields if field.name not in frozenset().union(*known.values())]:
        more = f" and {len(foreign) - 1} more columns" if len(foreign) > 1 else ""
        reasons.append(
            f"it keeps `{foreign[0].name}` {foreign[0].dataType.simpleString()}{more}, as an aggregate does that "
            "cannot be imported, such as one with a state of its own; "
            f"supported are {', '.join(known)}"
        )
    for what, struct in (("key", key), ("accumulator", value)):
        for field in struct.fields:
            reasons += _refusals(wire.wire_type, field.dataType, f"the {what} `{field.name}`")
    return reasons


def _refusals(check: Callable[..., object], *args: object, **named: object) -> list[str]:
    try:
        check(*args, **named)
    except InvalidArgumentError as refusal:
        return [str(refusal)]
    return []


def _fields(struct: T.StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in struct.fields)


def _source(text: str) -> dict[str, str]:
    """An offset, and how a new query's source goes on from it."""
    try:
        offset = json.loads(text)
    except ValueError:
        offset = None
    if isinstance(offset, dict) and offset and all(isinstance(parts, dict) for parts in offset.values()):
        return {"offset": text, "source": "Kafka", "go_on": f".option(\"startingOffsets\", '{text}')"}
    if isinstance(offset, dict) and "reservoirVersion" in offset:
        version = offset["reservoirVersion"]  # not finished yet
        return {"offset": text, "source": "Delta", "go_on": f'.option("startingVersion", "{version}")'}
    if isinstance(offset, dict) and list(offset) == ["logOffset"]:
        return {
            "offset": text,
            "source": "files",
            "go_on": "read a folder without the files that were read before; sources/ in the checkpoint lists them",
        }
    return {"offset": text, "source": "other", "go_on": "set the option of this source that starts after this offset"}


def _lines(checkpoint: Checkpoint, operators: list[dict[str, Any]], sources: list[dict[str, str]]) -> list[str]:
    lines: list[str] = []
    for operator in operators:
        if not operator["imported"]:
            continue
        call = f'fc.spark.import_state("{checkpoint.location}", operator={operator["operator"]})'
        if operator["kind"] == "aggregate":
            lines += [
                "- df.groupBy(KEYS).agg(AGGREGATES)",
                f'+ grouped(df, KEYS, state="ROOT").agg(AGGREGATES, initial_state={call})',
            ]
        elif operator["kind"] == "distinct":
            within = operator["name"] == DISTINCT_WITHIN_WATERMARK
            lines += [
                f"- df.dropDuplicates{'WithinWatermark' if within else ''}(COLUMNS)",
                f"+ fc.spark.drop_duplicates{'_within_watermark' if within else ''}"
                f'(df, COLUMNS, state="ROOT", initial_state={call})',
            ]
        else:
            lines += [
                "- df.groupBy(KEYS).transformWithState(PROCESSOR, …)",
                f'+ grouped(df, KEYS, state="ROOT").transformWithState(PROCESSOR, …, initialState={call})',
            ]
    if not lines:
        return lines
    lines += [
        f'- .option("checkpointLocation", "{checkpoint.location}")',
        '+ .option("checkpointLocation", "A NEW ONE")',
    ]
    lines += [f"+ {source['go_on']}" for source in sources if source["go_on"].startswith(".option")]
    return lines
