"""The stateful operator of a processor: Spark calls it per shard, it runs the user's processor per key.

Owns: one session inside a Spark task: handle in, payloads, the user's rows, timers, handle out; the mark of late rows;
the one Spark timer of a shard.
Does not own: how the user's code runs (`run`), the state (the server), which handle is committed (Spark).

Order, and why:
1. Spark passes the payloads of a shard, in the first batch those of the initial state first;
2. read what Spark committed last for this shard: its handle, watermark and next timer;
3. open a session, run the user's code over the rows, then over the timers that are due, and commit;
4. after the last row, store the new handle in Spark's state. Spark commits it only if it commits the batch.

Spark calls an idle shard only if a Spark timer of it is due, so each shard has one:
- processing time: the time of the shard's next timer, or the next millisecond if that is past, so that it is not due
  again in this batch;
- event time: one that is always due (`spark.event_time`): the shard is called in every batch, even without rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, raise_one_line
from fastchangelog.server import open_state_session
from fastchangelog.spark import event_time, metrics, settings, task, versions
from fastchangelog.spark.lost_states import open_or_explain
from fastchangelog.spark.processor.evolution import is_current
from fastchangelog.spark.processor.imported import ImportedRows
from fastchangelog.spark.processor.payloads import Payloads
from fastchangelog.spark.processor.run import CHUNK_BYTES, CHUNK_ROWS, NO_QUERY, run_batch
from fastchangelog.spark.processor.spec import GroupedRows, ProcessorSpec, QueryInfo, no_initial_rows
from fastchangelog.spark.processor.states.handle import Declaration
from fastchangelog.spark.processor.user_code import is_from_user_code, raise_from_user_code
from fastchangelog.spark.shard_task import (
    KEPT,
    METRICS_TYPE,
    NO_FIRST_BATCH,
    Kept,
    OperatorConfig,
    Stopwatch,
    renewed_request,
    run_once,
)
from fastchangelog.spark.types.placeholders import placeholder
from fastchangelog.spark.types.spark_arrow import spark_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProcessorConfig", "ProcessorOperator", "at_runtime", "raise_from_task", "spark_settings"]

#: Fields of a spec, and Spark's settings of that meaning.
_SETTINGS = {
    "timezone": "spark.sql.session.timeZone",
    "max_records": settings.ARROW_ROWS,
    "columns_by_name": "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
    "safe_casts": "spark.sql.execution.pandas.convertToArrowArraySafely",
    "max_bytes": settings.ARROW_BYTES,
    "ansi": "spark.sql.ansi.enabled",
    "integers_with_na": "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "decimals_of_integers": "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
}
#: Since when PySpark reads those that it did not always read.
_SINCE = {
    "max_bytes": versions.ENDS_BATCHES_BY_BYTES,
    "integers_with_na": versions.INTEGERS_WITH_NA,
    "decimals_of_integers": versions.DECIMALS_OF_INTEGERS,
}


@dataclasses.dataclass(frozen=True)
class ProcessorConfig(task.VersionChecked):
    """The driver's decisions, sent to every task."""

    operator: OperatorConfig
    run: ProcessorSpec
    #: The columns of payloads.
    input: pa.Schema
    #: The column of payloads with the time by which a row is late; None without one.
    event_time: int | None
    #: The columns of payloads of the initial state, if there is one.
    initial: pa.Schema | None
    #: If that is what Spark's own state held: the names of its variables.
    imported: tuple[str, ...] | None = None
    #: What `init` declares.
    declared: tuple[Declaration, ...] = ()
    #: `init` deletes states: of each shard, in each batch.
    deletes: bool = False
    #: The counters of a vectorised processor.
    counters: tuple[str, ...] = ()


class ProcessorOperator(StatefulProcessor):
    """The `StatefulProcessor` that Spark runs for a shard."""

    def __init__(self, config: ProcessorConfig):
        self._config = config

    def init(self, handle: Any) -> None:
        # Also called once on the driver before the query starts, only to learn the state's schema.
        self._spark = handle
        self._state = handle.getValueState("handle", KEPT)
        self._ran: set[int] = set()
        self._initial: dict[int, Payloads] = {}

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: TimerValues) -> None:
        try:
            assert self._config.initial is not None
            rows = self._initial.setdefault(int(key[0]), self._payloads(self._config.initial))
            for payload in initialState["payload"]:
                rows.push(payload)
        except Exception as error:
            raise_one_line(error)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        try:
            yield from self._rows(int(key[0]), rows, timerValues)
        except Exception as error:
            raise_from_task(error)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        try:
            yield from self._woken(int(key[0]), timerValues, expiredTimerInfo.getExpiryTimeInMs())
        except Exception as error:
            raise_from_task(error)

    def close(self) -> None:
        """Ends the task. A session ends with its batch; what is left here was never handed to the user's code."""
        if self._initial:
            raise InvalidArgumentError(NO_FIRST_BATCH)

    def _rows(self, shard_id: int, rows: Iterator[pd.DataFrame], times: TimerValues) -> Iterator[pd.DataFrame]:
        settings.check_task(task.local_property)
        run_once(self._ran, shard_id)
        kept, known = self._read()
        if not known and self._event_time():
            event_time.call_in_each_batch(self._spark)
        initial = self._initial.pop(shard_id, None)
        payloads = self._payloads(self._config.input, self._late(kept, times))
        for arrived in rows:
            for payload in arrived["payload"]:
                payloads.push(payload)
        has_rows = payloads or initial
        if has_rows or self._is_due(kept, times) or self._changes_states(kept):
            yield from self._session(shard_id, kept, payloads, initial, times)
        else:
            self._keep(kept, dataclasses.replace(kept, watermark=self._watermark(times)))

    def _woken(self, shard_id: int, times: TimerValues, fired: int) -> Iterator[pd.DataFrame]:
        if self._event_time():
            event_time.call_in_next_batch(self._spark, fired)
        if shard_id in self._ran:
            return
        settings.check_task(task.local_property)
        kept, _ = self._read()
        if self._is_due(kept, times):
            yield from self._session(shard_id, kept, self._payloads(self._config.input), None, times)
        else:
            self._keep(kept, dataclasses.replace(kept, watermark=self._watermark(times)))

    def _session(
        self, shard_id: int, kept: Kept, rows: Payloads, initial: Payloads | None, times: TimerValues
    ) -> Iterator[pd.DataFrame]:
        operator = self._config.operator
        clock = Stopwatch()
        _internal.failpoint("operator.open")
        with renewed_request(operator, shard_id, kept.handle, operator="processor") as request:
            first = initial is not None or _is_first_batch(kept.handle)
            handle, timer = yield from self._run(request, rows, initial, first, times, clock)
        self._keep(kept, Kept(handle, self._watermark(times), self._set_timer(kept.timer, timer, times)))
        _internal.failpoint("operator.stored")
        task.freeze_modules("operator")

    def _run(
        self,
        request: Mapping[str, Any],
        rows: Payloads,
        initial: Payloads | None,
        is_first: bool,
        times: TimerValues,
        clock: Stopwatch,
    ) -> Generator[pd.DataFrame, None, tuple[str, int | None]]:
        """Yields the user's rows, then a row of metrics; returns the handle and the shard's next timer."""
        from fastchangelog.spark.frames import frame  # not above: see the header of `frames`

        operator, spec = self._config.operator, at_runtime(self._config.run)
        names = [*operator.output.names, metrics.PROCESSOR_COLUMN]
        session = open_or_explain(open_state_session, request, operator.options, operator.confs)
        try:
            clock.lap("open_micros")
            _internal.failpoint("operator.opened")
            first: GroupedRows | None = None if initial is None else initial.grouped()
            imported = None
            if first is not None and self._config.imported is not None:
                imported = ImportedRows(self._config.imported, first.finish(CHUNK_ROWS, CHUNK_BYTES))
                first = None
            if first is None and is_first:
                first = no_initial_rows(spec)
            user: dict[str, int] = {}
            for batch in run_batch(
                spec, session, rows.grouped(), times, first, query_info=query_info(), imported=imported, counted=user
            ):
                columns = spark_columns(batch, spec.output)
                yield frame([*columns, pa.nulls(batch.num_rows, METRICS_TYPE)], names)
            clock.lap("finish_micros")
            _internal.failpoint("operator.rows-yielded")
            timer = session.next_timer() if spec.time_mode != "none" else None
            handle, counted = session.commit(self._watermark(times))
            clock.lap("commit_micros")
            _internal.failpoint("operator.committed")
        finally:
            session.close()
        all_counted = {**user, **counted, **rows.counted(), **clock.laps, "shards": 1}
        numbers = metrics.of_processor(self._config.counters).row(all_counted)
        nothing = [placeholder(field) for field in operator.output]
        yield frame([*nothing, pa.array([numbers], METRICS_TYPE)], names)
        return handle, timer

    def _read(self) -> tuple[Kept, bool]:
        """What is kept for the shard, and whether anything is."""
        stored = self._state.get()
        return Kept.of(stored), stored is not None

    def _keep(self, before: Kept, now: Kept) -> None:
        if now != before:
            self._state.update(dataclasses.astuple(now))

    def _set_timer(self, before: int | None, next_timer: int | None, times: TimerValues) -> int | None:
        """Makes Spark call the shard when its next timer is due; returns what is to be kept as `timer`."""
        if self._config.run.time_mode != "processingtime":
            return next_timer
        wanted = None if next_timer is None else max(next_timer, times.getCurrentProcessingTimeInMs() + 1)
        if wanted != before:
            if before is not None:
                self._spark.deleteTimer(before)
            if wanted is not None:
                self._spark.registerTimer(wanted)
        return wanted

    def _is_due(self, kept: Kept, times: TimerValues) -> bool:
        now = times.getCurrentWatermarkInMs() if self._event_time() else times.getCurrentProcessingTimeInMs()
        return kept.timer is not None and kept.timer <= now

    def _late(self, kept: Kept, times: TimerValues) -> tuple[int, int] | None:
        """The column and the time, in microseconds, up to which a row is late; None if no row ever is."""
        column = self._config.event_time
        if column is None or not self._event_time():
            return None
        return column, event_time.late_mark(kept.watermark, times) * 1000

    def _event_time(self) -> bool:
        return self._config.run.time_mode == "eventtime"

    def _watermark(self, times: TimerValues) -> int | None:
        return times.getCurrentWatermarkInMs() if self._event_time() else None

    def _changes_states(self, kept: Kept) -> bool:
        """True if `init` deletes states, or the shard has yet to get those it declares, or its part of a savepoint."""
        if self._config.deletes or kept.handle is None:
            return True
        if not task.is_first_of_run():
            return False
        run = self._config.run
        catalog: str = json.loads(_internal.handle_json(kept.handle))["schema"]
        return not is_current(catalog, run.key, run.time_mode, self._config.declared)

    def _payloads(self, input: pa.Schema, late: tuple[int, int] | None = None) -> Payloads:
        config = self._config
        parts = 2 if config.initial is not None and _is_first_batch(None) else 1
        memory = settings.size_option(config.operator.options, "worker_memory") // parts
        return Payloads(len(config.run.key.fields), input, memory, late)


def spark_settings(property_of: Callable[[str], str | None]) -> dict[str, Any]:
    """The fields of a spec that Spark's settings determine, as far as they are set."""
    known = [field for field in _SETTINGS if _SINCE.get(field, versions.SUPPORTED)(versions.PYSPARK)]
    texts = {field: property_of(_SETTINGS[field]) for field in known}
    read: dict[str, Callable[[str], Any]] = {"timezone": str, "max_records": int, "max_bytes": settings.bytes_of}
    return {field: read.get(field, _is_true)(text) for field, text in texts.items() if text is not None}


def at_runtime(spec: ProcessorSpec) -> ProcessorSpec:
    """The spec with the settings that Spark gave to this task: a query keeps those of its start."""
    return dataclasses.replace(spec, **spark_settings(task.local_property))


def _is_first_batch(handle: str | None) -> bool:
    """True in a query's first batch. Where the batch is unknown, a shard with a handle has had its first one."""
    batch = task.this_query().batch
    return batch == 0 if batch is not None else handle is None


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def query_info() -> QueryInfo:
    """What the user's code may ask about the query of this task."""
    this = task.this_query()
    return QueryInfo(this.query or NO_QUERY.query_id, this.run or NO_QUERY.run_id, this.batch)


def raise_from_task(error: Exception) -> NoReturn:
    """Raises the exception for Spark: the user's as it is, ours in one line."""
    if is_from_user_code(error):
        raise_from_user_code(error)
    raise_one_line(error)
