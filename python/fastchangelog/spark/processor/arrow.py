"""A vectorised processor in Spark: what its run is given, and types of its states as a catalog has them.

Owns: `run_vectorised`, and Spark's types of declared states.
Does not own: what user code sees and when it is called (`fastchangelog.vectorised`), the session's life and its commit
(the caller).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import TimerValues

from fastchangelog import _internal
from fastchangelog.spark.processor.evolution import evolve
from fastchangelog.spark.processor.payloads import spill_folder
from fastchangelog.spark.processor.spec import GroupedRows, ProcessorSpec, RowChunkLike
from fastchangelog.spark.processor.states.handle import Declaration
from fastchangelog.spark.types.spark_arrow import spark_schema
from fastchangelog.spark.types.state_type import StateType
from fastchangelog.spark.types.wire import spark_type
from fastchangelog.vectorised.context import Declared
from fastchangelog.vectorised.run import Place, Times, VectorRun, opened

__all__ = ["declarations_of", "run_vectorised"]

#: Rows and bytes of a chunk.
_CHUNK_ROWS = 65_536
_CHUNK_BYTES = 16 * 1024 * 1024


def run_vectorised(
    spec: ProcessorSpec,
    session: _internal.StateSession,
    rows: GroupedRows | None,
    times: TimerValues,
    make_codec: type[_internal.StateCodec],
    initial: GroupedRows | None = None,
    counted: MutableMapping[str, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the processor's output, and puts into `counted` what it counted; the caller commits."""
    now = times.getCurrentProcessingTimeInMs()
    now = now if now >= 0 else time.time_ns() // 1_000_000
    key = StateType(spec.key, "the grouping key").arrow
    when = Times(spec.time_mode, now, times.getCurrentWatermarkInMs())

    def declare(declared: Mapping[str, Declared]) -> dict[str, Place]:
        evolved = evolve(session.catalog, spec.key, spec.time_mode, [_declaration(d) for d in declared.values()])
        evolved.log_dropped()
        session.declare(evolved.text, now)
        return {
            name: Place(
                place.id, [StateType(version, f"state `{name}`").arrow for version in place.versions], place.current
            )
            for name, place in evolved.states.items()
        }

    run = VectorRun(spec.processor, key, when, session, make_codec, declare, ansi=spec.ansi)
    schema = spark_schema(spec.output, "the output column")
    if initial is not None:
        assert spec.initial is not None
        run.initial(_chunks(initial), _shown(spec.initial_columns, spec.initial.names))
    yield from run.rows(_chunks(rows), _shown(spec.columns, spec.input.names), schema)
    yield from run.timers(schema, spill_folder)
    run.close()
    if counted is not None:
        counted.update(run.counted)


def declarations_of(processor: Any, spec: ProcessorSpec) -> tuple[list[Declaration], tuple[str, ...]]:
    """The states and the counters that `open` declares; runs it, and `close`."""
    context = opened(
        processor, StateType(spec.key, "the grouping key").arrow, Times(spec.time_mode, 0, 0), ansi=spec.ansi
    )
    processor.close()
    return [_declaration(declared) for declared in context.declared.values()], tuple(context.metrics.counters)


def _chunks(rows: GroupedRows | None) -> Iterable[RowChunkLike]:
    return () if rows is None else rows.finish(_CHUNK_ROWS, _CHUNK_BYTES)


def _shown(columns: Sequence[int], names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """What makes the columns that user code sees of those of chunks."""
    return lambda rows: pa.RecordBatch.from_arrays([rows.column(i) for i in columns], names=list(names))


def _declaration(declared: Declared) -> Declaration:
    value = _struct_type(declared.name, declared.kept)
    map_key = None if declared.map_key is None else _struct_type(declared.name, declared.map_key)
    return Declaration(declared.name, declared.kind, value, map_key, declared.ttl_millis, declared.accumulators)


def _struct_type(state: str, kept: pa.DataType) -> T.StructType:
    return T.StructType([T.StructField(f.name, spark_type(f.type, f"state `{state}`", f.name)) for f in kept])
