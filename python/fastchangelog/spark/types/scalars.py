"""What user code may put into a field of an atomic type.

Owns: for each kind of value what is taken, and the exact value that it becomes; `Refused`, what is raised for others.
Does not own: which of these a Spark type has (`atomic`), arrays, maps and structs (`values`), whose value it is
(`processor.states.cache` names key and state in errors).

A value is converted where it stays the same: an int in a `double` field, a float without a fraction in a `bigint`.
What Spark rounds is rounded as Spark does it: decimals half up, floats to `float`. Texts of other values are Java's, as
Spark stores them. Anything else is refused, where Spark would store a null or wait for ever.
"""

from __future__ import annotations

import calendar
import datetime
import decimal
import time
from collections.abc import Callable
from ctypes import c_float
from typing import Any

import numpy as np
from pyspark.sql import types as T

from fastchangelog.errors import ArgumentTypeError, InvalidArgumentError
from fastchangelog.spark.types.columns import NAN

__all__ = [
    "Convert",
    "NoRow",
    "Refused",
    "binary",
    "boolean",
    "date",
    "decimals",
    "double",
    "float_",
    "integer",
    "interval",
    "is_nothing",
    "nothing",
    "string",
    "time_of_day",
    "timestamp",
    "timestamp_ntz",
]

Convert = Callable[[Any], Any]
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


def is_nothing(value: object) -> bool:
    """True for None, and for what pandas and numpy have in its place."""
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


def integer(dtype: T.DataType, bits: int) -> Convert:
    """Whole numbers of so many bits."""
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


def double(value: Any) -> Any:
    """Doubles."""
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


def float_(value: Any) -> Any:
    """Doubles, rounded to `float`."""
    exact = double(value)
    return exact if exact is NAN else c_float(exact).value


def boolean(value: Any) -> Any:
    """Booleans, also as 0 and 1."""
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


def string(value: Any) -> Any:
    """Texts, and what Spark writes as one."""
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


def binary(value: Any) -> Any:
    """Bytes, and texts as UTF-8."""
    value = _plain(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise Refused(value, "is no Unicode text; encode it") from None
    raise Refused(value, "is no binary")


def date(value: Any) -> Any:
    """Dates."""
    value = _plain(value)
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    raise Refused(value, "is no date")


def timestamp(value: Any) -> Any:
    """Timestamps as microseconds; without a zone they are in this process's."""
    value = _plain(value)
    if not isinstance(value, datetime.datetime):
        raise Refused(value, "is no timestamp")
    try:
        seconds = calendar.timegm(value.utctimetuple()) if value.tzinfo else int(time.mktime(value.timetuple()))
    except (OverflowError, ValueError):
        raise Refused(value, "is beyond what this process's time zone can tell; give it a time zone") from None
    return seconds * 1_000_000 + value.microsecond


def timestamp_ntz(value: Any) -> Any:
    """Timestamps without a zone, as microseconds."""
    value = _plain(value)
    if not isinstance(value, datetime.datetime):
        raise Refused(value, "is no timestamp")
    return calendar.timegm(value.timetuple()) * 1_000_000 + value.microsecond


def interval(value: Any) -> Any:
    """Intervals as microseconds."""
    value = _plain(value)
    if not isinstance(value, datetime.timedelta):
        raise Refused(value, "is no interval; give a timedelta")
    return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds


def time_of_day(value: Any) -> Any:
    """Times of a day."""
    value = _plain(value)
    if not isinstance(value, datetime.time):
        raise Refused(value, "is no time")
    return value.replace(tzinfo=None)


def decimals(dtype: T.DecimalType) -> Convert:
    """Decimals of the type's digits."""
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


def nothing(value: Any) -> Any:
    """Refuses all."""
    raise Refused(value, "stands in a field that is always null")
