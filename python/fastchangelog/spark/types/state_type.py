"""The type of a state: its rows as user code gives them, as exact values, as columns, and as user code sees them.

Owns: rows of a state or of a map's keys. Does not own: values (`values`, `atomic`), the bytes (the core), which key or
state a row belongs to (`processor.states.cache` names them in errors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.types.atomic import INTEGERS
from fastchangelog.spark.types.columns import FAILURES, not_given, with_nulls
from fastchangelog.spark.types.scalars import Convert, NoRow, Refused
from fastchangelog.spark.types.values import accepted, accepted_fields, exact_values, is_seen_changeable, shown_values
from fastchangelog.spark.types.walk import nullable
from fastchangelog.spark.types.wire import wire_schema

__all__ = ["Refused", "StateType", "UnencodableRow"]

#: What Arrow raises for values of which it makes no column.
_NO_COLUMN = (UnicodeError, ValueError, TypeError, OverflowError)
_FAST: dict[type[T.DataType], str] = {
    T.BooleanType: "type({0}) is bool",
    T.DoubleType: "type({0}) is float and {0} == {0}",
    T.StringType: "type({0}) is str",
    **{
        dtype: f"type({{0}}) is int and {-(2 ** (bits - 1))} <= {{0}} <= {2 ** (bits - 1) - 1}"
        for dtype, bits in INTEGERS.items()
    },
}


def _admission(struct: T.StructType, converted: Convert) -> Convert:
    """What takes a row that user code gave: exact tuples, as most are, stay; others are `converted`."""
    tests = [f"type(row) is tuple and len(row) == {len(struct.fields)}"]
    for i, field in enumerate(struct.fields):
        test = _FAST.get(type(field.dataType))
        if test is None:
            return converted
        tests.append(f"({test.format(f'row[{i}]')}{f' or row[{i}] is None' if field.nullable else ''})")
    # One expression over all fields, compiled once: a loop over them costs several times as much, per key and batch.
    return eval(f"lambda row: row if {' and '.join(tests)} else converted(row)", {"converted": converted})  # type: ignore[no-any-return]


class StateType:
    """The type of a state's values, or of a map's keys: named columns.

    `admit` and `shown` are for one row, `columns` and `rows` for many; a row is a tuple of exact values. Timestamps are
    seen in `timezone`, without one in the zone of this process.
    """

    def __init__(self, struct: T.StructType, what: str, timezone: str | None = None) -> None:
        if not struct.fields:
            raise InvalidArgumentError(f"{what} has no fields; name at least one, such as `value long`")
        self.struct = struct
        self._what = what
        self.names: list[str] = struct.names
        # What is null is known before columns are built.
        self.arrow: pa.DataType = pa.struct(list(wire_schema(nullable(struct), what)))
        self._fields = [accepted(f.dataType, f.nullable) for f in struct.fields]
        self._values = [exact_values(f.dataType) for f in struct.fields]
        self._shown = [shown_values(f.dataType, timezone) for f in struct.fields]
        #: Gives the exact row of what user code gave, or raises `Refused`.
        self.admit: Callable[[Any], tuple[Any, ...]] = _admission(struct, self._converted)
        #: True if exact rows are seen as they are.
        self.is_plain = not any(self._shown)
        #: True if what is seen can be changed: a row is then kept exact, and each reader gets an object of its own.
        self.is_seen_changeable = is_seen_changeable(struct)

    def _converted(self, value: Any) -> tuple[Any, ...]:
        names = self.names
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in names]
            if unknown:
                raise Refused(value, f"has {unknown[0]!r}, which is none of the fields {', '.join(names)}")
            value = [value.get(name) for name in names]
        try:
            items = iter(value)
        except TypeError:
            raise NoRow(value, f"is no tuple of the fields {', '.join(names)}") from None
        return accepted_fields(value, tuple(items), names, self._fields)

    def shown(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """An exact row as user code sees it."""
        if self.is_plain:
            return row
        try:
            return tuple([x if x is None or show is None else show(x) for show, x in zip(self._shown, row)])
        except FAILURES:
            return tuple([self._shown_column(i, [x])[0] for i, x in enumerate(row)])

    def kept_rows(self, array: pa.StructArray) -> list[tuple[Any, ...] | None]:
        """A struct array as rows that can be given to user code more than once, through `given`."""
        return self.rows(array) if self.is_seen_changeable else self.shown_rows(array)

    def given(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """A row of `kept_rows` as user code sees it."""
        return self.shown(row) if self.is_seen_changeable else row

    def columns(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.StructArray:
        """Exact rows as a struct array; a null for each None."""
        mask = None
        if None in rows:
            mask = pa.array([row is None for row in rows], pa.bool_())
            nothing = (None,) * len(self.names)
            rows = [nothing if row is None else row for row in rows]
        fields = list(self.arrow)
        values: Sequence[Sequence[Any]] = list(zip(*rows)) if rows else [()] * len(fields)
        arrays = []
        for field, column in zip(fields, values):
            try:
                arrays.append(pa.array(column, field.type))
            except _NO_COLUMN as error:
                raise _unencodable(field, column, error) from None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def rows(self, array: pa.StructArray) -> list[tuple[Any, ...] | None]:
        """A struct array as exact rows."""
        return with_nulls(list(zip(*self._spark_columns(array))), array)

    def shown_rows(self, array: pa.StructArray) -> list[tuple[Any, ...] | None]:
        """A struct array as rows that user code sees."""
        if self.is_plain:
            return self.rows(array)
        columns = [self._shown_column(i, values) for i, values in enumerate(self._spark_columns(array))]
        return with_nulls(list(zip(*columns)), array)

    def _spark_columns(self, array: pa.StructArray) -> list[list[Any]]:
        return [values(column) for values, column in zip(self._values, array.flatten())]

    def _shown_column(self, place: int, exact: list[Any]) -> list[Any]:
        """The values of one field as user code sees them."""
        show = self._shown[place]
        if show is None:
            return exact
        try:
            return [x if x is None else show(x) for x in exact]
        except FAILURES as error:
            raise not_given(f"{self._what}: field", self.struct.fields[place], error) from error


class UnencodableRow(Refused):
    """Text that is no Unicode, found when the rows were encoded; `row` is the first such row."""

    row: int = 0


def _unencodable(field: pa.Field, column: Sequence[Any], error: Exception) -> Refused:
    value, row = f"{len(column)} values", 0
    for i, one in enumerate(column):
        try:
            pa.array([one], field.type)
        except _NO_COLUMN as reason:
            value, row, error = one, i, reason
            break
    refused = UnencodableRow(value, f"cannot be stored: {' '.join(str(error).split())}")
    refused.row = row
    refused.within(field.name)
    return refused
