"""Arrays of Arrow, numpy, pandas and other libraries as arrays of a declared type: the same values, or an error.

Owns: which kinds of data are arrays, which layouts and types fit a type, what Python could not read back.
Does not own: the rule for one value (`values`), the text around an error (`typed`).

Layouts are free: large and view types, dictionaries, runs, the order of fields, units of time. The kind of a value is
not: a number is no text, a time without a zone is no moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog.fit.misfit import Misfit
from fastchangelog.fit.times import LAST_MICROS
from fastchangelog.fit.values import is_list, is_map, is_text, value_fit

__all__ = ["array_of", "check_readable", "fit", "fit_all", "fit_columns", "is_frame", "is_temporal", "table_of"]

Given: TypeAlias = "pa.Array | pa.ChunkedArray | Sequence[Any]"
"""Arrow's data, or values that Python looks at one by one."""

_MICROS_OF_DAY = 86_400_000_000


# ------------------------------------------------------------------------------------------- of any usual library


def is_frame(data: object) -> bool:
    """True for a frame of pandas, whose own way to Arrow makes nulls of NaN."""
    return hasattr(data, "iloc") and hasattr(data, "columns")


def array_of(data: Any) -> Given:
    """Data as Arrow has it, or as a sequence of Python's values.

    >>> array_of(np.array([1.5, float("nan")])).null_count
    0
    """
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return data
    if isinstance(data, pa.Table):
        return data.to_struct_array()
    kind = getattr(data, "dtype", None)
    if hasattr(data, "to_numpy") and (isinstance(kind, np.dtype) or type(kind).__name__ == "SparseDtype"):
        return _of_numpy(np.asarray(data.to_numpy()))  # of pandas: NaN stays NaN, as in numpy
    if hasattr(getattr(data, "array", None), "__arrow_array__"):
        data = data.array  # of pandas
    if hasattr(data, "__arrow_c_array__"):
        return pa.array(data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.chunked_array(data)
    if hasattr(data, "__arrow_array__") or type(kind).__module__.startswith("pandas."):
        return pa.array(data)
    if hasattr(data, "__array__"):
        return _of_numpy(data if isinstance(data, np.ndarray) else np.asarray(data))
    if isinstance(data, list | tuple):
        return data
    return list(data)


def _of_numpy(data: np.ndarray[Any, Any]) -> Given:
    if data.dtype.names:
        return [dict(zip(data.dtype.names, row)) for row in data.tolist()]
    if data.dtype.kind in ("O", "T"):
        return data.tolist()
    if data.ndim != 1:
        return list(data)
    if data.dtype.kind in "mM":
        unit = np.datetime_data(data.dtype)[0]
        if unit in ("W", "h", "m"):
            data = data.astype(f"{data.dtype.kind}8[{'D' if (unit, data.dtype.kind) == ('W', 'M') else 's'}]")
        elif unit == "D" and data.dtype.kind == "m":
            data = data.astype("m8[s]")
    if not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    return pa.array(data)


def table_of(data: Any) -> pa.Table:
    """Columns of any usual kind as a table; those of pandas as `array_of` has them."""
    if not is_frame(data):
        return pa.table(data)
    columns = (array_of(data.iloc[:, i]) for i in range(len(data.columns)))
    arrays = [given if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given) for given in columns]
    return pa.Table.from_arrays(arrays, [str(name) for name in data.columns])


# ---------------------------------------------------------------------------------------------- as a declared type


def fit_all(data: Given, wanted: pa.DataType) -> pa.Array:
    """Data as an array of the wanted type.

    >>> fit_all(pa.array(["a", "b", "a"]).dictionary_encode(), pa.string()).to_pylist()
    ['a', 'b', 'a']
    """
    if isinstance(data, pa.ChunkedArray):
        chunks = [fit(chunk, wanted) for chunk in data.chunks]
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], wanted)
    if isinstance(data, pa.Array):
        return fit(data, wanted)
    try:
        found = _at_once(data, wanted)
    except (Misfit, pa.ArrowException, TypeError, ValueError, OverflowError):
        found = None  # Arrow refuses more than it must, and does not say which
    return _one_by_one(data, wanted) if found is None else found


def _at_once(data: Sequence[Any], wanted: pa.DataType) -> pa.Array | None:
    """Values of Python that Arrow itself takes by the rule; None for all others."""
    classes = set(map(type, data))
    if classes <= value_fit(wanted).plain:
        return pa.array(data, wanted)
    given = classes - {type(None)}
    if len(given) != 1:
        return None
    kind = given.pop()
    if pa.types.is_floating(wanted) and kind in (int, float):
        return fit(pa.array(data, pa.int64() if kind is int else pa.float64()), wanted)
    if issubclass(kind, np.number) and kind not in (np.timedelta64, np.longdouble) and len(classes) == 1:
        return fit(pa.array(np.asarray(data, kind)), wanted)
    if kind is dict and pa.types.is_struct(wanted):
        return _by_column(data, wanted)
    if (kind in (list, tuple, np.ndarray) and is_list(wanted)) or (kind is dict and is_map(wanted)):
        return _by_element(data, wanted)
    if kind is datetime and pa.types.is_timestamp(wanted) and wanted.unit == "us":
        zones = {value.tzinfo for value in data if value is not None}
        return pa.array(data, wanted) if zones == {timezone.utc if wanted.tz else None} else None
    return None


def _by_column(rows: Sequence[dict[str, Any] | None], wanted: pa.StructType) -> pa.Array | None:
    """Dicts as structs, field by field; None if a dict has another field."""
    known = frozenset(field.name for field in wanted)
    dicts: list[dict[str, Any]] = [row or {} for row in rows]
    if not known or not all(map(known.issuperset, dicts)):
        return None
    columns = [fit_all([row.get(field.name) for row in dicts], field.type) for field in wanted]
    mask = _nulls(rows)
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=mask)


def _by_element(data: Sequence[Any], wanted: pa.DataType) -> pa.Array | None:
    """Lists, dicts or arrays of numpy as lists or maps, all elements at once; None for arrays of several kinds."""
    parts = [() if part is None else part for part in data]
    counts = np.fromiter(map(len, parts), np.int64, len(parts))
    mask = _nulls(data)
    if is_map(wanted):
        keys = fit_all(list(chain.from_iterable(parts)), wanted.key_type)
        items = [item for part in parts if part for item in part.values()]
        return _map_of(keys, fit_all(items, wanted.item_type), counts, mask, wanted)
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if arrays:
        kinds = {(part.ndim, part.dtype) for part in arrays}
        if len(kinds) > 1 or arrays[0].ndim != 1:
            return None
        return _list_of(fit_all(_of_numpy(np.concatenate(arrays)), wanted.value_type), counts, mask, wanted)
    return _list_of(fit_all(list(chain.from_iterable(parts)), wanted.value_type), counts, mask, wanted)


def _nulls(data: Sequence[Any]) -> pa.Array | None:
    nulls = [value is None for value in data]
    return pa.array(nulls) if True in nulls else None


def fit_columns(data: Any, wanted: pa.StructType, *, others: bool) -> pa.StructArray:
    """The columns of a table or a frame, by the names of fields; with `others` it may have more of them."""
    frame, known = is_frame(data), [field.name for field in wanted]
    table = data if frame else pa.table(data)
    names = list(table.columns) if frame else table.column_names
    if frame:  # the index may have names too
        names += [name for name in table.index.names if name in known and name not in names]
    columns = []
    for field in wanted:
        if names.count(field.name) != 1:
            count = "no column" if field.name not in names else "more than one column"
            raise Misfit(f"{count} `{field.name}`")
        at = names.index(field.name)
        column = table.column(at) if not frame else None
        if frame:
            indexed = at >= len(table.columns)
            column = table.index.get_level_values(field.name) if indexed else table.iloc[:, at]
        try:
            columns.append(fit_all(array_of(column), field.type))
        except Misfit as misfit:
            raise misfit.within(field.name) from None
    unknown = [] if others else [str(name) for name in names if name not in known]
    if unknown:
        raise Misfit(f"a column `{unknown[0]}`, which {wanted} has not")
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def _one_by_one(data: Sequence[Any], wanted: pa.DataType) -> pa.Array:
    convert = value_fit(wanted).convert
    found = []
    for i, value in enumerate(data):
        try:
            found.append(convert(value))
        except Misfit as misfit:
            raise misfit.within(f"[{i}]") from None
    return pa.array(found, wanted)


def fit(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array as one of the wanted type.

    >>> fit(pa.array([1.0, None]), pa.int64()).to_pylist()
    [1, None]
    >>> fit(pa.array([1, 2]), pa.string())
    Traceback (most recent call last):
    fastchangelog.fit.misfit.Misfit: an array of int64 came
    """
    given = array.type
    if given == wanted:
        return array
    if isinstance(wanted, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(wanted, fit(array, wanted.storage_type))
    if isinstance(given, pa.BaseExtensionType) and _means_its_storage(given, wanted):
        return fit(array.storage, wanted)
    if pa.types.is_run_end_encoded(given):
        return fit(pc.run_end_decode(array), wanted)
    if array.null_count == len(array):
        return pa.nulls(len(array), wanted)
    if pa.types.is_dictionary(given):
        inner = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
        decoded = fit(array.dictionary, _takeable(inner)).take(array.indices)
        return fit(decoded, wanted)
    if pa.types.is_dictionary(wanted):
        return fit(array, _takeable(wanted.value_type)).dictionary_encode().cast(wanted)
    for is_kind, convert in _NESTED:
        if is_kind(wanted):
            if not (is_kind(given) or (is_map(wanted) and _has_pairs(given))):
                break
            return convert(array, wanted)
    else:
        if any(is_kind(given) and is_kind(wanted) for is_kind in _KINDS):
            return _cast(array, wanted)
    raise Misfit(f"an array of {given} came{_hint(given, wanted)}")


def _means_its_storage(given: pa.BaseExtensionType, wanted: pa.DataType) -> bool:
    """True for JSON and the like, whose values are texts or bytes; not for a UUID, which is neither."""
    stored = given.storage_type
    if stored == wanted:
        return True
    return given.extension_name != "arrow.opaque" and _is_bytes(stored) and not pa.types.is_fixed_size_binary(stored)


def _takeable(wanted: pa.DataType) -> pa.DataType:
    """The type, or a like one of which Arrow can take values by their numbers."""
    if str(wanted) == "string_view":
        return pa.large_string()
    return pa.large_binary() if str(wanted) == "binary_view" else wanted


def _hint(given: pa.DataType, wanted: pa.DataType) -> str:
    if pa.types.is_timestamp(given) and pa.types.is_date(wanted):
        return ", whose times of day would be lost; cast it to pyarrow.date32()"
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        if wanted.tz:
            return ", which has no time zone; pyarrow.compute.assume_timezone(array, 'UTC') is one way to give it one"
        return ", which has a time zone, and the type has none; declare `timestamp`, or take the zone off"
    return ""


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_floating(wanted) and pa.types.is_floating(array.type):
        return _rounded(array, wanted)
    if _is_number(wanted):
        # Between decimals and floats Arrow rounds.
        pair = array.type, wanted
        if not (any(map(pa.types.is_decimal, pair)) and any(map(pa.types.is_floating, pair))):
            try:
                return array.cast(wanted)
            except pa.ArrowException:
                pass  # Arrow refuses more than it must
        return _one_by_one(array.to_pylist(), wanted)
    try:
        return array.cast(wanted)
    except pa.ArrowNotImplementedError:
        return _one_by_one(array.to_pylist(), wanted)


def _rounded(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Floats as those of another width, unless one is beyond it."""
    try:
        found = array.cast(wanted)
    except pa.ArrowNotImplementedError:
        return _one_by_one(array.to_pylist(), wanted)
    if wanted.bit_width < array.type.bit_width:
        again = found.cast(array.type)
        infinite = pc.and_(pc.is_inf(again), pc.is_finite(array))
        lost = pc.or_(infinite, pc.and_(pc.equal(again, 0), pc.not_equal(array, 0)))
        if pc.any(lost).as_py():
            return _one_by_one(array.to_pylist(), wanted)
    return found


def _offsets(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _list(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    mask = array.is_null() if array.null_count else None
    return _list_of(fit(array.flatten(), wanted.value_type), counts, mask, wanted)


def _list_of(elements: pa.Array, counts: np.ndarray[Any, Any], mask: pa.Array | None, wanted: pa.DataType) -> pa.Array:
    offsets = _offsets(counts)
    if pa.types.is_list(wanted):
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=wanted, mask=mask)
    if pa.types.is_large_list(wanted):
        return pa.LargeListArray.from_arrays(pa.array(offsets), elements, type=wanted, mask=mask)
    return pa.LargeListArray.from_arrays(pa.array(offsets), elements, mask=mask).cast(wanted)


def _has_pairs(given: pa.DataType) -> bool:
    """True for lists of pairs, as which a library without maps has them."""
    if not is_list(given) or not pa.types.is_struct(given.value_type):
        return False
    return [field.name for field in given.value_type] == ["key", "value"]


def _map(array: pa.Array, wanted: pa.MapType) -> pa.Array:
    if is_map(array.type):
        entry = pa.struct([array.type.key_field, array.type.item_field])
        offsets = np.asarray(array.offsets)
        pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=list(entry))
        array = pa.ListArray.from_arrays(
            pa.array(offsets - offsets[0], pa.int32()),
            pairs.slice(int(offsets[0]), int(offsets[-1] - offsets[0])),
            mask=array.is_null() if array.null_count else None,
        )
    pairs = array.flatten()
    keys, items = (fit(part, kind) for part, kind in zip(pairs.flatten(), (wanted.key_type, wanted.item_type)))
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    return _map_of(keys, items, counts, array.is_null() if array.null_count else None, wanted)


def _map_of(
    keys: pa.Array, items: pa.Array, counts: np.ndarray[Any, Any], mask: pa.Array | None, wanted: pa.MapType
) -> pa.Array:
    if keys.null_count:  # Arrow ends the process
        raise Misfit("a key of a map is null")
    # An offset that is null begins a map that is null.
    nulls = None if mask is None else np.append(np.asarray(mask.to_numpy(zero_copy_only=False)), False)
    ends = pa.array(_offsets(counts), pa.int32(), mask=nulls)
    return pa.MapArray.from_arrays(ends, keys, items, type=wanted)


def _struct(array: pa.StructArray, wanted: pa.StructType) -> pa.Array:
    names = [field.name for field in array.type]
    for name in names:
        if wanted.get_field_index(name) < 0:
            raise Misfit(f"an array with the field `{name}` came, which {wanted} has not")
        if names.count(name) > 1:
            raise Misfit(f"an array with two fields `{name}` came")
    given = dict(zip(names, array.flatten()))
    columns = []
    for field in wanted:
        try:
            column = given.get(field.name)
            columns.append(pa.nulls(len(array), field.type) if column is None else fit(column, field.type))
        except Misfit as misfit:
            raise misfit.within(field.name) from None
    if not columns:
        return pa.array([{} if there else None for there in array.is_valid().to_pylist()], wanted)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=mask)


def _is_number(dtype: pa.DataType) -> bool:
    return any(is_one(dtype) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def _is_bytes(dtype: pa.DataType) -> bool:
    return is_text(dtype) or str(dtype).startswith(("binary", "large_binary", "fixed_size_binary"))


_Check = Callable[[pa.DataType], bool]
_NESTED: tuple[tuple[_Check, Callable[[pa.Array, Any], pa.Array]], ...] = (
    (is_map, _map),
    (is_list, _list),
    (pa.types.is_struct, _struct),
)
#: What is of one of these may be declared as another one of the same kind.
_KINDS: tuple[_Check, ...] = (
    _is_number,
    pa.types.is_boolean,
    _is_bytes,
    pa.types.is_date,
    lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is not None,
    lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is None,
    pa.types.is_duration,
    pa.types.is_time,
)


# ---------------------------------------------------------------------------------------------- what Python can read


def is_temporal(dtype: pa.DataType) -> bool:
    """True if a date, a time or a duration is in the type, at any depth."""
    if pa.types.is_temporal(dtype):
        return True
    return any(is_temporal(dtype.field(i).type) for i in range(dtype.num_fields))


def check_readable(array: pa.Array) -> None:
    """Refuses dates and times that Arrow has and Python has not: they could be put, and not be read.

    >>> check_readable(pa.array([2**62]).cast(pa.timestamp("us")))
    Traceback (most recent call last):
    fastchangelog.fit.misfit.Misfit: 4611686018427387904 of timestamp[us] is beyond the years 1 to 9999
    """
    dtype = array.type
    if not is_temporal(dtype):
        return
    if pa.types.is_struct(dtype):
        for field, column in zip(dtype, array.flatten(), strict=True):
            try:
                check_readable(column)
            except Misfit as misfit:
                raise misfit.within(field.name) from None
    elif is_map(dtype):
        first, last = (int(array.offsets[i].as_py()) for i in (0, -1))
        for part in (array.keys, array.items):
            check_readable(part.slice(first, last - first))
    elif is_list(dtype):
        check_readable(array.flatten())
    elif pa.types.is_temporal(dtype) and not pa.types.is_interval(dtype):
        _check_bounds(array, dtype)


def _check_bounds(array: pa.Array, dtype: pa.DataType) -> None:
    numbers = array.view(pa.int64() if dtype.bit_width == 64 else pa.int32())
    ends = pc.min_max(numbers)
    if not ends["min"].is_valid:
        return
    unit = {"s": 1_000_000, "ms": 1_000}.get(getattr(dtype, "unit", "us"), 1)
    first, last = (micros // unit for micros in LAST_MICROS)
    why = "beyond the years 1 to 9999"
    if pa.types.is_date(dtype):
        unit = _MICROS_OF_DAY if pa.types.is_date32(dtype) else 1_000
        first, last = (micros // unit for micros in LAST_MICROS)
    elif pa.types.is_time(dtype):
        fine = 1_000 if dtype.unit == "ns" else 1
        first, last, why = 0, _MICROS_OF_DAY * fine // unit - 1, "no time of a day"
        if fine > 1 and pc.any(pc.not_equal(pc.multiply(pc.divide(numbers, fine), fine), numbers)).as_py():
            raise Misfit("a time has nanoseconds, which Python's has not")
    elif pa.types.is_duration(dtype):
        first, last, why = -999_999_999 * _MICROS_OF_DAY // unit, 999_999_999 * _MICROS_OF_DAY // unit, "too long"
    if getattr(dtype, "unit", "") == "ns" and not pa.types.is_time(dtype):
        return
    for end in (ends["min"].as_py(), ends["max"].as_py()):
        if not first <= end <= last:
            raise Misfit(f"{end} of {dtype} is {why}")
