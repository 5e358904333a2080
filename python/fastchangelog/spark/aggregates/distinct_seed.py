"""The initial state of distinct rows: the state of Spark's own query.

Owns: which columns of Spark's state are the key's, and the refusals.
Does not own: reading Spark's checkpoint (`checkpoint.spark_states`), payloads (`seed`, `stored_accumulators`), how
payloads become the first version (`operator`).

Spark keeps the columns as the key, in an order of its own. Within a watermark the value is the time of expiry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.spark.aggregates.seed import BufferSplit
from fastchangelog.spark.aggregates.stored_accumulators import StoredSplit, Taken
from fastchangelog.spark.checkpoint.spark_states import DISTINCT_WITHIN_WATERMARK, Checkpoint, check_keys
from fastchangelog.spark.checkpoint.stored_rows import CoreRows
from fastchangelog.spark.split import payload_type
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T

    from fastchangelog.spark.aggregates.distinct import Distinct
    from fastchangelog.spark.grouping import Grouping
    from fastchangelog.spark.imported_state import ImportedState

__all__ = ["imported_payloads"]


def imported_payloads(
    grouping: Grouping, found: Distinct, names: Sequence[str], initial: ImportedState, *, within_watermark: bool
) -> DataFrame:
    """The payload rows of the state of Spark's query; `names` are those of the key's columns."""
    checkpoint = Checkpoint.of_import(grouping, initial)
    operator, where = checkpoint.operator_of_kind(initial.operator, "distinct")
    if (operator.name == DISTINCT_WITHIN_WATERMARK) != within_watermark:
        wanted = "dropDuplicatesWithinWatermark" if within_watermark else "dropDuplicates"
        raise InvalidArgumentError(f"{where} is {operator.name}, and not a state of {wanted}")
    rows = checkpoint.rows(operator)
    order = _order(where, found, names, rows.key)
    split = BufferSplit(found.operation.initial_spec, grouping.options, grouping.payload_bytes, grouping.partitions)
    if isinstance(rows.read, CoreRows):
        taken = [Taken(0), Taken(0, is_set=True)] if within_watermark else []
        paths = [(order[i], field) for i, field in found.keys.paths()]
        return rows.read.state.in_tasks(
            checkpoint.spark, StoredSplit(rows.read, paths, taken, split), payload_type(None)
        )
    key = [F.col("key").getField(rows.key[at].name) for at in order]
    columns = [wire.to_wire(part.column, part.dtype, key=True) for part in found.keys.stored(key)]
    if within_watermark:
        expiry = F.col("value").getField(rows.others["value"].fieldNames()[0])  # type: ignore[attr-defined]
        columns += [expiry, expiry.isNotNull()]
    named = [column.alias(f"c{i}") for i, column in enumerate(columns)]
    return rows.read.select(*named).mapInArrow(split, payload_type(None))


def _order(where: str, found: Distinct, names: Sequence[str], key: T.StructType) -> list[int]:
    """Where Spark keeps each column of the key."""
    there = list(key.names)
    if sorted(there) != sorted(names) or len(set(there)) != len(there):
        raise SchemaMismatchError(
            f"{where} keeps the columns {', '.join(there)}, and duplicates are dropped here by {', '.join(names)}"
        )
    order = [there.index(name) for name in names]
    check_keys(where, found.keys.fields, key.__class__([key[at] for at in order]))
    return order
