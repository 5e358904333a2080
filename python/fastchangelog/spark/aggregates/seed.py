"""The initial state of an aggregation: from the state of Spark's own query, or from rows like the result.

Owns: which columns of Spark's state are which accumulator's, their names, what results determine, the refusals, and the
function that makes payloads of accumulators.
Does not own: reading Spark's checkpoint (`checkpoint.spark_states`), the conversion of what the core reads
(`stored_accumulators`), the columns of an accumulator (the Rust core), how payloads become the first version
(`operator`).

Spark keeps each distinct aggregate once, in the order of the query, as its optimizer leaves it: `count` of columns that
are never null is `count(*)`, `bool_and` is `min`, and decimals of few digits are summed as whole numbers and averaged
as doubles (the rule `DecimalAggregates`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.function_table import FUNCTIONS
from fastchangelog.spark.aggregates.spec import AggregateSpec, calls_json, spec_json
from fastchangelog.spark.aggregates.stored_accumulators import Collected, StoredSplit, Taken
from fastchangelog.spark.checkpoint.spark_states import Checkpoint, check_keys
from fastchangelog.spark.checkpoint.stored_rows import CoreRows
from fastchangelog.spark.imported_state import ImportedState
from fastchangelog.spark.split import PayloadSplit, Splitting, payload_type, shaped
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from fastchangelog.spark.aggregates.analyse import Analysed, Result
    from fastchangelog.spark.aggregates.keys import Keys
    from fastchangelog.spark.grouping import Grouping

__all__ = ["BufferSplit", "initial_payloads", "kept_names"]


@dataclasses.dataclass(frozen=True)
class _Buffer:
    """A column of an accumulator."""

    name: str
    type: pa.DataType


#: The first column of an accumulator that Spark keeps in one of its own.
_NOT_SPARKS = "values"
#: That column of Spark's, which is called the same for all functions.
_BYTES = _Buffer("buf", pa.binary())
#: The columns of `approx_count_distinct`.
_WORDS = "MS[{}]"
_MOST_WORDS = (1 << 18) // 10 + 1
#: Functions of which Spark's bytes say all where they have one argument, and whether they are values with counts.
_COLLECTED = {"collect_list": False, "collect_set": False, "listagg": False, "mode": True, "median": True}
#: Digits of decimals that Spark sums as whole numbers, and averages as doubles.
_WHOLE_DIGITS = 8
_DOUBLE_DIGITS = 11


def initial_payloads(grouping: Grouping, analysed: Analysed, initial: ImportedState | DataFrame) -> DataFrame:
    """The payload rows of an initial state."""
    split = BufferSplit(analysed.spec, grouping.options, grouping.payload_bytes, grouping.partitions)
    if isinstance(initial, ImportedState):
        checkpoint = Checkpoint.of_import(grouping, initial)
        return _imported(checkpoint, analysed, initial, split)
    if not hasattr(initial, "sparkSession") or not hasattr(initial, "schema"):
        raise InvalidArgumentError(
            f"initial_state is fc.spark.import_state(checkpoint) or a batch DataFrame, not {type(initial).__name__}"
        )
    if initial.isStreaming:
        raise InvalidArgumentError(
            "initial_state is a stream; it is read once, in the first batch: give a batch DataFrame"
        )
    return _given(analysed, initial).mapInArrow(split, payload_type(None))


def kept_names() -> dict[str, frozenset[str]]:
    """The functions whose accumulators can be imported, and the names of Spark's columns of each.

    >>> sorted(kept_names()["avg"]), kept_names()["collect_list"], "percentile" in kept_names()
    (['count', 'sum'], frozenset({'buf'}), False)
    """
    examples = {"number": pa.decimal128(10, 2), "integer": pa.int64(), "boolean": pa.bool_(), "text": pa.string()}
    columns = pa.schema({**examples, "percentages": pa.float64()})
    at = {kind: i for i, kind in enumerate(columns.names)}
    names = list(dict.fromkeys(fn.name for fn in FUNCTIONS.values()))
    calls = [
        AggregateSpec(name, tuple(at.get(kind, 0) for kind in FUNCTIONS[name].arguments), None, False, True, name)
        for name in names
    ]
    results = pa.schema(list(_internal.aggregate_results(columns, calls_json(calls))))
    found: dict[str, set[str]] = {name: set() for name in names}
    for field in _internal.spec_buffers(spec_json(0, columns, results, calls)):
        number, _, name = field.name.partition(".")
        found[names[int(number)]].add(name)
    own = {name: frozenset(columns) for name, columns in found.items() if _NOT_SPARKS not in columns}
    words = frozenset(_WORDS.format(i) for i in range(_MOST_WORDS))
    return {**own, **dict.fromkeys(_COLLECTED, frozenset({_BYTES.name})), "approx_count_distinct": words}


class BufferSplit(PayloadSplit):
    """The split of an initial state: rows of accumulators."""

    def __init__(self, spec: str, options: Mapping[str, str], payload_bytes: int, partitions: int):
        super().__init__(options, payload_bytes, partitions)
        self._spec = spec

    def _splitter(self, shards: int, groups: int, payload_bytes: int, row_bytes: int | None) -> Splitting:
        splitter = _internal.Splitter(self._spec, shards, groups, payload_bytes, row_bytes)
        schema = _internal.spec_buffers(self._spec)
        return lambda batch: splitter.push_buffers(shaped(batch, schema)), splitter.finish


def _buffers(analysed: Analysed) -> list[list[_Buffer]]:
    """The columns of each aggregate's accumulator."""
    found: list[list[_Buffer]] = [[] for _ in analysed.results]
    for field in list(_internal.spec_buffers(analysed.spec))[analysed.num_keys :]:
        number, _, name = field.name.partition(".")
        found[int(number)].append(_Buffer(name, field.type))
    return found


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Where Spark keeps an aggregate."""

    result: Result
    #: Its first column in the value.
    at: int
    sparks: list[_Buffer]
    buffers: list[_Buffer]


def _imported(checkpoint: Checkpoint, analysed: Analysed, initial: ImportedState, split: BufferSplit) -> DataFrame:
    operator, where = checkpoint.operator_of_kind(initial.operator, "aggregate")
    rows = checkpoint.rows(operator)
    value = rows.others["value"]
    assert isinstance(value, T.StructType)
    check_keys(where, analysed.keys.fields, rows.key)
    if operator.has_session_windows != (analysed.keys.session is not None):
        there = "session windows" if operator.has_session_windows else "no session windows"
        raise SchemaMismatchError(f"{where} has {there}, other than the query: group by the keys of that query")
    kept = _kept(where, analysed, value)
    if isinstance(rows.read, CoreRows):
        taken = [taken for place in kept for taken in _taken(place)]
        function = StoredSplit(rows.read, analysed.keys.paths(), taken, split, rows.keys_in_value)
        return rows.read.state.in_tasks(checkpoint.spark, function, payload_type(None))
    for place in kept:
        if place.buffers[0].name == _NOT_SPARKS:
            raise InvalidArgumentError(
                f"{where}: Spark's state of {place.result.text} can be imported only where the core reads the "
                "checkpoint; start the new query without initial_state"
            )
    # By position: columns of one name may be there several times.
    if rows.keys_in_value:
        whole = F.col("value").cast(_numbered(T.StructType([*rows.key.fields, *value.fields])))
        named = rows.read.select(_part_of(whole, 0, rows.key, "key"), _part_of(whole, len(rows.key), value, "value"))
    else:
        named = rows.read.select(
            F.col("key").cast(_numbered(rows.key)).alias("key"), F.col("value").cast(_numbered(value)).alias("value")
        )
    columns = [F.col("key").getField(f"_{i}") for i in range(len(rows.key))]
    for place in kept:
        columns += _converted(place)
    return named.select(*_on_wire(columns, analysed.keys)).mapInArrow(split, payload_type(None))


def _kept(where: str, analysed: Analysed, value: T.StructType) -> list[_Kept]:
    """Where Spark keeps each aggregate: equal ones once."""
    found: list[_Kept] = []
    known: dict[object, int] = {}
    at = 0
    for result, buffers in zip(analysed.results, _buffers(analysed), strict=True):
        sparks = _sparks_own(where, result, buffers, value.fields[known.get(result.in_spark, at) :])
        if result.in_spark not in known:
            _check_fields(where, result, value.fields[at : at + len(sparks)], sparks)
            known[result.in_spark] = at
            at += len(sparks)
        found.append(_Kept(result, known[result.in_spark], sparks, buffers))
    if at != len(value):
        rest = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in value.fields[at:])
        raise SchemaMismatchError(
            f"{where} keeps {rest} beyond what {', '.join(r.text for r in analysed.results)} keep: give agg() the "
            "aggregates of that query, in their order; Spark keeps equal ones once, and none whose result the query "
            "does not use"
        )
    return found


def _numbered(struct: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(f"_{i}", f.dataType, f.nullable) for i, f in enumerate(struct.fields)])


def _part_of(numbered: Column, at: int, part: T.StructType, name: str) -> Column:
    """The fields of `part`, from field `at` on, as a numbered struct."""
    return F.struct(*[numbered.getField(f"_{at + i}").alias(f"_{i}") for i in range(len(part))]).alias(name)


def _is_summed_whole(result: Result) -> bool:
    return result.fn == "sum" and _digits(result) <= _WHOLE_DIGITS


def _is_averaged_in_doubles(result: Result) -> bool:
    return result.fn == "avg" and _digits(result) <= _DOUBLE_DIGITS


def _digits(result: Result) -> int:
    argument = result.arguments[0] if result.arguments else None
    return argument.precision if isinstance(argument, T.DecimalType) else 99


def _sparks_own(where: str, result: Result, buffers: list[_Buffer], there: Sequence[T.StructField]) -> list[_Buffer]:
    """The columns in which Spark's optimizer lets the aggregate be kept; `there`: those of the state from it on."""
    if buffers[0].name == _NOT_SPARKS:
        if result.fn == "approx_count_distinct":
            named = itertools.takewhile(lambda i: there[i].name == _WORDS.format(i), range(len(there)))
            return [_Buffer(_WORDS.format(i), pa.int64()) for i in named] or [_Buffer(_WORDS.format(0), pa.int64())]
        if _COLLECTED.get(result.fn) is None or len(result.arguments) > 1:
            raise InvalidArgumentError(
                f"{where}: Spark's state of {result.text} cannot be imported: the constants of the call are not in it; "
                "start the new query without initial_state"
            )
        return [_BYTES]
    if _is_summed_whole(result):
        return [_Buffer("sum", pa.int64())]
    if _is_averaged_in_doubles(result):
        return [_Buffer("sum", pa.float64()), _Buffer("count", pa.int64())]
    return buffers


def _check_fields(where: str, result: Result, found: Sequence[T.StructField], wanted: list[_Buffer]) -> None:
    for i, buffer in enumerate(wanted):
        field = found[i] if i < len(found) else None
        if field is not None and field.name == buffer.name and _arrow(field) == buffer.type:
            continue
        there = "nothing more" if field is None else f"`{field.name}` {field.dataType.simpleString()}"
        raise SchemaMismatchError(
            f"{where} keeps {there} where {result.text} keeps `{buffer.name}` {buffer.type}: give agg() the aggregates "
            "of that query, in their order; Spark keeps equal ones once, and none whose result the query does not use"
        )


def _arrow(field: T.StructField) -> pa.DataType:
    return wire.arrow_type(wire.wire_type(field.dataType, f"the state's column {field.name}"))


def _converted(kept: _Kept) -> list[Column]:
    """Spark's columns as ours, where Spark reads them."""
    result, sources = kept.result, [F.col("value").getField(f"_{kept.at + i}") for i in range(len(kept.sparks))]
    if kept.sparks is kept.buffers:
        types = _spark_types(result, kept.buffers)
        return [_to_wire(column, dtype) for column, dtype in zip(sources, types, strict=True)]
    argument = result.arguments[0]
    assert isinstance(argument, T.DecimalType)
    # The sum without its point: in few enough digits that the product with a power of ten is exact.
    whole = sources[0].cast("decimal(24,0)")
    unit = F.lit(f"1e-{argument.scale}").cast(T.DecimalType(argument.scale + 1, argument.scale))
    total = (whole * unit).cast(T.DecimalType(min(argument.precision + 10, 38), argument.scale))
    return [total, sources[0].isNull() if _is_summed_whole(result) else sources[1]]


def _taken(kept: _Kept) -> list[Taken]:
    """Spark's columns as ours, where the core reads them."""
    at = kept.at
    if kept.buffers[0].name == _NOT_SPARKS:
        if kept.result.fn == "approx_count_distinct":
            return [Taken(at, words=len(kept.sparks))]
        counted = _COLLECTED[kept.result.fn]
        element = _collected_type(kept.result)
        fields = [element, T.LongType()] if counted else [T.ArrayType(element)]
        schema = wire.stored_schema(T.StructType([T.StructField(f"_{i}", f) for i, f in enumerate(fields)]))
        return [
            Taken(at, collected=Collected(schema, buffer.type, i if counted else None))
            for i, buffer in enumerate(kept.buffers)
        ]
    if kept.sparks is kept.buffers:
        return [Taken(at + i) for i in range(len(kept.sparks))]
    total = Taken(at, kept.buffers[0].type)
    return [total, Taken(at, is_null=True) if _is_summed_whole(kept.result) else Taken(at + 1)]


def _collected_type(result: Result) -> T.DataType:
    """The type of the values in Spark's bytes. In a set numbers and binaries are in a form with an equality."""
    dtype = result.arguments[0]
    if result.fn == "collect_set":
        forms: dict[type[T.DataType], T.DataType] = {
            T.FloatType: T.IntegerType(),
            T.DoubleType: T.LongType(),
            T.BinaryType: T.ArrayType(T.ByteType()),
        }
        return forms.get(type(dtype), dtype)
    return dtype


def _spark_types(result: Result, buffers: list[_Buffer]) -> list[T.DataType | None]:
    """The Spark types of columns that may have another form on the wire: values of arguments. None for the others."""
    of_values = {
        "min": result.arguments[:1],
        "max": result.arguments[:1],
        "first": result.arguments[:1],
        "last": result.arguments[:1],
        "valueWithExtremumOrdering": result.arguments[:1],
        "extremumOrdering": result.arguments[1:2],
    }
    return [next(iter(of_values.get(buffer.name, ())), None) for buffer in buffers]


def _to_wire(column: Column, dtype: T.DataType | None) -> Column:
    return column if dtype is None else wire.to_wire(column, dtype, key=False)


def _on_wire(columns: list[Column], keys: Keys) -> list[Column]:
    given = len(keys.fields)
    wired = [wire.to_wire(part.column, part.dtype, key=True) for part in keys.stored(columns[:given])]
    return [column.alias(f"c{i}") for i, column in enumerate([*wired, *columns[given:]])]


def _given(analysed: Analysed, initial: DataFrame) -> DataFrame:
    """Accumulators from results, where a result determines its accumulator."""
    fields = {field.name: field for field in initial.schema.fields}
    columns: list[Column] = [_named(initial, fields, field, "key") for field in analysed.keys.fields]
    for result, buffers in zip(analysed.results, _buffers(analysed), strict=True):
        names = [buffer.name for buffer in buffers]
        known = (["sum", "isEmpty"], ["first", "valueSet"], ["last", "valueSet"])
        is_apart = names == [_NOT_SPARKS] and not isinstance(result.field.dataType, T.ArrayType)
        if result.fn == "try_sum" or is_apart or (names not in known and len(names) > 1):
            raise InvalidArgumentError(
                f"initial_state: {result.text} cannot continue from its result, which does not determine the "
                f"accumulator of {result.fn}; leave it out, or import the state of the Spark query with "
                "fc.spark.import_state(checkpoint)"
            )
        if result.fn == "first" and not result.ignore_nulls and result.is_filtered:
            raise InvalidArgumentError(
                f"initial_state: {result.text} cannot continue from its result: a null may be the first value, or "
                "mean that no row matched the filter; use ignorenulls=True, or import the state of the Spark query"
            )
        column = _named(initial, fields, result.field, "result")
        if result.fn in ("count", "count_if"):
            column = F.coalesce(column, F.lit(0).cast("bigint"))
        columns.append(_to_wire(column, result.field.dataType))
        if names[1:] == ["isEmpty"]:
            columns.append(column.isNull())
        elif names[1:] == ["valueSet"]:
            always = result.fn == "first" and not result.ignore_nulls
            columns.append(F.lit(True) if always else column.isNotNull())
    return initial.select(*_on_wire(columns, analysed.keys))


def _named(df: DataFrame, fields: Mapping[str, T.StructField], wanted: T.StructField, what: str) -> Column:
    found = fields.get(wanted.name)
    if found is None:
        raise SchemaMismatchError(
            f"initial_state has no column `{wanted.name}`, a {what} of the query; it has {', '.join(fields)}"
        )
    if df.columns.count(wanted.name) > 1:
        raise SchemaMismatchError(f"initial_state has several columns `{wanted.name}`; give each a name of its own")
    if found.dataType.simpleString() != wanted.dataType.simpleString():
        raise SchemaMismatchError(
            f"initial_state: the column `{wanted.name}` is {found.dataType.simpleString()}, but the query's {what} of "
            f"that name is {wanted.dataType.simpleString()}; cast it"
        )
    column: Column = df["`" + wanted.name.replace("`", "``") + "`"]
    return column
