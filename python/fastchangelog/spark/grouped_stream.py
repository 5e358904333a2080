"""`grouped(df, *keys).agg(…)`: the entry point, shaped like PySpark's `groupBy().agg()`.

Owns: what users call, and the checks at build time.
Does not own: the plans (`aggregates.plan`, `processor.stream`), the meaning of keys and aggregates
(`aggregates.analyse`), settings (`settings`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, cast, get_args, overload

from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.hidden import Hidden
from fastchangelog.materialization.policy import MaterializationPolicy, option_texts_of
from fastchangelog.spark import internals, server_python, settings, starts
from fastchangelog.spark.aggregates.analyse import analyse
from fastchangelog.spark.aggregates.keys import given_keys
from fastchangelog.spark.aggregates.plan import aggregated
from fastchangelog.spark.aggregates.spec import OutputMode
from fastchangelog.spark.grouping import Grouping
from fastchangelog.spark.processor.call import ProcessorCall
from fastchangelog.state.times import ttl_millis

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from fastchangelog.functions import Aggregate
    from fastchangelog.spark.imported_state import ImportedState
    from fastchangelog.types import ColumnLike, Duration, Options, PathLike, StorageOptions
    from fastchangelog.vectorised.processor import Processor

__all__ = ["GroupedStream", "grouped"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: With more tasks than this many times the slots, a local state's log is written in too many waves. In a bucket each
#: wave after the first is a round trip.
_MANY_WAVES = 4


def grouped(
    df: DataFrame,
    *keys: ColumnLike,
    state: PathLike | None = None,
    name: str = "default",
    output_mode: str = "update",
    ttl: Duration | None = None,
    start_from: PathLike | None = None,
    materialization: MaterializationPolicy | None = None,
    options: Options | None = None,
    storage_options: StorageOptions | None = None,
) -> GroupedStream:
    """Groups `df` by `keys`, with state that outlives the query's executors.

    **Write the result of `agg` with the same output mode**: by default `outputMode("update")`, one row per key that
    changed in a batch. Another mode fails the query before a row is written; aggregating the result of update mode once
    more counts keys as often as they change.

    Keys may be windows, `F.window("ts", "10 minutes")`, `F.session_window("ts", "5 minutes")` beside another key in the
    modes `append` and `complete`, a column of windows, or the event time itself. If the time has
    a watermark, late rows are dropped and closed groups leave the state, as in Spark.

    On a batch DataFrame it gives what one big micro-batch would give, and keeps nothing.

    Args:
        df: A DataFrame, streaming or not.
        *keys: Column names or Columns, of any type that Spark can group by.
        state: A folder that any number of queries may share, such as `"s3://bucket/state"` or `"/data/state"`; by
            default the Spark conf `spark.fastchangelog.state`.
        name: Tells two stateful operators of one query apart.
        output_mode: The groups that a batch of `agg` returns: `"update"` those with rows in the batch, `"append"` those
            that the watermark has closed, `"complete"` all. A processor has a mode of its own.
        ttl: How long `agg` keeps a key after its last row, by the processing time, such as `"7 days"`: a later row
            begins anew. By default for ever. Keys with a watermark leave by it and take no `ttl`.
        start_from: The folder of a savepoint that a new query begins with; by default the option of that name.
        materialization: When to make snapshots; by default the options `materialization_…`.
        options: See the reference; each can also be set as the Spark conf `spark.fastchangelog.<option>`.
        storage_options: Credentials and addresses for the store, named as `object_store` does, and
            `credential_provider`, a picklable function that returns more of them and is asked before each use.

    Returns:
        The grouped stream; call its `agg`.

    Raises:
        InvalidArgumentError: Something cannot work as it was given; the message says what to change.
        StateNotFoundError: There is no savepoint in `start_from`.

    Example:
        >>> top = grouped(bids, "auction", state=folder).agg(F.count("*").alias("n"), F.max("price"))  # doctest: +SKIP
        >>> top.writeStream.outputMode("update").foreachBatch(upsert).start()  # doctest: +SKIP
    """
    given = Hidden(storage_options)
    del storage_options
    return GroupedStream(df, keys, state, name, start_from, materialization, options, given, output_mode, ttl)


class GroupedStream:
    """A grouped stream, to be aggregated or processed: the counterpart of PySpark's `GroupedData`. Made by `grouped`.

    Example:
        >>> grouped(bids, "auction", state=folder).count()  # doctest: +SKIP
    """

    def __init__(
        self,
        df: DataFrame,
        keys: tuple[ColumnLike, ...],
        state: PathLike | None,
        name: str,
        start_from: PathLike | None,
        materialization: MaterializationPolicy | None,
        options: Options | None,
        storage_options: Hidden[StorageOptions | None],
        output_mode: str = "update",
        ttl: Duration | None = None,
    ):
        if not hasattr(df, "sparkSession") or not hasattr(df, "groupBy"):
            raise InvalidArgumentError(f"grouped() takes a PySpark DataFrame first, not {type(df).__name__}")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"name={name!r} must be letters, digits, `_`, `-` or `.`; it becomes a folder's name"
            )
        #: Of `agg`.
        self.output_mode = _output_mode(output_mode)
        #: Of `agg`, in milliseconds.
        self.ttl = ttl_millis(ttl)
        spark = df.sparkSession
        settings.check_platform(spark)
        is_streaming = bool(df.isStreaming)
        columns = given_keys(keys)
        key = df.select(*columns).schema  # Spark reports an unknown column here, before anything else is done
        root = settings.state_root(spark, state)
        read = settings.read_options(
            spark, settings.with_start_from(option_texts_of(materialization, options), start_from)
        )
        storage = settings.storage_options(spark, root, storage_options)
        confs = settings.memory_confs(spark, read)
        if is_streaming:
            settings.prepare_session(spark)
        internals.run_this_interpreter(spark)
        server_python.check(spark)
        partitions = int(spark.conf.get(settings.SHUFFLE_PARTITIONS) or 200)
        start_schema: str | None = None
        if is_streaming:
            starts.watch(spark)
            read, start_schema = settings.start_from(read, storage, partitions)
            _warn_about_waves(spark, partitions, root)
        elif internals.is_inside_foreach_batch():
            warnings.warn(
                "grouped() inside a foreachBatch function sees one batch only and keeps nothing; call it on the stream "
                "and write its result: grouped(stream, …).agg(…).writeStream.foreachBatch(f)",
                stacklevel=3,
            )
        #: What aggregations and processors are planned from; `initialState` of another one may be this.
        self.grouping = Grouping(df, columns, key, root, name, read, storage, confs, partitions, start_schema)

    @overload
    def agg(self, exprs: dict[str, str], /, *, initial_state: ImportedState | DataFrame | None = None) -> DataFrame: ...
    @overload
    def agg(
        self,
        *exprs: Column | Aggregate,
        initial_state: ImportedState | DataFrame | None = None,
        **named: Column | Aggregate,
    ) -> DataFrame: ...
    def agg(
        self,
        *exprs: Column | Aggregate | dict[str, str],
        initial_state: ImportedState | DataFrame | None = None,
        **named: Column | Aggregate,
    ) -> DataFrame:
        """Computes aggregates: the keys, then the results, under the names and types of Spark's own `groupBy().agg()`.

        Args:
            *exprs: Columns such as `F.sum("price").alias("total")`, a dict such as `{"price": "max"}`, or functions of
                `fastchangelog.functions`, such as `fc.sum("price", where="price > 0")`.
            initial_state: What a new query begins with: `import_state(checkpoint)`, the state of a Spark query with
                the same aggregates, or a batch DataFrame like the result, for functions that can go on from results.
            **named: The same, by the name of the result: `n=fc.count()`.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Raises:
            InvalidArgumentError: An expression is not understood; the message names it and what is.
            SchemaMismatchError: The savepoint of `start_from` or the initial state is of another query.

        Example:
            >>> grouped(bids, "auction", state=folder).agg(n=fc.count(), best=fc.max("price"))  # doctest: +SKIP
        """
        if self.ttl is not None and initial_state is not None:
            raise UnsupportedError(
                "an initial state does not say since when its keys live: give agg() none, or grouped() no ttl"
            )
        analysed = analyse(self.grouping.df, self.grouping.keys, exprs, named, self.output_mode, self.ttl)
        return aggregated(self.grouping, analysed, initial_state)

    def count(self) -> DataFrame:
        """Number of rows per key, as the column `count`.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Example:
            >>> grouped(bids, "auction", state=folder).count()  # doctest: +SKIP
        """
        return self.agg(F.count(F.lit(1)).alias("count"))

    def sum(self, *cols: str) -> DataFrame:
        """Sum of each column; of all numeric columns if none is named.

        Args:
            *cols: Names of numeric columns.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Raises:
            InvalidArgumentError: A column is not numeric.

        Example:
            >>> grouped(bids, "auction", state=folder).sum("price")  # doctest: +SKIP
        """
        return self._numeric(F.sum, cols)

    def avg(self, *cols: str) -> DataFrame:
        """Mean of each column; of all numeric columns if none is named.

        Args:
            *cols: Names of numeric columns.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Raises:
            InvalidArgumentError: A column is not numeric.

        Example:
            >>> grouped(bids, "auction", state=folder).avg("price")  # doctest: +SKIP
        """
        return self._numeric(F.avg, cols)

    def mean(self, *cols: str) -> DataFrame:
        """The same as `avg`.

        Args:
            *cols: Names of numeric columns.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Raises:
            InvalidArgumentError: A column is not numeric.

        Example:
            >>> grouped(bids, "auction", state=folder).mean("price")  # doctest: +SKIP
        """
        return self._numeric(F.avg, cols)

    def min(self, *cols: str) -> DataFrame:
        """Smallest value of each column; of all numeric columns if none is named.

        Args:
            *cols: Names of numeric columns.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Raises:
            InvalidArgumentError: A column is not numeric.

        Example:
            >>> grouped(bids, "auction", state=folder).min("price")  # doctest: +SKIP
        """
        return self._numeric(F.min, cols)

    def max(self, *cols: str) -> DataFrame:
        """Greatest value of each column; of all numeric columns if none is named.

        Args:
            *cols: Names of numeric columns.

        Returns:
            A DataFrame of one row per key that changed in a batch.

        Raises:
            InvalidArgumentError: A column is not numeric.

        Example:
            >>> grouped(bids, "auction", state=folder).max("price")  # doctest: +SKIP
        """
        return self._numeric(F.max, cols)

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | GroupedStream | ImportedState | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Runs a `StatefulProcessor` that takes and yields Rows: PySpark's method of that name, with its arguments.

        Args:
            statefulProcessor: An instance of a subclass of `pyspark.sql.streaming.StatefulProcessor`.
            outputStructType: The schema of the rows that it yields, as a StructType or a text.
            outputMode: `"Update"` or `"Append"`.
            timeMode: `"None"`, `"ProcessingTime"` or `"EventTime"`: the time of timers.
            initialState: A batch DataFrame, grouped by keys of the same types, which the processor gets in the query's
                first batch; or `import_state(checkpoint)`, with which the states of a Spark query go on.
            eventTimeColumnName: The column of the result that carries the watermark on.

        Returns:
            A DataFrame of the rows that the processor yields.

        Raises:
            InvalidArgumentError: Something cannot work as it was given; the message says what to change.
            SchemaMismatchError: The savepoint of `start_from` holds other states.

        Example:
            >>> calls = grouped(bids, "auction", state=folder)  # doctest: +SKIP
            >>> calls.transformWithState(Sessions(), "auction long, n long", "Update", "None")  # doctest: +SKIP
        """
        return self._process(
            ProcessorCall(
                "row", statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
            )
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | GroupedStream | ImportedState | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Runs a `StatefulProcessor` that takes and yields pandas DataFrames; else as `transformWithState`.

        Args:
            statefulProcessor: An instance of a subclass of `pyspark.sql.streaming.StatefulProcessor`.
            outputStructType: The schema of the frames that it yields, as a StructType or a text.
            outputMode: `"Update"` or `"Append"`.
            timeMode: `"None"`, `"ProcessingTime"` or `"EventTime"`: the time of timers.
            initialState: A batch DataFrame, grouped by keys of the same types, which the processor gets in the query's
                first batch; or `import_state(checkpoint)`, with which the states of a Spark query go on.
            eventTimeColumnName: The column of the result that carries the watermark on.

        Returns:
            A DataFrame of the rows that the processor yields.

        Raises:
            InvalidArgumentError: Something cannot work as it was given; the message says what to change.
            SchemaMismatchError: The savepoint of `start_from` holds other states.

        Example:
            >>> calls = grouped(bids, "auction", state=folder)  # doctest: +SKIP
            >>> calls.transformWithStateInPandas(Sessions(), "auction long", "Update", "None")  # doctest: +SKIP
        """
        return self._process(
            ProcessorCall(
                "pandas", statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
            )
        )

    def transformWithStateInArrow(
        self,
        processor: Processor,
        outputStructType: T.StructType | str,
        outputMode: str = "update",
        timeMode: str = "none",
        initialState: GroupedData | GroupedStream | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Runs a vectorised processor: one call for the rows of many keys, in Arrow.

        Args:
            processor: An instance of a subclass of `fastchangelog.Processor`.
            outputStructType: The schema of the record batches that it yields, as a StructType or a text.
            outputMode: `"update"` or `"append"`.
            timeMode: `"none"`, or for timers `"processingtime"` or `"eventtime"`, with which late rows are dropped.
            initialState: Rows that `initial_state` of the processor gets in the first batch: a batch DataFrame's
                `groupBy(…)` or `grouped(…)`, by keys of the same types.
            eventTimeColumnName: The column of the result that carries the watermark on.

        Returns:
            A DataFrame of the rows that the processor yields.

        Raises:
            InvalidArgumentError: Something cannot work as it was given; the message says what to change.
            SchemaMismatchError: The savepoint of `start_from` holds other states.

        Example:
            >>> calls = grouped(bids, "auction", state=folder)  # doctest: +SKIP
            >>> calls.transformWithStateInArrow(Counts(), "auction long, n long")  # doctest: +SKIP
        """
        return self._process(
            ProcessorCall("arrow", processor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
        )

    def _process(self, call: ProcessorCall) -> DataFrame:
        from fastchangelog.spark.processor.stream import transform  # an aggregation needs none of it

        if self.output_mode != "update":
            raise InvalidArgumentError(
                f"grouped() has output_mode={self.output_mode!r}, which is for agg(): give a processor's mode to its "
                "method, as outputMode"
            )
        if self.ttl is not None:
            raise InvalidArgumentError(
                "grouped() has a ttl, which is for agg(): give a processor's to its states, as ttlDurationMs"
            )
        return transform(self.grouping, call)

    def _numeric(self, function: Callable[[str], Column], cols: tuple[object, ...]) -> DataFrame:
        names: list[str] = []
        for col in cols[0] if len(cols) == 1 and isinstance(cols[0], (list, tuple)) else cols:
            if not isinstance(col, str):
                raise InvalidArgumentError(
                    f"{function.__name__}() takes column names, not {col!r}; use agg() for Columns"
                )
            if not isinstance(self.grouping.df.select(col).schema[0].dataType, T.NumericType):
                raise InvalidArgumentError(
                    f"{function.__name__}(): the column {col} is not numeric; use agg() for other types"
                )
            names.append(col)
        numeric = [f.name for f in self.grouping.df.schema.fields if isinstance(f.dataType, T.NumericType)]
        quoted = ["`" + name.replace("`", "``") + "`" for name in numeric]
        return self.agg(*[function(name) for name in names or quoted])


def _output_mode(given: object) -> OutputMode:
    for mode in get_args(OutputMode):
        if isinstance(given, str) and given.lower() == mode:
            return cast("OutputMode", mode)
    raise InvalidArgumentError(f"output_mode={given!r} is none of {', '.join(map(repr, get_args(OutputMode)))}")


def _warn_about_waves(spark: SparkSession, partitions: int, root: str) -> None:
    slots = internals.slots(spark)
    if not slots or partitions <= slots * (1 if settings.is_remote(root) else _MANY_WAVES):
        return
    waves = -(-partitions // slots)
    warnings.warn(
        f"{settings.SHUFFLE_PARTITIONS} is {partitions} with {slots} slots: each partition is one shard, so a batch's "
        f"tasks run in {waves} waves, and each wave writes its log after the one before: {waves - 1} round trips to "
        f"the store more than with one wave. Set it to {slots} before the first start (a checkpoint keeps it)",
        stacklevel=4,
    )
