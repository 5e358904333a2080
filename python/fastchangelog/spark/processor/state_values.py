"""What user code puts into states and what it sees of them.

Owns: for each Spark type, which Python values a state takes, the exact value each becomes (`column_values`), and the
value that is seen when it is read; rows of a state as Arrow columns and back.
Does not own: the bytes (the core), which key or state a value belongs to (`cache` names them in errors).

What is put is converted where the value stays the same: an int in a `double` field, a float without fraction in a
`bigint`. What Spark rounds is rounded as Spark does: decimals half up, floats to `float`. All else is refused.
What is seen has Spark's forms: structs as Rows, arrays as lists, maps as dicts, binaries as bytearrays, timestamps
naive in the zone of this process.
"""

from __future__ import annotations

import calendar
import datetime
import decimal
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import wire_types
from fastchangelog.spark.processor.column_values import NAN, exact_values
from fastchangelog.spark.processor.row_class import row_class

__all__ = ["Refused", "StateType", "UnencodableRow"]

Convert = Callable[[Any], Any]

_INTEGERS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_UTC_EPOCH = datetime.datetime(1970, 1, 1)
_CONTEXT = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class Refused(Exception):
    """A value that a state cannot take: why, and the path to the field from the inside out."""

    def __init__(self, value: object, why: str) -> None:
        super().__init__(why)
        self.value = value
        self.why = why
        self.path: list[str] = []

    def within(self, part: str) -> Refused:
        """The same, of this field, element or entry."""
        self.path.append(part)
        return self

    def text(self, dtype: T.DataType) -> str:
        """What was refused, and where in a value of this type."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
        place = f"field `{'.'.join(reversed(self.path))}`" if self.path else f"`{dtype.simpleString()}`"
        return f"{place}: {shown} {self.why}"


def _is_nothing(value: object) -> bool:
    """True for what pandas has in the place of None."""
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def _plain(value: Any) -> Any:
    """Scalars of numpy and pandas as Python's."""
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    if isinstance(value, np.timedelta64):
        return value.astype("timedelta64[us]").item()
    if isinstance(value, np.generic):
        return value.item()
    return value


def _integer(dtype: T.DataType, bits: int) -> Convert:
    name, last = dtype.simpleString(), 2 ** (bits - 1) - 1

    def convert(value: Any) -> Any:
        value = given = _plain(value)
        if isinstance(value, float):
            if value != value:
                return None  # what pandas has in the place of a null
            value = int(value) if value.is_integer() else value
        if isinstance(value, decimal.Decimal) and value.is_finite() and value == value.to_integral_value():
            value = int(value)
        if not isinstance(value, int):
            raise Refused(given, f"is no {name}")
        if not -last - 1 <= value <= last:
            raise Refused(given, f"is beyond {name}")
        return int(value)

    return convert


def _double(value: Any) -> Any:
    value = given = _plain(value)
    if isinstance(value, float):
        return value if value == value else NAN
    if isinstance(value, (int, decimal.Decimal)):
        try:
            converted = float(value)
        except OverflowError:
            converted = NAN
        if converted == value:
            return converted
        raise Refused(given, "is no double: the nearest one differs")
    raise Refused(given, "is no double")


def _float(value: Any) -> Any:
    exact = _double(value)
    return exact if exact is NAN else c_float(exact).value


def _boolean(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise Refused(value, "is no boolean")


def _java_double(value: float) -> str:
    """A double as Java writes it, which Spark stores in a `string` field."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(decimal.Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    mantissa = "".join(map(str, digits))
    return f"{'-' * sign}{mantissa[0]}.{mantissa[1:] or '0'}E{int(exponent) + len(digits) - 1}"


def _string(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, decimal.Decimal)):
        return str(value)
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise Refused(value, "is no text; decode it, or use a binary field") from None
    raise Refused(value, "is no string")


def _binary(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise Refused(value, "is no binary")


def _date(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    raise Refused(value, "is no date")


def _timestamp(value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, datetime.datetime):
        raise Refused(value, "is no timestamp")
    try:
        seconds = calendar.timegm(value.utctimetuple()) if value.tzinfo else int(time.mktime(value.timetuple()))
    except (OverflowError, ValueError):
        raise Refused(value, "is beyond what this process's time zone can tell; give it a time zone") from None
    return seconds * 1_000_000 + value.microsecond


def _timestamp_ntz(value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, datetime.datetime):
        raise Refused(value, "is no timestamp")
    return calendar.timegm(value.timetuple()) * 1_000_000 + value.microsecond


def _interval(value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, datetime.timedelta):
        raise Refused(value, "is no interval; give a timedelta")
    return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds


def _time(value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, datetime.time):
        raise Refused(value, "is no time")
    return value.replace(tzinfo=None)


def _decimal(dtype: T.DecimalType) -> Convert:
    name, step = dtype.simpleString(), decimal.Decimal(1).scaleb(-dtype.scale)
    limit = decimal.Decimal(10) ** (dtype.precision - dtype.scale)

    def convert(value: Any) -> Any:
        value = given = _plain(value)
        if isinstance(value, float) and value != value:
            return None  # what pandas has in the place of a null
        if isinstance(value, float):
            exact = decimal.Decimal(repr(value))
            if not exact.is_finite() or exact != exact.quantize(step, context=_CONTEXT):
                raise Refused(given, f"is no {name}: its digits do not fit")
            value = exact
        if isinstance(value, int):
            value = decimal.Decimal(value)
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise Refused(given, f"is no {name}")
        if abs(value) < limit:
            value = value.quantize(step, context=_CONTEXT)
        if abs(value) >= limit:
            raise Refused(given, f"has too many digits for {name}")
        return value

    return convert


def _nothing(value: Any) -> Any:
    raise Refused(value, "stands in a field that is always null")


def _array(dtype: T.ArrayType) -> Convert:
    element = _nullable(dtype.elementType, dtype.containsNull)

    def convert(value: Any) -> Any:
        if hasattr(value, "tolist"):  # arrays of numpy, pandas and Arrow
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
            raise Refused(value, "is no array; give a list")
        found = []
        for i, item in enumerate(value):
            try:
                found.append(element(item))
            except Refused as refused:
                raise refused.within(f"[{i}]") from None
        return tuple(found)

    return convert


def _map(dtype: T.MapType) -> Convert:
    to_key = _nullable(dtype.keyType, False)
    to_value = _nullable(dtype.valueType, dtype.valueContainsNull)

    def convert(value: Any) -> Any:
        pairs = value
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif not isinstance(value, (list, tuple)) or any(
            not isinstance(pair, (list, tuple)) or len(pair) != 2 for pair in value
        ):
            raise Refused(value, "is no map; give a dict, or a list of pairs")
        found = {}
        for key, item in pairs:
            try:
                exact = to_key(key)
                if exact in found:
                    raise Refused(key, "is twice in a map")
                found[exact] = to_value(item)
            except Refused as refused:
                raise refused.within(f"[{key!r}]") from None
        return tuple(found.items())

    return convert


def _struct(dtype: T.StructType) -> Convert:
    names = dtype.names
    fields = [_nullable(f.dataType, f.nullable) for f in dtype.fields]

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            values: Sequence[Any] = [value.get(name) for name in names]
        elif isinstance(value, (tuple, list)):
            values = value
        elif hasattr(value, "__dict__"):
            values = [vars(value).get(name) for name in names]
        else:
            raise Refused(value, "is no struct; give a Row, a tuple or a dict")
        if len(values) != len(names):
            raise Refused(value, f"has {len(values)} values for the {len(names)} fields {', '.join(names)}")
        found = []
        for name, field, item in zip(names, fields, values):
            try:
                found.append(field(item))
            except Refused as refused:
                raise refused.within(name) from None
        return tuple(found)

    return convert


_CONVERTS: dict[type[T.DataType], Convert] = {
    T.BooleanType: _boolean,
    T.FloatType: _float,
    T.DoubleType: _double,
    T.StringType: _string,
    T.CharType: _string,
    T.VarcharType: _string,
    T.BinaryType: _binary,
    T.DateType: _date,
    T.TimestampType: _timestamp,
    T.TimestampNTZType: _timestamp_ntz,
    T.DayTimeIntervalType: _interval,
    T.NullType: _nothing,
}


def _converter(dtype: T.DataType) -> Convert:
    if type(dtype) in _INTEGERS:
        return _integer(dtype, _INTEGERS[type(dtype)])
    if isinstance(dtype, T.YearMonthIntervalType):
        return _integer(dtype, 32)
    if isinstance(dtype, T.DecimalType):
        return _decimal(dtype)
    if isinstance(dtype, T.ArrayType):
        return _array(dtype)
    if isinstance(dtype, T.MapType):
        return _map(dtype)
    if isinstance(dtype, T.StructType):
        return _struct(dtype)
    return _CONVERTS.get(type(dtype), _time)


def _nullable(dtype: T.DataType, nullable: bool) -> Convert:
    convert = _converter(dtype)

    def checked(value: Any) -> Any:
        if not _is_nothing(value):
            value = convert(value)
            if value is not None:
                return value
        if not nullable:
            raise Refused(value, "stands where the schema allows no null")
        return None

    return checked


def _local(micros: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(micros // 1_000_000).replace(microsecond=micros % 1_000_000)


def _shown(dtype: T.DataType) -> Convert | None:
    """What turns exact values into those that are seen; None where they are the same."""
    if isinstance(dtype, T.TimestampType):
        return _local
    if isinstance(dtype, T.TimestampNTZType):
        return lambda micros: _UTC_EPOCH + datetime.timedelta(microseconds=micros)
    if isinstance(dtype, T.DayTimeIntervalType):
        return lambda micros: datetime.timedelta(microseconds=micros)
    if isinstance(dtype, T.BinaryType):
        return bytearray
    if isinstance(dtype, T.ArrayType):
        element = _shown(dtype.elementType)
        return list if element is None else lambda items: [x if x is None else element(x) for x in items]
    if isinstance(dtype, T.MapType):
        key, value = _shown(dtype.keyType), _shown(dtype.valueType)
        to_key, to_value = key or _same, value or _same
        return lambda pairs: {to_key(k): v if v is None else to_value(v) for k, v in pairs}
    if isinstance(dtype, T.StructType):
        make, fields = row_class(dtype.names), [_shown(f.dataType) or _same for f in dtype.fields]
        return lambda row: make([x if x is None else field(x) for field, x in zip(fields, row)])
    return None


def _same(value: Any) -> Any:
    return value


def _nullable_type(dtype: T.DataType) -> T.DataType:
    """The type with nulls allowed everywhere: what is null is known before columns are built."""
    if isinstance(dtype, T.ArrayType):
        return T.ArrayType(_nullable_type(dtype.elementType))
    if isinstance(dtype, T.MapType):
        return T.MapType(_nullable_type(dtype.keyType), _nullable_type(dtype.valueType))
    if isinstance(dtype, T.StructType):
        return T.StructType([T.StructField(f.name, _nullable_type(f.dataType)) for f in dtype.fields])
    return dtype


_FAST = {
    T.BooleanType: "type({0}) is bool",
    T.DoubleType: "type({0}) is float and {0} == {0}",
    T.StringType: "type({0}) is str",
    **{
        dtype: f"type({{0}}) is int and {-(2 ** (bits - 1))} <= {{0}} <= {2 ** (bits - 1) - 1}"
        for dtype, bits in _INTEGERS.items()
    },
}


def _is_exact(struct: T.StructType) -> Convert:
    """A function that is true for tuples that are exact already, as most are. It may be false for others of them."""
    tests = []
    for i, field in enumerate(struct.fields):
        test = _FAST.get(type(field.dataType))
        if test is None:
            return lambda value: False
        tests.append(f"({test.format(f'v{i}')}{f' or v{i} is None' if field.nullable else ''})")
    names = ", ".join(f"v{i}" for i in range(len(tests)))
    # One expression over all fields, compiled once: a loop over them costs several times as much, per key and batch.
    return eval(f"lambda {names}: {' and '.join(tests)}")  # type: ignore[no-any-return]


class StateType:
    """The type of a state's values, or of a map's keys: named columns.

    `admit` and `shown` are for one row, `columns` and `rows` for many; a row is a tuple of exact values.
    """

    def __init__(self, struct: T.StructType, what: str) -> None:
        if not struct.fields:
            raise InvalidArgumentError(f"{what} has no fields; name at least one, such as `value long`")
        self.struct = struct
        self.names: list[str] = struct.names
        wire = wire_types.wire_type(_nullable_type(struct), what)
        assert isinstance(wire, T.StructType)
        self.arrow: pa.DataType = pa.struct(list(wire_types.arrow_schema(wire)))
        self._fields = [_nullable(f.dataType, f.nullable) for f in struct.fields]
        self._values = [exact_values(f.dataType) for f in struct.fields]
        self._shown = [_shown(f.dataType) for f in struct.fields]
        self._is_exact = _is_exact(struct)
        #: True if exact rows are seen as they are.
        self.is_plain = not any(self._shown)

    def admit(self, value: Any) -> tuple[Any, ...]:
        """The exact row of what user code gave, or `Refused`."""
        if type(value) is tuple and len(value) == len(self._fields) and self._is_exact(*value):
            return value
        return self._converted(value)

    def _converted(self, value: Any) -> tuple[Any, ...]:
        names = self.names
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in names]
            if unknown:
                raise Refused(value, f"has {unknown[0]!r}, which is none of the fields {', '.join(names)}")
            value = [value.get(name) for name in names]
        try:
            row = tuple(value)
        except TypeError:
            raise Refused(value, f"is no tuple of the fields {', '.join(names)}") from None
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
        return tuple([x if x is None or show is None else show(x) for show, x in zip(self._shown, row)])

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
        columns = []
        for values, show, column in zip(self._values, self._shown, array.flatten()):
            exact = values(column)
            columns.append(exact if show is None else [x if x is None else show(x) for x in exact])
        return self._nulled(list(zip(*columns)), array)

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
