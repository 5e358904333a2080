"""`transformWithState` of a grouped stream: the plan, and the checks when it is built.

Owns: the plan's shape (project, split, operator, metrics), which columns travel, and what is refused on the driver.
Does not own: what runs in tasks (`row_split`, `operator`, `batch`), how the user's code runs (`run`), the checks of
`grouped` itself (`grouped_stream`).

The result has exactly the schema that the user gave: no column of it is renamed, cast or made nullable, so it keeps the
metadata by which Spark's next operator finds the event time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError, UnsupportedError
from fastchangelog.spark import internals, metrics, versions
from fastchangelog.spark.aggregates.keys import makes_windows
from fastchangelog.spark.grouping import Grouping
from fastchangelog.spark.imported_state import ImportedState
from fastchangelog.spark.processor.batch import in_batch
from fastchangelog.spark.processor.call import ProcessorCall
from fastchangelog.spark.processor.evolution import evolve
from fastchangelog.spark.processor.imported import imported_payloads, imported_schema
from fastchangelog.spark.processor.operator import ProcessorConfig, ProcessorOperator, spark_settings
from fastchangelog.spark.processor.row_split import RowSplit
from fastchangelog.spark.processor.run import init_on_driver
from fastchangelog.spark.processor.spec import ProcessorSpec, TimeMode
from fastchangelog.spark.processor.states.handle import Declaration
from fastchangelog.spark.split import WATERMARK_DELAY, payload_type, watermark_of
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.spark_arrow import spark_schema
from fastchangelog.spark.types.walk import contains
from fastchangelog.vectorised.processor import Processor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

__all__ = ["transform"]

_TIME_MODES = ("none", "processingtime", "eventtime")
_OUTPUT_MODES = ("append", "update")


def transform(grouping: Grouping, call: ProcessorCall) -> DataFrame:
    """The result of the processor: a streaming DataFrame, or a batch one of a batch DataFrame."""
    _check_version(grouping.df, call)
    output_mode, time_mode = _modes(grouping, call)
    output = _output(call)
    rows = _columns(grouping.df, grouping.keys, grouping.key, call)
    given = call.initial_state
    imported = given if isinstance(given, ImportedState) else None
    initial = None if given is None or imported is not None else _initial(grouping, call)
    conf = grouping.df.sparkSession.conf
    spec = ProcessorSpec(
        processor=_checked(call),
        api=call.api,
        key=grouping.key,
        input=rows.rows,
        columns=rows.positions,
        output=output,
        output_mode=output_mode,
        time_mode=time_mode,
        event_time_column=call.event_time_column,
        initial=None if initial is None else initial.columns.rows,
        initial_columns=() if initial is None else initial.columns.positions,
        **spark_settings(lambda name: conf.get(name, None)),
    )
    declarations, deleted, counters = init_on_driver(spec)
    if grouping.start_schema is not None:
        _check_savepoint(grouping, spec, declarations, deleted)
    seeded = None if imported is None else _imported(grouping, call, imported, declarations, spec.time_mode, rows)
    config = ProcessorConfig(
        grouping.operator("", spark_schema(output, "the output column")),
        spec,
        rows.schema,
        rows.event_time,
        None if initial is None else initial.columns.schema,
        declared=tuple(declarations),
        deletes=bool(deleted),
        counters=counters,
    )
    streaming = grouping.is_streaming
    # Shards without rows keep the watermark, and delete what `init` deletes.
    heartbeats = time_mode == "eventtime" or bool(deleted)
    payloads = _payloads(grouping, grouping.df, rows, streaming=streaming, heartbeats=heartbeats)
    first = None
    if initial is not None:  # its shards are called anyway
        first = _payloads(grouping, initial.frame, initial.columns)
    elif seeded is not None:
        first, names = seeded
        config = dataclasses.replace(config, initial=imported_schema(_key_schema(grouping, rows)), imported=names)
    if not streaming:
        return in_batch(payloads, first, config, output)
    return grouping.through_state(
        payloads,
        first,
        ProcessorOperator(config),
        output,
        metrics.of_processor(counters),
        (call.output_mode, call.time_mode),
        call.event_time_column,
    )


def _check_savepoint(
    grouping: Grouping, spec: ProcessorSpec, declarations: Sequence[Declaration], deleted: Iterable[str]
) -> None:
    assert grouping.start_schema is not None
    try:
        evolve(grouping.start_schema, spec.key, spec.time_mode, declarations, deleted).log_dropped()
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"option `start_from`: the savepoint {grouping.options['start_from']} does not fit the processor: "
            f"{str(error).rstrip('.')}; after the query's first batch, take the option out"
        ) from None


@dataclasses.dataclass(frozen=True)
class _Columns:
    """The columns of payloads: the keys in their wire form, then the frame's."""

    projection: tuple[Column, ...]
    schema: pa.Schema
    #: Rows as user code sees them: the frame's columns, behind keys that are none of them by name.
    rows: T.StructType
    #: For each of those, where it is.
    positions: tuple[int, ...]
    #: Where the time is by which a row is late.
    event_time: int | None


def _columns(df: DataFrame, keys: Sequence[Column], key: T.StructType, call: ProcessorCall) -> _Columns:
    names = df.columns
    projection: list[Column] = []
    fields: list[pa.Field] = []
    shared: dict[int, int] = {}
    added: list[T.StructField] = []
    positions: list[int] = []
    for i, (column, field) in enumerate(zip(keys, key.fields, strict=True)):
        _check_key(column, field)
        dtype = wire.wire_type(field.dataType, f"key {field.name}")
        projection.append(wire.to_wire(column, field.dataType, key=True).alias(f"__k{i}"))
        fields.append(pa.field(field.name, wire.arrow_type(dtype)))
        if _travels_as_it_is(field.dataType) and names.count(field.name) == 1 and _is_named(column, field.name):
            shared.setdefault(names.index(field.name), i)
    for i, (column, field) in enumerate(zip(keys, key.fields, strict=True)):
        # As Spark's operator has it: `K` for the column `k`, or the field `s.a`, is a column of its own, in Rows.
        is_new = call.api == "row" and field.name not in {*names, *(other.name for other in added)}
        if is_new and internals.is_plain_reference(column):
            added.append(field)
            if _travels_as_it_is(field.dataType):
                positions.append(i)
                continue
            projection.append(column.alias(f"__a{i}"))
            fields.append(spark_schema(T.StructType([field]), "column").field(0).with_nullable(True))
            positions.append(len(projection) - 1)
    exact = spark_schema(df.schema, "column")
    for j, name in enumerate(names):
        if j not in shared:
            projection.append(F.col(_quoted(name)).alias(f"__c{j}"))
            fields.append(exact.field(j).with_nullable(True))
        positions.append(shared.get(j, len(projection) - 1))
    event_time = None
    marked = [j for j, field in enumerate(df.schema.fields) if WATERMARK_DELAY in field.metadata]
    if len(marked) > 1 and df.isStreaming:
        raise UnsupportedError(
            f"the columns {', '.join(names[j] for j in marked)} carry a watermark each, and a stateful operator knows "
            "one event time: keep one of them, with a select() before"
        )
    if marked and df.isStreaming:
        event_time = positions[len(added) + marked[0]]
        field = df.schema.fields[marked[0]]
        if isinstance(field.dataType, T.StructType):  # a window: rows are late by its end
            projection.append(F.col(_quoted(field.name)).getField("end").alias("__e"))
            fields.append(pa.field("end", exact.field(marked[0]).type.field("end").type))
            event_time = len(projection) - 1
    seen = T.StructType([*added, *df.schema.fields])
    return _Columns(tuple(projection), pa.schema(fields), seen, tuple(positions), event_time)


def _payloads(
    grouping: Grouping, df: DataFrame, columns: _Columns, *, streaming: bool = False, heartbeats: bool = False
) -> DataFrame:
    """The payload rows of a frame."""
    split = _split(grouping, columns.schema, streaming=streaming, heartbeats=heartbeats)
    return df.select(*columns.projection).mapInArrow(split, payload_type(watermark_of(df.schema)))


def _split(grouping: Grouping, schema: pa.Schema, *, streaming: bool = False, heartbeats: bool = False) -> RowSplit:
    return RowSplit(
        len(grouping.keys),
        schema,
        grouping.options,
        grouping.payload_bytes,
        grouping.partitions,
        streaming=streaming,
        heartbeats=heartbeats,
    )


def _key_schema(grouping: Grouping, columns: _Columns) -> pa.Schema:
    return pa.schema([columns.schema.field(i) for i in range(len(grouping.keys))])


def _imported(
    grouping: Grouping,
    call: ProcessorCall,
    imported: ImportedState,
    declarations: Sequence[Declaration],
    time_mode: TimeMode,
    columns: _Columns,
) -> tuple[DataFrame, tuple[str, ...]]:
    """The payload rows of the state of Spark's own query, and the names of its variables."""
    if call.api == "arrow":
        raise UnsupportedError(
            f"initialState=import_state(…) is for processors of rows and pandas frames; {call.method}() takes rows, as "
            "df.groupBy(…)"
        )
    if not grouping.df.isStreaming:
        raise InvalidArgumentError(
            f"initialState=import_state(…) of {call.method}() is for a stream's first batch, and the DataFrame is no "
            "stream"
        )
    _check_one_start(grouping, call)
    key = _key_schema(grouping, columns)
    split = _split(grouping, imported_schema(key))
    return imported_payloads(grouping, imported, declarations, time_mode, split, key)


def _check_one_start(grouping: Grouping, call: ProcessorCall) -> None:
    if grouping.options.get("start_from"):
        raise InvalidArgumentError(
            f"{call.method}() has an initialState, and grouped() a savepoint to start from; give one of them"
        )


@dataclasses.dataclass(frozen=True)
class _Initial:
    frame: DataFrame
    columns: _Columns


def _initial(grouping: Grouping, call: ProcessorCall) -> _Initial:
    given = call.initial_state
    ours = getattr(given, "grouping", None)
    if isinstance(ours, Grouping):
        frame, keys = ours.df, list(ours.keys)
    elif hasattr(given, "_df") and hasattr(given, "agg"):
        frame, keys = internals.grouping_of(cast("GroupedData", given))
    else:
        raise InvalidArgumentError(
            f"initialState of {call.method}() is df.groupBy(…), grouped(df, …) or import_state(checkpoint), not "
            f"{type(given).__name__}"
        )
    if frame.isStreaming:
        raise InvalidArgumentError(
            f"initialState of {call.method}() is a stream; it is read once, in the first batch: give a batch DataFrame"
        )
    _check_one_start(grouping, call)
    key = frame.select(*keys).schema
    wanted, found = [f.dataType.simpleString() for f in grouping.key], [f.dataType.simpleString() for f in key]
    if wanted != found:
        raise InvalidArgumentError(
            f"initialState is grouped by {', '.join(found) or 'nothing'}, but the stream by {', '.join(wanted)}: group "
            "both by keys of the same types"
        )
    return _Initial(frame, _columns(frame, keys, key, call))


def _check_version(df: DataFrame, call: ProcessorCall) -> None:
    if call.api == "arrow" or hasattr(df.groupBy(), call.method):
        return
    if internals.is_connect(df):
        raise InvalidArgumentError(
            f"PySpark {versions.PYSPARK} has no {call.method}() over Spark Connect; use a classic session, or "
            "install a newer PySpark"
        )
    raise InvalidArgumentError(
        f"PySpark {versions.PYSPARK} has no {call.method}(), {versions.ROW_PROCESSORS} is the first that has it; "
        "write the processor for transformWithStateInPandas(), or install a newer PySpark"
    )


def _modes(grouping: Grouping, call: ProcessorCall) -> tuple[str, TimeMode]:
    for what, value in (("outputMode", call.output_mode), ("timeMode", call.time_mode)):
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{what} of {call.method}() is a text, not {type(value).__name__}")
    output_mode, time_mode = call.output_mode.lower(), call.time_mode.lower()
    if output_mode == "complete":
        raise UnsupportedError(
            f"outputMode of {call.method}() is complete, but a processor emits rows of the keys that it is called for: "
            'use "update" or "append"'
        )
    if output_mode not in _OUTPUT_MODES or time_mode not in _TIME_MODES:
        if call.api != "arrow":
            _let_spark_refuse(grouping, call)
        raise InvalidArgumentError(
            f"outputMode={call.output_mode!r}, timeMode={call.time_mode!r} of {call.method}(): an output mode is "
            f"one of {', '.join(_OUTPUT_MODES)}, a time mode one of None, ProcessingTime, EventTime"
        )
    return output_mode, cast("TimeMode", time_mode)


def _let_spark_refuse(grouping: Grouping, call: ProcessorCall) -> None:
    """Raises Spark's own error for modes that it does not know, under its own condition."""
    native = internals.native_method(grouping.df.groupBy(*grouping.keys), call.method)
    _ = native(call.processor, call.output, call.output_mode, call.time_mode).schema


def _output(call: ProcessorCall) -> T.StructType:
    output = T.DataType.fromDDL(call.output) if isinstance(call.output, str) else call.output
    if not isinstance(output, T.StructType):
        raise InvalidArgumentError(
            f"outputStructType of {call.method}() is a StructType or a text such as 'key string, n long', not "
            f"{output!r}"
        )
    if call.api != "arrow":  # Rows and frames are converted to the wire form
        for field in output.fields:
            wire.wire_type(field.dataType, f"the output column {field.name}")
    return output


def _checked(call: ProcessorCall) -> StatefulProcessor | Processor:
    processor: Any = call.processor
    if call.api == "arrow":
        if not isinstance(processor, Processor):
            raise InvalidArgumentError(
                f"processor of {call.method}() is an instance of a subclass of fc.Processor, not {processor!r}"
            )
        return processor
    if isinstance(processor, type):
        raise InvalidArgumentError(
            f"statefulProcessor is the class {processor.__name__}; give an instance of it: {processor.__name__}()"
        )
    for method in ("init", "handleInputRows", "handleExpiredTimer", "close"):
        if not callable(getattr(processor, method, None)):
            raise InvalidArgumentError(
                f"statefulProcessor has no method {method}(): {type(processor).__name__} must be a StatefulProcessor "
                "of pyspark.sql.streaming"
            )
    return cast("StatefulProcessor", processor)


def _check_key(column: Column, field: T.StructField) -> None:
    if makes_windows(column):
        raise UnsupportedError(
            f"the key {internals.text_of(column)} makes windows, which a processor cannot be grouped by here: make the "
            "window a column first, with select() or withColumn()"
        )
    if wire.is_collated(field.dataType):
        raise UnsupportedError(
            f"the key {field.name} is a collated string ({field.dataType.simpleString()}), whose equality "
            "fastchangelog does not know; group by collation_key(…), or by lower(…) cast to string"
        )


def _travels_as_it_is(dtype: T.DataType) -> bool:
    """True if a key of this type is in payloads what the frame's column would be. Times of keys are in UTC, those of
    other columns in the session's time zone."""
    return wire.is_unchanged(dtype) and not contains(dtype, lambda part: isinstance(part, T.TimestampType))


def _is_named(column: Column, name: str) -> bool:
    """True if the expression is the frame's column of that name: a field of a struct has a longer text."""
    return internals.is_plain_reference(column) and internals.text_of(column).strip("`") == name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
