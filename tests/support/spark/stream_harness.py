"""A harness that streams the same batches through a plan and keeps what came out.

Owns: the feed of files, one run of a query, the end of its state server, rows made comparable.
Does not own: what is compared (the tests).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog import _internal
from support.spark.lacks import needs

try:
    from pyspark.sql.conversion import LocalDataToArrowConversion
except ImportError:  # PySpark 4.0 has it elsewhere
    from pyspark.sql.connect.conversion import LocalDataToArrowConversion

STORE = "spark.sql.streaming.stateStore."
PROVIDER = STORE + "providerClass"
FORMAT = STORE + "checkpointFormatVersion"

needs_readable_checkpoints = needs("own checkpoints")

#: Types that a Parquet file of pyarrow holds as one of Spark's does.
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_PLAIN = (T.BooleanType, T.IntegralType, T.FractionalType, T.BinaryType, *_TIMES)


def as_table(rows: list[Any], schema: Any) -> pa.Table | None:
    """The rows as an Arrow table, as Spark converts them; None where only Spark itself writes their types."""
    parsed = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not rows or not isinstance(parsed, T.StructType) or not is_plain(parsed):
        return None
    return LocalDataToArrowConversion.convert(rows, parsed, False)


def is_plain(data_type: T.DataType) -> bool:
    """True if the type and all types in it are among `_PLAIN`, or strings of the usual order."""
    if isinstance(data_type, T.StructType):
        return all(is_plain(field.dataType) for field in data_type.fields)
    if isinstance(data_type, T.ArrayType):
        return is_plain(data_type.elementType)
    if isinstance(data_type, T.MapType):
        return is_plain(data_type.keyType) and is_plain(data_type.valueType)
    return isinstance(data_type, _PLAIN) or data_type == T.StringType()


@dataclasses.dataclass
class Feed:
    """A folder that a stream reads, one file per batch."""

    spark: Any
    folder: pathlib.Path
    schema: Any
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def add(self, rows: Sequence[Any]) -> None:
        number = next(self.numbers)
        target = self.folder / f"{number:04d}"
        table = as_table(list(rows), self.schema)
        if table is None:
            self.spark.createDataFrame(list(rows), self.schema).coalesce(1).write.parquet(str(target))
        else:  # a job of Spark for a handful of rows takes as long as a batch of the query
            target.mkdir(parents=True)
            pq.write_table(table, target / "rows.parquet")
        for part in target.glob("*.parquet"):  # files are taken by age: make it certain
            os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))

    def stream(self) -> Any:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "*"))


@dataclasses.dataclass
class Ran:
    """What a query answered: rows by batch id, and its progress objects."""

    batches: dict[int, list[Any]]
    progress: list[Any]


def run(df: Any, checkpoint: pathlib.Path, sink: Callable[[Any, int], Any] | None = None, mode: str = "update") -> Ran:
    """Runs `df` over everything there is, in an output mode, and collects each batch (or hands it to `sink`)."""
    got: dict[int, list[Any]] = {}

    def take(batch: Any, number: int) -> None:
        got[number] = batch.collect() if sink is None else sink(batch, number)

    query = (
        df.writeStream.foreachBatch(take)
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(180)
        assert not query.isActive, "the query did not end"
    finally:
        query.stop()
    return Ran(got, list(query.recentProgress))


def batches_of_runs(
    feed: Any,
    folder: pathlib.Path,
    name: str,
    mode: str,
    plan: Callable[[Any], Any],
    runs: Sequence[Sequence[Sequence[Any]]],
    schema: str,
) -> dict[int, list[Any]]:
    """The rows of each batch that has some: `runs` of one query, each with its batches."""
    source, found = feed(schema, name=name), {}
    for batches in runs:
        for rows in batches:
            source.add(rows)
        found.update(run(plan(source.stream()), folder / f"{name}-checkpoint", mode=mode).batches)
    return {number: rows_of(rows) for number, rows in found.items() if rows}


def end_state_server(spark: Any) -> pathlib.Path:
    """Ends the executor's state server, as its workers find it: the next task restores. Gives its data folder."""

    @F.udf("string")
    def place(_: int) -> str:
        from fastchangelog.server.paths import ServerPaths

        return f"{ServerPaths.here().socket}|{ServerPaths.here().data_dir}"

    socket, data = spark.range(1).select(place("id")).first()[0].split("|")
    _internal.ServerClient(socket).shutdown()
    return pathlib.Path(data)


def canonical(value: Any) -> Any:
    """A value that compares equal where Spark says equal: NaN to NaN, bytes to bytearrays, dicts to any order."""
    if isinstance(value, float):
        return "NaN" if value != value else value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return ("map", frozenset((canonical(k), canonical(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(canonical(v) for v in value)
    return value


def rows_of(rows: Sequence[Any]) -> list[Any]:
    """Rows in an order of their own, comparable."""
    return sorted((canonical(tuple(r)) for r in rows), key=repr)
