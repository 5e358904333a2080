"""Processors of Rows, on every version: on a PySpark that has the method with pandas frames alone, in frames.

Owns: the call of the method that there is, and the processor of frames around one of Rows. Does not own: processors of
frames that users write (`processors`), tests of Rows themselves, which such a PySpark cannot run.
"""

from __future__ import annotations

import datetime as dt
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark import internals
from support.spark.lacks import LACKS

# Spark's workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: The name of the method of Rows, or of the one in its place.
METHOD = "transformWithStateInPandas" if LACKS["rows"].here else "transformWithState"


def with_state(group: Any, processor: Any, output: Any, mode: str = "Update", time: str = "None", **more: Any) -> Any:
    """`group.transformWithState(…)` of a processor of Rows."""
    if METHOD == "transformWithState":
        return group.transformWithState(processor, output, mode, time, **more)
    frame, initial = _frame_of(group), more.get("initialState")
    columns = output if isinstance(output, T.StructType) else T.StructType.fromDDL(output)
    processor = OfFrames(
        processor,
        frame.schema,
        None if initial is None or not hasattr(initial, "agg") else _frame_of(initial).schema,
        columns.names,
        frame.sparkSession.conf.get("spark.sql.session.timeZone"),
    )
    return group.transformWithStateInPandas(processor, output, mode, time, **more)


def _frame_of(group: Any) -> Any:
    return group.grouping.df if hasattr(group, "grouping") else internals.frame_of(group)


class OfFrames(StatefulProcessor):
    """The processor of Rows, as one of frames."""

    def __init__(self, processor: Any, input: Any, initial: Any, output: list[str], zone: str) -> None:
        self._processor, self._input, self._initial, self._output, self._zone = processor, input, initial, output, zone

    def init(self, handle: Any) -> None:
        self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        found = (row for frame in rows for row in rows_of_frame(frame, self._input, self._zone))
        yield from self._frames(self._processor.handleInputRows(key, found, timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield from self._frames(self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        for row in rows_of_frame(initialState, self._initial, self._zone):
            self._processor.handleInitialState(key, row, timerValues)

    def close(self) -> None:
        self._processor.close()

    def _frames(self, rows: Iterator[Row]) -> Iterator[pd.DataFrame]:
        for row in rows:
            by_name = hasattr(row, "__fields__") and set(row.__fields__) == set(self._output)
            values = [row[name] for name in self._output] if by_name else list(row)
            columns = {name: pd.Series([value], dtype=object) for name, value in zip(self._output, values, strict=True)}
            yield pd.DataFrame(columns)


def rows_of_frame(frame: pd.DataFrame, schema: T.StructType, zone: str) -> Iterator[Row]:
    """The Rows of a frame that has these types; times are aware."""
    names = [field.name for field in schema]
    reads = [_reader(field.dataType, zone) for field in schema]
    for values in frame.itertuples(index=False, name=None):
        read_values = (read(value) for read, value in zip(reads, values, strict=True))
        yield Row(**dict(zip(names, read_values)))


def _reader(kind: T.DataType, zone: str) -> Callable[[Any], Any]:
    if isinstance(kind, T.TimestampType):
        return lambda value: None if pd.isna(value) else _aware(value.to_pydatetime(), zone)
    kinds = {T.IntegralType: int, T.FractionalType: float, T.BooleanType: bool, T.StringType: str}
    for family, read in kinds.items():
        if isinstance(kind, family) and not isinstance(kind, T.DecimalType):
            return lambda value, read=read: None if value is None or value is pd.NaT or value != value else read(value)
    return lambda value: value


def _aware(value: dt.datetime, zone: str) -> dt.datetime:
    local = value if value.tzinfo is not None else value.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return local.astimezone(dt.timezone.utc)
