"""The columns of a processor's state, as readers see them.

Owns: which columns a kind of state has, their Spark types, and decoding a page of a scan into them.
Does not own: the scan (`scan`), the catalog's text (`fastchangelog.catalog`), the plan (`plan`).

Names and shapes are those of Spark's `statestore` source:

    value   key, value, partition_id                           and of aggregates, which have their results as value
    list    key, list_element, partition_id                    a row for each element
    map     key, user_map_key, user_map_value, partition_id    a row for each entry
    timers  key, expiration_timestamp_ms, partition_id         a row for each timer

Keys and values are structs of the declared columns. In a state with a TTL the value, element or map value is a struct
of `value` and `ttlExpirationMs`. Any field may be null.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.catalog import CatalogState
from fastchangelog.errors import CorruptDataError, InternalError
from fastchangelog.spark.aggregates.stored import labelled_rows, stored_accumulators
from fastchangelog.spark.processor.evolution import schema_changes
from fastchangelog.spark.processor.renames import aligned, are_same_keys
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.ddl import parse_ddl
from fastchangelog.spark.types.walk import nullable

__all__ = ["PageReader", "StateColumns"]

_TIME = 8


@dataclasses.dataclass(frozen=True)
class StateColumns:
    """The columns of a state as the newest version declares it."""

    kind: str
    key: T.StructType
    map_key: T.StructType | None
    value: T.StructType | None
    ttl: bool

    @classmethod
    def of(cls, state: CatalogState) -> StateColumns:
        """Those of a catalog's state."""
        return cls(
            state.kind,
            _columns(state.key),
            None if state.map_key is None else _columns(state.map_key),
            None if state.kind == "timers" else _columns(state.value),
            state.ttl,
        )

    def can_read(self, stored: CatalogState) -> bool:
        """False for values of types that the newest one cannot follow."""
        if self.map_key is not None and (
            stored.map_key is None or not are_same_keys(_columns(stored.map_key), self.map_key)
        ):
            return False
        value = self.value
        return value is None or not any(schema_changes(version, value) for version in _versions(stored, value))

    def spark(self) -> T.StructType:
        """The columns, without the partition, in Spark's types."""
        fields = [T.StructField("key", self.key)]
        if self.map_key is not None:
            fields.append(T.StructField("user_map_key", self.map_key))
        if self.value is None:
            fields.append(T.StructField("expiration_timestamp_ms", T.LongType()))
        else:
            name = {"list": "list_element", "map": "user_map_value"}.get(self.kind, "value")
            ending = T.StructType([T.StructField("value", self.value), T.StructField("ttlExpirationMs", T.LongType())])
            fields.append(T.StructField(name, ending if self.ttl else self.value))
        return T.StructType(fields)

    def wire(self) -> T.StructType:
        """The same in their wire form."""
        wired = wire.wire_type(self.spark(), "a state")
        assert isinstance(wired, T.StructType)
        return wired

    def arrow(self) -> pa.Schema:
        """The wire form as Arrow types."""
        return wire.arrow_schema(self.wire())


class PageReader:
    """Decodes the pages of one shard's scan.

    `stored` is the state in the shard's own catalog: a shard without rows since a restart has an older one.
    """

    def __init__(self, columns: StateColumns, stored: CatalogState) -> None:
        self._columns = columns
        self._schema = columns.arrow()
        self._key = _arrow(columns.key)
        self._map_key = None if columns.map_key is None else _arrow(columns.map_key)
        versions = [pa.binary()] if columns.value is None else self._versions(columns.value, stored)
        parts = [*self._key, *(self._map_key or ())]
        # Of a map, the key and the map key follow each other.
        joined = pa.struct([pa.field(f"_{i}", part.type) for i, part in enumerate(parts)])
        self._codec = _internal.StateCodec(joined, versions[-1], versions)
        self._accumulators: _internal.Accumulators | None = None
        if stored.accumulators is not None:
            self._accumulators = stored_accumulators(stored.accumulators, [field.name for field in versions[-1]])

    @staticmethod
    def _versions(newest: T.StructType, stored: CatalogState) -> list[pa.DataType]:
        versions = [_arrow(version) for version in _versions(stored, newest)]
        wanted = _arrow(newest)
        return versions if versions[-1:] == [wanted] else [*versions, wanted]

    def read(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a page, in the wire form."""
        keys, subs, values = page.columns
        parts = self._codec.decode_keys(keys).flatten()
        count = self._key.num_fields
        columns: list[pa.Array] = [_struct(parts[:count], self._key, page.num_rows)]
        if self._map_key is not None:
            columns.append(_struct(parts[count:], self._map_key, page.num_rows))
        if self._columns.value is None:
            columns.append(_times(subs))
        else:
            decoded = self._decoded(values)
            if self._columns.ttl:
                ending = self._schema.types[-1]
                decoded = pa.StructArray.from_arrays([decoded, _times(subs)], fields=list(ending))
            columns.append(decoded)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _decoded(self, values: pa.BinaryArray) -> pa.Array:
        if self._accumulators is None:
            return self._codec.decode_values(values)
        assert self._columns.value is not None
        results = pa.RecordBatch.from_struct_array(self._accumulators.results(values))
        return labelled_rows(results, pa.schema(list(_arrow(self._columns.value)))).to_struct_array()


def _versions(stored: CatalogState, newest: T.StructType) -> list[T.StructType]:
    """All types of a state's values, with the names that their fields have now."""
    return aligned([_columns(version) for version in stored.versions], _columns(stored.value), newest)


def _columns(text: str) -> T.StructType:
    """The columns of a DDL text as readers have them: all may be null, and texts are strings of any length."""
    read = nullable(
        parse_ddl(text), lambda dtype: T.StringType() if isinstance(dtype, (T.CharType, T.VarcharType)) else dtype
    )
    assert isinstance(read, T.StructType)
    return read


def _arrow(struct: T.StructType) -> pa.StructType:
    return pa.struct(list(wire.wire_schema(struct, "a state")))


def _struct(parts: list[pa.Array], dtype: pa.StructType, rows: int) -> pa.StructArray:
    if len(parts) != dtype.num_fields or any(len(part) != rows for part in parts):
        raise InternalError(f"{len(parts)} columns of {rows} rows do not make {dtype}; please report it")
    return pa.StructArray.from_arrays(parts, fields=list(dtype))


def _times(subs: pa.BinaryArray) -> pa.Array:
    """Times of eight bytes each, big endian."""
    if len(subs) == 0:
        return pa.array([], pa.int64())
    _, offsets, data = subs.buffers()
    starts = np.frombuffer(offsets, np.int32)[subs.offset : subs.offset + len(subs) + 1]
    if subs.null_count or not (np.diff(starts) == _TIME).all():
        raise CorruptDataError("a time in a page of a scan has not eight bytes; please report it")
    return pa.array(np.frombuffer(data, ">i8", count=len(subs), offset=int(starts[0])).astype(np.int64))
