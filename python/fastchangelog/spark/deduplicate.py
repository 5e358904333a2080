"""Distinct rows of a stream: what users call.

Owns: `drop_duplicates` and `drop_duplicates_within_watermark`, and their checks at build time.
Does not own: the analysis and the plan (`aggregates.distinct`, `aggregates.plan`), settings (`grouped_stream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F
from pyspark.sql import types as T

from fastchangelog.errors import InvalidArgumentError, UnsupportedError
from fastchangelog.hidden import Hidden
from fastchangelog.spark.aggregates.distinct import distinct
from fastchangelog.spark.aggregates.plan import operated
from fastchangelog.spark.grouped_stream import grouped
from fastchangelog.spark.split import WATERMARK_DELAY
from fastchangelog.state.times import ttl_millis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fastchangelog.spark.imported_state import ImportedState
    from fastchangelog.types import Duration, Options, PathLike, StorageOptions

__all__ = ["drop_duplicates", "drop_duplicates_within_watermark"]


def drop_duplicates(
    df: DataFrame,
    cols: Sequence[str] | None = None,
    *,
    state: PathLike | None = None,
    name: str = "default",
    ttl: Duration | None = None,
    initial_state: ImportedState | None = None,
    options: Options | None = None,
    storage_options: StorageOptions | None = None,
) -> DataFrame:
    """Returns each row of a stream once, as PySpark's `DataFrame.dropDuplicates` does.

    The first of the rows with equal `cols` is returned as it was; a state keeps the keys. If a column of `cols` has a
    watermark, keys leave once it has passed them. Else they stay for ever, or for `ttl`.

    On a batch DataFrame it is Spark's own.

    Args:
        df: A DataFrame, streaming or not.
        cols: Names of columns; by default all.
        state: A folder that any number of queries may share, such as `"s3://bucket/state"` or `"/data/state"`; by
            default the Spark conf `spark.fastchangelog.state`.
        name: Tells two stateful operators of one query apart.
        ttl: How long a key is kept after its first row, by the processing time, such as `"7 days"`: a row that comes
            later is returned again. Rows meanwhile do not prolong it.
        initial_state: What a new query begins with: `import_state(checkpoint)`, the state of a Spark query that drops
            duplicates by the same columns.
        options: See the reference; each can also be set as the Spark conf `spark.fastchangelog.<option>`.
        storage_options: Credentials and addresses for the store, as of `grouped`.

    Returns:
        A DataFrame with the columns of `df`. A sink takes it in append and in update mode.

    Raises:
        InvalidArgumentError: Something cannot work as it was given; the message says what to change.

    Example:
        >>> once = drop_duplicates(events, ["id"], state=folder, ttl="7 days")  # doctest: +SKIP
    """
    given = Hidden(storage_options)
    del storage_options
    if ttl is not None and initial_state is not None:
        raise UnsupportedError("Spark's state does not say since when its keys live: give no initial_state, or no ttl")
    return _distinct(df, cols, state, name, options, given, initial_state, ttl=ttl_millis(ttl))


def drop_duplicates_within_watermark(
    df: DataFrame,
    cols: Sequence[str] | None = None,
    *,
    state: PathLike | None = None,
    name: str = "default",
    initial_state: ImportedState | None = None,
    options: Options | None = None,
    storage_options: StorageOptions | None = None,
) -> DataFrame:
    """Returns each row of a stream once, as PySpark's `DataFrame.dropDuplicatesWithinWatermark` does.

    A key is kept until the watermark has passed the time of its first row by the delay. So duplicates whose times
    differ by less than the delay are found.

    Args:
        df: A streaming DataFrame with a watermark.
        cols: Names of columns; by default all.
        state: A folder that any number of queries may share, such as `"s3://bucket/state"` or `"/data/state"`; by
            default the Spark conf `spark.fastchangelog.state`.
        name: Tells two stateful operators of one query apart.
        initial_state: What a new query begins with: `import_state(checkpoint)`, the state of a Spark query that drops
            duplicates by the same columns.
        options: See the reference; each can also be set as the Spark conf `spark.fastchangelog.<option>`.
        storage_options: Credentials and addresses for the store, as of `grouped`.

    Returns:
        A DataFrame with the columns of `df`. A sink takes it in append and in update mode.

    Raises:
        InvalidArgumentError: Something cannot work as it was given; the message says what to change.
        UnsupportedError: The stream has no watermark.

    Example:
        >>> events = events.withWatermark("ts", "1 hour")  # doctest: +SKIP
        >>> once = drop_duplicates_within_watermark(events, ["id"], state=folder)  # doctest: +SKIP
    """
    given = Hidden(storage_options)
    del storage_options
    if getattr(df, "isStreaming", True) and not _event_times(df):
        raise UnsupportedError(
            "drop_duplicates_within_watermark() forgets keys by the watermark, and the stream has none: call "
            'withWatermark("ts", "1 hour") on it before, or use drop_duplicates(…, ttl=…)'
        )
    return _distinct(df, cols, state, name, options, given, initial_state, within_watermark=True)


def _distinct(
    df: DataFrame,
    cols: Sequence[str] | None,
    state: PathLike | None,
    name: str,
    options: Options | None,
    storage_options: Hidden[StorageOptions | None],
    initial_state: ImportedState | None,
    *,
    within_watermark: bool = False,
    ttl: int | None = None,
) -> DataFrame:
    if not hasattr(df, "sparkSession") or not hasattr(df, "dropDuplicates"):
        raise InvalidArgumentError(f"duplicates are dropped of a PySpark DataFrame, not of a {type(df).__name__}")
    own = df.dropDuplicatesWithinWatermark if within_watermark else df.dropDuplicates
    native = own(cast("list[str] | None", list(cols) if isinstance(cols, tuple) else cols))
    fields = native.schema.fields  # Spark reports an unknown column here, and types that it cannot compare
    if not df.isStreaming:
        return native
    key_columns = _key_columns(df, cols)
    # Names may be the same twice, or have dots.
    plain = df.toDF(*[f"c{at}" for at in range(len(fields))])
    keys = [F.col(f"c{at}") for at in key_columns]
    stream = grouped(plain, *keys, state=state, name=name, options=options, storage_options=storage_options.show())
    found = distinct(plain, key_columns, within_watermark=within_watermark, ttl_millis=ttl)
    first = None
    if initial_state is not None:
        from fastchangelog.spark.aggregates.distinct_seed import imported_payloads  # few queries need it

        names = [df.columns[at] for at in key_columns]
        first = imported_payloads(stream.grouping, found, names, initial_state, within_watermark=within_watermark)
    returned = operated(stream.grouping, found.operation, first)
    columns = found.columns([F.col(f"__r{i}") for i in range(len(found.operation.output))])
    return returned.select(*columns).toDF(*[field.name for field in fields])


def _key_columns(df: DataFrame, cols: Sequence[str] | None) -> list[int]:
    """The columns of these names, in their order: all of a name, as Spark takes them."""
    names = df.columns
    if cols is None:
        return list(range(len(names)))
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"

    def plain(text: str) -> str:
        return text if sensitive else text.lower()

    wanted = dict.fromkeys(plain(col) for col in cols)
    return [at for col in wanted for at, name in enumerate(names) if plain(name) == col]


def _event_times(df: DataFrame) -> list[T.StructField]:
    return [field for field in df.schema.fields if WATERMARK_DELAY in field.metadata]
