"""One value of Python, numpy or pandas as a declared type has it: the same value, or an error.

Owns: for each Arrow type, which Python values fit it, and what each becomes for `pyarrow.array`.
Does not own: dates and times (`times`), Arrow's and numpy's arrays (`arrays`, by the same rule), the text around
an error (`typed`).

A value is kept or refused, never changed. docs/state.md has the rule for users.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fastchangelog.fit.misfit import Misfit, shown
from fastchangelog.fit.times import clock_time, duration, exact_date, moment, time_of_day

__all__ = ["Fit", "is_list", "is_map", "is_text", "value_fit"]

#: Arrow's names of numbers and numpy's.
_NUMPY = {"float": "float32", "double": "float64"} | {f"int{n}": f"int{n}" for n in (8, 16, 32, 64)}

Convert = Callable[[Any], Any]


class Fit(NamedTuple):
    """What fits a type."""

    #: Values of these classes need no look: Arrow takes them as they are, or refuses them.
    plain: frozenset[type]
    #: Any other value as Arrow takes it, None for a null; or a `Misfit`.
    convert: Convert


def is_list(dtype: pa.DataType) -> bool:
    """True for each of Arrow's list types."""
    return any(
        getattr(pa.types, f"is_{kind}", lambda _: False)(dtype)
        for kind in ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    )


def is_map(dtype: pa.DataType) -> bool:
    """True for Arrow's map type."""
    return bool(pa.types.is_map(dtype))


def is_text(dtype: pa.DataType) -> bool:
    """True for Arrow's types of text."""
    return any(
        getattr(pa.types, f"is_{kind}", lambda _: False)(dtype) for kind in ("string", "large_string", "string_view")
    )


def _is_binary(dtype: pa.DataType) -> bool:
    return any(
        getattr(pa.types, f"is_{kind}", lambda _: False)(dtype)
        for kind in ("binary", "large_binary", "binary_view", "fixed_size_binary")
    )


@lru_cache(maxsize=1024)
def value_fit(dtype: pa.DataType) -> Fit:
    """What fits a type.

    >>> plain, convert = value_fit(pa.int64())
    >>> int in plain, convert(2.0), convert(None)
    (True, 2, None)
    >>> convert(1.9)
    Traceback (most recent call last):
    fastchangelog.fit.misfit.Misfit: 1.9 has a fraction
    """
    plain, convert = _of_type(dtype)
    usual = _usual(dtype)

    def checked(value: Any) -> Any:
        if type(value) is usual:
            return convert(value)
        if isinstance(value, pa.Scalar):
            value = _python(value)
        elif isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        return None if _is_null(value) else convert(value)

    return Fit(plain | {type(None)}, checked)


def _usual(dtype: pa.DataType) -> type | None:
    """The class of most values that are not plain; none of them is a null."""
    if pa.types.is_struct(dtype) or is_map(dtype):
        return dict
    if is_list(dtype):
        return list
    return datetime if pa.types.is_timestamp(dtype) else float if pa.types.is_floating(dtype) else None


def _is_null(value: object) -> bool:
    """True for None, and for a null of pandas and numpy, of which NaN is none."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _python(value: pa.Scalar) -> Any:
    kind = value.type
    if pa.types.is_time(kind) and value.is_valid:
        each = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        if not 0 <= value.value < 86_400 * each or (kind.unit == "ns" and value.value % 1_000):
            raise Misfit(f"{value.value} of {kind} has no equal in Python")
    try:
        return value.as_py()
    except (OverflowError, ValueError) as error:
        raise Misfit(f"a value of {kind} has no equal in Python: {error}") from None


def _number(value: Any) -> Any:
    """A scalar of numpy as Python's; a boolean is no number."""
    if isinstance(value, np.datetime64 | np.timedelta64):  # these have numbers of their own
        raise Misfit(f"{shown(value)} is no number")
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool):
        raise Misfit(f"{shown(value)} is a boolean")
    return number


def _whole(dtype: pa.DataType) -> Convert:
    first = -(2 ** (dtype.bit_width - 1)) if pa.types.is_signed_integer(dtype) else 0
    last = first + 2**dtype.bit_width - 1

    def convert(value: Any) -> int:
        number = _number(value)
        if isinstance(number, float | Decimal):
            if not math.isfinite(number):
                raise Misfit(f"{shown(value)} is no whole number")
            if not first <= number <= last:
                raise Misfit(f"{shown(value)} is beyond {dtype}")
            if number != int(number):
                raise Misfit(f"{shown(value)} has a fraction")
            return int(number)
        try:
            found = operator.index(number)
        except TypeError:
            raise Misfit(f"{shown(value)} is no whole number") from None
        if not first <= found <= last:
            raise Misfit(f"{shown(value)} is beyond {dtype}")
        return found

    return convert


def _floating(code: str, name: str) -> Convert:
    """Of a type that `struct` knows by a code. A float is rounded to it; all other numbers must be equal to it."""

    def convert(value: Any) -> float:
        number = _number(value)
        try:
            if isinstance(number, int | Decimal):
                found = float(number)
            elif isinstance(number, float):
                found = number
            else:
                raise Misfit(f"{shown(value)} is no number")
            rounded: float = struct.unpack(code, struct.pack(code, found))[0]
        except (OverflowError, ValueError):  # too large, or a signalling NaN
            raise Misfit(f"{shown(value)} is beyond {name}") from None
        if found and not rounded:
            raise Misfit(f"{shown(value)} is beyond {name}")
        if rounded != number and not isinstance(number, float):
            raise Misfit(f"{shown(value)} has no equal {name}; convert it first, or declare a decimal")
        return rounded

    return convert


def _decimal(value: Any) -> int | Decimal:
    number = _number(value)
    if isinstance(number, int | Decimal):
        return number
    raise Misfit(f"{shown(value)} is no decimal; give a decimal.Decimal, an int or a Decimal of its text")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise Misfit(f"{shown(value)} is no boolean")


def _string(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # of an Enum its text, and not its name
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise Misfit(f"{shown(value)} is not UTF-8") from None
    raise Misfit(f"{shown(value)} is no text")


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return str.__str__(value).encode()
    raise Misfit(f"{shown(value)} is no bytes")


def _items(value: Any, of: Fit) -> Iterable[Any]:
    """The elements, each as Arrow takes it."""
    plain, convert = of
    if set(map(type, value)) <= plain:
        return value  # type: ignore[no-any-return]
    found = []
    for i, item in enumerate(value):
        try:
            found.append(item if type(item) in plain else convert(item))
        except Misfit as misfit:
            raise misfit.within(f"[{i}]") from None
    return found


def _list(dtype: pa.DataType) -> Convert:
    of = value_fit(dtype.value_type)
    # Arrow takes an array of numpy as it is, if its type is that of the elements.
    name = _NUMPY.get(str(dtype.value_type))

    def convert(value: Any) -> Any:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
            raise Misfit(f"{shown(value)} is no list")
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuf":
            if type(value) is np.ndarray and value.dtype.isnative and value.dtype.name == name:
                return value
            value = value.tolist()
        return _items(value if isinstance(value, list | tuple) else list(value), of)

    return convert


def _map(dtype: pa.MapType) -> Convert:
    keys, items = value_fit(dtype.key_type), value_fit(dtype.item_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple) or any(
            not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs
        ):
            raise Misfit(f"{shown(value)} is no map; give a dict, or a list of pairs")
        found = []
        for key, item in pairs:
            try:
                exact = key if type(key) in keys.plain else keys.convert(key)
                if exact is None:
                    raise Misfit("a key of a map is null")
                found.append((exact, item if type(item) in items.plain else items.convert(item)))
            except Misfit as misfit:
                raise misfit.within(f"[{shown(key)}]") from None
        return found

    return convert


def _row(value: Any, names: list[str], dtype: pa.DataType) -> Any:
    """A struct as a mapping, by the names of its fields."""
    if isinstance(value, Mapping):
        return value if isinstance(value, dict) else dict(value)
    if isinstance(value, tuple):
        given = getattr(value, "_fields", None) or getattr(value, "__fields__", None)  # a named tuple, a row of PySpark
        if given is None:
            if len(value) != len(names):
                raise Misfit(f"{shown(value)} has {len(value)} fields, not the {len(names)} of {dtype}")
            given = names
    elif isinstance(value, list) and value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        given, value = [name for name, _ in value], [item for _, item in value]
    else:
        raise Misfit(f"{shown(value)} is no struct; give a dict, or a tuple of {len(names)} fields")
    row = dict(zip(given, value))
    if len(row) != len(given):
        raise Misfit(f"{shown(value)} has a field twice")
    return row


def _struct(dtype: pa.StructType) -> Convert:
    names = [field.name for field in dtype]
    known = frozenset(names)
    fields = [(field.name, *value_fit(field.type)) for field in dtype]

    def convert(value: Any) -> dict[str, Any]:
        row: dict[str, Any] = value if type(value) is dict else _row(value, names, dtype)
        if not known.issuperset(row):
            unknown = next(name for name in row if name not in known)
            raise Misfit(f"{shown(value)} has fields that {dtype} has not: `{unknown}`")
        found = None
        for name, plain, fit in fields:
            item = row.get(name)
            if type(item) in plain:
                continue
            try:
                exact = fit(item)
            except Misfit as misfit:
                raise misfit.within(name) from None
            if found is None:
                found = dict(row)
            found[name] = exact
        return row if found is None else found

    return convert


def _nothing(value: Any) -> Any:
    raise Misfit(f"{shown(value)} stands where all is null")


def _of_type(dtype: pa.DataType) -> Fit:
    types = pa.types
    if types.is_dictionary(dtype) or types.is_run_end_encoded(dtype):
        return value_fit(dtype.value_type)
    if types.is_integer(dtype):
        return Fit(frozenset({int}), _whole(dtype))
    if types.is_float64(dtype):
        return Fit(frozenset({float}), _floating("<d", "double"))
    if types.is_floating(dtype):
        single = types.is_float32(dtype)
        return Fit(frozenset(), _floating("<f", "float") if single else _floating("<e", "half float"))
    if types.is_decimal(dtype):
        return Fit(frozenset({Decimal, int}), _decimal)
    if types.is_boolean(dtype):
        return Fit(frozenset({bool}), _boolean)
    if is_text(dtype):
        return Fit(frozenset({str}), _string)
    if _is_binary(dtype):
        return Fit(frozenset({bytes}), _binary)
    if types.is_date(dtype):
        return Fit(frozenset({date}), exact_date)
    if types.is_timestamp(dtype):
        return Fit(frozenset(), moment(dtype.unit) if dtype.tz else clock_time(dtype.unit))
    if types.is_duration(dtype):
        return Fit(frozenset(), duration(dtype.unit))
    if types.is_time(dtype):
        return Fit(frozenset(), time_of_day(dtype.unit))
    if is_map(dtype):
        return Fit(frozenset(), _map(dtype))
    if is_list(dtype):
        return Fit(frozenset(), _list(dtype))
    if types.is_struct(dtype):
        return Fit(frozenset(), _struct(dtype))
    if types.is_null(dtype):
        return Fit(frozenset(), _nothing)
    return Fit(frozenset(), lambda value: value)  # of a type that only Arrow knows
