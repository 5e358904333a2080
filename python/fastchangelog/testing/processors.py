"""Runs a vectorised processor over batches, in this process and in memory.

Owns: `run_processor`: grouping of rows, the state between batches, the times.
Does not own: the order of calls and what user code sees (`fastchangelog.vectorised`), the sessions (the Rust core's).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import TIMERS
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.arrays import table_of
from fastchangelog.schema import arrow_type
from fastchangelog.state.times import micros_of
from fastchangelog.vectorised.chunks import by_key
from fastchangelog.vectorised.context import Declared
from fastchangelog.vectorised.processor import Processor
from fastchangelog.vectorised.run import Place, Times, VectorRun

if TYPE_CHECKING:
    from fastchangelog.types import DataTypeLike

__all__ = ["run_processor"]

_TIME_MODES = ("none", "processingtime", "eventtime")


def run_processor(
    processor: Processor,
    batches: Iterable[Any],
    *,
    watermark: datetime | Sequence[datetime] | None = None,
    clock: Callable[[], float | datetime] | None = None,
    key: str | Sequence[str] | None = None,
    time_mode: str | None = None,
    output: DataTypeLike | None = None,
    initial: Any | None = None,
) -> list[pa.Table]:
    """Runs a vectorised processor over batches, one after the other, without Spark. States are in memory.

    Each batch has a copy of the processor, as on Spark: what it keeps in itself is gone after the batch. Rows are not
    late here: all of them reach `process`. A batch without rows is one in which only timers are due.

    Args:
        processor: The processor.
        batches: The batches: record batches, tables or other Arrow data, with the same columns.
        watermark: The watermark of all batches, or a list with one for each: aware datetimes; None: the epoch.
        clock: Gives the processing time in seconds since the epoch or as an aware datetime, once for each batch; None:
            `time.time`.
        key: The grouping columns; None: the first column.
        time_mode: As `timeMode` of `transformWithStateInArrow`, in any case of letters; None: ``"eventtime"`` with a
            watermark, ``"processingtime"`` with a clock, else ``"none"``.
        output: The schema that the yielded record batches are checked against; None: no check.
        initial: Rows for `initial_state` of the processor, before the first batch; they have the columns of the key.

    Returns:
        What was yielded: one table for each batch; without columns if nothing was yielded and `output` is not given.

    Raises:
        InvalidArgumentError: Something cannot work as it was given; the message says what to change.

    Example:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> import fastchangelog as fc
        >>> class Counts(fc.Processor):
        ...     def open(self, ctx):
        ...         self.seen = ctx.value_state("seen", "long")
        ...     def process(self, batch):
        ...         now = pc.add(pc.fill_null(self.seen.get(batch.keys), 0), np.diff(batch.offsets))
        ...         self.seen.put(batch.keys, now)
        ...         yield pa.RecordBatch.from_arrays([batch.keys.field("user"), now], ["user", "n"])
        >>> clicks = pa.table({"user": ["ann", "bob", "ann"]})
        >>> [answer.to_pylist() for answer in run_processor(Counts(), [clicks, clicks.slice(1)])]
        [[{'user': 'ann', 'n': 2}, {'user': 'bob', 'n': 1}], [{'user': 'ann', 'n': 3}, {'user': 'bob', 'n': 2}]]
    """
    if not isinstance(processor, Processor):
        raise InvalidArgumentError(
            f"run_processor() takes an instance of a subclass of fc.Processor first, not {processor!r}"
        )
    if not isinstance(batches, Iterable) or hasattr(batches, "columns") or isinstance(batches, Mapping):
        raise InvalidArgumentError(f"batches is one {type(batches).__name__}; give a list of batches")
    if clock is not None and not callable(clock):
        raise InvalidArgumentError(f"clock={clock!r} is no function; give one that returns seconds, as time.time does")
    if time_mode is not None and (not isinstance(time_mode, str) or time_mode.lower() not in _TIME_MODES):
        raise InvalidArgumentError(f'time_mode={time_mode!r} is none of "None", "ProcessingTime", "EventTime"')
    tables = [_table(batch) for batch in batches]
    if not tables:
        return []
    known_times = "eventtime" if watermark is not None else "processingtime" if clock is not None else "none"
    mode: Any = known_times if time_mode is None else time_mode.lower()
    marks = list(watermark) if isinstance(watermark, Sequence) else [watermark] * len(tables)
    if len(marks) != len(tables):
        raise InvalidArgumentError(
            f"{len(tables)} batches and {len(marks)} watermarks; give one for each, or one for all"
        )
    columns = tables[0].column_names
    names = columns[:1] if key is None else [key] if isinstance(key, str) else list(key)
    for name in names or ["(none)"]:
        if columns.count(name) != 1:
            raise InvalidArgumentError(f"batches have no column `{name}` to group by; they have: {', '.join(columns)}")
    for table in tables:
        if table.schema.names != columns or table.schema.types != tables[0].schema.types:
            raise InvalidArgumentError("the batches have different columns; give all batches the same schema")
    declared = None if output is None else arrow_type("output", output)
    if declared is not None and not pa.types.is_struct(declared):
        raise InvalidArgumentError(f'output: {declared} has no columns; write "user string, n long"')
    schema = None if declared is None else pa.schema(list(declared))
    key_type = pa.struct([tables[0].schema.field(name) for name in names])
    first = None if initial is None else _table(initial)
    if first is not None and any(first.schema.names.count(name) != 1 for name in names):
        raise InvalidArgumentError(f"initial: rows have the columns of the key, {', '.join(names)}, once each")
    session = None
    answers = []
    for table, mark in zip(tables, marks):
        millis = 0 if mark is None else micros_of(mark) // 1000
        session = _internal.StateSession.in_memory(session)
        times = Times(mode, _millis(clock or time.time), millis)
        run = VectorRun(
            copy.deepcopy(processor),
            key_type,
            times,
            session,
            _internal.StateCodec,
            _declaring(session, mode, times.now),
        )
        if first is not None:
            run.initial(_grouped(first, names, key_type), lambda rows: rows)
            first = None
        answered = [*run.rows(_grouped(table, names, key_type), lambda rows: rows, schema), *run.timers(schema)]
        run.close()
        session.commit()
        known = answered[0].schema if schema is None and answered else schema
        if known is not None and any(answer.schema != known for answer in answered):
            other = next(answer.schema for answer in answered if answer.schema != known)
            raise InvalidArgumentError(
                f"the processor yielded record batches of {_said(known)} and of {_said(other)}; all of them have the "
                "columns of the output"
            )
        answers.append(pa.table({}) if known is None else pa.Table.from_batches(answered, known))
    return answers


def _table(batch: Any) -> pa.Table:
    try:
        return table_of(batch)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"a {type(batch).__name__} is no batch of rows: {error}") from None


def _millis(clock: Callable[[], float | datetime]) -> int:
    now: Any = clock()
    if isinstance(now, datetime):
        return micros_of(now) // 1000
    if not hasattr(now, "__float__"):
        raise InvalidArgumentError(f"clock() returned {now!r}; it returns seconds since the epoch, as time.time() does")
    return round(float(now) * 1000)


def _said(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def _declaring(
    session: _internal.StateSession, mode: str, now: int
) -> Callable[[Mapping[str, Declared]], dict[str, Place]]:
    def declare(declared: Mapping[str, Declared]) -> dict[str, Place]:
        entries: list[tuple[str, str, bool]] = [(d.name, d.kind, d.ttl_millis is not None) for d in declared.values()]
        if mode != "none":
            entries.append((TIMERS, "timers", False))
        catalog = [
            {"id": number, "name": name, "kind": kind, "ttl": ttl, "encoding": 1}
            for number, (name, kind, ttl) in enumerate(entries)
        ]
        session.declare(json.dumps(catalog), now)
        places = {
            d.name: Place(number, (d.kept,) if d.accumulators is None else ())
            for number, d in enumerate(declared.values())
        }
        return places | ({TIMERS: Place(len(declared))} if mode != "none" else {})

    return declare


@dataclass(frozen=True)
class _Chunk:
    """All rows of a batch, by key."""

    rows: pa.RecordBatch
    keys: pa.BinaryArray
    offsets: pa.Int64Array
    continues: bool = False
    more: bool = False


def _grouped(table: pa.Table, names: Sequence[str], key_type: pa.DataType) -> Iterator[_Chunk]:
    if not table.num_rows:
        return
    rows = table.combine_chunks().to_batches(max_chunksize=table.num_rows)[0]
    columns = pa.StructArray.from_arrays([rows[name] for name in names], fields=list(key_type))
    encoded = _internal.StateCodec(key_type, pa.struct([])).encode_keys(columns)
    order, starts, offsets = by_key(encoded)
    yield _Chunk(rows.take(order), encoded.take(order).take(pa.array(starts)), pa.array(offsets, pa.int64()))
