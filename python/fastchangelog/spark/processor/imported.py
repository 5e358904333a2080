"""The state of a processor that ran on Spark's operator, imported.

Owns: the check of what is imported against what the processor declares, the columns of imported rows, and how they are
written.
Does not own: reading Spark's checkpoint (`checkpoint.spark_states`), the bytes (the codec), when the first batch takes
them (`operator`).

An imported row is one value, list element, map entry or timer: the key's columns, the number of the variable, the
map's key or the timer's time, the value, its place in its list, and the time at which it expires. Imported rows reach
their shards as rows of an initial state do; user code does not see them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.spark.checkpoint.spark_states import Checkpoint, Variable, check_keys
from fastchangelog.spark.checkpoint.stored_rows import CoreRows, StoredRows
from fastchangelog.spark.imported_state import ImportedState
from fastchangelog.spark.processor.imported_zeros import key_of_both_zeros
from fastchangelog.spark.processor.row_split import RowSplit
from fastchangelog.spark.processor.spec import RowChunkLike, TimeMode
from fastchangelog.spark.processor.states.cache import APPEND, PUT
from fastchangelog.spark.processor.states.handle import Declaration
from fastchangelog.spark.processor.states.timers import TIMERS, encoded_times
from fastchangelog.spark.split import payload_type, shaped
from fastchangelog.spark.task import ArrowFunction
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.state_type import StateType
from fastchangelog.spark.types.values import has_floats

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from fastchangelog.spark.grouping import Grouping

__all__ = ["ImportedRows", "VariableSplit", "imported_payloads", "imported_schema", "write_imported"]

#: Columns of an imported row after those of the key.
_OWN = (
    pa.field("variable", pa.int32()),
    pa.field("sub", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("place", pa.int64()),
    pa.field("ends", pa.int64()),
)
_KEY = T.StructType([T.StructField("at", T.LongType())])


@dataclasses.dataclass(frozen=True)
class ImportedRows:
    """What a session writes before the first batch."""

    #: Names of the variables, by their numbers in rows; the timers have a name of their own.
    names: tuple[str, ...]
    chunks: Iterable[RowChunkLike]


def imported_schema(key: pa.Schema) -> pa.Schema:
    """The columns of imported rows behind a key."""
    return pa.schema([*key, *_OWN])


def imported_payloads(
    grouping: Grouping,
    imported: ImportedState,
    declarations: Sequence[Declaration],
    time_mode: TimeMode,
    split: RowSplit,
    key: pa.Schema,
) -> tuple[DataFrame, tuple[str, ...]]:
    """The payload rows of the imported state, and the names of its variables by number."""
    checkpoint = Checkpoint.of_import(grouping, imported)
    operator, where = checkpoint.operator_of_kind(imported.operator, "processor")
    if operator.time_mode != time_mode and operator.has_timers:
        raise SchemaMismatchError(
            f"{where} has the time mode {operator.time_mode}, but the processor {time_mode}: its timers and TTLs would "
            "lose their meaning; keep the time mode"
        )
    chosen = _chosen(where, operator.variables, imported.variables, declarations)
    found: list[tuple[StoredRows, VariableSplit]] = []
    for variable, declaration in chosen:
        rows = checkpoint.variable(operator, variable)
        check_keys(where, grouping.key.fields, rows.key)
        _check(where, variable, declaration, rows)
        found.append((rows, VariableSplit(declaration, len(found), split, key)))
    if operator.has_timers:
        timers = checkpoint.timers(operator)
        check_keys(where, grouping.key.fields, timers.key)
        found.append((timers, VariableSplit(None, len(found), split, key)))
    if not found:
        raise InvalidArgumentError(f"{where} has no state variables to import")
    for (variable, _), (rows, _) in zip(chosen, found):
        _check_zeros(where, variable, rows)
    names = (*(variable.name for variable, _ in chosen), *((TIMERS,) if operator.has_timers else ()))
    by_core = [(rows.read, variable_split) for rows, variable_split in found if isinstance(rows.read, CoreRows)]
    frames: list[DataFrame] = []
    if by_core:
        state = by_core[0][0].state
        frames.append(state.in_tasks(checkpoint.spark, StoredVariables(by_core, split), payload_type(None)))
    of_rows: list[Variable | None] = [*(variable for variable, _ in chosen), None]
    for of, (rows, variable_split) in zip(of_rows, found):
        if not isinstance(rows.read, CoreRows):
            frames.append(_rows(rows.read, rows.key, of, variable_split))
    payloads = frames[0]
    for frame in frames[1:]:
        payloads = payloads.unionByName(frame)
    return payloads, names


def _chosen(
    where: str,
    there: Sequence[Variable],
    wanted: Sequence[str] | None,
    declarations: Sequence[Declaration],
) -> list[tuple[Variable, Declaration]]:
    known = {variable.name: variable for variable in there}
    for name in wanted or ():
        if name not in known:
            raise InvalidArgumentError(f"{where} has no state `{name}`; it has {', '.join(known) or 'none'}")
    declared = {declaration.name: declaration for declaration in declarations}
    missing = [name for name in (known if wanted is None else wanted) if name not in declared]
    if missing:
        raise SchemaMismatchError(
            f"{where} has the state `{missing[0]}`, which the processor does not declare: declare it, or name the ones "
            "to import: import_state(checkpoint, variables=[…])"
        )
    return [(variable, declared[name]) for name, variable in known.items() if wanted is None or name in wanted]


def _check(where: str, variable: Variable, declaration: Declaration, rows: StoredRows) -> None:
    name = variable.name
    if variable.kind != declaration.kind:
        raise SchemaMismatchError(
            f"{where}: the state `{name}` is a {variable.kind} state, but the processor declares a "
            f"{declaration.kind} state of that name"
        )
    if variable.has_ttl != (declaration.ttl_millis is not None):
        had, has = ("a TTL", "none") if variable.has_ttl else ("no TTL", "one")
        raise SchemaMismatchError(
            f"{where}: the state `{name}` has {had}, but the processor declares it with {has}: declare it as it was"
        )
    value: Any = rows.others[_VALUE[variable.kind]]
    value = value.elementType if variable.kind == "list" else value
    if variable.has_ttl:
        value = value["value"].dataType
    _check_fields(where, f"the state `{name}`", value, declaration.value)
    if declaration.map_key is not None:
        found: Any = rows.others["user_map_key"]
        _check_fields(where, f"the keys of the state `{name}`", found, declaration.map_key)


def _check_zeros(where: str, variable: Variable, rows: StoredRows) -> None:
    """Refuses entries whose keys Spark's operator keeps apart, 0.0 and -0.0: one of them would be lost."""
    keys = {"key": rows.key, **({"user_map_key": rows.others["user_map_key"]} if variable.kind == "map" else {})}
    if not any(map(has_floats, keys.values())):
        return
    if isinstance(rows.read, CoreRows):
        shown = key_of_both_zeros(rows.read)
    else:  # Spark takes both zeros for one here
        twice = rows.read.groupBy(*keys).count().where("count > 1").head()
        shown = None if twice is None else ", ".join(str(value) for name in keys for value in twice[name])
    if shown is not None:
        raise InvalidArgumentError(
            f"{where}: the state `{variable.name}` has entries of 0.0 and of -0.0 ({shown}), which are one key here; "
            "remove one of them with the old query, or leave the state out: import_state(checkpoint, variables=[…])"
        )


def _check_fields(where: str, what: str, found: T.StructType, declared: T.StructType) -> None:
    types = {field.name: field.dataType.simpleString() for field in found.fields}
    for field in declared.fields:
        text = field.dataType.simpleString()
        if types.get(field.name) != text:
            there = f"it is {types[field.name]}" if field.name in types else "there is none"
            raise SchemaMismatchError(
                f"{where}: {what} is declared with the field `{field.name}` {text}, but {there} in the checkpoint; "
                "declare it as it was; once the new query has its own checkpoint, a restart may change it"
            )
    names = {field.name for field in declared.fields}
    lost = next((name for name in types if name not in names), None)
    if lost is not None or list(types) != declared.names:
        named = f"the field `{lost}`" if lost is not None else f"the order {', '.join(types)}"
        raise SchemaMismatchError(f"{where}: {what} has {named} in the checkpoint; declare it as it was")


#: The column with values, by kind.
_VALUE = {"value": "value", "list": "list_value", "map": "user_map_value"}


def _columns(variable: Variable | None) -> list[Column]:
    """Map key, value and end of rows; for a list, arrays of values and ends; of timers (None) their times."""
    none = F.lit(None).cast("bigint")
    if variable is None:
        return [F.lit(None).cast("binary"), F.col("expiration_timestamp_ms"), none]
    value = F.col(_VALUE[variable.kind])
    sub = F.col("user_map_key") if variable.kind == "map" else F.lit(None).cast("binary")
    if not variable.has_ttl:
        return [sub, value, none]
    return [sub, value.getField("value"), value.getField("ttlExpirationMs")]


def _rows(rows: DataFrame, key: T.StructType, variable: Variable | None, split: VariableSplit) -> DataFrame:
    """Payload rows of one variable, which Spark's source reads."""
    keys = [
        wire.to_wire(F.col("key").getField(field.name), field.dataType, key=True).alias(f"__k{i}")
        for i, field in enumerate(key.fields)
    ]
    own = split.on_wire(_columns(variable))
    named = [column.alias(name) for column, name in zip(own, ("sub", "value", "ends"), strict=True)]
    return rows.select(*keys, *named).mapInArrow(split, payload_type(None))


class VariableSplit(ArrowFunction):
    """The function for `mapInArrow` over the state of one variable: payloads of imported rows. None = timers."""

    def __init__(self, declaration: Declaration | None, number: int, split: RowSplit, key: pa.Schema):
        self._declaration = declaration
        self._number = number
        self._split = split
        self._key = key

    def on_wire(self, columns: Sequence[Column]) -> list[Column]:
        """Map key, value and end as they travel to this function."""
        sub, value, ends = columns
        declaration = self._declaration
        if declaration is None:
            return [sub, value, ends]
        if declaration.map_key is not None:
            sub = wire.to_wire(sub, declaration.map_key, key=True)
        dtype: T.DataType = declaration.value if declaration.kind != "list" else T.ArrayType(declaration.value)
        return [sub, wire.to_wire(value, dtype, key=False), ends]

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._split(self._encoded(batch) for batch in batches if batch.num_rows)

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Imported rows, of rows of Spark's source."""
        count = len(self._key)
        keys = list(batch.columns[:count])
        sub, value, ends = batch.columns[count:]
        place = None
        if self._declaration is not None and self._declaration.kind == "list":
            parents = pc.list_parent_indices(value)
            place = pa.array(np.arange(len(parents), dtype=np.int64))
            keys = [column.take(parents) for column in keys]
            ends = ends.flatten() if pa.types.is_list(ends.type) else pa.nulls(len(parents), pa.int64())
            value = value.flatten()
        return self._imported(keys, sub, value, place, ends)

    def of_core(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Imported rows, of rows that the core has read."""
        declaration = self._declaration
        key, value = batch.column(0), batch.column(1)
        sub, place, ends = None, None, pa.nulls(len(batch), pa.int64())
        if declaration is None:
            key, value = key.field(0), key.field(1)
        else:
            if declaration.ttl_millis is not None:
                value, ends = value.field(0), value.field(1)
            if declaration.map_key is not None:
                key, sub = key.field(0), key.field(1)
            if declaration.kind == "list":
                place = batch.column(2)
        return self._imported(key.flatten(), sub, value, place, ends)

    def _imported(
        self, keys: list[pa.Array], sub: pa.Array | None, value: pa.Array, place: pa.Array | None, ends: pa.Array
    ) -> pa.RecordBatch:
        rows = len(value)
        subs, values = pa.nulls(rows, pa.binary()), pa.nulls(rows, pa.binary())
        declaration = self._declaration
        if declaration is None:
            subs = encoded_times(value.to_numpy())
        else:
            what = f"state `{declaration.name}`"
            codec = _codec(declaration.map_key, declaration.value, what)
            values = codec.encode_values(value.cast(StateType(declaration.value, what).arrow))
            if declaration.map_key is not None:
                assert sub is not None
                subs = codec.encode_keys(sub.cast(StateType(declaration.map_key, what).arrow))
        number = pa.array(np.full(rows, self._number, np.int32))
        own = [number, subs, values, pa.nulls(rows, pa.int64()) if place is None else place, ends.cast(pa.int64())]
        return shaped(pa.RecordBatch.from_arrays([*keys, *own], self._names), imported_schema(self._key))

    @property
    def _names(self) -> list[str]:
        return [str(i) for i in range(len(self._key) + len(_OWN))]


class StoredVariables(ArrowFunction):
    """The function for `mapInArrow` over numbers of partitions: payloads of all imported rows in them."""

    def __init__(self, variables: Sequence[tuple[CoreRows, VariableSplit]], split: RowSplit):
        self._variables = tuple(variables)
        self._split = split

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = self._variables[0][0].state.opened(batches)
        return self._split(
            variable_split.of_core(batch)
            for state in opened
            for rows, variable_split in self._variables
            for batch in rows.batches(state)
            if batch.num_rows
        )


def _codec(map_key: T.StructType | None, value: T.StructType, what: str) -> Any:
    arrow = StateType(value, what).arrow
    return _internal.StateCodec(StateType(map_key if map_key is not None else _KEY, what).arrow, arrow, [arrow])


def write_imported(
    session: _internal.StateSession, rows: ImportedRows, ids: Mapping[str, int], kinds: Mapping[str, str], now: int
) -> None:
    """Writes imported rows, without those that have expired by `now`.

    Parts of a list that is longer than a chunk wait for the last one: Spark sorts payloads by their shard alone, so
    that its elements come in any order.
    """
    waiting: dict[int, list[pa.RecordBatch]] = {}
    for chunk in rows.chunks:
        offsets = np.asarray(chunk.offsets)
        places = np.repeat(np.arange(len(chunk.keys)), np.diff(offsets))
        own = chunk.rows.select(range(chunk.rows.num_columns - len(_OWN), chunk.rows.num_columns))
        variables = own.column(0).to_numpy()
        for number in {*np.unique(variables).tolist(), *waiting}:
            name = rows.names[number]
            kind = kinds.get(name, "timers")
            at = np.flatnonzero(variables == number)
            part, owners = own.take(pa.array(at)), places[at]
            if kind == "list":
                if chunk.more:  # of the one key of the chunk
                    waiting.setdefault(number, []).append(part)
                    continue
                before = waiting.pop(number, [])
                owners = np.concatenate([np.zeros(sum(map(len, before)), np.int64), owners])
                part = pa.Table.from_batches([*before, part]).combine_chunks().to_batches()[0]
            _write(session, ids[name], kind, chunk.keys.take(pa.array(owners)), owners, part, now)


def _write(
    session: _internal.StateSession,
    state: int,
    kind: str,
    keys: pa.BinaryArray,
    places: np.ndarray[Any, np.dtype[np.int64]],
    part: pa.RecordBatch,
    now: int,
) -> None:
    """Writes rows of one variable: those that expire at the same time in one call, elements of a list in order."""
    _, subs, values, place, ends = part.columns
    order = np.arange(len(part))
    if kind == "list":
        order = np.lexsort((np.asarray(place), places))
    op = APPEND if kind == "list" else PUT
    times = None if ends.null_count else np.asarray(ends)
    if times is None:
        runs: list[tuple[int | None, np.ndarray[Any, Any]]] = [(None, order)]
    else:
        order = order[times[order] > now]
        runs = _runs(order, times, places, ordered=kind == "list")
    for end, rows in runs:
        if not len(rows):
            continue
        taken = pa.array(rows)
        session.write(
            state,
            pa.array(np.full(len(rows), op, np.uint8)),
            keys.take(taken),
            subs.take(taken) if kind in ("map", "timers") else None,
            None if kind == "timers" else values.take(taken),
            end,
        )


def _runs(
    order: np.ndarray[Any, Any], times: np.ndarray[Any, Any], places: np.ndarray[Any, Any], *, ordered: bool
) -> list[tuple[int | None, np.ndarray[Any, Any]]]:
    """Rows by the time at which they expire; if `ordered`, the rows of each key keep their order."""
    ends, keys = times[order], places[order]
    falls = (np.diff(ends) < 0) & (np.diff(keys) == 0)
    if not (ordered and falls.any()):  # no element expires before its predecessor: sorting by time keeps the order
        order = order[np.argsort(ends, kind="stable")]
        ends = times[order]
    starts = np.flatnonzero(np.diff(ends, prepend=ends[:1] - 1)) if len(ends) else np.array([], np.int64)
    return [(int(times[run[0]]), run) for run in np.split(order, starts[1:]) if len(run)]
