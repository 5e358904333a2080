"""Keys that carry a watermark: late rows are dropped exactly where Spark's own aggregate drops them by the key.

Owns: the comparison with Spark over late rows, key by key. Does not own: windows (`test_windows`).
"""

from __future__ import annotations

import datetime as dt
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog.spark import grouped
from support.spark.stream_harness import rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, ts timestamp"
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)


def at(seconds: int) -> tuple[str, dt.datetime]:
    return ("a", NOON + dt.timedelta(seconds=seconds))


#: The last row is older than the watermark that the batch before it ran with.
BATCHES = [[at(10)], [at(200)], [at(210)], [at(10)]]

PREPARED: dict[str, Callable[[Any], Any]] = {
    "struct": lambda df: df.select(F.struct("ts", "k").alias("st")),
    "window": lambda df: df.select("k", F.window("ts", "1 minute").alias("w")),
    "window_time": lambda df: df.select(F.window("ts", "1 minute").alias("w")).select(F.window_time("w").alias("t")),
    "cast": lambda df: df.select(F.col("ts").cast("timestamp").alias("t")),
    "copy": lambda df: df.withColumn("t", F.col("ts")),
    "view": lambda df: df.select("*"),
}

#: name -> how the stream is prepared, the key, and whether Spark uses the watermark.
KEYS: dict[str, tuple[str, Callable[[], Any], bool]] = {
    "the column": ("view", lambda: "ts", True),
    "an alias": ("view", lambda: F.col("ts").alias("t"), True),
    "a copy": ("copy", lambda: "t", True),
    "a field": ("struct", lambda: "st.ts", True),
    "a window's time": ("window_time", lambda: "t", True),
    "a cast to its own type": ("view", lambda: F.col("ts").cast("timestamp"), False),
    "a coalesce of it alone": ("view", lambda: F.coalesce("ts"), False),
    "a cast that was made before": ("cast", lambda: "t", False),
    "a struct around it": ("struct", lambda: "st", False),
    "a window's end": ("window", lambda: "w.end", False),
    "its hour": ("view", lambda: F.date_trunc("hour", "ts"), False),
    "its day": ("view", lambda: F.to_date("ts"), False),
    "a sum": ("view", lambda: F.col("ts") + F.expr("interval 1 second"), False),
    "another column": ("view", lambda: "k", False),
}


def answers(df: Any, checkpoint: pathlib.Path) -> list[list[Any]]:
    return [rows_of(rows) for _, rows in sorted(run(df, checkpoint).batches.items()) if rows]


def prepared(feed: Any, name: str) -> tuple[Any, Any]:
    """The stream that has the key, and the key."""
    preparation, key, _ = KEYS[name]
    return PREPARED[preparation](feed(SCHEMA, *BATCHES).stream().withWatermark("ts", "5 seconds")), key()


@pytest.mark.parametrize("name", KEYS)
def test_late_rows_are_dropped_where_spark_drops_them(feed: Any, tmp_path: pathlib.Path, name: str) -> None:
    stream, key = prepared(feed, name)
    sparks = answers(stream.groupBy(key).agg(F.count("*").alias("n")), tmp_path / "sparks")
    ours = grouped(stream, key, state=str(tmp_path / "state")).agg(F.count("*").alias("n"))
    assert answers(ours, tmp_path / "ours") == sparks
    assert (len(sparks) < len(BATCHES)) == KEYS[name][2]


def test_a_watermark_on_a_batch_frame_has_no_effect(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *BATCHES)
    marked = source.stream().withWatermark("ts", "5 seconds")
    batch = spark.createDataFrame([row for rows in BATCHES for row in rows], marked.schema)
    assert "spark.watermarkDelayMs" in batch.schema["ts"].metadata
    ours = grouped(batch, "ts", state=str(tmp_path / "state")).agg(F.count("*"))
    assert rows_of(ours.collect()) == rows_of(batch.groupBy("ts").agg(F.count("*")).collect())
