"""The rows of a state of Spark's own operators: as the tasks of a job read them by the core, or as a frame of Spark's.

Owns: their columns, their number, the tasks that read partitions.
Does not own: which state it is, and who reads it (`spark_states`), files and formats (the core), what becomes of the
rows (`aggregates.seed`, `processor.imported`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.checkpoints.core import CoreFiles
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as T

    from fastchangelog.spark.task import ArrowFunction

__all__ = ["CoreRows", "CoreState", "StoredRows"]


@dataclasses.dataclass(frozen=True)
class CoreState:
    """The state of an operator after a batch, as the core reads it. It travels to the tasks."""

    files: CoreFiles
    operator: int
    batch: int
    partitions: int

    def opened(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[_internal.StoredState]:
        """The partitions whose numbers come in batches, one after the other."""
        for batch in numbers:
            for partition in batch.column(0).to_pylist():
                with self.files.state(self.operator, partition, self.batch) as state:
                    yield state

    def all_opened(self) -> Iterator[_internal.StoredState]:
        """All partitions, in this process."""
        numbers = pa.array(range(self.partitions), pa.int64())
        return self.opened([pa.RecordBatch.from_arrays([numbers], ["id"])])

    def in_tasks(self, spark: SparkSession, function: ArrowFunction, schema: T.StructType) -> DataFrame:
        """What `function` makes of the numbers of partitions, in a task for each."""
        return spark.range(0, self.partitions, 1, self.partitions).mapInArrow(function, schema)


@dataclasses.dataclass(frozen=True)
class CoreRows:
    """The rows of a column family, as the core reads them."""

    state: CoreState
    #: None in a store without families.
    family: str | None
    key_encoder: str
    #: As they are in the store; of a list the value is an element.
    key: T.StructType
    value: T.StructType
    is_list: bool

    def batches(self, state: _internal.StoredState) -> Iterator[pa.RecordBatch]:
        """The rows of a partition in the wire form: structs `key` and `value`, of a list also `place`."""
        key, value = wire.stored_schema(self.key), wire.stored_schema(self.value)
        return state.rows(self.family, key, value, self.key_encoder, is_list=self.is_list)

    def all_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of all partitions, in this process."""
        for state in self.state.all_opened():
            yield from self.batches(state)


@dataclasses.dataclass(frozen=True)
class StoredRows:
    """The rows of a state."""

    key: T.StructType
    #: The columns beside the key, as Spark's source names them.
    others: Mapping[str, T.DataType]
    #: Who reads them: the core, or Spark's source.
    read: CoreRows | DataFrame
    #: So many columns of the stored value are the key; 0: the stored key is.
    keys_in_value: int = 0

    @classmethod
    def of_frame(cls, frame: DataFrame) -> StoredRows:
        """The rows that Spark's source gives."""
        key: Any = frame.schema["key"].dataType
        others = {f.name: f.dataType for f in frame.schema.fields if f.name not in ("key", "partition_id")}
        return cls(key, others, frame)

    def by_values(self) -> StoredRows:
        """The rows by the keys that their values begin with: the stored key has the start of a session window alone."""
        stored, keys = self.others["value"], len(self.key)
        fields: Any = getattr(stored, "fields", [])
        kind = type(self.key)
        return StoredRows(kind(fields[:keys]), {"value": kind(fields[keys:])}, self.read, keys)

    def count(self) -> int:
        """Their number: keys, or entries of maps."""
        read = self.read
        if not isinstance(read, CoreRows):
            return read.count()
        return sum(state.count(read.family) for state in read.state.all_opened())
