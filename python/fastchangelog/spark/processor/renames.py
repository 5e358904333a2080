"""Which fields of a new schema are those of an earlier one, and which schemas have the same bytes.

Owns: names that changed, at any depth; what of a schema says nothing about bytes: nullability, names, lengths of texts.
Does not own: which other changes are possible, and the catalog (`evolution`).

Spark's column names ignore case, so a field whose name only changes its case is the same field. A field with a new name
at an old place is the same field if its type is the same and the struct around it has no field added, left out or
moved. A name that an earlier version had is that field, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T

from fastchangelog.spark.types.ddl import ddl_text
from fastchangelog.spark.types.walk import nullable, parts
from fastchangelog.spark.types.wire import has_numbered_fields

__all__ = ["aligned", "are_same_keys", "bytes_text"]


def bytes_text(struct: T.StructType) -> str:
    """A text that is equal for schemas whose values have the same bytes under the same names.

    >>> bytes_text(T.StructType([T.StructField("s", T.VarcharType(9), False)]))
    's string'
    """
    plain = _plain(struct, named=True)
    assert isinstance(plain, T.StructType)
    return ddl_text(plain)


def are_same_keys(old: T.DataType, new: T.DataType) -> bool:
    """True if keys of both types have the same bytes and the same meaning: names and nullability may differ, but none
    of the names may have moved to another place."""
    return _shape(old) == _shape(new) and not _has_moved(old, new)


def aligned(versions: Sequence[T.StructType], last: T.StructType, new: T.StructType) -> list[T.StructType]:
    """The versions with the names that `new` has for their fields; `last` is the one that is declared so far."""
    return _aligned_structs(versions, last, new)


def _plain(dtype: T.DataType, *, named: bool) -> T.DataType:
    """The type without what says nothing about bytes; without names, too, unless it is `named`."""
    return nullable(dtype, _plain_atomic, lambda s: s.names if named else [f"_{i}" for i in range(len(s.fields))])


def _plain_atomic(dtype: T.DataType) -> T.DataType:
    if isinstance(dtype, (T.CharType, T.VarcharType)):
        return T.StringType()
    for interval in (T.DayTimeIntervalType, T.YearMonthIntervalType):
        if isinstance(dtype, interval):
            return interval()
    return dtype


def _shape(dtype: T.DataType) -> str:
    # As a text: that is without what is no part of values, such as metadata.
    return ddl_text(T.StructType([T.StructField("_", _plain(dtype, named=False))]))


def _has_moved(old: T.DataType, new: T.DataType) -> bool:
    """True if a name of one type is at another place of the other, of the same shape, at any depth."""
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        names = _lowered(old)
        if any(name in names and names[i] != name for i, name in enumerate(_lowered(new))):
            return True
    return any(_has_moved(f.dataType, g.dataType) for f, g in zip(parts(old), parts(new), strict=True))


def _lowered(struct: T.StructType) -> list[str]:
    return [name.lower() for name in struct.names]


def _aligned(olds: Sequence[T.DataType], last: T.DataType, new: T.DataType) -> list[T.DataType]:
    """Types of a value in several versions, with the names of `new`."""
    if isinstance(new, T.StructType) and isinstance(last, T.StructType):
        structs = [old for old in olds if isinstance(old, T.StructType)]
        return [*_aligned_structs(structs, last, new)] if len(structs) == len(olds) else list(olds)
    if isinstance(new, T.ArrayType) and isinstance(last, T.ArrayType):
        arrays = [old for old in olds if isinstance(old, T.ArrayType)]
        if len(arrays) != len(olds):
            return list(olds)
        elements = _aligned([old.elementType for old in arrays], last.elementType, new.elementType)
        return [T.ArrayType(e, old.containsNull) for e, old in zip(elements, arrays, strict=True)]
    if isinstance(new, T.MapType) and isinstance(last, T.MapType):
        maps = [old for old in olds if isinstance(old, T.MapType)]
        if len(maps) != len(olds):
            return list(olds)
        keys = [new.keyType if are_same_keys(old.keyType, new.keyType) else old.keyType for old in maps]
        values = _aligned([old.valueType for old in maps], last.valueType, new.valueType)
        return [T.MapType(k, v, old.valueContainsNull) for k, v, old in zip(keys, values, maps, strict=True)]
    return list(olds)


def _aligned_structs(olds: Sequence[T.StructType], last: T.StructType, new: T.StructType) -> list[T.StructType]:
    names = _new_names(olds, last, new)
    last = _renamed(last, names)
    found = [_renamed(old, names) for old in olds]
    known = [old for old in [*found, last] if len(set(old.names)) == len(old.names)]
    for field in new.fields:
        having = [old for old in found if old in known and field.name in old.names]
        if not having or new.names.count(field.name) > 1:
            continue
        newest = last if last in known and field.name in last.names else having[-1]
        types = _aligned([old[field.name].dataType for old in having], newest[field.name].dataType, field.dataType)
        for old, dtype in zip(having, types, strict=True):
            old.fields[old.names.index(field.name)].dataType = dtype
    return found


def _renamed(struct: T.StructType, names: dict[str, str]) -> T.StructType:
    """A copy with these new names."""
    return T.StructType([T.StructField(names.get(f.name, f.name), f.dataType, f.nullable) for f in struct.fields])


def _new_names(olds: Sequence[T.StructType], last: T.StructType, new: T.StructType) -> dict[str, str]:
    """The new names of fields of earlier structs that have another one now."""
    had = {name for struct in [*olds, last] for name in struct.names}
    if any(has_numbered_fields(struct) for struct in [*olds, last, new]):
        return _numbered_names(had, last, new)
    cases = {name.lower(): name for name in new.names} | _new_places({name.lower() for name in had}, last, new)
    return {name: cases[name.lower()] for name in had if cases.get(name.lower(), name) != name}


def _new_places(had: set[str], last: T.StructType, new: T.StructType) -> dict[str, str]:
    """By the earlier name, in small letters, the new one of each field that has another name at its place."""
    if len(last.fields) != len(new.fields):
        return {}
    found: dict[str, str] = {}
    wanted = _lowered(new)
    for old, field in zip(last.fields, new.fields, strict=True):
        was, name = old.name.lower(), field.name.lower()
        if was == name:
            continue
        if was in wanted or name in had or _shape(old.dataType) != _shape(field.dataType):
            return {}
        found[was] = field.name
    return found


def _numbered_names(had: set[str], last: T.StructType, new: T.StructType) -> dict[str, str]:
    """The same where case alone tells names apart: all fields must be at their places with their types."""
    names = {old: name for old, name in zip(last.names, new.names, strict=False) if old != name}
    lowered = {name.lower() for name in had}
    is_other = any(old in new.names or name.lower() in lowered for old, name in names.items())
    return {} if is_other or _shape(last) != _shape(new) else names
