"""Batches of a processor over a fake session, one after the other.

Owns: making specs and rows of plain Python values, running batches, keeping the store between them; a processor that
runs functions; random values.
Does not own: the session (`fake_state_session`), other processors and expectations (the tests).
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from fastchangelog.spark.processor.run import run_batch
from fastchangelog.spark.processor.spec import ProcessorSpec
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.ddl import parse_ddl
from fastchangelog.spark.types.state_type import StateType
from support.fake_state_session import FakeCodec, FakeGrouper, FakeSession, Store


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
    return wire.arrow_type(wire.wire_type(dtype, "a column"))


class Runner:
    """One query of one shard: `batch` runs the next batch and keeps its state."""

    codec: Any = FakeCodec

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
        self.session: Any = None
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

    def open(self) -> Any:
        """A session for the next batch."""
        return FakeSession(self.store)

    def commit(self) -> None:
        """Keeps what the last batch did."""
        assert self.session is not None
        self.store = self.session.commit()

    def grouped(self, rows: Sequence[tuple[Any, ...]], columns: T.StructType) -> Any:
        """Rows as a grouper has them."""
        return FakeGrouper(self.columns_of(rows, columns), self.key_arrow, self.chunk_rows)

    def columns_of(self, rows: Sequence[tuple[Any, ...]], columns: T.StructType) -> pa.RecordBatch:
        """Rows as the columns of a payload."""
        zone = self.settings.get("timezone", "UTC")
        types = [
            *(field.type for field in self.key_arrow),
            *(spark_arrow(field.dataType, zone) for field in columns.fields),
        ]
        arrays = [pa.array([row[i] for row in rows], dtype) for i, dtype in enumerate(types)]
        return pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(types))])

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
        self.session = self.open()
        first = None
        if initial is not None:
            assert self.initial is not None
            first = self.grouped(initial, self.initial)
        grouped = self.grouped(rows, self.columns) if rows else None
        return run_batch(spec, self.session, grouped, times, first, make_codec=self.codec)

    def batch(self, rows: Sequence[tuple[Any, ...]] = (), **options: Any) -> list[tuple[Any, ...]]:
        """The rows of one batch's output; its state is kept."""
        batches = list(self.output_of(rows, **options))
        self.commit()
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


def random_value(rng: random.Random, dtype: T.DataType, depth: int = 0) -> Any:
    """An exact value of a type, as user code might give it."""
    if rng.random() < 0.15:
        return None
    if isinstance(dtype, T.ArrayType):
        return [random_value(rng, dtype.elementType) for _ in range(rng.randrange(4))]
    if isinstance(dtype, T.MapType):
        keys = {k for _ in range(rng.randrange(4)) if (k := random_value(rng, dtype.keyType)) is not None}
        return {k: random_value(rng, dtype.valueType) for k in keys}
    if isinstance(dtype, T.StructType):
        return tuple(random_value(rng, f.dataType) for f in dtype.fields)
    if isinstance(dtype, T.DecimalType):
        return Decimal(rng.randrange(-(10**dtype.precision) + 1, 10**dtype.precision)).scaleb(-dtype.scale)
    makers: dict[type[T.DataType], Any] = {
        T.BooleanType: lambda: rng.random() < 0.5,
        T.ByteType: lambda: rng.randrange(-128, 128),
        T.IntegerType: lambda: rng.randrange(-(2**31), 2**31),
        T.LongType: lambda: rng.choice([0, -(2**63), 2**63 - 1, rng.randrange(1000)]),
        T.FloatType: lambda: rng.choice([0.5, -0.0, math.inf, math.nan]),
        T.DoubleType: lambda: rng.choice([rng.random(), -0.0, math.inf, math.nan, 5e-324]),
        T.StringType: lambda: "".join(rng.choice("aé\0☃") for _ in range(rng.randrange(5))),
        T.BinaryType: lambda: rng.randbytes(rng.randrange(4)),
        T.DateType: lambda: datetime.date.fromordinal(rng.randrange(1, 3_652_059)),
        T.TimestampType: lambda: datetime.datetime.fromtimestamp(rng.randrange(2**32), datetime.timezone.utc).replace(
            microsecond=7
        ),
        T.TimestampNTZType: lambda: datetime.datetime.fromtimestamp(rng.randrange(2**32)),
        T.DayTimeIntervalType: lambda: datetime.timedelta(microseconds=rng.randrange(-(2**50), 2**50)),
        T.NullType: lambda: None,
    }
    return makers[type(dtype)]()


TYPES = (
    "boolean",
    "tinyint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval day to second",
    "decimal(20,5)",
    "void",
    "array<double>",
    "array<array<string>>",
    "map<string,double>",
    "map<int,array<timestamp>>",
    "struct<a:binary,b:struct<c:double,d:array<date>>>",
    "array<map<string,struct<x:timestamp_ntz>>>",
)
