"""Private parts of PySpark's client of Spark Connect: the start of a query, functions of `foreachBatch`, the stateful
operator of a plan.

Owns: the change of the methods that take such a function and that start a query, tags of jobs, the place of an
aggregate or a deduplication in a plan.
Does not own: all other private parts of PySpark (`internals…`), what is done with a function (`connect_batches`), which
operators are replaced (`accelerated_connect`).
Tested per Spark version.

Functions are pickled by the client, and called by a process beside the server. A plan is a Python object; SQL text and
views in it are opaque.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fastchangelog.spark.internals import divert_method, is_diverted, session_id
from fastchangelog.spark.internals_plans import connect_plans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "ConnectStart",
    "OnlyOperator",
    "has_operators",
    "only_operator",
    "replace_frames",
    "tagged_jobs",
    "wrap_functions",
]

#: The attribute of a writer that has its function of `foreachBatch`.
_GIVEN = "_fastchangelog_given"
#: The option of a writer, and the setting of a folder for the checkpoints of all queries that have a name.
_LOCATION = "checkpointLocation"
_LOCATIONS = "spark.sql.streaming.checkpointLocation"
_STARTS = ("start", "toTable")

#: A function of `foreachBatch`.
Function: TypeAlias = "Callable[[DataFrame, int], None]"
#: Makes what is called in its place, of the function and the location of the checkpoint; None for a temporary one.
Wrap: TypeAlias = "Callable[[Function, str | None], Function]"


@dataclasses.dataclass(frozen=True)
class ConnectStart:
    """A query that a program starts over Spark Connect."""

    frame: DataFrame
    #: `append`, `update` or `complete`.
    output_mode: str
    #: The location of the checkpoint; None for a temporary one.
    checkpoint: str | None


#: Gives the frame to write.
Replace: TypeAlias = "Callable[[ConnectStart], DataFrame]"


@dataclasses.dataclass
class _Steps:
    """What the start of each query of this process goes through."""

    replace: Replace | None = None
    #: By the id of a session.
    wraps: dict[str, Wrap] = dataclasses.field(default_factory=dict)


_steps = _Steps()
_diverting = threading.Lock()


def wrap_functions(spark: SparkSession, wrap: Wrap) -> None:
    """From here on a query of this session of Spark Connect calls what `wrap` makes of its function of `foreachBatch`.

    Methods of PySpark's class are replaced once. The first keeps the function, since only those that start the query
    know where the checkpoint is.
    """
    with _diverting:
        _steps.wraps[session_id(spark)] = wrap
        _divert()


def replace_frames(replace: Replace) -> None:
    """From here on each query of a session of Spark Connect writes what `replace` gives."""
    with _diverting:
        _steps.replace = replace
        _divert()


def _divert() -> None:
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    if is_diverted(DataStreamWriter.start):
        return
    given = DataStreamWriter.foreachBatch
    divert_method(DataStreamWriter, "foreachBatch", _keeping(given))
    for name in _STARTS:
        divert_method(DataStreamWriter, name, _starting(getattr(DataStreamWriter, name), given))


def _keeping(there: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(there)
    def method(self: Any, func: Function) -> Any:
        writer = there(self, func)
        setattr(writer, _GIVEN, func)
        return writer

    return method


def _starting(there: Callable[..., Any], give: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(there)

    @functools.wraps(there)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        function, wrap = vars(self).get(_GIVEN), _steps.wraps.get(session_id(self._session))
        wrap = None if function is None else wrap
        if wrap is None and _steps.replace is None:
            return there(self, *args, **kwargs)
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return there(self, *args, **kwargs)  # raises PySpark's error
        location = _location(self, given)
        if wrap is not None:
            give(self, wrap(function, location))
        frame = _frame(self)
        mode = given.get("outputMode") or self._write_proto.output_mode or "append"
        start = ConnectStart(frame, str(mode).lower(), location)
        written: Any = frame if _steps.replace is None else _steps.replace(start)
        operation = self._write_stream
        operation._child, before = written._plan, operation._child
        try:
            return there(self, *args, **kwargs)
        finally:
            operation._child = before

    return method


def _frame(writer: Any) -> Any:
    from pyspark.sql.connect.dataframe import DataFrame

    return DataFrame(writer._write_stream._child, writer._session)


def _location(writer: Any, arguments: Mapping[str, Any]) -> str | None:
    """The location of the checkpoint that a query will have; None if Spark makes a temporary one."""
    options = {**writer._write_proto.options, **arguments.get("options", {})}
    given = [value for name, value in options.items() if name.lower() == _LOCATION.lower()]
    if given:
        return str(given[-1])
    folder = writer._session.conf.get(_LOCATIONS, None)
    name = arguments.get("queryName") or writer._write_proto.query_name
    return f"{folder.rstrip('/')}/{name}" if folder and name else None


@contextlib.contextmanager
def tagged_jobs(spark: SparkSession, tag: str) -> Iterator[None]:
    """While the block runs, the jobs of this session of Spark Connect have the tag, whatever thread asks for them."""
    client: Any = spark.client
    own = client.get_tags
    client.get_tags = lambda: {*own(), tag}
    try:
        yield
    finally:
        client.get_tags = own


#: Kinds of nodes that keep state in a stream, and those that may be above it and below it.
_STATEFUL = ("Aggregate", "Deduplicate")
_ABOVE = ("Project", "WithColumns", "WithColumnsRenamed", "Drop", "ToDF", "SubqueryAlias", "Filter")
_BELOW = (*_ABOVE, "WithWatermark", "DataSource")


@dataclasses.dataclass(frozen=True)
class OnlyOperator:
    """The one stateful operator of a plan."""

    #: "Aggregate" or "Deduplicate".
    kind: str
    #: Its result, and the frame that it reads.
    frame: DataFrame
    child: DataFrame
    #: Of an aggregate.
    keys: tuple[Column, ...] = ()
    calls: tuple[Column, ...] = ()
    #: Of a deduplication; None for all.
    columns: list[str] | None = None
    is_within_watermark: bool = False


def has_operators(frame: DataFrame) -> bool:
    """True if an aggregate or a deduplication can be seen in the plan."""
    return any(type(plan).__name__ in _STATEFUL for plan in connect_plans(frame))


def only_operator(frame: DataFrame) -> OnlyOperator | None:
    """The operator of a plan that is known from the sink to the source, and has no other.

    None as well for a filter that Spark would apply below the watermark.
    """
    owner: Any = frame
    plan, kinds = owner._plan, []
    while type(plan).__name__ in _ABOVE and not plan._references:
        kinds.append(type(plan).__name__)
        plan = plan._child
    kind, found = type(plan).__name__, plan
    if kind not in _STATEFUL or found._references:
        return None
    plan, below = plan._child, []
    while type(plan).__name__ in _BELOW and not plan._references:
        below.append(type(plan).__name__)
        plan = plan._child
    if plan is not None or ("Filter" in kinds and "WithWatermark" in below):
        return None
    result, child = (type(owner)(node, owner.sparkSession) for node in (found, found._child))
    if kind == "Deduplicate":
        return OnlyOperator(kind, result, child, (), (), found.column_names, found.within_watermark)
    if found._group_type != "groupby":
        return None
    return OnlyOperator(kind, result, child, tuple(found._grouping_cols), tuple(found._aggregate_cols))
