"""Expressions over aggregates are Spark's: the same rows, names and types in every batch, with a restart between them.

Owns: what Spark computes behind the operator, and what of an expression is refused.
Does not own: the aggregates in it (`test_equal_to_spark`, `test_functions_equal_to_spark`).
"""

from __future__ import annotations

import datetime as dt
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.window import Window

import fastchangelog as fc
from fastchangelog.spark import grouped
from support.spark.stream_harness import rows_of, run
from support.spark.values import D

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, g int, v int, d double, s string, b boolean, p decimal(12,2), t timestamp"
NOON = dt.datetime(2024, 3, 10, 12, tzinfo=dt.timezone.utc)


def row(k: str | None, g: int, v: int | None) -> tuple[Any, ...]:
    if v is None:
        return k, g, None, None, None, None, None, None
    return k, g, v, v / 4, f"s{v}", v % 2 == 0, D(v) / 4, NOON + dt.timedelta(seconds=v)


#: Runs of the query, each with its batches.
RUNS = [
    [[row("a", 1, 3), row("b", 1, 8), row("a", 2, 5), row(None, 1, None)], [row("a", 1, 4), row("b", 1, None)]],
    [[row("a", 1, 11), row("c", 3, 2), row("a", 2, -7)], [row("b", 1, 1), row("a", 1, 0), row(None, 1, 6)]],
]

EXPRESSIONS: dict[str, Callable[[], list[Any]]] = {
    "arithmetic": lambda: [
        F.sum(F.col("v") * 2) / F.count("*"),
        F.max("v") - F.min("v"),
        (-F.sum("d") + 1).alias("less"),
        1 + F.count("v") * F.count("*"),
    ],
    "functions": lambda: [
        F.round(F.avg("d"), 1).alias("m"),
        F.coalesce(F.max("s"), F.lit("none")),
        F.concat_ws("-", F.min("s"), F.max("s")),
        F.count("*"),
        F.greatest(F.sum("v"), F.lit(3), F.max("v")),
    ],
    "conditions": lambda: [
        F.when(F.count("*") > 2, F.sum("v")).when(F.max("v").isNull(), -1).otherwise(F.min("v")),
        F.when(F.count("*") > 2, F.lit("many")).alias("how many"),
        (F.count("*") > 2) & F.bool_or("b"),
        F.max("v").between(1, 8),
        F.min("s").isin("s3", "s8"),
    ],
    "casts": lambda: [
        F.sum("v").cast("string"),
        F.avg("d").cast("decimal(10,3)").alias("mean"),
        F.max("v").cast("int"),
    ],
    "keys": lambda: [F.concat(F.col("k"), F.sum("v").cast("string")), F.col("K").isNull(), F.lit(7), F.col("g") * 2],
    "parts": lambda: [
        F.struct(F.min("v").alias("least"), F.max("s")),
        F.max(F.struct("v", "s")).getField("s"),
        F.struct(F.max("v").alias("x"))["x"],
        F.filter(F.array(F.min("v"), F.max("v")), lambda x: x > 3),
        F.struct(F.max("v").alias("x"), F.lit(1).alias("y")).withField("z", F.min("v")).dropFields("y"),
    ],
    "decimals": lambda: [F.sum("p") / F.count("p"), F.avg("p") * 2, F.sum("p") - F.max("p"), F.ceil(F.avg("p"))],
    "times": lambda: [F.max("t") - F.min("t"), F.date_format(F.max("t"), "HH:mm:ss"), F.unix_micros(F.min("t"))],
    "twice": lambda: [F.sum("v"), F.sum("v") + 1, F.sum(F.col("v")).alias("again"), F.avg("v") - F.sum("v")],
}


def history(feed: Any, folder: pathlib.Path, name: str, plan: Callable[[Any], Any], mode: str = "update") -> Any:
    source, found = feed(SCHEMA, name=name), {}
    for batches in RUNS:
        for rows in batches:
            source.add(rows)
        found.update(run(plan(source.stream()), folder / f"{name}-checkpoint", mode=mode).batches)
    return {number: rows_of(rows) for number, rows in found.items() if rows}


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_expressions_are_sparks(feed: Any, tmp_path: pathlib.Path, kind: str) -> None:
    def ours(df: Any) -> Any:
        return grouped(df, "k", F.col("g"), state=str(tmp_path / "state")).agg(*EXPRESSIONS[kind](), F.count("*"))

    def sparks(df: Any) -> Any:
        return df.groupBy("k", F.col("g")).agg(*EXPRESSIONS[kind](), F.count("*"))

    stream = feed(SCHEMA, RUNS[0][0], name="schemas").stream()
    assert ours(stream).schema == sparks(stream).schema
    expected = history(feed, tmp_path, "sparks", sparks)
    assert history(feed, tmp_path, "ours", ours) == expected
    assert len(expected) == 4


def test_keys_in_expressions_of_a_batch_frame(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.createDataFrame([row for batches in RUNS for rows in batches for row in rows], SCHEMA)
    key = (F.col("g") % 2).alias("odd")
    more = [F.sum("v") + F.col("g") % 2]
    by_two = [frame["k"], F.upper("s")]
    for keys, aggregates in ([key], more), (by_two, [F.concat(F.upper("s"), frame["k"], F.max("s"))]):
        ours = grouped(frame, *keys, state=str(tmp_path / "state")).agg(*aggregates)
        sparks = frame.groupBy(*keys).agg(*aggregates)
        assert ours.schema == sparks.schema
        assert rows_of(ours.collect()) == rows_of(sparks.collect())


@pytest.mark.parametrize("mode", ["update", "append", "complete"])
def test_windows_have_expressions(feed: Any, tmp_path: pathlib.Path, mode: str) -> None:
    def plan(df: Any, group: Callable[..., Any]) -> Any:
        aggregates = [F.max("t") - F.min("t"), (F.sum("v") / F.count("*")).alias("mean"), F.concat("k", F.min("s"))]
        return group(df.withWatermark("t", "1 second"), F.window("t", "4 seconds", "2 seconds"), "k").agg(*aggregates)

    def ours(df: Any, *keys: Any) -> Any:
        return grouped(df, *keys, state=str(tmp_path / "state"), output_mode=mode)

    expected = history(feed, tmp_path, "sparks", lambda df: plan(df, lambda df, *keys: df.groupBy(*keys)), mode)
    assert history(feed, tmp_path, "ours", lambda df: plan(df, ours), mode) == expected
    assert expected
    stream = feed(SCHEMA, RUNS[0][0], name="schemas").stream()
    found, native = plan(stream, ours).schema, plan(stream, lambda df, *keys: df.groupBy(*keys)).schema
    assert [(f.name, f.dataType, f.metadata) for f in found] == [(f.name, f.dataType, f.metadata) for f in native]


def test_a_spark_query_with_expressions_goes_on(feed: Any, tmp_path: pathlib.Path) -> None:
    aggregates = [F.avg("v") - F.count("*"), F.max("s"), F.sum("d") / F.count("*"), F.concat("k", F.min("s"))]
    source = feed(SCHEMA, *RUNS[0])
    run(source.stream().groupBy("k").agg(*aggregates), tmp_path / "moved")
    source.add(RUNS[1][0])
    expected = run(source.stream().groupBy("k").agg(*aggregates), tmp_path / "moved").batches[2]
    later = feed(SCHEMA, RUNS[1][0], name="later")
    old = fc.spark.import_state(tmp_path / "moved", batch=1)
    ours = grouped(later.stream(), "k", state=str(tmp_path / "state")).agg(*aggregates, initial_state=old)
    assert rows_of(run(ours, tmp_path / "ours").batches[0]) == rows_of(expected)


REFUSED: dict[str, Callable[[], Any]] = {
    "a column": lambda: F.sum("v") + F.col("v"),
    "an SQL text": lambda: F.expr("sum(v)") + 1,
    "another aggregate": lambda: F.regr_slope("v", "v") + F.count("*"),
    "another aggregate of a constant": lambda: F.hll_sketch_estimate(F.hll_sketch_agg(F.lit(1))) + F.count("*"),
    "a window": lambda: F.sum("v").over(Window.partitionBy("k")) + F.sum("v"),
    "distinct values": lambda: F.count_distinct("v") + 1,
    "a function of the user": lambda: F.udf(lambda x: x, "int")(F.max("v")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_refused(spark: Any, tmp_path: pathlib.Path, what: str) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    column = REFUSED[what]()
    with pytest.raises(fc.InvalidArgumentError, match="supported are") as error:
        grouped(frame, "k", state=str(tmp_path)).agg(column)
    assert what == "distinct values" or str(column)[len("Column<'") : -2] in str(error.value)


def test_aggregates_in_aggregates_are_refused_by_spark(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    with pytest.raises(AnalysisException, match="NESTED_AGGREGATE_FUNCTION"):
        grouped(frame, "k", state=str(tmp_path)).agg(F.sum(F.max("v")) + 1)


def test_a_restart_with_other_aggregates_is_refused(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, *RUNS[0])
    state = str(tmp_path / "state")
    run(grouped(source.stream(), "k", state=state).agg(F.sum("v") / F.count("*")), tmp_path / "checkpoint")
    source.add(RUNS[1][0])
    # The same aggregates in another expression are the same state.
    other = grouped(source.stream(), "k", state=state).agg(F.count("*") * 2 - F.sum("v"), F.sum("v").alias("total"))
    (rows,) = run(other, tmp_path / "checkpoint").batches.values()
    assert rows_of(rows) == [("a", 10 - 16, 16), ("c", 0, 2)]
    source.add(RUNS[1][1])
    wrong = grouped(source.stream(), "k", state=state).agg(F.max("v") / F.count("*"))
    with pytest.raises(Exception, match=r"`sum\(v\)` was removed"):
        run(wrong, tmp_path / "checkpoint")
