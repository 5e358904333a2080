"""Analysis of aggregates: functions, arguments, names and types, all as Spark itself resolves them.

Owns: the query of Spark's analysed schema, the refusals.
Does not own: the keys (`keys`), expressions over aggregates (`expressions`), types of arguments and results (`casts`),
the functions (`function_table`), how a `Column` is parsed (`internals`), the wire form of types (`types.wire`),
settings (`settings`).
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.function_table import DEVIATIONS, FUNCTIONS, NAMES, Function
from fastchangelog.functions import Aggregate
from fastchangelog.spark import internals
from fastchangelog.spark.aggregates.casts import as_spark_reads_it, result_type
from fastchangelog.spark.aggregates.expressions import aggregate_name, is_computed, key_name, over_aggregates
from fastchangelog.spark.aggregates.keys import Keys, keys_of
from fastchangelog.spark.aggregates.projection import Projection
from fastchangelog.spark.aggregates.spec import AggregateSpec, Lifetime, OutputMode, spec_json
from fastchangelog.spark.internals_expressions import without_alias
from fastchangelog.spark.spark_conditions import UNSUPPORTED_OUTPUT_MODE, RefusedBySparkError
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Analysed", "Output", "Result", "analyse", "native_of"]

_MERGES_EARLY = "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition"
_LEGACY = "spark.sql.legacy.statisticalAggregate"
#: Functions that Spark keeps as another one.
_IN_SPARK = {"bool_and": "min", "bool_or": "max"}


@dataclasses.dataclass(frozen=True)
class Result:
    """An aggregate of the query."""

    #: The function's name in the table.
    fn: str
    text: str
    #: Its column: of the result, or as Spark would name it there.
    field: T.StructField
    #: The types of the arguments, as they are aggregated.
    arguments: tuple[T.DataType, ...]
    ignore_nulls: bool
    is_filtered: bool
    #: Equal for aggregates that Spark keeps once.
    in_spark: object


@dataclasses.dataclass(frozen=True)
class Output:
    """A column of the result: an aggregate, or an expression over aggregates."""

    #: Name, type and metadata as Spark's own `groupBy().agg()` has them.
    field: T.StructField
    #: The number of the aggregate among those of the query; of no use beside an expression.
    aggregate: int
    expression: Column | None = None


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
    #: The columns of the result behind the keys.
    outputs: tuple[Output, ...]
    #: The result that each aggregate of the query is: equal ones are kept once.
    kept: tuple[int, ...]
    #: Whether the keys are in the result (`spark.sql.retainGroupColumns`).
    keys_in_result: bool
    keys: Keys
    results: tuple[Result, ...]
    output_mode: OutputMode

    @property
    def num_keys(self) -> int:
        """The number of columns in which the state keeps the keys."""
        return len(self.keys.parts)

    @property
    def closes_groups(self) -> bool:
        """True if groups are late or closed by the watermark. In complete mode rows of session windows may be late."""
        return self.keys.is_event_time and (self.output_mode != "complete" or self.keys.session is not None)


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


@dataclasses.dataclass(frozen=True)
class _Asked:
    """One column of the result: `native` is what Spark would be given for it."""

    native: Column
    text: str
    #: The number of the aggregate, or the expression.
    aggregate: int = -1
    expression: Column | None = None


def analyse(
    df: DataFrame,
    given: Sequence[Column],
    exprs: Sequence[Any],
    named: Mapping[str, Any],
    output_mode: OutputMode = "update",
    ttl_millis: int | None = None,
) -> Analysed:
    """Binds and checks `exprs` and `named` of rows grouped by `given`, and asks Spark for names and types."""
    asked, bound = _bind_all([_in_spark_order(df, given, e) if isinstance(e, dict) else e for e in exprs], named, given)
    if not bound:
        raise InvalidArgumentError('agg() needs at least one aggregate, such as F.count("*") or fc.count()')
    shown = {a.aggregate: i for i, a in enumerate(asked) if a.expression is None}
    inner = [n for n in range(len(bound)) if n not in shown]
    columns = [*(a.native for a in asked), *(bound[n].native for n in inner)]
    native = df.groupBy(*given).agg(*columns).schema
    keys_in_result = len(native) == len(given) + len(columns)
    if not keys_in_result and len(native) != len(columns):
        raise InvalidArgumentError(
            f"the keys and aggregates make {len(native)} columns, but {len(given) + len(columns)} were expected; name "
            "each column on its own instead of using *"
        )
    keys = keys_of(df, given, (native if keys_in_result else df.select(*given).schema).fields[: len(given)])
    if output_mode == "append" and df.isStreaming and not keys.is_event_time:
        raise RefusedBySparkError(
            UNSUPPORTED_OUTPUT_MODE,
            "output_mode='append' emits a group when the watermark closes it, and no key carries a watermark: group by "
            "a window of a column that withWatermark() was called with, or use output_mode='update'",
        )
    if df.isStreaming and keys.session is not None:
        _check_session_windows(df, output_mode)
    filters = [b.where for b in bound if b.where is not None]
    parts = [*(a for b in bound for a in b.args), *filters]
    schema = df.select(*[c.alias(f"c{i}") for i, c in enumerate(parts)]).schema
    texts = df.select(*parts).columns
    if len(schema) != len(parts):
        raise InvalidArgumentError("a key or an argument stands for several columns; name each column on its own")
    ansi = str(df.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    legacy = str(df.sparkSession.conf.get(_LEGACY, "false")).lower() == "true"

    k = len(keys.parts)
    plan = Projection()
    for i, part in enumerate(keys.parts):
        plan.add(f"__k{i}", part.column, part.dtype, part.text, key=True)
    aggregates: list[AggregateSpec] = []
    arg_at, where_at = 0, len(parts) - len(filters)
    fields = native.fields[-len(columns) :]
    at = {**shown, **{n: len(asked) + i for i, n in enumerate(inner)}}
    described: list[Result] = []
    known: dict[tuple[AggregateSpec, str], int] = {}
    kept: list[int] = []
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
                r = fields[at[n]]
                fields[at[n]] = T.StructField(f"{r.name} FILTER (WHERE {where_text})", r.dataType, r.nullable)
        args: list[int] = []
        types: list[T.DataType] = []
        counts_all = b.fn.name == "count"
        for j, arg in enumerate(b.args):
            field, text = schema[arg_at], texts[arg_at]
            _check_argument(b, j, field.dataType, legacy=legacy)
            arg, dtype = as_spark_reads_it(b.fn.kind(j), arg, field.dataType)
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
        aggregate = AggregateSpec(b.fn.name, tuple(args), where, b.ignore_nulls, ansi, identity)
        kept.append(known.setdefault((aggregate, fields[at[n]].dataType.json()), len(aggregates)))
        if kept[n] < len(aggregates):
            continue
        aggregates.append(aggregate)
        in_spark = (_IN_SPARK.get(b.fn.name, b.fn.name), () if counts_all else tuple(args), where, b.ignore_nulls)
        described.append(
            Result(b.fn.name, identity, fields[at[n]], tuple(types), b.ignore_nulls, where is not None, in_spark)
        )

    wire_result = T.StructType(
        [T.StructField(f"__r{i}", wire.wire_type(p.dtype, f"key {p.text}")) for i, p in enumerate(keys.parts)]
        + [
            T.StructField(
                f"__r{k + i}", wire.wire_type(result_type(r.fn, r.field.dataType), f"the result {r.field.name}")
            )
            for i, r in enumerate(described)
        ]
    )
    lifetime = None
    if ttl_millis is not None and df.isStreaming:
        _check_ttl(keys, output_mode)
        now = plan.add("__e", F.unix_micros(F.current_timestamp()), T.LongType(), "time of the last row")
        aggregates.insert(0, AggregateSpec("max", (now,), None, False, ansi, "max(time of the last row)"))
        lifetime = Lifetime(ttl_millis * 1000, "processing")
    outputs = tuple(Output(fields[i], a.aggregate, a.expression) for i, a in enumerate(asked))
    _check_expressions(df, asked, keys, [described[i].field for i in kept])
    windows = None if keys.windows is None else dataclasses.asdict(keys.windows)
    wire_input = wire.arrow_schema(plan.schema())
    spec = spec_json(
        k,
        wire_input,
        wire.arrow_schema(wire_result),
        aggregates,
        windows=windows,
        session_windows=keys.session is not None,
        output_mode=output_mode,
        lifetime=lifetime,
    )
    return Analysed(
        spec,
        plan.schema(),
        tuple(plan.columns),
        wire_result,
        outputs,
        tuple(kept),
        keys_in_result,
        keys,
        tuple(described),
        output_mode,
    )


def _check_session_windows(df: DataFrame, output_mode: OutputMode) -> None:
    """Refuses what Spark refuses, and a setting with which late rows would count."""
    if output_mode == "update":
        raise RefusedBySparkError(
            UNSUPPORTED_OUTPUT_MODE,
            "output_mode='update' is not supported for session windows: use output_mode='append', with a watermark, or "
            "'complete'",
        )
    if str(df.sparkSession.conf.get(_MERGES_EARLY, "false")).lower() == "true":
        raise UnsupportedError(
            f"{_MERGES_EARLY}=true lets late rows count beside others, which is not supported; set it to false"
        )


def _check_ttl(keys: Keys, output_mode: OutputMode) -> None:
    if keys.is_event_time:
        raise InvalidArgumentError(
            "ttl= is for keys without event time; groups of windows leave when the watermark closes them"
        )
    if output_mode == "complete":
        raise UnsupportedError(
            "output_mode='complete' returns all groups in each batch, also those without rows, and ttl= is looked at "
            "where a group has rows: use output_mode='update'"
        )


def _bind_all(
    exprs: Sequence[Any], named: Mapping[str, Any], keys: Sequence[Column]
) -> tuple[list[_Asked], list[_Bound]]:
    """The columns of the result, and their aggregates in the order in which Spark finds them."""
    items: list[tuple[Any, str | None]] = []
    for expr in exprs:
        if isinstance(expr, _FromDict):
            items += [(column, None) for column in expr.columns]
        elif isinstance(expr, (list, tuple)):
            raise InvalidArgumentError("agg() takes its aggregates one by one, not in a list: agg(*aggregates)")
        else:
            items.append((expr, None))
    items += [(value, name) for name, value in named.items()]
    asked: list[_Asked] = []
    bound: list[_Bound] = []
    for value, name in items:
        aggregate = _bind(value, name)
        if aggregate is None:
            asked.append(_computed(value, name, keys, bound))
        else:
            asked.append(_Asked(aggregate.native, aggregate.text, len(bound)))
            bound.append(aggregate)
    if asked and not bound:
        raise _refused(asked[0].text)
    return asked, bound


def _computed(column: Column, name: str | None, keys: Sequence[Column], bound: list[_Bound]) -> _Asked:
    """An expression over aggregates, which are added to those of the query."""

    def number(part: Column) -> int | None:
        aggregate = _bind_column(part, None)
        if aggregate is None:
            return None
        bound.append(dataclasses.replace(aggregate, native=without_alias(part)))
        return len(bound) - 1

    text = internals.text_of(column)
    expression = over_aggregates(column, keys, number)
    if expression is None:
        raise _refused(text)
    return _Asked(column if name is None else column.alias(name), text, expression=expression)


def _check_expressions(df: DataFrame, asked: Sequence[_Asked], keys: Keys, aggregates: Sequence[T.StructField]) -> None:
    """Refuses expressions with an aggregate of Spark's that is none of ours."""
    columns = T.StructType(
        [T.StructField(key_name(i), field.dataType) for i, field in enumerate(keys.fields)]
        + [T.StructField(aggregate_name(n), field.dataType) for n, field in enumerate(aggregates)]
    )
    expressions = {a.text: a.expression for a in asked if a.expression is not None}
    if expressions and not is_computed(df.sparkSession, columns, list(expressions.values())):
        raise _refused("`, `".join(expressions))


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


def _bind(value: Any, name: str | None) -> _Bound | None:
    """The aggregate; None for a column that is none."""
    if isinstance(value, Aggregate):
        return _bind_ours(value, name)
    if isinstance(value, Column):
        return _bind_column(value, name)
    raise InvalidArgumentError(
        f'{value!r} is not an aggregate; give a Column such as F.sum("price") or fc.sum("price")'
    )


def native_of(value: Aggregate) -> Column:
    """PySpark's own aggregate, without the condition."""
    args: list[Any] = [F.col(a) if isinstance(a, str) else a for a in value.args]
    if FUNCTIONS[value.fn].more == "deviation":  # which PySpark's function takes as a number alone
        return F.call_function(value.fn, *args)
    call: Callable[..., Column] = getattr(F, value.fn)
    return call(*(args or ["*"]), *([True] if value.ignore_nulls else []))


def _bind_ours(value: Aggregate, name: str | None) -> _Bound:
    args = tuple(F.col(a) if isinstance(a, str) else a for a in value.args)
    where = F.expr(value.where) if isinstance(value.where, str) else value.where
    for column in (*args, *([] if where is None else [where])):
        if not isinstance(column, Column):
            raise InvalidArgumentError(f"{column!r} in {value!r} is not a column name and not a Column")
    alias = name or value.name
    native = native_of(value)
    named = native if alias is None else native.alias(alias)
    return _Bound(FUNCTIONS[value.fn], args, where, value.ignore_nulls, named, alias is not None, repr(value))


def _bind_column(column: Column, name: str | None) -> _Bound | None:
    call = internals.call_of(column)
    fn = None if call is None else FUNCTIONS.get(call.function)
    if call is None or fn is None:
        return None
    if call.distinct:
        raise UnsupportedError(
            f"`{internals.text_of(column)}` is a distinct aggregation, which Spark does not support on streaming "
            'DataFrames either: compute it from the distinct values, such as F.size(F.collect_set("x")); supported are '
            f"{NAMES}"
        )
    args, ignore_nulls = list(call.args), False
    if fn.ignores_nulls and len(args) == 2:
        flag = args.pop()
        if not isinstance(flag, internals.Literal) or not isinstance(flag.value, bool):
            raise _refused(internals.text_of(column))
        ignore_nulls = flag.value
    plain: list[Column] = []
    if not (fn.takes(0) and len(args) == 1 and _counts_all(args[0])):
        for i, arg in enumerate(args):
            if (
                i >= len(fn.arguments)
                and fn.more == "text"
                and isinstance(arg, internals.Literal)
                and arg.value is None
            ):
                continue  # no delimiter
            if isinstance(arg, internals.Star):
                raise _refused(internals.text_of(column))
            if fn.kind(i) == "deviation":
                _check_deviation(arg, internals.text_of(column))
            plain.append(arg.column if isinstance(arg, internals.Literal) else arg)
        if not plain or not fn.takes(len(plain)):
            raise _refused(internals.text_of(column))
    native = column if name is None else column.alias(name)
    return _Bound(fn, tuple(plain), None, ignore_nulls, native, True, internals.text_of(column))


def _check_deviation(arg: object, text: str) -> None:
    value = arg.value if isinstance(arg, internals.Literal) else None
    least, greatest = DEVIATIONS
    if not isinstance(value, (int, float, decimal.Decimal)) or not least <= value <= greatest:
        raise InvalidArgumentError(f"`{text}`: the relative deviation must be a constant from {least} to {greatest}")


def _counts_all(arg: object) -> bool:
    return isinstance(arg, internals.Star) or (isinstance(arg, internals.Literal) and arg.value is not None)


def _refused(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`{text}` is not an aggregate that fastchangelog understands; supported are {NAMES}, with alias() and in "
        "expressions with keys and constants: compute anything else in a select() after it, and write F.expr texts as "
        'functions (a FILTER becomes fc.sum("x", where="…"))'
    )


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
    if kind == "hashed" and wire.is_collated(dtype):
        raise InvalidArgumentError(
            f"{b.text} hashes a collated string ({dtype.simpleString()}), whose equality fastchangelog does not know; "
            "count collation_key(…) or the string's bytes"
        )
    if kind == "ordered" and wire.is_collated(dtype):
        raise InvalidArgumentError(
            f"{b.text} orders a collated string ({dtype.simpleString()}), whose order fastchangelog does not know; "
            "order by collation_key(…) or by the string's bytes"
        )
