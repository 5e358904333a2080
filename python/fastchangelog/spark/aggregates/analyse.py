"""Analysis of keys and aggregates: functions, arguments, names and types, all as Spark itself resolves them.

Owns: the query of Spark's analysed schema, the casts that Spark puts around arguments, the refusals.
Does not own: the functions (`function_table`), how a `Column` is parsed (`internals`), the wire form of types
(`types.wire`), settings (`settings`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.function_table import FUNCTIONS, NAMES, Function
from fastchangelog.functions import Aggregate
from fastchangelog.spark import internals
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json
from fastchangelog.spark.split import WATERMARK_DELAY
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Analysed", "Result", "analyse", "check_key", "key_columns"]

_INTERVALS = (T.DayTimeIntervalType, T.YearMonthIntervalType)
_LEGACY = "spark.sql.legacy.statisticalAggregate"
_WINDOWS = {"window", "session_window", "window_time"}
#: Functions that Spark keeps as another one.
_IN_SPARK = {"bool_and": "min", "bool_or": "max"}
_WINDOW_MARKS = ("spark.timeWindow", "spark.sessionWindow")


@dataclasses.dataclass(frozen=True)
class Result:
    """An aggregate of the query."""

    #: The function's name in the table.
    fn: str
    text: str
    #: The column of the result.
    field: T.StructField
    #: The types of the arguments, as they are aggregated.
    arguments: tuple[T.DataType, ...]
    ignore_nulls: bool
    is_filtered: bool
    #: Equal for aggregates that Spark keeps once.
    in_spark: object


@dataclasses.dataclass(frozen=True)
class Analysed:
    """The result of the analysis, from which the plan is built."""

    spec: str
    #: The projected columns in their wire form.
    input: T.StructType
    #: What Spark projects for the split: keys, arguments, filters.
    projection: tuple[Column, ...]
    #: What the operator returns: the wire form, before names and types are restored.
    wire_result: T.StructType
    #: Spark's own result schema of the same `groupBy().agg()`.
    result: T.StructType
    #: Whether the keys are in the result (`spark.sql.retainGroupColumns`).
    keys_in_result: bool
    num_keys: int
    #: Names and types of the keys.
    keys: tuple[T.StructField, ...]
    results: tuple[Result, ...]


@dataclasses.dataclass(frozen=True)
class _Bound:
    """One aggregate, bound to columns: `native` is what Spark would be given for the same result."""

    fn: Function
    args: tuple[Column, ...]
    where: Column | None
    ignore_nulls: bool
    native: Column
    named: bool
    text: str


def key_columns(df: DataFrame, keys: Sequence[Any]) -> list[Column]:
    """The keys as columns; refuses keys with silently wrong results."""
    if len(keys) == 1 and isinstance(keys[0], (list, tuple)):
        keys = keys[0]
    if not keys:
        raise UnsupportedError('grouped() needs at least one key: grouped(df, "user", state=…)')
    out: list[Column] = []
    for key in keys:
        if isinstance(key, str):
            out.append(F.col(key))
        elif isinstance(key, Column):
            out.append(key)
        else:
            raise InvalidArgumentError(f"a key is a column name or a Column, not {key!r}")
        windows = internals.function_names(out[-1]) & _WINDOWS
        if windows:
            raise UnsupportedError(
                f"the key {internals.text_of(out[-1])} uses {windows.pop()}(), which is not supported yet; "
                "group by a plain column such as date_trunc('hour', ts), or use Spark's own groupBy for windows"
            )
    return out


def analyse(df: DataFrame, keys: Sequence[Column], exprs: Sequence[Any], named: Mapping[str, Any]) -> Analysed:
    """Binds and checks `exprs` and `named`, and asks Spark for names and types."""
    bound = _bind_all([_in_spark_order(df, keys, e) if isinstance(e, dict) else e for e in exprs], named)
    if not bound:
        raise InvalidArgumentError('agg() needs at least one aggregate, such as F.count("*") or fc.count()')
    native = df.groupBy(*keys).agg(*[b.native for b in bound]).schema
    keys_in_result = len(native) == len(keys) + len(bound)
    if not keys_in_result and len(native) != len(bound):
        raise InvalidArgumentError(
            f"the keys and aggregates make {len(native)} columns, but {len(keys) + len(bound)} were expected; name "
            "each column on its own instead of using *"
        )
    filters = [b.where for b in bound if b.where is not None]
    parts = [*keys, *(a for b in bound for a in b.args), *filters]
    schema = df.select(*[c.alias(f"c{i}") for i, c in enumerate(parts)]).schema
    texts = df.select(*parts).columns
    if len(schema) != len(parts):
        raise InvalidArgumentError("a key or an argument stands for several columns; name each column on its own")
    for key, field in zip(keys, schema.fields, strict=False):
        check_key(internals.text_of(key), field, streaming=bool(df.isStreaming))
    ansi = str(df.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    legacy = str(df.sparkSession.conf.get(_LEGACY, "false")).lower() == "true"

    k = len(keys)
    plan = _Projection()
    for i in range(k):
        plan.add(f"__k{i}", keys[i], schema[i].dataType, texts[i], key=True)
    aggregates: list[AggregateSpec] = []
    arg_at, where_at = k, len(parts) - len(filters)
    results = native.fields[-len(bound) :]
    described: list[Result] = []
    for n, b in enumerate(bound):
        where, where_text = None, ""
        if b.where is not None:
            field, where_text = schema[where_at], texts[where_at]
            if not isinstance(field.dataType, T.BooleanType):
                raise InvalidArgumentError(
                    f"where= of {b.text} is of type {field.dataType.simpleString()}; it must be boolean"
                )
            where, where_at = plan.column("w", b.where, field.dataType, where_text), where_at + 1
            if not b.named:  # as Spark names an aggregate with a FILTER
                r = results[n]
                results[n] = T.StructField(f"{r.name} FILTER (WHERE {where_text})", r.dataType, r.nullable)
        args: list[int] = []
        types: list[T.DataType] = []
        counts_all = b.fn.name == "count"
        for j, arg in enumerate(b.args):
            field, text = schema[arg_at], texts[arg_at]
            _check_argument(b, j, field.dataType, legacy=legacy)
            arg, dtype = _as_spark_reads_it(b.fn.kind(j), arg, field.dataType)
            if b.where is not None and not internals.is_plain_reference(arg):
                # As with FILTER, the argument is evaluated only where the condition holds: it may fail elsewhere.
                arg, text = F.when(b.where, arg), f"{text} WHERE {where_text}"
            args.append(plan.column("a", arg, dtype, text))
            types.append(dtype)
            counts_all = counts_all and not field.nullable
            arg_at += 1
        names = ", ".join(plan.texts[i] for i in args) or "*"
        identity = f"{b.fn.name}({names})" + (" IGNORE NULLS" if b.ignore_nulls else "")
        identity += f" WHERE {where_text}" if where_text else ""
        aggregates.append(AggregateSpec(b.fn.name, tuple(args), where, b.ignore_nulls, ansi, identity))
        in_spark = (_IN_SPARK.get(b.fn.name, b.fn.name), () if counts_all else tuple(args), where, b.ignore_nulls)
        described.append(
            Result(b.fn.name, identity, results[n], tuple(types), b.ignore_nulls, where is not None, in_spark)
        )

    wire_result = T.StructType(
        [T.StructField(f"__r{i}", wire.wire_type(schema[i].dataType, f"key {texts[i]}")) for i in range(k)]
        + [
            T.StructField(f"__r{k + i}", wire.wire_type(f.dataType, f"the result {f.name}"))
            for i, f in enumerate(results)
        ]
    )
    spec = spec_json(k, wire.arrow_schema(plan.schema()), wire.arrow_schema(wire_result), aggregates)
    keys_out = native.fields[:k] if keys_in_result else schema.fields[:k]
    result = T.StructType([*keys_out, *results])
    key_fields = tuple(keys_out)
    return Analysed(
        spec, plan.schema(), tuple(plan.columns), wire_result, result, keys_in_result, k, key_fields, tuple(described)
    )


class _Projection:
    """The columns Spark computes for the split; equal arguments are computed once."""

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.fields: list[T.StructField] = []
        self.texts: list[str] = []
        self._known: list[tuple[str, Column, int]] = []

    def add(self, name: str, column: Column, dtype: T.DataType, text: str, *, key: bool = False) -> int:
        on_wire = wire.wire_type(dtype, f"key {text}" if key else text)
        self.columns.append(wire.to_wire(column, dtype, key=key).alias(name))
        self.fields.append(T.StructField(name, on_wire))
        self.texts.append(text)
        return len(self.columns) - 1

    def column(self, kind: str, column: Column, dtype: T.DataType, text: str) -> int:
        for known_kind, known, index in self._known:
            if known_kind == kind and internals.same(known, column):
                return index
        index = self.add(f"__{kind}{len(self._known)}", column, dtype, text)
        self._known.append((kind, column, index))
        return index

    def schema(self) -> T.StructType:
        return T.StructType(self.fields)


def _bind_all(exprs: Sequence[Any], named: Mapping[str, Any]) -> list[_Bound]:
    items: list[tuple[Any, str | None]] = []
    for expr in exprs:
        if isinstance(expr, _FromDict):
            items += [(column, None) for column in expr.columns]
        elif isinstance(expr, (list, tuple)):
            raise InvalidArgumentError("agg() takes its aggregates one by one, not in a list: agg(*aggregates)")
        else:
            items.append((expr, None))
    items += [(value, name) for name, value in named.items()]
    return [_bind(value, name) for value, name in items]


@dataclasses.dataclass(frozen=True)
class _FromDict:
    columns: tuple[Column, ...]


def _in_spark_order(df: DataFrame, keys: Sequence[Column], given: dict[Any, Any]) -> _FromDict:
    """The aggregates of a dict in the order of Spark's own result, which is not the dict's (a Java map's is)."""
    made = [_from_dict(column, fn) for column, fn in given.items()]
    if not made:
        return _FromDict(())
    ours = df.groupBy(*keys).agg(*made).columns[-len(made) :]
    sparks = df.groupBy(*keys).agg(given).columns[-len(made) :]
    if sorted(ours) != sorted(sparks) or len(set(ours)) != len(ours):
        return _FromDict(tuple(made))
    return _FromDict(tuple(made[ours.index(name)] for name in sparks))


def _from_dict(column: object, fn: object) -> Column:
    name = str(fn).lower()
    known = {"average": "avg", "size": "count"}.get(name, name)
    if not isinstance(column, str) or known not in FUNCTIONS or not FUNCTIONS[known].takes(1):
        by_column = ", ".join(dict.fromkeys(f.name for f in FUNCTIONS.values() if f.takes(1)))
        raise InvalidArgumentError(
            f"{{{column!r}: {fn!r}}} is not understood; as a dict, agg() takes {by_column} by column"
        )
    if column == "*" and known != "count":
        raise InvalidArgumentError(f"{{'*': {fn!r}}} is not understood; only count goes over all columns")
    call = getattr(F, known, None)
    made: Column = call(column) if call is not None else F.call_function(known, F.col(column))
    return made


def _bind(value: Any, name: str | None) -> _Bound:
    if isinstance(value, Aggregate):
        return _bind_ours(value, name)
    if isinstance(value, Column):
        return _bind_column(value, name)
    raise InvalidArgumentError(
        f'{value!r} is not an aggregate; give a Column such as F.sum("price") or fc.sum("price")'
    )


def _bind_ours(value: Aggregate, name: str | None) -> _Bound:
    args = tuple(F.col(a) if isinstance(a, str) else a for a in value.args)
    where = F.expr(value.where) if isinstance(value.where, str) else value.where
    for column in (*args, *([] if where is None else [where])):
        if not isinstance(column, Column):
            raise InvalidArgumentError(f"{column!r} in {value!r} is not a column name and not a Column")
    call = getattr(F, value.fn)
    if not args:
        native = call("*")
    else:
        native = call(*args, True) if value.ignore_nulls else call(*args)
    alias = name or value.name
    named = native if alias is None else native.alias(alias)
    return _Bound(FUNCTIONS[value.fn], args, where, value.ignore_nulls, named, alias is not None, repr(value))


def _bind_column(column: Column, name: str | None) -> _Bound:
    call = internals.call_of(column)
    if call is None:
        raise _refused(column)
    fn = FUNCTIONS.get(call.function)
    if fn is None or call.distinct:
        raise _refused(column)
    args, ignore_nulls = list(call.args), False
    if fn.ignores_nulls and len(args) == 2:
        flag = args.pop()
        if not isinstance(flag, internals.Literal) or not isinstance(flag.value, bool):
            raise _refused(column)
        ignore_nulls = flag.value
    plain: list[Column] = []
    if not (fn.takes(0) and len(args) == 1 and _counts_all(args[0])):
        for arg in args:
            if isinstance(arg, internals.Star):
                raise _refused(column)
            plain.append(arg.column if isinstance(arg, internals.Literal) else arg)
        if not plain or not fn.takes(len(plain)):
            raise _refused(column)
    native = column if name is None else column.alias(name)
    return _Bound(fn, tuple(plain), None, ignore_nulls, native, True, internals.text_of(column))


def _counts_all(arg: object) -> bool:
    return isinstance(arg, internals.Star) or (isinstance(arg, internals.Literal) and arg.value is not None)


def _refused(column: Column) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`{internals.text_of(column)}` is not an aggregate that fastchangelog understands; supported are {NAMES}, "
        "each on its own and with alias(): compute on results in a select() after it, and write F.expr texts as "
        'functions (a FILTER becomes fc.sum("x", where="…"))'
    )


def check_key(text: str, field: T.StructField, *, streaming: bool) -> None:
    """Refuses a key by which an aggregation would be silently wrong; `text` names it."""
    if any(mark in field.metadata for mark in _WINDOW_MARKS):
        raise InvalidArgumentError(
            f"the key {text} is a window column, which is not supported yet; group by its start, "
            "or use Spark's own groupBy for windows"
        )
    # On a batch DataFrame a watermark means nothing. On a stream this metadata is what Spark's own aggregate looks at.
    if streaming and WATERMARK_DELAY in field.metadata:
        raise InvalidArgumentError(
            f"the key {text} carries the stream's watermark (withWatermark), by which Spark drops late rows and "
            "forgets old keys; this is not supported yet: group by an expression of it such as date_trunc('hour', "
            "…), by which Spark drops and forgets nothing either, or use Spark's own groupBy"
        )
    if wire.is_collated(field.dataType):
        raise InvalidArgumentError(
            f"the key {text} is a collated string ({field.dataType.simpleString()}), whose equality fastchangelog does "
            "not know; group by collation_key(…), or by lower(…) cast to string"
        )


def _as_spark_reads_it(kind: str, arg: Column, dtype: T.DataType) -> tuple[Column, T.DataType]:
    """The argument with the cast that Spark's analysis puts around it, and no more of it than is needed."""
    if kind in ("quantity", "double") and not isinstance(dtype, (T.NumericType, *_INTERVALS)):
        return arg.cast("double"), T.DoubleType()
    if kind == "integer" and isinstance(dtype, T.NullType):
        return arg.cast("int"), T.IntegerType()
    if kind == "boolean" and not isinstance(dtype, T.BooleanType):
        return arg.cast("boolean"), T.BooleanType()
    if kind == "presence" and not isinstance(dtype, (T.NumericType, T.BooleanType)):
        return F.when(arg.isNotNull(), F.lit(True)), T.BooleanType()
    return arg, dtype


def _check_argument(b: _Bound, position: int, dtype: T.DataType, *, legacy: bool) -> None:
    kind = b.fn.kind(position)
    if kind == "double" and legacy:
        raise InvalidArgumentError(
            f"{b.text} gives NaN in the place of null with {_LEGACY}=true, which is not supported; set it to false"
        )
    if kind == "quantity" and isinstance(dtype, T.YearMonthIntervalType):
        raise InvalidArgumentError(
            f"{b.text} is not supported for {dtype.simpleString()}; add up months as numbers instead"
        )
    if kind == "ordered" and wire.is_collated(dtype):
        raise InvalidArgumentError(
            f"{b.text} orders a collated string ({dtype.simpleString()}), whose order fastchangelog does not know; "
            "order by collation_key(…) or by the string's bytes"
        )
