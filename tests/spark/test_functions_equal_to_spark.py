"""Statistics, bits, products and conditional counts equal Spark's own, for every type that they take.

Each case streams the same files through `grouped`, batch by batch, and compares what each batch gave with Spark's
`groupBy().agg()` over all rows so far. Integers are equal; doubles are equal up to the order of additions.
Owns: functions beside those of `test_equal_to_spark`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.spark import grouped
from support.spark.lacks import needs
from support.spark.stream_harness import Feed, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

D = decimal.Decimal
NAN, INF = math.nan, math.inf
ONE_NAMES = (
    *("var_samp", "variance", "var_pop", "stddev_samp", "stddev", "std", "stddev_pop"),
    *("skewness", "kurtosis", "product"),
)
ONE = tuple(getattr(F, name) for name in ONE_NAMES)
TWO = (F.covar_samp, F.covar_pop, F.corr)
BITS = (F.bit_and, F.bit_or, F.bit_xor)
as_spark_4_3 = needs("statistics")

#: Type -> a random value.
NUMBERS: dict[str, Any] = {
    "tinyint": lambda r: r.randrange(-128, 128),
    "smallint": lambda r: r.randrange(-(2**15), 2**15),
    "int": lambda r: r.randrange(-(2**31), 2**31),
    "bigint": lambda r: r.randrange(-(2**63), 2**63),
    "float": lambda r: r.choice([0.0, -0.0, 1.5, -2.25, r.random()]),
    "double": lambda r: r.uniform(-1000, 1000),
    "decimal(9,2)": lambda r: D(r.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
    "decimal(20,5)": lambda r: D(r.randrange(-(10**20) + 1, 10**20)).scaleb(-5),
    "decimal(38,10)": lambda r: D(r.randrange(-(10**38) + 1, 10**38)).scaleb(-10, decimal.Context(prec=60)),
    "string": lambda r: r.choice(["1.5", "-2", "1e3", "0.125"]),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or math.isclose(a, b, rel_tol=1e-12)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and bool(a == b)


def compare(
    spark: Any,
    feed: Feed,
    batches: list[list[Any]],
    tmp_path: pathlib.Path,
    aggregates: list[Any],
    same: Callable[[Any, Any], bool] = same,
) -> None:
    """Every batch: the keys of its rows, with Spark's results over all rows up to it."""
    for rows in batches:
        feed.add(rows)
    ours = grouped(feed.stream(), "k", state=str(tmp_path / "state")).agg(*aggregates)
    schema = feed.stream().groupBy("k").agg(*aggregates).schema
    assert ours.schema == schema
    found = run(ours, tmp_path / "checkpoint").batches
    assert len(found) == len(batches)
    seen: list[Any] = []
    for number, rows in enumerate(batches):
        seen += rows
        df = spark.createDataFrame(seen, feed.schema).repartition(3)
        expected = {row[0]: row for row in df.groupBy("k").agg(*aggregates).collect()}
        assert {row[0] for row in found[number]} == {row[0] for row in rows}
        for row in found[number]:
            for name, a, b in zip(schema.names, row, expected[row[0]]):
                assert same(a, b), f"batch {number}, key {row[0]!r}, {name}: {a!r}, Spark has {b!r}"


def drawn(seed: int, types: list[str], values: Any, size: int = 24) -> list[list[Any]]:
    """Three batches of four keys: many rows, one row, only nulls, and a null key."""
    rng = random.Random(seed)
    batches = []
    for number in range(3):
        rows = [
            (rng.choice([1, 2, None]), *(None if rng.random() < 0.2 else values(t, rng) for t in types))
            for _ in range(size)
        ]
        rows += [(3, *(values(t, rng) for t in types))] if number == 0 else []
        rows += [(4, *(None for _ in types))]
        batches.append(rows)
    return batches


@pytest.mark.parametrize("types", [list(NUMBERS)[:5], list(NUMBERS)[5:]], ids="+".join)
def test_statistics_of_every_number(feed: Any, spark: Any, tmp_path: pathlib.Path, types: list[str]) -> None:
    schema = "k int, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [f(f"c{i}") for i in range(len(types)) for f in ONE]
    aggregates += [f(f"c{i}", f"c{(i + 1) % len(types)}") for i in range(len(types)) for f in TWO]
    compare(spark, feed(schema), drawn(1, types, lambda t, r: NUMBERS[t](r)), tmp_path, aggregates)


def test_bits_of_every_integer(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    types = list(NUMBERS)[:4]
    schema = "k int, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [f(f"c{i}") for i in range(len(types)) for f in BITS] + [F.bit_and(F.lit(None))]
    compare(spark, feed(schema), drawn(2, types, lambda t, r: NUMBERS[t](r)), tmp_path, aggregates)


def test_conditional_counts_and_any_values(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    values = {"boolean": lambda r: r.random() < 0.5, "string": lambda r: r.choice(["true", "false"])}
    aggregates = [F.count_if("b"), F.count_if("s"), F.count_if(F.col("b") & F.col("s").cast("boolean"))]
    types = ["boolean", "string"]
    compare(spark, feed("k int, b boolean, s string"), drawn(3, types, lambda t, r: values[t](r)), tmp_path, aggregates)


def test_any_value_is_the_first(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    # One row per key and batch, so that the order of rows is the order of batches.
    batches = [[(1, None, "x"), (2, 5, None)], [(1, 7, None), (2, None, "y")], [(1, 8, "z"), (2, 9, "z")]]
    aggregates = [F.any_value("v"), F.any_value("v", True), F.any_value("s", ignoreNulls=True)]
    source = feed("k int, v int, s string", *batches)
    ours = grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(*aggregates)
    built = grouped(source.stream(), "k", state=str(tmp_path / "other")).agg(
        fc.any_value("v"), fc.any_value("v", ignorenulls=True), fc.any_value("s", ignorenulls=True)
    )
    sparks = source.stream().groupBy("k").agg(*aggregates)
    assert ours.schema == sparks.schema == built.schema
    found, expected = run(ours, tmp_path / "ours").batches, run(sparks, tmp_path / "sparks").batches
    assert {n: sorted(rows) for n, rows in found.items()} == {n: sorted(rows) for n, rows in expected.items()}


@as_spark_4_3
@pytest.mark.parametrize("odd", [NAN, INF, -INF, 1e80, 1e160, 1e300])
def test_numbers_that_are_not_finite_and_powers_that_overflow(
    feed: Any, spark: Any, tmp_path: pathlib.Path, odd: float
) -> None:
    rows = [(1, odd, 1.0), (2, 1.0, odd), (2, 2.0, 3.0), (3, odd, odd), (3, odd, 2.0), (4, None, odd)]
    # Where both columns overflow, Spark's own covariance depends on how rows are split: it is infinite or NaN.
    batches = [rows, [(1, 3.0, 2.0), (2, 4.0, odd), (4, odd, None)]]
    aggregates = [f("x") for f in ONE] + [f("x", "y") for f in TWO]
    compare(spark, feed("k int, x double, y double"), batches, tmp_path, aggregates)


@as_spark_4_3
def test_equal_values_have_no_shape_nor_correlation(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = [[(1, 2.0, 1.0), (1, 2.0, 5.0)], [(1, 2.0, 7.0), (2, 3.0, 3.0)]]
    aggregates = [f("x") for f in ONE] + [f("x", "y") for f in TWO] + [F.corr("y", "x")]
    compare(spark, feed("k int, x double, y double"), batches, tmp_path, aggregates)


TINY = [(1, 0.0), (1, 1e-100), (1, 3e-100)]
UNDERFLOWS = {"skewness": ("x",), "kurtosis": ("x",), "corr": ("x", "x")}


@pytest.mark.parametrize("function", UNDERFLOWS)
def test_powers_that_underflow_follow_ansi(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, function: str
) -> None:
    aggregate = getattr(F, function)(*UNDERFLOWS[function])
    conf("spark.sql.ansi.enabled", "false")
    compare(spark, feed("k int, x double"), [TINY], tmp_path / "off", [aggregate])
    conf("spark.sql.ansi.enabled", "true")
    source = feed("k int, x double", TINY, name="ansi")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.createDataFrame(TINY, "k int, x double").groupBy("k").agg(aggregate).collect()
    ours = grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(aggregate)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        run(ours, tmp_path / "checkpoint")


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_tried_sums_and_means_are_null_where_they_overflow(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, ansi: str
) -> None:
    conf("spark.sql.ansi.enabled", ansi)
    big, wide, long = 2**63 - 1, D("9" * 38), dt.timedelta(days=10**8 - 1)
    batches = [
        [(1, big, wide, 1.5, 7, D("1.25"), long), (2, 5, D(2), 2.5, -7, D("-2.50"), dt.timedelta(1))],
        [(1, 1, wide, 2.0, 8, D("3.75"), long), (2, -9, D(7), None, None, None, None), (3, *[None] * 6)],
        [(1, -5, D(-5), 0.5, 9, D("0.05"), -long), (3, 1, D(1), 1.0, 1, D(1), dt.timedelta(2))],
    ]
    schema = "k int, l bigint, p decimal(38,0), d double, i tinyint, m decimal(5,2), t interval day to second"
    aggregates = [f(name) for name in "lpdimt" for f in (F.try_sum, F.try_avg)]
    source = feed(schema, *batches)
    plans = {
        "ours": grouped(source.stream(), "k", state=str(tmp_path / "state")),
        "sparks": source.stream().groupBy("k"),
    }
    assert plans["ours"].agg(*aggregates).schema == plans["sparks"].agg(*aggregates).schema
    found = {side: run(plan.agg(*aggregates), tmp_path / side).batches for side, plan in plans.items()}
    assert {n: sorted(rows) for n, rows in found["ours"].items()} == {
        n: sorted(rows) for n, rows in found["sparks"].items()
    }
    (last,) = (row for row in found["ours"][2] if row["k"] == 1)
    assert (last["try_sum(l)"], last["try_sum(p)"], last["try_sum(i)"]) == (None, None, 24)


@needs("percentiles")
@pytest.mark.parametrize("types", [list(NUMBERS)[:5], list(NUMBERS)[5:]], ids="+".join)
def test_percentiles_of_every_number(feed: Any, spark: Any, tmp_path: pathlib.Path, types: list[str]) -> None:
    schema = "k int, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types)) + ", n int"
    aggregates = [f(f"c{i}") for i in range(len(types)) for f in (F.median, lambda c: F.percentile(c, 0.3))]
    aggregates += [
        F.percentile("c0", [0.0, 0.25, 1.0]),
        F.percentile("c1", F.lit(1)),
        F.percentile("c2", 0.9, F.col("n")),
    ]
    batches = drawn(5, [*types, "n"], lambda t, r: r.randrange(3) if t == "n" else NUMBERS[t](r))
    compare(spark, feed(schema), batches, tmp_path, aggregates, operator.eq)


def test_the_most_frequent_value(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    types = {
        "string": lambda r: r.choice("xyz"),
        "int": lambda r: r.randrange(4),
        "boolean": lambda r: r.random() < 0.5,
    }
    types |= {"array<int>": lambda r: [r.randrange(2)], "decimal(9,2)": lambda r: D(r.randrange(3)) / 4}
    aggregates = [F.mode(f"c{i}", deterministic=True) for i in range(len(types))] + [F.mode("often")]
    batches = drawn(6, [*types, "often"], lambda t, r: "often" if t == "often" else types[t](r))
    schema = "k int, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types)) + ", often string"
    compare(spark, feed(schema), batches, tmp_path, aggregates)


def test_where_is_filter(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed("k int, x double, y double, i int, b boolean")
    rng = random.Random(4)
    for _ in range(3):
        x = [rng.choice([None, rng.uniform(0, 9)]) for _ in range(20)]
        source.add([(rng.randrange(3), v, rng.uniform(0, 9), rng.randrange(99), rng.random() < 0.5) for v in x])
    ours = grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(
        fc.stddev("x", where="y > 3"),
        fc.variance("x", where="y > 30"),
        fc.kurtosis("x", where=F.col("b")),
        fc.corr("x", "y", where="i > 20"),
        fc.bit_or("i", where="b"),
        fc.count_if("b", where="y > 3"),
    )
    source.stream().createOrReplaceTempView("functions")
    sparks = spark.sql(
        "select k, stddev(x) filter (where y > 3), variance(x) filter (where y > 30), kurtosis(x) filter (where b), "
        "corr(x, y) filter (where i > 20), bit_or(i) filter (where b), count_if(b) filter (where y > 3) "
        "from functions group by k"
    )
    assert ours.dtypes == sparks.dtypes
    found, expected = run(ours, tmp_path / "ours").batches, run(sparks, tmp_path / "sparks").batches
    assert found.keys() == expected.keys()
    for number, rows in found.items():
        by_key = {row[0]: row for row in expected[number]}
        assert {row[0] for row in rows} == set(by_key)
        assert all(same(a, b) for row in rows for a, b in zip(row, by_key[row[0]])), (rows, by_key)


def test_builders_and_dicts_have_sparks_names(spark: Any, tmp_path: pathlib.Path) -> None:
    df = spark.createDataFrame([(1, 2.0, 3, True)], "k int, x double, i int, b boolean")
    state = str(tmp_path / "state")
    calls: list[tuple[str, tuple[str, ...]]] = [(name, ("x",)) for name in ONE_NAMES]
    calls += [(name, ("x", "i")) for name in ("covar_samp", "covar_pop", "corr")]
    calls += [(name, ("i",)) for name in ("bit_and", "bit_or", "bit_xor", "any_value")] + [("count_if", ("b",))]
    ours = grouped(df, "k", state=state).agg(*(getattr(fc, name)(*args) for name, args in calls))
    assert ours.schema == df.groupBy("k").agg(*(getattr(F, name)(*args) for name, args in calls)).schema
    given = {"x": "stddev", "i": "bit_xor", "b": "count_if"}
    assert grouped(df, "k", state=state).agg(given).schema == df.groupBy("k").agg(given).schema


def test_what_spark_refuses_and_what_fastchangelog_does(spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    df = spark.createDataFrame([(1, 2.0, True)], "k int, x double, b boolean")
    state = str(tmp_path / "state")
    for wrong in (F.bit_and("x"), F.stddev("b"), F.count_if("x")):
        with pytest.raises(Exception, match="DATATYPE_MISMATCH"):
            grouped(df, "k", state=state).agg(wrong)
    conf("spark.sql.legacy.statisticalAggregate", "true")
    with pytest.raises(fc.InvalidArgumentError, match="statisticalAggregate"):
        grouped(df, "k", state=state).agg(F.var_samp("x"))
    assert grouped(df, "k", state=state).agg(F.max("x")).columns == ["k", "max(x)"]
