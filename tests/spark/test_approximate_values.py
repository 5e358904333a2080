"""Approximate counts, percentiles and histograms equal Spark's own bit for bit, batch by batch, with a restart between.

Owns: `approx_count_distinct`, `percentile_approx`, `histogram_numeric`, windows of them and refusals.
Does not own: exact functions (`test_functions_equal_to_spark`, `test_collected_values`).
"""

from __future__ import annotations

import datetime as dt
import pathlib
import random
from collections.abc import Callable
from decimal import Decimal as D
from typing import Any

import pytest
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.spark import grouped
from support.spark.beside_spark import FLAT, both, drawn
from support.spark.lacks import needs
from support.spark.stream_harness import end_state_server, rows_of, run
from support.spark.values import UTC, VALUES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_values_of_every_type_are_counted(feed: Any, tmp_path: pathlib.Path) -> None:
    types = list(VALUES)
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [F.approx_count_distinct(f"c{i}") for i in range(len(types))]
    months = F.approx_count_distinct(F.make_ym_interval(F.lit(1), F.col("c3") % 5)).alias("months")

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        return group(df, "k").agg(*aggregates, months, F.approx_count_distinct(F.lit(None)).alias("nothing"))

    ours, sparks = both(feed, tmp_path, schema, drawn(1, types), plan)
    assert ours == sparks
    assert len(ours) == 3
    stream = feed(schema, name="schemas").stream()
    assert grouped(stream, "k", state=str(tmp_path / "s")).agg(*aggregates).schema == (
        stream.groupBy("k").agg(*aggregates).schema
    )


@pytest.mark.parametrize("rsd", [0.39, None, 0.02])
def test_estimates_of_few_and_many_values(feed: Any, tmp_path: pathlib.Path, rsd: float | None) -> None:
    rng = random.Random(2)
    sizes = ((1, 40, 300), (1500, 4000, 9000))
    runs = [
        [[(rng.choice("aab"), rng.randrange(10**12)) for _ in range(size)] for size in batches] for batches in sizes
    ]

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        texts = F.concat(F.lit("user "), F.col("v").cast("string"))
        found = [F.approx_count_distinct("v", rsd), F.approx_count_distinct(texts, rsd).alias("texts")]
        return group(df, "k").agg(*found, (F.approx_count_distinct("v", rsd) * 2).alias("twice"))

    ours, sparks = both(feed, tmp_path, "k string, v bigint", runs, plan)
    assert ours == sparks
    assert len(ours) == 6


#: Decimals of many digits come back from doubles with digits that depend on the version of Java.
MEASURED = [*[t for t in FLAT if t not in ("boolean", "string", "binary", "decimal(38,10)")], "string"]


def test_percentiles_of_every_type(feed: Any, tmp_path: pathlib.Path) -> None:
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(MEASURED))
    runs = drawn(5, MEASURED)
    runs = [
        [[(*row[:-1], None if row[-1] is None else "1.5") for row in batch] for batch in batches] for batches in runs
    ]
    ours, sparks = both(feed, tmp_path, schema, runs, lambda df, group: group(df, "k").agg(*percentiles()))
    assert ours == sparks
    assert len(ours) == 3


def percentiles() -> list[Any]:
    """One percentile, and three of them, of each column."""
    found = [F.percentile_approx(f"c{i}", 0.5) for i in range(len(MEASURED))]
    return found + [F.approx_percentile(f"c{i}", [0.9, 0.0, 0.3], 1000).alias(f"l{i}") for i in range(len(MEASURED))]


@needs("null percentiles")
def test_percentiles_have_sparks_types(feed: Any, tmp_path: pathlib.Path) -> None:
    stream = feed("k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(MEASURED))).stream()
    ours = grouped(stream, "k", state=str(tmp_path / "s")).agg(*percentiles())
    assert ours.schema == stream.groupBy("k").agg(*percentiles()).schema


@pytest.mark.parametrize("accuracy", [3, 40, 1000, 10_000])
def test_percentiles_of_many_values_take_sparks_steps(feed: Any, tmp_path: pathlib.Path, accuracy: int) -> None:
    rng = random.Random(6)
    places = [0.01, 0.25, 0.5, 0.75, 0.99]

    def batch(size: int) -> list[Any]:
        return [(rng.choice("aab"), rng.gauss(0, 100), rng.randrange(2000)) for _ in range(size)]

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        return group(df, "k").agg(F.percentile_approx("d", places, accuracy), F.percentile_approx("i", 0.5, accuracy))

    runs = [[batch(300), batch(9000)], [batch(5000), batch(20), batch(7000)]]
    ours, sparks = both(feed, tmp_path, "k string, d double, i int", runs, plan)
    assert ours == sparks
    assert len(ours) == 5


def test_histograms_of_every_type(feed: Any, tmp_path: pathlib.Path) -> None:
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(MEASURED))
    runs = [
        [[(*row[:-1], None if row[-1] is None else "1.5") for row in batch] for batch in batches]
        for batches in drawn(9, MEASURED)
    ]
    aggregates = [
        F.histogram_numeric(f"c{i}", F.lit(nb)).alias(f"h{i}_{nb}") for i in range(len(MEASURED)) for nb in (2, 9)
    ]
    # Collected texts tell NaN and zeros with a sign apart, and are equal to themselves.
    ours, sparks = both(feed, tmp_path, schema, runs, lambda df, group: texts_of(group(df, "k").agg(*aggregates), "k"))
    assert ours == sparks
    assert len(ours) == 3
    stream = feed(schema, name="schemas").stream()
    assert grouped(stream, "k", state=str(tmp_path / "s")).agg(*aggregates).schema == (
        stream.groupBy("k").agg(*aggregates).schema
    )


@needs("percentiles of times")
def test_times_of_day_are_measured(feed: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    conf("spark.sql.timeType.enabled", "true")

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        times = df.select("k", F.expr("make_time(v, 30, v * 0.5)").alias("t"))
        return group(times, "k").agg(
            F.percentile_approx("t", [0.1, 0.5]).alias("p"), F.histogram_numeric("t", F.lit(2)).alias("h")
        )

    rows = [[("a", 1), ("a", 23), ("b", 7), ("a", None)], [("a", 12), ("b", 8)]]
    ours, sparks = both(feed, tmp_path, "k string, v int", [rows, [[("b", 20)]]], plan)
    assert ours == sparks
    assert len(ours) == 3


def test_centers_of_decimals_are_rounded_twice(feed: Any, tmp_path: pathlib.Path) -> None:
    """The mean 1.00495… has four digits of the type, 1.005, and then two decimals."""
    rows = [("a", D(text)) for text, times in (("1.00", 51), ("1.01", 50), ("9.00", 1)) for _ in range(times)]
    aggregates = [F.histogram_numeric("d", F.lit(2)).alias("h")]
    ours, sparks = both(
        feed, tmp_path, "k string, d decimal(4,2)", [[rows]], lambda df, group: group(df, "k").agg(*aggregates)
    )
    assert ours == sparks
    assert "1.01" in repr(ours)


def texts_of(df: Any, *keys: str) -> Any:
    """The same with texts in the place of results. Spark's text of a decimal may have more digits than its type."""
    kept = {*keys, *(field.name for field in df.schema if "decimal" in field.dataType.simpleString())}
    return df.select(*(F.col(name) if name in kept else F.col(name).cast("string").alias(name) for name in df.columns))


@pytest.mark.parametrize("nb", [2, 7, 60, 100_000])
def test_histograms_take_sparks_steps(feed: Any, tmp_path: pathlib.Path, nb: int) -> None:
    rng = random.Random(10)
    odd = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, None]

    def batch(size: int) -> list[Any]:
        return [
            (
                rng.choice("aab"),
                rng.gauss(0, 100),
                rng.randrange(200),
                rng.choice([*odd, rng.random(), rng.randrange(5)]),
            )
            for _ in range(size)
        ]

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        found = [F.histogram_numeric(name, F.lit(nb)).alias(name) for name in ("d", "i", "o")]
        some = F.histogram_numeric(F.when(F.col("i") > 150, F.col("d")), F.lit(nb)).alias("some")
        return texts_of(group(df, "k").agg(*found, some), "k")

    runs = [[batch(200), [("a", None, None, None), ("c", None, None, None)], batch(3000)], [batch(9), batch(1500)]]
    runs = [[[(k, d, i, None if o is None else float(o)) for k, d, i, o in rows] for rows in run] for run in runs]
    ours, sparks = both(feed, tmp_path, "k string, d double, i int, o double", runs, plan)
    assert ours == sparks
    assert len(ours) == 5


def test_histograms_with_centers_of_doubles(feed: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    conf("spark.sql.legacy.histogramNumericPropagateInputType", "false")
    runs = [[[("a", D("1.25"), 3), ("a", D("2.5"), 4), ("a", D("9"), 4), ("b", None, 1)]]]

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        return group(df, "k").agg(F.histogram_numeric("p", F.lit(2)), F.histogram_numeric("i", F.lit(2)))

    ours, sparks = both(feed, tmp_path, "k string, p decimal(9,2), i int", runs, plan)
    assert ours == sparks
    assert ours[0][1] == ("b", None, ((1.0, 1.0),))


def test_windows_and_conditions(feed: Any, tmp_path: pathlib.Path) -> None:
    noon = dt.datetime(2024, 3, 10, 12, tzinfo=UTC)
    rng = random.Random(3)

    def batch(start: int) -> list[Any]:
        return [
            (rng.choice("ab"), noon + dt.timedelta(seconds=start + rng.randrange(20)), rng.randrange(9))
            for _ in range(40)
        ]

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        window = F.window("ts", "10 seconds", "5 seconds")
        grouped_by = group(df.withWatermark("ts", "5 seconds"), window, "k", output_mode="append")
        odd = F.approx_count_distinct(F.when(F.col("v") % 2 == 1, F.col("v"))).alias("odd")
        histogram = F.histogram_numeric("v", F.lit(3))
        return grouped_by.agg(
            F.approx_count_distinct("v", 0.1), odd, F.percentile_approx("v", 0.3), F.count("*"), histogram
        )

    runs = [[batch(0), batch(10)], [batch(30), [("a", noon + dt.timedelta(hours=1), 1)]]]
    ours, sparks = both(feed, tmp_path, "k string, ts timestamp, v int", runs, plan)
    assert ours == sparks
    assert ours


def test_a_restored_state_goes_on_with_its_constants(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed("k string, v int", [("a", i) for i in range(5)] + [("b", None)])

    def ours(*aggregates: Any) -> Any:
        return grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(*aggregates)

    built = [
        fc.approx_count_distinct("v", where="v <> 3").alias("n"),
        fc.percentile_approx("v", F.lit(0.5), where="v > 0").alias("p"),
        fc.histogram_numeric("v", F.lit(2), where="v > 2").alias("h"),
    ]
    (first,) = run(ours(*built), tmp_path / "checkpoint").batches.values()
    assert rows_of(first) == [("a", 4, 2, ((3, 1.0), (4, 1.0))), ("b", 0, None, None)]
    end_state_server(spark)
    source.add([("a", 1), ("a", 7), ("b", 2)])
    (second,) = run(ours(*built), tmp_path / "checkpoint").batches.values()
    assert rows_of(second) == [("a", 5, 2, ((3, 2.0), (7, 1.0))), ("b", 1, 2, None)]
    source.add([("a", 1)])
    with pytest.raises(Exception, match="approx_count_distinct"):
        run(ours(F.approx_count_distinct("v", 0.1)), tmp_path / "checkpoint")


def test_what_cannot_be_counted_is_refused(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.createDataFrame([], "k string, v int, s string")

    def agg(aggregate: Any, **named: Any) -> Any:
        return grouped(frame, "k", state=str(tmp_path)).agg(aggregate, **named)

    with pytest.raises(fc.InvalidArgumentError, match=r"the relative deviation must be a constant from 0.0022 to 0.39"):
        agg(F.approx_count_distinct("v", 0.002))
    with pytest.raises(fc.InvalidArgumentError, match="hashes a collated string"):
        agg(F.approx_count_distinct(F.collate("s", "UTF8_LCASE")))
    result = spark.createDataFrame([("a", 3)], "k string, n bigint")
    stream = spark.readStream.schema("k string, v int").format("parquet").load(str(tmp_path))
    with pytest.raises(fc.InvalidArgumentError, match="cannot continue from its result"):
        grouped(stream, "k", state=str(tmp_path)).agg(fc.approx_count_distinct("v").alias("n"), initial_state=result)
