"""Analysis of distinct rows: what the state keeps of them, and what travels with a row.

Owns: keys, lateness and lifetimes of distinct rows, and the columns that a row brings along.
Does not own: what users call (`spark.deduplicate`), the plan (`plan`), which rows are new (the state server).

The state keeps the key of each row, and with a lifetime the time from which it lives. The other columns travel with the
row as `first` of each, so the first of equal rows is returned as it was. Keys whose type has values that are equal but
not the same, such as 0.0 and -0.0, travel, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import UnsupportedError
from fastchangelog.spark.aggregates.keys import Keys, as_plain_window, keys_of
from fastchangelog.spark.aggregates.plan import Operation
from fastchangelog.spark.aggregates.projection import Projection
from fastchangelog.spark.aggregates.spec import AggregateSpec, Lifetime, spec_json
from fastchangelog.spark.spark_conditions import MULTIPLE_EVENT_TIMES, RefusedBySparkError
from fastchangelog.spark.split import WATERMARK_DELAY
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Distinct", "distinct"]

#: Types whose equal values are the same value: a row's own is that of the key.
_EXACT = (
    T.BooleanType,
    T.IntegralType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


@dataclasses.dataclass(frozen=True)
class Distinct:
    """Distinct rows of a frame."""

    operation: Operation
    keys: Keys
    #: The numbers of the columns that are keys, and of those that travel with a row.
    key_columns: tuple[int, ...]
    travelling: tuple[int, ...]
    fields: tuple[T.StructField, ...]

    def columns(self, output: Sequence[Column]) -> list[Column]:
        """The columns of the frame, from those that the operator returns."""
        parts = len(self.keys.parts)
        found = dict(zip(self.key_columns, self.keys.results(output[:parts]), strict=True))
        found |= {at: output[parts + i] for i, at in enumerate(self.travelling)}
        return [self._named(found[at], at, field) for at, field in enumerate(self.fields)]

    def _named(self, column: Column, at: int, field: T.StructField) -> Column:
        named = wire.result_column(column, field) if at in self.travelling else column
        return named.alias(field.name, metadata=field.metadata)


def distinct(df: DataFrame, key_columns: Sequence[int], *, within_watermark: bool, ttl_millis: int | None) -> Distinct:
    """Distinct rows of a streaming frame by some of its columns, whose names are distinct.

    Args:
        df: The frame.
        key_columns: Numbers of its columns.
        within_watermark: A key lives until the watermark passes the time of its first row by the delay.
        ttl_millis: How long a key lives from its first row on, by the processing time.
    """
    fields = df.schema.fields
    given = [F.col(fields[at].name) for at in key_columns]
    keys = keys_of(df, given, [as_plain_window(fields[at]) for at in key_columns])
    marked = [at for at, field in enumerate(fields) if WATERMARK_DELAY in field.metadata]
    if len(marked) > 1:
        names = ", ".join(fields[at].name for at in marked)
        raise RefusedBySparkError(
            MULTIPLE_EVENT_TIMES,
            f"the columns {names} carry a watermark each, and a row has one time: drop all but one of them before",
        )
    time = marked[0] if marked else None
    if within_watermark and time is not None and isinstance(fields[time].dataType, T.StructType):
        raise UnsupportedError(
            f"the watermark is that of the window {fields[time].name}, and keys live from the time of a row on: drop "
            "duplicates before the rows are put into windows, or select window_time() of it"
        )
    has_row_times = time is not None and (within_watermark or time not in key_columns)
    projection, calls, lifetime = Projection(), [], None
    if has_row_times:
        assert time is not None
        projection.add("__t", *_time_of(fields[time]), fields[time].name, key=True)
    for i, part in enumerate(keys.parts):
        projection.add(f"__k{i}", part.column, part.dtype, part.text, key=True)
    if within_watermark:
        assert time is not None
        lifetime = Lifetime(0, "watermark")
        calls.append(_call("first", projection.add("__e", _expiry(fields[time]), T.LongType(), "expiry"), "expiry"))
    elif ttl_millis is not None:
        lifetime = Lifetime(ttl_millis * 1000, "processing")
        now = F.unix_micros(F.current_timestamp())
        calls.append(_call("first", projection.add("__e", now, T.LongType(), "time of arrival"), "time of arrival"))
    travelling = tuple(at for at, field in enumerate(fields) if not (at in key_columns and _is_exact(field.dataType)))
    output = [
        T.StructField(f"__r{i}", wire.wire_type(part.dtype, f"key {part.text}")) for i, part in enumerate(keys.parts)
    ]
    for at in travelling:
        field = fields[at]
        argument = projection.add(f"__a{at}", F.col(field.name), field.dataType, field.name)
        calls.append(_call("first", argument, f"column {at}"))
        output.append(T.StructField(f"__r{len(output)}", wire.wire_type(field.dataType, f"the column {field.name}")))
    returned = T.StructType(output)
    spec = spec_json(
        len(keys.parts),
        wire.arrow_schema(projection.schema()),
        wire.arrow_schema(returned),
        calls,
        output_mode="new",
        row_times=has_row_times,
        lifetime=lifetime,
    )
    kept = output[: len(keys.parts)]
    initial_spec = spec_json(
        len(kept),
        wire.arrow_schema(T.StructType([*kept, T.StructField("__e", T.LongType())])),
        wire.arrow_schema(T.StructType(kept)),
        [dataclasses.replace(call, args=(len(kept),)) for call in calls[: lifetime is not None]],
        lifetime=lifetime,
    )
    has_watermarks = time is not None
    operation = Operation(spec, projection.schema(), projection.columns, returned, "new", has_watermarks, initial_spec)
    return Distinct(operation, keys, tuple(key_columns), travelling, tuple(fields))


def _call(fn: str, argument: int, text: str) -> AggregateSpec:
    return AggregateSpec(fn, (argument,), None, False, False, f"{fn}({text})")


def _time_of(field: T.StructField) -> tuple[Column, T.DataType]:
    """The event time of a row; of a window its end."""
    column = F.col(field.name)
    if isinstance(field.dataType, T.StructType):
        return column["end"], field.dataType["end"].dataType
    return column, field.dataType


def _expiry(field: T.StructField) -> Column:
    """The time in microseconds until which the watermark keeps a key; a row without a time counts as one of 1970."""
    delay = int(field.metadata[WATERMARK_DELAY]) * 1000
    return F.coalesce(F.unix_micros(F.col(field.name)), F.lit(0)) + F.lit(delay)


def _is_exact(dtype: T.DataType) -> bool:
    return isinstance(dtype, _EXACT) and not wire.is_collated(dtype)
