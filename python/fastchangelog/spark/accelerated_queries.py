"""Aggregates and deduplication of an accelerated session: our operators in the place of Spark's when a query starts.

Owns: which of a starting query's operators are taken, what is said about each, what an existing checkpoint decides.
Does not own: the plans (`internals_operators`), our operators (`grouped_stream`, `deduplicate`), which sessions are
accelerated (`acceleration`).

An operator stays with Spark for any reason that there is, and the query starts all the same: what runs on Spark is
never wrong. The one exception is an operator whose checkpoint holds the state of ours: Spark would not find it, so the
start fails and names the reason.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.spark import internals_operators, metrics
from fastchangelog.spark.accelerated_operators import (
    AGGREGATES,
    DEDUPLICATION,
    WINDOWS,
    Given,
    Stays,
    deduplicated,
    first_line,
    free_name,
    kept_by_us,
    names_in,
    of_spark,
)
from fastchangelog.spark.aggregates.analyse import native_of
from fastchangelog.spark.grouped_stream import GroupedStream
from fastchangelog.spark.internals_operators import AGGREGATE, DEDUPLICATE, WITHIN, Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fastchangelog.spark.internals_writers import Start

__all__ = ["accelerated"]

_log = logging.getLogger("fastchangelog.spark")

#: An internal setting of Spark: false lets the watermark of a batch, not of the one before, drop its late rows.
_SEVERAL = "spark.sql.streaming.statefulOperator.allowMultiple"
_TAKEN = (AGGREGATE, DEDUPLICATE, WITHIN)


class _StateLost(InvalidArgumentError):
    """The state of an operator is with us, and it would stay with Spark."""


def accelerated(start: Start, given: Given) -> DataFrame:
    """The frame that a starting query writes, with our operators in the place of those of Spark that can be taken."""
    try:
        operators = internals_operators.stateful_operators(start.frame)
    except Exception as error:  # a plan of another version of Spark
        _log.warning("the operators of a query stay with Spark, since its plan cannot be read: %s", first_line(error))
        return start.frame
    if not any(operator.kind in _TAKEN for operator in operators) or start.refusal(start.frame) is not None:
        return start.frame  # Spark itself raises its error
    try:
        stored = _stored(start, given, operators)
    except Exception as error:  # whose operators they are cannot be seen
        _log.warning(
            "the operators of a query stay with Spark, since its checkpoint cannot be read: %s", first_line(error)
        )
        return start.frame
    query = _Query(start, given, operators, stored)
    frame = query.replaced()
    query.tell()
    return frame


class _Query:
    """A query that starts."""

    def __init__(self, start: Start, given: Given, operators: list[Operator], stored: dict[int, bool]) -> None:
        self._start = start
        self._given = given
        self._operators = operators
        #: Of operators with a state, by number: whether it is ours.
        self._stored = stored
        self._names = names_in(start.frame)
        #: Of operators, by number: the name of ours.
        self._ours: dict[int, str] = {}
        #: Of operators, by number: why it stays, and whether something is lacking.
        self._reasons: dict[int, tuple[str, bool]] = {}

    def replaced(self) -> DataFrame:
        """The frame with our operators; as it was if none can be taken."""
        try:
            frame = internals_operators.rewritten(self._start.frame, self._operator)
        except _StateLost:
            raise
        except Exception as error:
            return self._left(first_line(error))
        if not self._ours:
            return self._start.frame
        # Complete mode starts without Spark's check: ours is no aggregate to it.
        refused = None if self._start.output_mode == "complete" else self._start.refusal(frame)
        if refused is not None:
            return self._left(f"Spark does not run it so: {refused}")
        marked = internals_operators.with_the_watermark_of(frame, self._start.frame)
        if marked is None:
            return self._left(
                "behind it are filters or joins by a key, which Spark applies to rows before they raise the watermark"
            )
        return marked

    def _left(self, reason: str) -> DataFrame:
        """The frame as it was."""
        for number in self._ours:
            self._check_state(number, reason)
            self._reasons[number] = reason, True
        self._ours.clear()
        return self._start.frame

    def tell(self) -> None:
        """Logs a line for each operator that could be taken."""
        for operator in self._operators:
            if operator.number in self._ours:
                _log.info("%s runs on fastchangelog, under the name %s", operator.text, self._ours[operator.number])
            elif operator.number in self._reasons:
                reason, is_lack = self._reasons[operator.number]
                level = logging.WARNING if is_lack else logging.INFO
                _log.log(level, "%s stays on Spark's operator: %s", operator.text, reason)

    def _operator(self, operator: Operator) -> DataFrame | None:
        if operator.kind not in _TAKEN:
            return None
        name = free_name(self._names)
        try:
            frame = self._ours_of(operator, name)
        except Stays as reason:
            self._reasons[operator.number] = str(reason), False
            return None
        except Exception as error:
            self._check_state(operator.number, first_line(error))
            self._reasons[operator.number] = first_line(error), True
            return None
        self._ours[operator.number] = name
        self._names.add(metrics.observed_name(name))
        return frame

    def _check_state(self, number: int, reason: str) -> None:
        """Raises for an operator that has its state with us and cannot be taken."""
        if self._stored.get(number):
            operator = next(operator for operator in self._operators if operator.number == number)
            raise _StateLost(
                f"the checkpoint {self._start.checkpoint} holds the state of fastchangelog's operator, but "
                f"{operator.text} would stay on Spark's, which does not find it: {reason}. Undo that, or start with a "
                "new checkpoint"
            )

    def _ours_of(self, operator: Operator, name: str) -> DataFrame:
        if self._stored.get(operator.number) is False:
            raise of_spark(self._start.checkpoint or "")
        if not self._start.has_batches:
            raise UnsupportedError("the trigger runs the query without batches")
        if str(self._start.frame.sparkSession.conf.get(_SEVERAL, "true")).lower() == "false":
            raise UnsupportedError(f"{_SEVERAL} is false, with which other rows are late")
        mode = self._start.output_mode
        if mode == "complete" and operator.is_limited:
            raise UnsupportedError("behind it is a limit, of which Spark would keep a state of its own")
        if operator.kind != AGGREGATE:
            self._choose(operator, DEDUPLICATION)
            within = operator.kind == WITHIN
            return deduplicated(self._given, operator.child, operator.columns(), name, is_within_watermark=within)
        parts = operator.aggregate()
        self._choose(operator, WINDOWS if parts.has_windows else AGGREGATES, parts.windows)
        sparks = parts.frame.groupBy(*parts.keys).agg(*map(native_of, parts.calls))
        if not internals_operators.is_same(parts, sparks):
            raise UnsupportedError("one of its functions or windows is not the one of that name")
        given = self._given
        grouped = GroupedStream(
            parts.frame,
            parts.keys,
            given.state,
            name,
            None,
            given.materialization,
            given.options,
            given.storage_options,
            mode,
        )
        return grouped.agg(*parts.calls)

    def _choose(self, operator: Operator, kind: str, windows: tuple[int, int] | None = None) -> None:
        """Ends with `Stays` for an operator that was not chosen; one that has its state with us goes on."""
        start = self._start
        reason = self._given.refusal(start.frame.sparkSession, kind, start.output_mode, windows)
        if reason is not None and operator.number not in self._stored:
            raise Stays(reason)


def _stored(start: Start, given: Given, operators: list[Operator]) -> dict[int, bool]:
    """By the number of the operator, whether the checkpoint holds its state as ours; nothing for a new query."""
    ours = kept_by_us(start.frame.sparkSession, start.checkpoint, given)
    if len(ours) != len(operators):
        ours = [ours[0]] * len(operators) if len(set(ours)) == 1 else []
    return {operator.number: is_ours for operator, is_ours in zip(operators, ours)}
