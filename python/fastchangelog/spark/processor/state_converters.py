"""What user code may put into states.

Owns: for each Spark type, which Python values a state takes, and the exact value each becomes (`column_values`).
Does not own: what is seen of a state (`state_values`), whose value it is (`cache` names key and state in errors).

A value is converted where it stays the same: an int in a `double` field, a float without fraction in a `bigint`. What
Spark rounds is rounded as Spark does: decimals half up, floats to `float`. Texts of other values are Java's, as Spark
stores them. All else is refused: Spark stores a null or waits for ever.
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
from pyspark.sql import types as T

from fastchangelog.errors import ArgumentTypeError, InvalidArgumentError
from fastchangelog.spark.processor.column_values import NAN

__all__ = ["INTEGERS", "Convert", "NoRow", "Refused", "converter"]

Convert = Callable[[Any], Any]

INTEGERS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_CONTEXT = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class Refused(Exception):
    """A value that a state cannot take: why, and the path to the field from the inside out."""

    #: What user code sees.
    error: type[InvalidArgumentError] = InvalidArgumentError

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
        shown = " ".join(shown.split()) if "\n" in shown else shown  # of a frame or an array
        shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
        place = f"field `{'.'.join(reversed(self.path))}`" if self.path else f"`{dtype.simpleString()}`"
        return f"{place}: {shown} {self.why}"


class NoRow(Refused):
    """A value that is no row at all."""

    error = ArgumentTypeError


def _is_nothing(value: object) -> bool:
    """True for what pandas and numpy have in the place of None."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
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
        except (OverflowError, ValueError):  # too large, or a signalling NaN
            converted = NAN
        if converted == converted and converted == value:
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
        return str.__str__(value)  # of an Enum its text, and not its name
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
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise Refused(value, "is no Unicode text; encode it") from None
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
            if exact.copy_abs() >= limit or exact != exact.quantize(step, context=_CONTEXT):
                raise Refused(given, f"is no {name}: its digits do not fit")
            value = exact
        if isinstance(value, int):
            value = decimal.Decimal(value)
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise Refused(given, f"is no {name}")
        if value.copy_abs() < limit:
            value = value.quantize(step, context=_CONTEXT)
        if value.copy_abs() >= limit:
            raise Refused(given, f"has too many digits for {name}")
        return value if value else value.copy_abs()  # there is one zero

    return convert


def _nothing(value: Any) -> Any:
    raise Refused(value, "stands in a field that is always null")


def _array(dtype: T.ArrayType) -> Convert:
    element = converter(dtype.elementType, dtype.containsNull)

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
    to_key = converter(dtype.keyType, False)
    to_value = converter(dtype.valueType, dtype.valueContainsNull)

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
    fields = [converter(f.dataType, f.nullable) for f in dtype.fields]

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


def _of_type(dtype: T.DataType) -> Convert:
    if type(dtype) in INTEGERS:
        return _integer(dtype, INTEGERS[type(dtype)])
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


def converter(dtype: T.DataType, nullable: bool) -> Convert:
    """What turns a value of user code into the exact one of a type, None for a null; or raises `Refused`."""
    convert = _of_type(dtype)

    def checked(value: Any) -> Any:
        if not _is_nothing(value):
            value = convert(value)
            if value is not None:
                return value
        if not nullable:
            raise Refused(value, "stands where the schema allows no null")
        return None

    return checked
