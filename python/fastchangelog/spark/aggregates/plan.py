"""The plan of an aggregation: project, split, operator, metrics, names.

Owns: `aggregated`, the plan of all operators of accumulators, and what is checked once the aggregates are known.
Does not own: the meaning of keys and aggregates (`analyse`), what runs in tasks (`split`, `operator`, `batch`), what it
shares with the plan of a processor (`spark.grouping`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.spark import complete_mode, metrics
from fastchangelog.spark.aggregates.analyse import Analysed, Output
from fastchangelog.spark.aggregates.batch import BatchOperator
from fastchangelog.spark.aggregates.event_time import EventTimeProcessor
from fastchangelog.spark.aggregates.expressions import aggregate_name, key_name
from fastchangelog.spark.aggregates.operator import ShardProcessor
from fastchangelog.spark.aggregates.spec import Returned
from fastchangelog.spark.aggregates.split import Split
from fastchangelog.spark.grouping import Grouping
from fastchangelog.spark.split import payload_type, watermark_of
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from fastchangelog.spark.imported_state import ImportedState

__all__ = ["Operation", "aggregated", "operated"]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What a stateful operator of accumulators does."""

    spec: str
    #: The projected columns in their wire form.
    input: T.StructType
    #: What Spark projects for the split.
    projection: Sequence[Column]
    #: What the operator returns, in its wire form.
    output: T.StructType
    output_mode: Returned
    #: Rows may be late, or groups closed, by the watermark.
    has_watermarks: bool
    #: The spec of the payloads of an initial state, if it is another one.
    initial_spec: str = ""


def aggregated(
    grouping: Grouping, analysed: Analysed, initial_state: ImportedState | DataFrame | None = None
) -> DataFrame:
    """The keys and results of an aggregation."""
    _internal.spec_check(analysed.spec)
    first = None if initial_state is None else _initial_payloads(grouping, analysed, initial_state)
    operation = Operation(
        analysed.spec,
        analysed.input,
        analysed.projection,
        analysed.wire_result,
        analysed.output_mode,
        analysed.closes_groups,
    )
    return _with_results(operated(grouping, operation, first), analysed)


def _with_results(found: DataFrame, analysed: Analysed) -> DataFrame:
    """Keys and results under Spark's names, from what the operator returns."""
    stored = [F.col(f"__r{i}") for i in range(analysed.num_keys + len(analysed.results))]
    keys, results = analysed.keys.results(stored[: analysed.num_keys]), stored[analysed.num_keys :]
    aggregates = [results[i] for i in analysed.kept]
    if all(output.expression is None for output in analysed.outputs):
        plain = [wire.result_column(aggregates[output.aggregate], output.field) for output in analysed.outputs]
        return found.select(*(keys if analysed.keys_in_result else []), *plain)
    fields = [analysed.results[i].field for i in analysed.kept]
    shown = [key.alias(key_name(i)) for i, key in enumerate(keys)] + [
        wire.result_column(column, T.StructField(aggregate_name(n), field.dataType, field.nullable))
        for n, (column, field) in enumerate(zip(aggregates, fields, strict=True))
    ]
    computed = found.select(*shown)
    named = [F.col(key_name(i)).alias(field.name) for i, field in enumerate(analysed.keys.fields)]
    expressions = [_expression(output) for output in analysed.outputs]
    made = computed.select(*(e.alias(f"e{i}") for i, e in enumerate(expressions))).schema.fields
    columns = [
        wire.named(_nullable(expression, is_made, output.field), output.field)
        for expression, is_made, output in zip(expressions, made, analysed.outputs, strict=True)
    ]
    return computed.select(*(named if analysed.keys_in_result else []), *columns)


def _expression(output: Output) -> Column:
    return F.col(aggregate_name(output.aggregate)) if output.expression is None else output.expression


def _nullable(column: Column, made: T.StructField, wanted: T.StructField) -> Column:
    """The column, null where Spark says that it may be: of a stream all results may be, constants too."""
    if made.dataType != wanted.dataType:
        column = column.cast(wanted.dataType)
    if made.nullable or not wanted.nullable:
        return column
    key = F.col(key_name(0))
    return F.when(key.isNull() | key.isNotNull(), column)


def operated(grouping: Grouping, operation: Operation, first: DataFrame | None = None) -> DataFrame:
    """The output of an operation; `first` has the payloads of its initial state."""
    if grouping.start_schema is not None:
        _check_start_schema(grouping, operation.spec, grouping.start_schema)
    operator = grouping.operator(operation.spec, wire.arrow_schema(operation.output), operation.initial_spec)
    mode, df = operation.output_mode, grouping.df
    split = Split(
        operation.spec,
        wire.arrow_schema(operation.input),
        grouping.options,
        grouping.payload_bytes,
        grouping.partitions,
        streaming=grouping.is_streaming,
        opens_all_shards=first is not None,
        heartbeats=mode == "complete",
    )
    payloads = df.select(*operation.projection).mapInArrow(split, payload_type(watermark_of(df.schema)))
    if not grouping.is_streaming:  # all payloads of a shard reach one task, one shard after the other
        ordered = payloads.repartition("shard").sortWithinPartitions("shard")
        return ordered.mapInArrow(BatchOperator(operator), operation.output)
    if mode == "complete":
        complete_mode.allow(df.sparkSession)
    counted = metrics.of_aggregation(mode)
    processor = (EventTimeProcessor if operation.has_watermarks else ShardProcessor)(operator, counted)
    # Of distinct rows none is taken back, so that stateful operators may follow.
    modes = ("append" if mode == "new" else mode, "EventTime" if operation.has_watermarks else "None")
    return grouping.through_state(payloads, first, processor, operation.output, counted, modes)


def _initial_payloads(grouping: Grouping, analysed: Analysed, given: ImportedState | DataFrame) -> DataFrame:
    from fastchangelog.spark.aggregates.seed import initial_payloads  # few queries need it

    if not grouping.is_streaming:
        raise InvalidArgumentError(
            "initial_state is for a stream's first batch; on a batch DataFrame add the rows to it with union()"
        )
    if grouping.options.get("start_from"):
        raise InvalidArgumentError("agg() has an initial_state, and grouped() a savepoint to start from; give only one")
    return initial_payloads(grouping, analysed, given)


def _check_start_schema(grouping: Grouping, spec: str, old: str) -> None:
    difference = _internal.schema_difference(old, _internal.spec_schema(spec)[1])
    if difference is not None:
        raise SchemaMismatchError(
            f"option `start_from`: the savepoint {grouping.options['start_from']} belongs to another query: "
            f"{difference}; start from a savepoint of this query, or without one"
        )
