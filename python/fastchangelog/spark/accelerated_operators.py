"""What `accelerate` was given for a session: where operators keep their state, and which of them are taken.

Owns: the arguments, the choice of operators, their names, whose state a checkpoint holds.
Does not own: which sessions are accelerated and their processors (`acceleration`), the operators of a query that starts
(`accelerated_queries`, `accelerated_connect`).
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError, StateNotFoundError
from fastchangelog.hidden import Hidden
from fastchangelog.materialization.policy import MaterializationPolicy, option_texts_of
from fastchangelog.spark import internals, metrics, settings
from fastchangelog.spark.checkpoint.spark_states import Checkpoint
from fastchangelog.spark.deduplicate import drop_duplicates, drop_duplicates_within_watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fastchangelog.types import Options, PathLike, StorageOptions

__all__ = [
    "AGGREGATES",
    "DEDUPLICATION",
    "PROCESSORS",
    "WINDOWS",
    "Choice",
    "Given",
    "choice_of",
    "Stays",
    "deduplicated",
    "first_line",
    "free_name",
    "kept_by_us",
    "names_in",
    "of_spark",
]

PROCESSORS, WINDOWS, AGGREGATES, DEDUPLICATION = _ALL = ("processors", "windows", "aggregates", "deduplication")
#: A time is in so many windows, from which on `auto` takes them.
_OVERLAP = 4
_NAME = "default"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which operators are taken."""

    named: frozenset[str]
    #: Only where ours is not expected to be slower than Spark's.
    is_auto: bool

    def refusal(
        self,
        kind: str,
        output_mode: str = "",
        windows: tuple[int, int] | None = None,
        *,
        chose_rocksdb: bool = False,
    ) -> str | None:
        """The reason to leave an operator to Spark; `windows` are length and slide.

        >>> choice_of("auto").refusal("windows", "update", (20, 5))
        >>> choice_of("auto").refusal("windows", "update", (20, 20), chose_rocksdb=True)
        >>> choice_of("auto").refusal("windows", "update", (20, 10))
        "operators='auto' takes windows from an overlap of 4 on; others are about as fast in Spark's default store"
        """
        if kind not in self.named:
            return f"operators={sorted(self.named)} does not name {kind}"
        if not self.is_auto or kind in (PROCESSORS, DEDUPLICATION):
            return None
        if kind == AGGREGATES:
            return "operators='auto' leaves aggregates without windows to Spark, which is faster while keys are few"
        if output_mode == "complete":
            return "operators='auto' leaves complete mode to Spark, since it is for small states"
        if not chose_rocksdb and (windows is None or windows[0] < _OVERLAP * windows[1]):
            return (
                f"operators='auto' takes windows from an overlap of {_OVERLAP} on; others are about as fast in Spark's "
                "default store"
            )
        return None


class Stays(Exception):
    """An operator stays with Spark by choice, not for a lack."""


def of_spark(checkpoint: str) -> Stays:
    """The state of an operator is Spark's."""
    return Stays(
        f"the checkpoint {checkpoint} holds its state. To move it, write the operator with grouped() or "
        "drop_duplicates(), with a new checkpoint and initial_state=fc.spark.import_state(checkpoint)"
    )


def first_line(error: BaseException) -> str:
    """The error, for a line of the log."""
    return f"{error}".partition("\n")[0] or type(error).__name__


def choice_of(operators: str | Sequence[str]) -> Choice:
    """The choice that a user means."""
    if operators in ("auto", "all"):
        return Choice(frozenset(_ALL), operators == "auto")
    if isinstance(operators, str) or not isinstance(operators, Collection):
        raise InvalidArgumentError(f"operators={operators!r} is neither 'auto' nor 'all' nor a list of {_listed()}")
    for name in operators:
        if name not in _ALL:
            near = difflib.get_close_matches(str(name), _ALL, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgumentError(f"operators: {name!r} is none of {_listed()}{hint}")
    return Choice(frozenset(operators), is_auto=False)


def _listed() -> str:
    return ", ".join(map(repr, _ALL))


@dataclasses.dataclass(frozen=True)
class Given:
    """The arguments of `accelerate`, which each operator of the session is made with."""

    state: PathLike | None
    choice: Choice
    materialization: MaterializationPolicy | None
    options: Options | None
    storage_options: Hidden[StorageOptions | None]

    def refusal(
        self, spark: SparkSession, kind: str, output_mode: str, windows: tuple[int, int] | None = None
    ) -> str | None:
        """The reason to leave an operator of this session to Spark, as of `Choice.refusal`."""
        return self.choice.refusal(kind, output_mode, windows, chose_rocksdb=settings.chose_rocksdb(spark))


def kept_by_us(spark: SparkSession, checkpoint: str | None, given: Given) -> list[bool]:
    """Of each stateful operator in a checkpoint, by number: whether its state is with us. None for a new query."""
    if checkpoint is None:
        return []
    root = settings.state_root(spark, given.state)
    storage = settings.resolve(settings.storage_options(spark, root, given.storage_options))
    try:
        there = Checkpoint(spark, checkpoint, root=root, storage_options=storage)
        return [there.holds_handles(operator) for operator in there.operators()]
    except StateNotFoundError:
        return []


def deduplicated(
    given: Given, frame: DataFrame, columns: list[str] | None, name: str, *, is_within_watermark: bool
) -> DataFrame:
    """Distinct rows of a stream, by our operator."""
    function = drop_duplicates_within_watermark if is_within_watermark else drop_duplicates
    return function(
        frame,
        columns,
        state=given.state,
        name=name,
        options=option_texts_of(given.materialization, given.options),
        storage_options=given.storage_options.show(),
    )


def names_in(frame: DataFrame) -> set[str]:
    """Names of metrics in the plan of a frame."""
    return internals.observed_names(frame) if frame.isStreaming else set()


def free_name(names: Collection[str]) -> str:
    """The first name that no operator with these metrics has."""
    numbered = itertools.chain([_NAME], (f"{_NAME}-{number}" for number in itertools.count(2)))
    return next(name for name in numbered if metrics.observed_name(name) not in names)
