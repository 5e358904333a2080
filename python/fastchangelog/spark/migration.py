"""What moving a Spark query over would import, and the lines that change.

Owns: the description of a checkpoint for people and machines: operators, variables, schemas, counts, source offsets.
Does not own: reading the checkpoint (`spark_states`), the import itself, its output (`cli.migrate`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastchangelog.spark.spark_states import Checkpoint, Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["describe"]


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
        return {**said, "kind": "fastchangelog", "imported": False}
    said["imported"] = operator.kind != "other"
    if operator.kind == "aggregate":
        rows = checkpoint.rows(operator)
        said |= {"key": _fields(rows, "key"), "value": _fields(rows, "value"), "rows": rows.count()}
    elif operator.kind == "processor":
        said |= {"time_mode": operator.time_mode, "output_mode": operator.output_mode, "variables": []}
        for variable in operator.variables:
            rows = checkpoint.variable(operator, variable)
            said["key"] = _fields(rows, "key")
            columns = [name for name in rows.columns if name not in ("key", "partition_id")]
            schema = ", ".join(f"{name} {rows.schema[name].dataType.simpleString()}" for name in columns)
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
    return said


def _fields(rows: DataFrame, name: str) -> str:
    struct: Any = rows.schema[name].dataType
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
        call = f'fc.spark.import_state("{checkpoint.location}", operator={operator["operator"]})'
        if operator["kind"] == "aggregate":
            lines += [
                "- df.groupBy(KEYS).agg(AGGREGATES)",
                f'+ grouped(df, KEYS, state="ROOT").agg(AGGREGATES, initial_state={call})',
            ]
        elif operator["kind"] == "processor":
            lines += [
                "- df.groupBy(KEYS).transformWithState(PROCESSOR, …)",
                f'+ grouped(df, KEYS, state="ROOT").transformWithState(PROCESSOR, …, initialState={call})',
            ]
    if not lines:
        return ["nothing of this query can be imported"]
    lines += [
        f'- .option("checkpointLocation", "{checkpoint.location}")',
        '+ .option("checkpointLocation", "A NEW ONE")',
    ]
    lines += [f"+ {source['go_on']}" for source in sources if source["go_on"].startswith(".option")]
    return lines
