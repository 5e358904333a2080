"""Runs a vectorised processor over the rows of a shard's batch.

Owns: the calls of `open`, `process` and `close`, binding of its states, the check of what it yields.
Does not own: what user code sees (`fastchangelog.vectorised`), the session's life and its commit (the caller).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import TimerValues

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark.processor.ddl import parse_ddl
from fastchangelog.spark.processor.evolution import evolve
from fastchangelog.spark.processor.exact_types import exact_schema
from fastchangelog.spark.processor.handle import Declaration
from fastchangelog.spark.processor.spec import CodecMaker, GroupedRows, ProcessorSpec, SessionLike
from fastchangelog.spark.processor.state_values import StateType
from fastchangelog.vectorised.batch import Batch, whole_keys
from fastchangelog.vectorised.processor import Context, Declared

__all__ = ["declarations_of", "run_vectorised"]

#: Rows and bytes of a chunk.
_CHUNK_ROWS = 65_536
_CHUNK_BYTES = 16 * 1024 * 1024

_TEXTS = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.duration("us"): "interval day to second",
}


def run_vectorised(
    spec: ProcessorSpec, session: SessionLike, rows: GroupedRows | None, times: TimerValues, make_codec: CodecMaker
) -> Iterator[pa.RecordBatch]:
    """Yields the processor's output; the caller commits."""
    processor: Any = spec.processor
    now = times.getCurrentProcessingTimeInMs()
    now = now if now >= 0 else time.time_ns() // 1_000_000
    key = StateType(spec.key, "the grouping key").arrow
    context = Context(key, spec.time_mode, now, times.getCurrentWatermarkInMs())
    processor.open(context)
    context.close()
    key_codec = make_codec(key, pa.binary(), [pa.binary()])
    context.batch_keys.bind(key_codec)
    _bind(spec, session, context, now, key, make_codec)
    schema = exact_schema(spec.output, "the output column")
    for encoded, columns, offsets in whole_keys(() if rows is None else rows.finish(_CHUNK_ROWS, _CHUNK_BYTES)):
        keys = key_codec.decode_keys(encoded)
        context.batch_keys.move(keys, encoded)
        shown = pa.RecordBatch.from_arrays([columns.column(i) for i in spec.columns], names=spec.input.names)
        for answered in _results(processor.process(Batch(keys, shown, offsets))):
            yield from _checked(answered, schema)
        context.batch_keys.move(None, encoded[:0])
    processor.close()


def declarations_of(processor: Any, spec: ProcessorSpec) -> list[Declaration]:
    """What `open` declares; runs it, and `close`."""
    context = Context(StateType(spec.key, "the grouping key").arrow, spec.time_mode, 0, 0)
    processor.open(context)
    context.close()
    processor.close()
    return [_declaration(declared) for declared in context.declared.values()]


def _declaration(declared: Declared) -> Declaration:
    fields = [T.StructField(f.name, _spark_type(declared.name, f.name, f.type)) for f in declared.kept]
    return Declaration(declared.name, "value", T.StructType(fields), None, declared.ttl_millis)


def _spark_type(state: str, field: str, dtype: pa.DataType) -> T.DataType:
    if pa.types.is_struct(dtype):
        return T.StructType([T.StructField(f.name, _spark_type(state, f"{field}.{f.name}", f.type)) for f in dtype])
    if pa.types.is_list(dtype):
        return T.ArrayType(_spark_type(state, f"{field}[]", dtype.value_type))
    if pa.types.is_decimal128(dtype):
        return T.DecimalType(dtype.precision, dtype.scale)
    if dtype not in _TEXTS:
        raise UnsupportedError(
            f"state `{state}`: field `{field}` has the type {dtype}, which a vectorised state does not keep; "
            "keep it in another form, a map for example as an array of structs"
        )
    return parse_ddl(f"x {_TEXTS[dtype]}").fields[0].dataType


def _bind(
    spec: ProcessorSpec, session: SessionLike, context: Context, now: int, key: pa.DataType, make_codec: CodecMaker
) -> None:
    declared = context.declared
    evolved = evolve(session.catalog, spec.key, spec.time_mode, [_declaration(d) for d in declared.values()])
    session.declare(evolved.text, now)
    for name, found in declared.items():
        place = evolved.states[name]
        versions = [StateType(version, f"state `{name}`").arrow for version in place.versions]
        ends = None if found.ttl_millis is None else now + found.ttl_millis
        found.state.bind(session, place.id, make_codec(key, versions[-1], versions), ends)


def _results(results: Any) -> Iterator[Any]:
    if results is None or isinstance(results, pa.RecordBatch | pa.Table) or not hasattr(results, "__iter__"):
        raise InvalidArgumentError(
            f"process() returned a {type(results).__name__}; yield record batches, or return a list of them"
        )
    yield from results


def _checked(answered: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not isinstance(answered, pa.RecordBatch | pa.Table):
        raise InvalidArgumentError(f"process() yielded a {type(answered).__name__}; yield record batches of pyarrow")
    names = answered.schema.names
    if names != schema.names:
        raise InvalidArgumentError(
            f"process() yielded the columns {', '.join(names) or 'none'}; outputStructType has "
            f"{', '.join(schema.names)}"
        )
    for field, column in zip(schema, answered.columns, strict=True):
        if column.type != field.type:
            raise InvalidArgumentError(
                f"output column `{field.name}` is of type {column.type}, outputStructType says {field.type}; cast it"
            )
        if column.null_count and not field.nullable:
            raise InvalidArgumentError(f"output column `{field.name}` has a null, which outputStructType excludes")
    for batch in answered.to_batches() if isinstance(answered, pa.Table) else [answered]:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
