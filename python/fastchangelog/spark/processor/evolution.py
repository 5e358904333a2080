"""The states of the next version, from the stored ones and those that `init` declares.

Owns: the catalog's text as far as processors use it, which changes of a schema are possible, and errors that name each
change that is not.
Does not own: which fields are the same under another name (`renames`), reading old values as new ones (the codec), what
the server checks of a catalog.

A catalog is a JSON list; an entry is `{"id", "name", "kind", "key", "map_key", "value", "encoding", "ttl", "versions",
"deleted"}`, its types as DDL texts (`ddl`). `versions` are all types that values were ever written in, `value` is the
one that they are written in now. A state that is no longer declared keeps its values. `deleteIfExists` removes them;
the entry stays, marked as deleted, since the server never forgets a number. If the state is declared again with another
layout, it gets a new number, a new name in the catalog, and the user's name as `"variable"`.

A state of aggregates has the kind `aggregating`, the type of its results as `value`, and two more parts:
`accumulators` is the core's description of the stored bytes, `results` lists for each result its aggregate in that
description. An older entry of the kind `value` holds results. It keeps its kind, and accepts only aggregates whose
accumulators their results determine.

A new version of a value's type may add nullable fields, leave fields out, reorder and widen them, at any depth. It is
compared with every older version, since values of each of them may still exist. Renamed fields keep their values, as in
Spark (`renames`). An earlier type is used again: a program that is rolled back and forth adds no versions.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable
from typing import Any

from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.spark.processor.renames import aligned, are_same_keys, bytes_text
from fastchangelog.spark.processor.spark_errors import time_mode_name
from fastchangelog.spark.processor.spec import TimeMode
from fastchangelog.spark.processor.states.handle import Declaration
from fastchangelog.spark.processor.states.timers import TIMERS
from fastchangelog.spark.types.atomic import INTEGERS, TEXTS
from fastchangelog.spark.types.ddl import ddl_text, parse_ddl
from fastchangelog.spark.types.wire import has_numbered_fields

__all__ = ["Evolved", "EvolvedState", "evolve", "is_current", "schema_changes"]

_log = logging.getLogger("fastchangelog.spark")

_ENCODING = 1
_MOST_STATES = 1024
_LONGEST_NAME = 256


@dataclasses.dataclass(frozen=True)
class EvolvedState:
    """The place of a declared state in the session."""

    id: int
    #: All types of its values; none of timers and of accumulators.
    versions: tuple[T.StructType, ...] = ()
    #: The one of these that values are written in.
    current: int = -1


@dataclasses.dataclass(frozen=True)
class Evolved:
    """The states of the next version."""

    text: str
    states: dict[str, EvolvedState]
    #: Numbers of the stored states whose values are to be removed.
    purged: tuple[int, ...]
    #: What is not read any more, a sentence for each state.
    dropped: tuple[str, ...] = ()

    def log_dropped(self) -> None:
        """Says what is not read any more: an entry loses it when it is written next."""
        for sentence in self.dropped:
            _log.warning("%s", sentence)


def evolve(
    stored: str,
    key: T.StructType,
    mode: TimeMode,
    declarations: Iterable[Declaration],
    deleted: Iterable[str] = (),
) -> Evolved:
    """The catalog that follows `stored` (empty for the first), or a `SchemaMismatchError`."""
    catalog = _read(stored)
    removed = set(deleted)
    emptied = [entry for entry in catalog if _variable(entry) in removed and not entry.get("deleted")]
    for entry in emptied:
        entry["deleted"] = True
    key_text = ddl_text(key)
    _check_key(catalog, key, key_text)
    _check_mode(catalog, mode)
    states: dict[str, EvolvedState] = {}
    dropped: list[str] = []
    if mode != "none":
        entry = _live(catalog, TIMERS) or _add(catalog, TIMERS, "timers", key_text, mode)
        states[TIMERS] = EvolvedState(entry["id"])
    for declaration in declarations:
        known = _live(catalog, declaration.name)
        layout = declaration.accumulators
        if layout is not None and (known is None or known["kind"] != "value"):
            states[declaration.name] = EvolvedState(_aggregating(catalog, known, key_text, declaration, layout))
            continue
        if layout is not None:
            declaration = _of_results(declaration, layout)
        versions, current = _versions(known, declaration, dropped)
        if known is None:
            known = _revived(catalog, declaration) or _add(catalog, declaration.name, declaration.kind, key_text, "")
        known["value"] = versions[current]
        known["versions"] = versions
        known["ttl"] = _has_ttl(declaration)
        if declaration.map_key is not None:
            known["map_key"] = ddl_text(declaration.map_key)
        states[declaration.name] = EvolvedState(known["id"], tuple(map(parse_ddl, versions)), current)
    purged = tuple(entry["id"] for entry in emptied)
    return Evolved(json.dumps(catalog, separators=(",", ":")), states, purged, tuple(dropped))


def _aggregating(
    catalog: list[dict[str, Any]],
    known: dict[str, Any] | None,
    key_text: str,
    declaration: Declaration,
    layout: AccumulatorLayout,
) -> int:
    """The number of a state of aggregates. Its accumulators have one layout for ever."""
    name = declaration.name
    if known is None:
        known = _revived(catalog, declaration) or _add(catalog, name, declaration.kind, key_text, "")
    else:
        _check_kind(known, declaration)
        changes = _ttl_changes(known, declaration)
        difference = _internal.schema_difference(known["accumulators"], layout.schema)
        changes += [] if difference is None else [difference]
        if changes:
            raise SchemaMismatchError(
                f"[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] the state `{name}` cannot be read with its new aggregates: "
                f"{'; '.join(changes)}; declare it as it was, or take another name"
            )
    text = ddl_text(declaration.value)
    known |= {"value": text, "versions": [text], "ttl": _has_ttl(declaration)}
    known |= {"accumulators": layout.schema, "results": list(layout.identities)}
    number: int = known["id"]
    return number


def _of_results(declaration: Declaration, layout: AccumulatorLayout) -> Declaration:
    """The declaration of a state of aggregates whose catalog entry says that it keeps results as values."""
    if not layout.can_rebuild:
        raise SchemaMismatchError(
            f"[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] the state `{declaration.name}` keeps the results of its "
            "aggregates, from which the aggregates that are declared now cannot continue; declare it as it was, or "
            "take another name"
        )
    return dataclasses.replace(declaration, kind="value", accumulators=None)


def _read(stored: str) -> list[dict[str, Any]]:
    catalog: object = json.loads(stored) if stored else []
    if not isinstance(catalog, list) or any("ttl" not in entry for entry in catalog):
        raise SchemaMismatchError("the state is not that of a processor: an aggregation has other state")
    return catalog


def is_current(catalog: str, key: T.StructType, mode: TimeMode, declarations: Iterable[Declaration]) -> bool:
    """True if the states of a version are those that are declared, and in no older form."""
    try:
        return evolve(catalog, key, mode, declarations).text == catalog
    except SchemaMismatchError:
        return False


def _live(catalog: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in catalog if _variable(entry) == name and not entry.get("deleted")), None)


def _variable(entry: dict[str, Any]) -> str:
    """The user's name of a state."""
    name: str = entry.get("variable", entry["name"])
    return name


def _has_ttl(declaration: Declaration) -> bool:
    return declaration.ttl_millis is not None


def _revived(catalog: list[dict[str, Any]], declaration: Declaration) -> dict[str, Any] | None:
    """The entry of a deleted state of this name that was laid out as the declared one will be."""
    wanted = declaration.name, declaration.kind, _has_ttl(declaration)
    entry = next((entry for entry in catalog if (_variable(entry), entry["kind"], entry["ttl"]) == wanted), None)
    if entry is not None:
        del entry["deleted"]
    return entry


def _add(catalog: list[dict[str, Any]], name: str, kind: str, key: str, value: str) -> dict[str, Any]:
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"the name `{name}` of a state has more than {_LONGEST_NAME} bytes; give a shorter one"
        )
    number = max((entry["id"] for entry in catalog), default=-1) + 1
    if number >= _MOST_STATES:
        raise InvalidArgumentError(
            f"the processor has declared {_MOST_STATES} states, the limit; put what belongs together into one state"
        )
    is_taken = any(entry["name"] == name for entry in catalog)
    names = {"name": f"${number}", "variable": name} if is_taken else {"name": name}
    entry: dict[str, Any] = {"id": number, **names, "kind": kind, "key": key, "value": value}
    entry |= {"encoding": _ENCODING, "ttl": False}
    catalog.append(entry)
    return entry


def _check_key(catalog: list[dict[str, Any]], key: T.StructType, key_text: str) -> None:
    was = next((entry["key"] for entry in catalog), None)
    if was is None or was == key_text:
        return
    if not are_same_keys(parse_ddl(was), key):
        raise SchemaMismatchError(
            f"[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] the state has the key ({was}), but the query now groups by "
            f"({key_text}); group as before, or start with a new checkpoint"
        )
    for entry in catalog:
        entry["key"] = key_text  # renamed columns, or nulls that became possible: the bytes are the same


def _check_mode(catalog: list[dict[str, Any]], mode: TimeMode) -> None:
    if not catalog:
        return
    was: TimeMode = next((entry["value"] for entry in catalog if entry["name"] == TIMERS), "none")
    if was != mode:
        old, new = time_mode_name(was), time_mode_name(mode)
        raise SchemaMismatchError(
            f"[STATE_STORE_INVALID_CONFIG_AFTER_RESTART] Cannot change timeMode from {old} to {new} between restarts. "
            f"Please set timeMode to {old}, or restart with a new checkpoint directory."
        )


def _versions(known: dict[str, Any] | None, declaration: Declaration, dropped: list[str]) -> tuple[list[str], int]:
    """The texts of all types of a state's values with the declared one, and where that is among them; or the error that
    says why it is refused. Adds to `dropped` what is not read any more."""
    name, text = declaration.name, ddl_text(declaration.value)
    if known is None:
        return [text], 0
    _check_kind(known, declaration)
    changes = _ttl_changes(known, declaration)
    side = "VALUE"
    if declaration.map_key is not None and not are_same_keys(parse_ddl(known["map_key"]), declaration.map_key):
        changes.append(f"its keys were ({known['map_key']}) and now are ({ddl_text(declaration.map_key)})")
        side = "KEY"
    *versions, last = aligned(
        [parse_ddl(version) for version in (*known["versions"], known["value"])],
        parse_ddl(known["value"]),
        declaration.value,
    )
    for version in versions:
        found = schema_changes(version, declaration.value)
        changes += [change for change in found if change not in changes]
    if changes:
        raise SchemaMismatchError(
            f"[STATE_STORE_{side}_SCHEMA_NOT_COMPATIBLE] the state `{name}` cannot be read with its new schema: "
            f"{'; '.join(changes)}; declare it as it was, take another name, or call deleteIfExists"
        )
    gone = _left_out(last, declaration.value)
    if gone:
        dropped.append(_dropped(name, gone, _left_out(declaration.value, last)))
    texts = [ddl_text(version) for version in versions]
    wanted = bytes_text(declaration.value)
    current = max((i for i, version in enumerate(versions) if bytes_text(version) == wanted), default=len(texts))
    return [*texts[:current], text, *texts[current + 1 :]], current


def _check_kind(known: dict[str, Any], declaration: Declaration) -> None:
    if known["kind"] != declaration.kind:
        name = declaration.name
        raise SchemaMismatchError(
            f"[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] Cannot change {name} to {_spark_kind(declaration.kind)} "
            f"between query restarts. Please set {name} to {_spark_kind(known['kind'])}, or restart with a new "
            "checkpoint directory."
        )


def _ttl_changes(known: dict[str, Any], declaration: Declaration) -> list[str]:
    if known["ttl"] == _has_ttl(declaration):
        return []
    had, has = ("a TTL", "none") if known["ttl"] else ("no TTL", "one")
    return [f"it had {had} and now has {has}"]


def _dropped(name: str, gone: list[str], added: list[str]) -> str:
    fields = ", ".join(f"`{field}`" for field in gone)
    new = ""
    if added:
        named = ", ".join(f"`{field}`" for field in added)
        new = (
            f"; nothing in the earlier schema matches {named}: a renamed field keeps its values only where no other "
            "field of its struct is added, left out or moved at the same time"
        )
    return (
        f"the state `{name}`: its schema has no {fields} any more, so these values are not read, and are lost as "
        f"entries are written{new}"
    )


def _left_out(old: T.DataType, new: T.DataType, path: str = "") -> list[str]:
    """The fields of `old` that `new` does not have, at any depth."""
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        named = {f.name: f for f in new.fields}
        gone = []
        for field in old.fields:
            place = f"{path}.{field.name}" if path else field.name
            if field.name not in named:
                gone.append(place)
            else:
                gone += _left_out(field.dataType, named[field.name].dataType, place)
        return gone
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        return _left_out(old.elementType, new.elementType, f"{path}[]")
    if isinstance(old, T.MapType) and isinstance(new, T.MapType):
        return _left_out(old.valueType, new.valueType, f"{path}[]")
    return []


def _spark_kind(kind: str) -> str:
    return f"{kind.capitalize()}State"


def schema_changes(old: T.DataType, new: T.DataType, path: str = "") -> list[str]:
    """The changes that keep values of type `old` from being read as `new`, one text for each field.

    Nullability alone is none, as with Spark: a null that was written is read as one.

    >>> schema_changes(parse_ddl("n int, t string"), parse_ddl("t string, n bigint, extra double"))
    []
    >>> schema_changes(parse_ddl("n bigint"), parse_ddl("n int, extra double not null"))
    ['field `n` was bigint and now is int', 'field `extra` is new and allows no null']
    """
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        return _field_changes(old, new, path)
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        return schema_changes(old.elementType, new.elementType, f"{path}[]")
    if isinstance(old, T.MapType) and isinstance(new, T.MapType):
        keys = [] if are_same_keys(old.keyType, new.keyType) else [f"the keys of field `{path}` changed"]
        return keys + schema_changes(old.valueType, new.valueType, f"{path}[]")
    if _is_widened(old, new):
        return []
    return [f"field `{path}` was {old.simpleString()} and now is {new.simpleString()}"]


def _field_changes(old: T.StructType, new: T.StructType, path: str) -> list[str]:
    changes = []
    known: list[T.StructField | None] = [*old.fields]
    if old.names != new.names:
        if has_numbered_fields(old) or has_numbered_fields(new):
            where = f" of field `{path}`" if path else ""
            return [
                f"the fields{where} were {', '.join(old.names)} and now are {', '.join(new.names)}: fields whose names "
                "are the same, but for their case, are told apart by their places alone"
            ]
        named = {f.name: f for f in old.fields}
        known = [named.get(name) for name in new.names]
    for field, was in zip(new.fields, known, strict=True):
        place = f"{path}.{field.name}" if path else field.name
        if was is None:
            if not field.nullable:
                changes.append(f"field `{place}` is new and allows no null")
            continue
        changes += schema_changes(was.dataType, field.dataType, place)
    return changes


_WHOLE: tuple[type[T.DataType], ...] = tuple(INTEGERS)
_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}


def _is_widened(old: T.DataType, new: T.DataType) -> bool:
    """True for the promotions of Avro, which Spark's own evolution has, and those of decimals."""
    if type(old) is type(new) and not isinstance(old, T.DecimalType):
        return old == new or isinstance(old, (T.DayTimeIntervalType, T.YearMonthIntervalType, *TEXTS))
    if isinstance(old, _WHOLE):
        if isinstance(new, _WHOLE):
            return _WHOLE.index(type(old)) <= _WHOLE.index(type(new))
        if isinstance(new, T.DecimalType):
            return new.precision - new.scale >= _DIGITS[type(old)]
        return isinstance(new, (T.FloatType, T.DoubleType))
    if isinstance(old, T.FloatType):
        return isinstance(new, T.DoubleType)
    if isinstance(old, T.DecimalType):
        return (
            isinstance(new, T.DecimalType)
            and new.scale >= old.scale
            and new.precision - new.scale >= old.precision - old.scale
        )
    return isinstance(old, (*TEXTS, T.BinaryType)) and isinstance(new, (*TEXTS, T.BinaryType))
