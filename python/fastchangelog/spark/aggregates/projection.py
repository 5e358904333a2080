"""The columns that Spark computes for the split.

Owns: their names, wire forms and texts; equal columns once.
Does not own: which columns these are (`analyse`, `distinct`), the wire form of types (`types.wire`).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import types as T

from fastchangelog.spark import internals
from fastchangelog.spark.types import wire

__all__ = ["Projection"]


class Projection:
    """The columns that Spark computes; equal arguments are computed once."""

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.fields: list[T.StructField] = []
        self.texts: list[str] = []
        self._known: list[tuple[str, Column, int]] = []

    def add(self, name: str, column: Column, dtype: T.DataType, text: str, *, key: bool = False) -> int:
        on_wire = wire.wire_type(dtype, f"key {text}" if key else text)
        self.columns.append(wire.to_wire(column, dtype, key=key).alias(name))
        self.fields.append(T.StructField(name, on_wire))
        self.texts.append(text)
        return len(self.columns) - 1

    def column(self, kind: str, column: Column, dtype: T.DataType, text: str) -> int:
        for known_kind, known, index in self._known:
            if known_kind == kind and internals.same(known, column):
                return index
        index = self.add(f"__{kind}{len(self._known)}", column, dtype, text)
        self._known.append((kind, column, index))
        return index

    def schema(self) -> T.StructType:
        return T.StructType(self.fields)
