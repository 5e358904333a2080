"""The types of states: what is put there, how it is kept, and what is seen of it.

Owns: for each Spark type the value that is seen when a state is read; rows of a state as Arrow columns and back.
Does not own: which values a state takes (`state_converters`), the bytes (the core), which key or state a value belongs
to (`cache` names them in errors).

What is seen has Spark's forms: structs as Rows, arrays as lists, maps as dicts, timestamps naive in the zone of this
process.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import versions, wire_types
from fastchangelog.spark.processor.column_values import FAILURES, exact_values, hashable, is_hashable, not_given
from fastchangelog.spark.processor.row_class import row_class
from fastchangelog.spark.processor.session_zones import zone_of
from fastchangelog.spark.processor.state_converters import INTEGERS, Convert, NoRow, Refused, converter

__all__ = ["Refused", "StateType", "UnencodableRow"]

_UTC_EPOCH = datetime.datetime(1970, 1, 1)


def _local(micros: int) -> datetime.datetime:
    seconds, rest = divmod(micros, 1_000_000)
    try:
        return datetime.datetime.fromtimestamp(seconds).replace(microsecond=rest)
    except ValueError:  # on the first day of all, the day before is out of range
        return datetime.datetime(*time.localtime(seconds)[:6], rest)


def _in_zone(timezone: str) -> Convert:
    """What shows a timestamp as the clocks of a zone did."""

    def shown(micros: int) -> datetime.datetime:
        utc = (_UTC_EPOCH + datetime.timedelta(microseconds=micros)).replace(tzinfo=datetime.timezone.utc)
        return utc.astimezone(zone_of(timezone)).replace(tzinfo=None, fold=0)

    return shown


def _shown(dtype: T.DataType, timezone: str | None) -> Convert | None:
    """What turns exact values into those that are seen; None where they are the same."""
    if isinstance(dtype, T.TimestampType):
        return _local if timezone is None else _in_zone(timezone)
    if isinstance(dtype, T.TimestampNTZType):
        return lambda micros: _UTC_EPOCH + datetime.timedelta(microseconds=micros)
    if isinstance(dtype, T.DayTimeIntervalType):
        return lambda micros: datetime.timedelta(microseconds=micros)
    if isinstance(dtype, T.BinaryType):
        return None if versions.HAS_BYTES else bytearray
    if isinstance(dtype, T.ArrayType):
        element = _shown(dtype.elementType, timezone)
        return list if element is None else lambda items: [x if x is None else element(x) for x in items]
    if isinstance(dtype, T.MapType):
        key, value = _shown(dtype.keyType, timezone), _shown(dtype.valueType, timezone)
        to_key, to_value = key or _same, value or _same
        if not is_hashable(dtype.keyType) or to_key is bytearray:
            return lambda pairs: {hashable(to_key(k)): v if v is None else to_value(v) for k, v in pairs}
        return lambda pairs: {to_key(k): v if v is None else to_value(v) for k, v in pairs}
    if isinstance(dtype, T.StructType):
        make, fields = row_class(dtype.names), [_shown(f.dataType, timezone) or _same for f in dtype.fields]
        return lambda row: make([x if x is None else field(x) for field, x in zip(fields, row)])
    return None


def _same(value: Any) -> Any:
    return value


def _is_seen_changeable(dtype: T.DataType) -> bool:
    """True if user code can change what it sees of a value of the type."""
    if isinstance(dtype, T.StructType):
        return any(_is_seen_changeable(f.dataType) for f in dtype.fields)
    return isinstance(dtype, (T.ArrayType, T.MapType)) or (isinstance(dtype, T.BinaryType) and not versions.HAS_BYTES)


def _nullable_type(dtype: T.DataType) -> T.DataType:
    """The type with nulls allowed everywhere: what is null is known before columns are built."""
    if isinstance(dtype, T.ArrayType):
        return T.ArrayType(_nullable_type(dtype.elementType))
    if isinstance(dtype, T.MapType):
        return T.MapType(_nullable_type(dtype.keyType), _nullable_type(dtype.valueType))
    if isinstance(dtype, T.StructType):
        return T.StructType([T.StructField(f.name, _nullable_type(f.dataType)) for f in dtype.fields])
    return dtype


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
        wire = wire_types.wire_type(_nullable_type(struct), what)
        assert isinstance(wire, T.StructType)
        self.arrow: pa.DataType = pa.struct(list(wire_types.arrow_schema(wire)))
        self._fields = [converter(f.dataType, f.nullable) for f in struct.fields]
        self._values = [exact_values(f.dataType) for f in struct.fields]
        self._shown = [_shown(f.dataType, timezone) for f in struct.fields]
        #: Gives the exact row of what user code gave, or raises `Refused`.
        self.admit: Callable[[Any], tuple[Any, ...]] = _admission(struct, self._converted)
        #: True if exact rows are seen as they are.
        self.is_plain = not any(self._shown)
        #: True if what is seen can be changed: a row is then kept exact, and each reader gets an object of its own.
        self.is_seen_changeable = _is_seen_changeable(struct)

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
        row = tuple(items)
        if len(row) != len(names):
            raise Refused(value, f"has {len(row)} values for the {len(names)} fields {', '.join(names)}")
        found = []
        for name, field, item in zip(names, self._fields, row):
            try:
                found.append(field(item))
            except Refused as refused:
                raise refused.within(name) from None
        return tuple(found)

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
            except (UnicodeError, ValueError, TypeError, OverflowError) as error:
                raise _unencodable(field, column, error) from None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def rows(self, array: pa.StructArray) -> list[tuple[Any, ...] | None]:
        """A struct array as exact rows."""
        columns = [values(column) for values, column in zip(self._values, array.flatten())]
        return self._nulled(list(zip(*columns)), array)

    def shown_rows(self, array: pa.StructArray) -> list[tuple[Any, ...] | None]:
        """A struct array as rows that user code sees."""
        if self.is_plain:
            return self.rows(array)
        exact = [values(column) for values, column in zip(self._values, array.flatten())]
        columns = [self._shown_column(i, values) for i, values in enumerate(exact)]
        return self._nulled(list(zip(*columns)), array)

    def _shown_column(self, place: int, exact: list[Any]) -> list[Any]:
        """The values of one field as user code sees them."""
        show = self._shown[place]
        if show is None:
            return exact
        try:
            return [x if x is None else show(x) for x in exact]
        except FAILURES as error:
            raise not_given(f"{self._what}: field", self.struct.fields[place], error) from error

    @staticmethod
    def _nulled(rows: list[Any], array: pa.StructArray) -> list[tuple[Any, ...] | None]:
        if array.null_count:
            for i in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
                rows[i] = None
        return rows


class UnencodableRow(Refused):
    """Text that is no Unicode, found when the rows were encoded; `row` is the first such row."""

    row: int = 0


def _unencodable(field: pa.Field, column: Sequence[Any], error: Exception) -> Refused:
    for i, value in enumerate(column):
        try:
            pa.array([value], field.type)
        except (UnicodeError, ValueError, TypeError, OverflowError) as reason:
            refused = UnencodableRow(value, f"cannot be stored: {' '.join(str(reason).split())}")
            refused.row = i
            refused.within(field.name)
            return refused
    refused = UnencodableRow(f"{len(column)} values", f"cannot be stored: {' '.join(str(error).split())}")
    refused.within(field.name)
    return refused
