"""The keys of an aggregation: as users write them, as the state keeps them, as the result shows them.

Owns: windows among the keys, the key that carries the event time, its place in front of the others, the refusals.
Does not own: which windows a time belongs to (the Rust core), when they close (`event_time`), arguments of aggregates
(`analyse`).

A window is kept as its end, in front of all other keys: so the closed windows of a state are one range of its keys. The
result shows it as Spark does, with its start. Of a column of windows, or of windows inside an expression, Spark itself
makes the windows of each row; then the start is kept as a key, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark import internals
from fastchangelog.spark.split import WATERMARK_DELAY
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Keys", "Part", "Windows", "check_key", "given_keys", "keys_of", "makes_windows"]

#: Spark's functions that make windows, and its marks of a column of windows.
_WINDOW, _SESSION = "window", "session_window"
_MARKS = ("spark.timeWindow", "spark.sessionWindow")
#: The fields of a window, in the order in which the state keeps them.
_FIELDS = ("end", "start")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of an aggregation, in microseconds: `[start + k * slide, start + k * slide + size)`."""

    size: int
    slide: int
    start: int


@dataclasses.dataclass(frozen=True)
class Part:
    """A column in which the state keeps a key, or a part of one."""

    column: Column
    dtype: T.DataType
    #: As errors name it.
    text: str


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of an aggregation."""

    #: Names, types and metadata of the keys as Spark's own `groupBy` has them.
    fields: tuple[T.StructField, ...]
    #: What the state keeps of rows.
    parts: tuple[Part, ...]
    #: The key that is kept in front of the others.
    first: int | None
    #: The key whose windows rows have to be put into, and these windows.
    computed: int | None
    windows: Windows | None
    #: The first key is the event time, by which Spark drops late rows and closes groups.
    is_event_time: bool

    def stored(self, columns: Sequence[Column]) -> list[Part]:
        """What the state keeps of columns that have the types of the keys."""
        parts = []
        for i, name in self.paths():
            field = self.fields[i]
            parts.append(
                Part(columns[i], field.dataType, field.name) if name is None else _part(columns[i], field, name)
            )
        return parts

    def paths(self) -> list[tuple[int, str | None]]:
        """What the state keeps of each key, in its order: all of it, or a field of a window."""
        made: list[list[tuple[int, str | None]]] = []
        for i, field in enumerate(self.fields):
            names: Sequence[str | None] = [None]
            if _is_window(field):  # the start of a computed one follows from its end
                names = _FIELDS[:1] if i == self.computed else _FIELDS
            made.append([(i, name) for name in names])
        return _in_order(made, self.first)

    def results(self, stored: Sequence[Column]) -> list[Column]:
        """The keys, from what the state keeps of them."""
        own: list[list[Column]] = [[] for _ in self.fields]
        for (i, _), column in zip(self.paths(), stored, strict=True):
            own[i].append(column)
        return [self._result(i, field, own[i]) for i, field in enumerate(self.fields)]

    def _result(self, key: int, field: T.StructField, own: Sequence[Column]) -> Column:
        if not _is_window(field):
            if WATERMARK_DELAY not in field.metadata:
                return wire.result_column(own[0], field)
            return wire.from_wire(own[0], field.dataType).alias(field.name, metadata=field.metadata)
        assert isinstance(field.dataType, T.StructType)
        end = own[0]
        if key == self.computed and self.windows is not None:
            start = _earlier(end, field.dataType[0].dataType, self.windows.size)
            made = F.struct(start.alias("start"), end.alias("end"))
        else:
            start = own[1]
            made = F.when(end.isNotNull() | start.isNotNull(), F.struct(start.alias("start"), end.alias("end")))
        return made.alias(field.name, metadata=field.metadata)


def given_keys(keys: Sequence[Any]) -> list[Column]:
    """The keys as columns."""
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
        _check_windows(out[-1])
    return out


def keys_of(df: DataFrame, keys: Sequence[Column], fields: Sequence[T.StructField]) -> Keys:
    """Analyses `keys`, whose names and types are `fields`."""
    calls = [_window_call(key) for key in keys]
    given = [key if call is None else call[0] for key, call in zip(keys, calls, strict=True)]
    schema = df.select(*[column.alias(f"c{i}") for i, column in enumerate(given)]).schema
    texts = df.select(*given).columns
    if len(schema) != len(keys):
        raise InvalidArgumentError("a key or an argument stands for several columns; name each column on its own")
    computed, windows = None, None
    made: list[list[Part]] = []
    for i, (key, call, field) in enumerate(zip(keys, calls, fields, strict=True)):
        check_key(internals.text_of(key), field)
        if call is None:
            made.append(_stored(key, field, texts[i]))
            continue
        computed, windows = i, _windows(df.sparkSession, call[1])
        assert isinstance(field.dataType, T.StructType)
        given[i] = _time(given[i], schema[i], field.dataType[0].dataType)
        made.append([Part(given[i], field.dataType[0].dataType, texts[i])])
    marked = [i for i, field in enumerate(fields) if WATERMARK_DELAY in field.metadata] if df.isStreaming else []
    if len(marked) > 1:
        names = ", ".join(fields[i].name for i in marked)
        raise UnsupportedError(
            f"the keys {names} carry the watermark, and Spark takes one event time for an aggregation: group by one of "
            "them"
        )
    first = marked[0] if marked else computed
    if computed is not None and first != computed:
        raise UnsupportedError(
            f"the key {fields[computed].name} is a window of a time without a watermark beside the key "
            f"{fields[marked[0]].name}, which has one; group by one of them"
        )
    return Keys(tuple(fields), tuple(_in_order(made, first)), first, computed, windows, bool(marked))


def makes_windows(key: Column) -> bool:
    """True if Spark makes windows where it computes the key."""
    return not {_WINDOW, _SESSION}.isdisjoint(internals.function_names(key))


def check_key(text: str, field: T.StructField) -> None:
    """Refuses a key by which an aggregation would be silently wrong; `text` names it."""
    if wire.is_collated(field.dataType):
        raise InvalidArgumentError(
            f"the key {text} is a collated string ({field.dataType.simpleString()}), whose equality fastchangelog does "
            "not know; group by collation_key(…), or by lower(…) cast to string"
        )


def _check_windows(key: Column) -> None:
    if _SESSION in internals.function_names(key):
        raise UnsupportedError(
            f"the key {internals.text_of(key)} uses {_SESSION}(), which is not supported yet; use Spark's own groupBy "
            "for session windows"
        )


def _window_call(key: Column) -> tuple[Column, list[str]] | None:
    """The time column and the durations of a key that is a window."""
    call = internals.call_of(key)
    if call is None or call.function != _WINDOW or not call.args:
        return None
    time, *durations = call.args
    if not isinstance(time, Column) or not all(isinstance(arg, internals.Literal) for arg in durations):
        return None
    return time, [str(arg.value) for arg in durations if isinstance(arg, internals.Literal)]


def _windows(spark: SparkSession, durations: Sequence[str]) -> Windows:
    """Length, slide and start in microseconds, as Spark reads them."""
    epoch = "TIMESTAMP_NTZ'1970-01-01'"
    quoted = [text.replace("\\", "\\\\").replace("'", "\\'") for text in durations]
    lengths = [f"timestampdiff(MICROSECOND, {epoch}, {epoch} + CAST('{text}' AS INTERVAL))" for text in quoted]
    size, *rest = spark.range(1).select(*[F.expr(length) for length in lengths]).collect()[0]
    slide, start = (*rest, size, 0)[:2] if len(rest) != 1 else (rest[0], 0)
    return Windows(int(size), int(slide), int(start))


def _time(column: Column, field: T.StructField, wanted: T.DataType) -> Column:
    if _is_window(field):
        column = F.window_time(column)
    return column if field.dataType == wanted else column.cast(wanted)


def _stored(column: Column, field: T.StructField, text: str) -> list[Part]:
    if not _is_window(field):
        return [Part(column, field.dataType, text)]
    assert isinstance(field.dataType, T.StructType)
    return [_part(column, field, name, text) for name in _FIELDS]


def _part(column: Column, field: T.StructField, name: str, text: str = "") -> Part:
    assert isinstance(field.dataType, T.StructType)
    return Part(column[name], field.dataType[name].dataType, f"{text or field.name}.{name}")


def _in_order(made: list[list[_T]], first: int | None) -> list[_T]:
    front = [] if first is None else made[first]
    return [*front, *(part for i, parts in enumerate(made) if i != first for part in parts)]


def _is_window(field: T.StructField) -> bool:
    return any(mark in field.metadata for mark in _MARKS) and isinstance(field.dataType, T.StructType)


def _earlier(time: Column, dtype: T.DataType, micros: int) -> Column:
    """The time less some microseconds, without time zones and changes of clocks."""
    if isinstance(dtype, T.TimestampType):
        return F.timestamp_micros(F.unix_micros(time) - F.lit(micros))
    seconds = f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
    return time - F.expr(f"make_dt_interval(0, 0, 0, CAST('{seconds}' AS DECIMAL(18, 6)))")
