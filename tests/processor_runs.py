"""Batches of a processor over a fake session, one after the other.

Owns: making specs and rows of plain Python values, running batches, keeping the store between them; a processor that
runs functions.
Does not own: the session (`fake_state_session`), other processors and expectations (the tests).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from fake_state_session import FakeCodec, FakeGrouper, FakeSession, Store
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from fastchangelog.spark import wire_types
from fastchangelog.spark.processor.ddl import parse_ddl
from fastchangelog.spark.processor.run import ProcessorSpec, run_batch
from fastchangelog.spark.processor.state_values import StateType


def spark_arrow(dtype: T.DataType, timezone: str) -> pa.DataType:
    """The Arrow type that Spark writes for a type: maps are maps, timestamps are in the session's zone."""
    if isinstance(dtype, T.ArrayType):
        return pa.list_(spark_arrow(dtype.elementType, timezone))
    if isinstance(dtype, T.MapType):
        return pa.map_(spark_arrow(dtype.keyType, timezone), spark_arrow(dtype.valueType, timezone))
    if isinstance(dtype, T.StructType):
        return pa.struct([pa.field(f.name, spark_arrow(f.dataType, timezone)) for f in dtype.fields])
    if isinstance(dtype, T.TimestampType):
        return pa.timestamp("us", timezone)
    if isinstance(dtype, T.NullType):
        return pa.null()
    return wire_types.arrow_type(wire_types.wire_type(dtype, "a column"))


class Runner:
    """One query of one shard: `batch` runs the next batch and keeps its state."""

    def __init__(
        self,
        processor: Callable[[], StatefulProcessor] | StatefulProcessor,
        *,
        key: str = "k string",
        rows: str = "v long",
        output: str = "k string, n long",
        initial: str | None = None,
        chunk_rows: int | None = None,
        **settings: Any,
    ) -> None:
        self.key, self.columns = parse_ddl(key), parse_ddl(rows)
        self.make = processor if callable(processor) else lambda: processor
        self.output = parse_ddl(output)
        self.initial = None if initial is None else parse_ddl(initial)
        self.chunk_rows = chunk_rows
        self.settings = settings
        self.store = Store()
        self.session: FakeSession | None = None
        self.key_arrow = StateType(self.key, "key").arrow

    def spec(self) -> ProcessorSpec:
        """The spec of the next batch, with a processor of its own: rows are the key's columns, then the others."""
        fields = [*self.key.fields, *self.columns.fields]
        initial: dict[str, Any] = {}
        if self.initial is not None:
            both = [*self.key.fields, *self.initial.fields]
            initial = {"initial": T.StructType(both), "initial_columns": tuple(range(len(both)))}
        return ProcessorSpec(
            processor=self.make(),
            api=self.settings.get("api", "row"),
            key=self.key,
            input=T.StructType(fields),
            columns=tuple(range(len(fields))),
            output=self.output,
            **initial,
            **{name: value for name, value in self.settings.items() if name != "api"},
        )

    def grouped(self, rows: Sequence[tuple[Any, ...]], columns: T.StructType) -> FakeGrouper:
        """Rows as a grouper has them."""
        zone = self.settings.get("timezone", "UTC")
        types = [
            *(field.type for field in self.key_arrow),
            *(spark_arrow(field.dataType, zone) for field in columns.fields),
        ]
        arrays = [pa.array([row[i] for row in rows], dtype) for i, dtype in enumerate(types)]
        batch = pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(types))])
        return FakeGrouper(batch, self.key_arrow, self.chunk_rows)

    def output_of(
        self,
        rows: Sequence[tuple[Any, ...]] = (),
        *,
        now: int = 1000,
        watermark: int = 0,
        initial: Sequence[tuple[Any, ...]] | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """The batches of one batch's output, lazily; nothing is kept of it."""
        spec = dataclasses.replace(self.spec(), **options)
        times = TimerValues() if spec.time_mode == "none" else TimerValues(now, watermark)
        self.session = FakeSession(self.store)
        first = None
        if initial is not None:
            assert self.initial is not None
            first = self.grouped(initial, self.initial)
        grouped = self.grouped(rows, self.columns) if rows else None
        return run_batch(spec, self.session, grouped, times, first, make_codec=FakeCodec)

    def batch(self, rows: Sequence[tuple[Any, ...]] = (), **options: Any) -> list[tuple[Any, ...]]:
        """The rows of one batch's output; its state is kept."""
        batches = list(self.output_of(rows, **options))
        assert self.session is not None
        self.store = self.session.commit()
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


class Script(StatefulProcessor):
    """Runs functions: `rows(self, key, values, times)` for each key, with the states v, l and m, or an `init`."""

    def __init__(
        self, rows: Callable[..., Any] | None = None, init: Callable[..., Any] | None = None, **ttl: int
    ) -> None:
        self.on_rows, self.on_init, self.ttl = rows, init, ttl

    def init(self, handle: Any) -> None:
        self.handle = handle
        if self.on_init is not None:
            self.on_init(self, handle)
            return
        self.v = handle.getValueState("v", "n long, d double", self.ttl.get("v"))
        self.l = handle.getListState("l", "x long", self.ttl.get("l"))
        self.m = handle.getMapState("m", "a string", "b long", self.ttl.get("m"))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = [row.v for row in rows]
        found = self.on_rows(self, key, values, timerValues) if self.on_rows is not None else None
        for n in found or ():
            yield Row(k=key[0], n=n)

    def close(self) -> None:
        self.closed = True


def runs(rows: Callable[..., Any], batches: int = 1, **settings: Any) -> list[Any]:
    """What `rows` gave for one key in each of some batches."""
    runner = Runner(lambda: Script(rows), **settings)
    return [[n for _, n in runner.batch([("a", i)])] for i in range(batches)]
