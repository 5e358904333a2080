"""Private parts of PySpark's stream writers: what a query writes and how, seen before Spark sees it.

Owns: the change of the methods that start a query of a classic session, the output mode and the checkpoint that a
writer was given, another frame in the place of the one that it writes.
Does not own: all other private parts of PySpark (`internals…`), which frame is written (`acceleration`), what is
switched off while a query starts (`complete_mode`).
Tested per Spark version.

The output mode is known no sooner than here: a program may give it to the writer after the frame, or to `start`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fastchangelog.spark.internals import divert_method, is_diverted, is_passing_on, kind_of, own_method, passing_on
from fastchangelog.spark.internals_plans import analysed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Start", "divert_starts"]

_log = logging.getLogger("fastchangelog.spark")

_STARTS = ("start", "toTable")
#: Beginnings of the kinds of triggers without batches.
_NO_BATCHES = ("Continuous", "RealTime")
_LOCATION = "checkpointLocation"
_LOCATIONS = "spark.sql.streaming.checkpointLocation"
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


@dataclasses.dataclass(frozen=True)
class Start:
    """A query that a program starts."""

    frame: DataFrame
    #: Spark's object for the output mode.
    mode: Any
    #: The location of the checkpoint; None for a temporary one.
    checkpoint: str | None
    #: It runs in micro-batches, not continuously or in real time.
    has_batches: bool

    @property
    def output_mode(self) -> str:
        """`append`, `update` or `complete`."""
        return str(self.mode.toString()).lower()

    def refusal(self, frame: DataFrame) -> str | None:
        """The reason for which Spark does not start the query with this frame in this mode; None if it does."""
        spark: Any = frame.sparkSession
        if str(spark.conf.get(_CHECK, "true")).lower() == "false":
            return None
        checker = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        try:
            checker.checkForStreaming(analysed(frame), self.mode)
        except Exception as error:
            return str(error).partition("\n")[0]
        return None


#: Gives the frame to write.
Replace: TypeAlias = "Callable[[Start], DataFrame]"
#: Is given the frame that is written, and starts the query.
Around: TypeAlias = "Callable[[DataFrame, Callable[[], Any]], Any]"


@dataclasses.dataclass
class _Steps:
    """What the start of each query of this process goes through."""

    replace: Replace | None = None
    around: Around | None = None


_steps = _Steps()
_diverting = threading.Lock()


def divert_starts(*, replace: Replace | None = None, around: Around | None = None) -> None:
    """From here on each query of a classic session writes what `replace` gives, and is started by `around`.

    The methods of PySpark's class are replaced once. A step that is not given stays as it is.
    """
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    with _diverting:
        _steps.replace = replace or _steps.replace
        _steps.around = around or _steps.around
        for name in _STARTS:
            there = getattr(DataStreamWriter, name)
            if not is_diverted(there):
                own = own_method(DataStreamWriter, name) or there
                divert_method(DataStreamWriter, name, _diverted(there, own))


def _diverted(there: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_passing_on(self):  # a library's wrapper has called the method that it found, and that is this one
            return own(self, *args, **kwargs)

        def start() -> Any:
            with passing_on(self):
                return there(self, *args, **kwargs)

        def in_steps() -> Any:
            return start() if _steps.around is None else _steps.around(self._df, start)

        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return start()  # raises PySpark's error
        return in_steps() if _steps.replace is None else _replaced(self, given, _steps.replace, in_steps)

    return method


def _replaced(writer: Any, given: Mapping[str, Any], replace: Replace, start: Callable[[], Any]) -> Any:
    """Starts the query with the frame that `replace` gives in the writer."""
    # As the method itself does it: settings that it was given count more than those that the writer had.
    writer.options(**given.get("options", {}))
    if given.get("outputMode") is not None:
        writer.outputMode(given["outputMode"])
    if given.get("queryName") is not None:
        writer.queryName(given["queryName"])
    try:
        dataset = _field(writer, "ds")
        trigger = kind_of(_field(writer, "trigger").get(writer._jwrite))
        seen = Start(
            writer._df,
            _field(writer, "outputMode").get(writer._jwrite),
            _location(writer),
            not trigger.startswith(_NO_BATCHES),
        )
    except Exception as error:  # of a PySpark with another writer
        _log.warning("cannot see what a query writes, which stays on Spark's operators: %s", error)
        return start()
    frame: Any = replace(seen)
    if frame is writer._df:
        return start()
    before = writer._df
    writer._df = frame
    dataset.set(writer._jwrite, frame._jdf)
    try:
        return start()
    finally:
        writer._df = before
        dataset.set(writer._jwrite, before._jdf)


def _field(writer: Any, name: str) -> Any:
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def _location(writer: Any) -> str | None:
    options = _field(writer, "extraOptions").get(writer._jwrite)

    def option(name: str) -> str | None:
        found = options.get(name)
        return str(found.get()) if found.isDefined() else None

    spark = writer._df.sparkSession
    folder, name = spark.conf.get(_LOCATIONS, None), option("queryName")
    location = option(_LOCATION) or (f"{folder.rstrip('/')}/{name}" if folder and name else None)
    if location is None:
        return None
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(location)
    return str(path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).makeQualified(path).toString())
