"""The keys of an aggregation: as users write them, as the state keeps them, as the result shows them.

Owns: windows among the keys, the key that carries the event time, its place among the others, the refusals.
Does not own: which windows a time belongs to (the Rust core), when they close (`event_time`), arguments of aggregates
(`analyse`).

A window is kept as its end, in front of all other keys: so the closed windows of a state are one range of its keys. The
result shows it as Spark does, with its start. Of a column of windows, or of windows inside an expression, Spark itself
makes the windows of each row; then the start is kept as a key, too.

Spark makes the session window of each row, in the session's time zone, and leaves out rows without one. Its start and
its end are kept behind all other keys: the core merges those that touch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark import internals
from fastchangelog.spark.internals_expressions import without_alias
from fastchangelog.spark.split import WATERMARK_DELAY
from fastchangelog.spark.types import wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Keys", "Part", "Windows", "as_plain_window", "check_key", "given_keys", "keys_of", "makes_windows"]

#: Spark's functions that make windows, and its marks of a column of windows.
_WINDOW, _SESSION = "window", "session_window"
_WINDOW_MARK, _SESSION_MARK = "spark.timeWindow", "spark.sessionWindow"
_MARKS = (_WINDOW_MARK, _SESSION_MARK)
#: The fields of a window, and of a session window, in the order in which the state keeps them.
_FIELDS, _SESSION_FIELDS = ("end", "start"), ("start", "end")
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
    #: The key that is a session window, kept behind the others.
    session: int | None
    #: The first key, or the session window, is the event time, by which Spark drops late rows and closes groups.
    is_event_time: bool
    #: Keys that are the same as an earlier one, by which they are known: the state keeps it once.
    same: Mapping[int, int] = dataclasses.field(default_factory=dict)

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
                names = _FIELDS[:1] if i == self.computed else _fields_of(field)
            made.append([(i, name) for name in names if i not in self.same])
        return _in_order(made, self.first, self.session)

    def results(self, stored: Sequence[Column]) -> list[Column]:
        """The keys, from what the state keeps of them."""
        own: list[list[Column]] = [[] for _ in self.fields]
        for (i, _), column in zip(self.paths(), stored, strict=True):
            own[i].append(column)
        kept = [self.same.get(i, i) for i in range(len(self.fields))]
        return [self._result(i, field, own[i]) for i, field in zip(kept, self.fields, strict=True)]

    def _result(self, key: int, field: T.StructField, own: Sequence[Column]) -> Column:
        if not _is_window(field):
            if WATERMARK_DELAY not in field.metadata:
                return wire.result_column(own[0], field)
            return wire.from_wire(own[0], field.dataType).alias(field.name, metadata=field.metadata)
        assert isinstance(field.dataType, T.StructType)
        if key == self.session:
            start, end = own
        elif key == self.computed and self.windows is not None:
            end = own[0]
            start = _earlier(end, field.dataType[0].dataType, self.windows.size)
        else:
            end, start = own
        made = F.struct(start.alias("start"), end.alias("end"))
        if field.nullable:  # of a column of windows some may be null
            made = F.when(end.isNotNull() | start.isNotNull(), made)
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
    same = _same(keys, [i for i, call in enumerate(calls) if call is not None or i in marked])
    marked = [i for i in marked if i not in same]
    if computed is not None:
        computed = same.get(computed, computed)
    if len(marked) > 1:
        names = ", ".join(fields[i].name for i in marked)
        raise UnsupportedError(
            f"the keys {names} carry the watermark, and Spark takes one event time for an aggregation: group by one of "
            "them"
        )
    made = [[] if i in same else parts for i, parts in enumerate(made)]
    session = _session_of(fields, same, [*marked, *([] if computed is None else [computed])], streaming=df.isStreaming)
    first = marked[0] if marked else computed
    if computed is not None and first != computed:
        raise UnsupportedError(
            f"the key {fields[computed].name} is a window of a time without a watermark beside the key "
            f"{fields[marked[0]].name}, which has one; group by one of them"
        )
    parts = tuple(_in_order(made, first, session))
    front = None if first == session else first
    return Keys(tuple(fields), parts, front, computed, windows, session, bool(marked), same)


def _same(keys: Sequence[Column], times: Sequence[int]) -> dict[int, int]:
    """Those of the keys `times` that are, but for an alias, an earlier one, with the number of that one."""
    known: dict[str, int] = {}
    found = {i: known.setdefault(internals.text_of(without_alias(keys[i])), i) for i in times}
    return {i: earlier for i, earlier in found.items() if i != earlier}


def makes_windows(key: Column) -> bool:
    """True if Spark makes windows where it computes the key."""
    return not {_WINDOW, _SESSION}.isdisjoint(internals.function_names(key))


def as_plain_window(field: T.StructField) -> T.StructField:
    """The field of a session window as that of any other window: only aggregations merge session windows."""
    if not _is_window(field):
        return field
    kept = {name: value for name, value in field.metadata.items() if name not in _MARKS}
    return T.StructField(field.name, field.dataType, field.nullable, {**kept, _WINDOW_MARK: True})


def check_key(text: str, field: T.StructField) -> None:
    """Refuses a key by which an aggregation would be silently wrong; `text` names it."""
    if wire.is_collated(field.dataType):
        raise InvalidArgumentError(
            f"the key {text} is a collated string ({field.dataType.simpleString()}), whose equality fastchangelog does "
            "not know; group by collation_key(…), or by lower(…) cast to string"
        )


def _session_of(
    fields: Sequence[T.StructField], same: Collection[int], times: Sequence[int], *, streaming: bool
) -> int | None:
    """The key that is a session window, without those of `same`; `times` are the keys with a watermark, and windows."""
    found = [
        i for i, field in enumerate(fields) if _SESSION_MARK in field.metadata and _is_window(field) and i not in same
    ]
    if not found:
        return None
    names = ", ".join(field.name for field in fields)
    if len(found) > 1 or any(key != found[0] for key in times):
        raise UnsupportedError(
            f"the keys {names} have a session window beside another window or another event time: group by one of them"
        )
    if streaming and len(fields) - len(same) == 1:
        raise UnsupportedError(
            f"the session window {names} is the only key, which Spark refuses in a stream (Global aggregation with "
            "session window in streaming query is not supported): group by another key, too"
        )
    return found[0]


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
    return [_part(column, field, name, text) for name in _fields_of(field)]


def _part(column: Column, field: T.StructField, name: str, text: str = "") -> Part:
    assert isinstance(field.dataType, T.StructType)
    return Part(column[name], field.dataType[name].dataType, f"{text or field.name}.{name}")


def _in_order(made: list[list[_T]], first: int | None, last: int | None) -> list[_T]:
    """The parts of key `first`, then those of all others, then those of key `last`."""
    front, back = ([] if i is None or i == other else made[i] for i, other in ((first, last), (last, None)))
    return [*front, *(part for i, parts in enumerate(made) if i not in (first, last) for part in parts), *back]


def _fields_of(field: T.StructField) -> Sequence[str]:
    return _SESSION_FIELDS if _SESSION_MARK in field.metadata else _FIELDS


def _is_window(field: T.StructField) -> bool:
    return any(mark in field.metadata for mark in _MARKS) and isinstance(field.dataType, T.StructType)


def _earlier(time: Column, dtype: T.DataType, micros: int) -> Column:
    """The time less some microseconds, without time zones and changes of clocks."""
    if isinstance(dtype, T.TimestampType):
        return F.timestamp_micros(F.unix_micros(time) - F.lit(micros))
    seconds = f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
    return time - F.expr(f"make_dt_interval(0, 0, 0, CAST('{seconds}' AS DECIMAL(18, 6)))")
