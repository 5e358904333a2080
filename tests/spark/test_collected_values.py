"""Lists, sets and joined texts equal Spark's own, batch by batch, with a restart between: their values and their order.

Each batch is one file and one task, so that rows arrive in the order of the file.
Owns: `collect_list`, `collect_set`, `listagg`, and windows of them and of percentiles. Does not own: other functions
(`test_functions_equal_to_spark`).
"""

from __future__ import annotations

import datetime as dt
import pathlib
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.spark import grouped
from support.spark.beside_spark import FLAT, NESTED, both, drawn
from support.spark.lacks import needs
from support.spark.stream_harness import canonical, end_state_server, needs_readable_checkpoints, rows_of, run
from support.spark.values import UTC, D

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FLOATS = ["float", "double"]
EXACT = [t for t in FLAT if t not in FLOATS]


@pytest.mark.parametrize("types", [FLAT, NESTED], ids=["flat", "nested"])
def test_lists_of_every_type(feed: Any, tmp_path: pathlib.Path, types: list[str]) -> None:
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [F.collect_list(f"c{i}") for i in range(len(types))]
    aggregates += [F.array_agg("c0"), F.size(F.collect_list("c1")).alias("n")]
    ours, sparks = both(feed, tmp_path, schema, drawn(1, types), lambda df, group: group(df, "k").agg(*aggregates))
    assert ours == sparks
    assert len(ours) == 3
    stream = feed(schema, name="schemas").stream()
    found = grouped(stream, "k", state=str(tmp_path / "state")).agg(*aggregates)
    assert (found.columns, found.dtypes) == (lambda df: (df.columns, df.dtypes))(stream.groupBy("k").agg(*aggregates))


@pytest.mark.parametrize("types", [EXACT, pytest.param(FLOATS, marks=needs("sets of floats"))], ids=["exact", "floats"])
def test_sets_of_flat_types_have_sparks_order(feed: Any, tmp_path: pathlib.Path, types: list[str]) -> None:
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [F.collect_set(f"c{i}") for i in range(len(types))]
    ours, sparks = both(feed, tmp_path, schema, drawn(2, types), lambda df, group: group(df, "k").agg(*aggregates))
    assert ours == sparks


@needs("sets of floats")
def test_sets_of_many_values_have_sparks_order(feed: Any, tmp_path: pathlib.Path) -> None:
    rng = random.Random(3)

    def row() -> tuple[Any, ...]:
        digits = rng.choice([10**4, 10**12, 10**18, 10**38])
        wide = D(rng.randrange(-digits + 1, digits)).scaleb(-10)
        narrow = rng.choice([wide.quantize(D(1)), wide.quantize(D("0.01"))]) if digits <= 10**18 else D(0)
        return (
            rng.choice("ab"),
            rng.randrange(-(2**31), 2**31),
            rng.choice([rng.randrange(-(2**63), 2**63), rng.randrange(-99, 99)]),
            rng.choice([rng.uniform(-9, 9), float(rng.randrange(99))]),
            rng.choice([wide, narrow]),
            "".join(rng.choice("xyzäé😀") for _ in range(rng.randrange(9))),
            rng.randbytes(rng.randrange(80)),
        )

    runs = [[[row() for _ in range(size)] for size in sizes] for sizes in ((5, 3, 4, 12), (300, 40))]
    schema = "k string, i int, l bigint, d double, p decimal(38,10), s string, b binary"
    aggregates = [F.collect_set(name) for name in "ildpsb"]
    ours, sparks = both(feed, tmp_path, schema, runs, lambda df, group: group(df, "k").agg(*aggregates))
    assert ours == sparks
    assert max(len(values) for rows in ours.values() for row in rows for values in row[1:]) > 150


@needs("sets of floats")
def test_sets_of_nested_types_have_sparks_values(feed: Any, tmp_path: pathlib.Path) -> None:
    types = [t for t in NESTED if "map" not in t]  # of which Spark makes no set
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [F.collect_set(f"c{i}") for i in range(len(types))]
    ours, sparks = both(feed, tmp_path, schema, drawn(4, types), lambda df, group: group(df, "k").agg(*aggregates))

    def values(batches: dict[int, list[Any]]) -> Any:
        return {
            number: [(row[0], *(sorted(column, key=repr) for column in row[1:])) for row in rows]
            for number, rows in batches.items()
        }

    by_key = [{n: sorted(rows, key=lambda row: repr(row[0])) for n, rows in found.items()} for found in (ours, sparks)]
    assert values(by_key[0]) == values(by_key[1])


def test_joined_texts(feed: Any, tmp_path: pathlib.Path) -> None:
    types = ["string", "binary", "int"]
    aggregates = [
        F.listagg("c0"),
        F.listagg("c0", ", "),
        F.string_agg("c0", F.lit("")).alias("s"),
        F.listagg("c1", b"\x00-").alias("b"),
        F.listagg(F.col("c2").cast("string"), "|").alias("i"),
        F.upper(F.listagg("c0", "-")),
    ]
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    ours, sparks = both(feed, tmp_path, schema, drawn(5, types), lambda df, group: group(df, "k").agg(*aggregates))
    assert ours == sparks
    stream = feed(schema, name="schemas").stream()
    found = grouped(stream, "k", state=str(tmp_path / "state")).agg(*aggregates)
    assert found.schema == stream.groupBy("k").agg(*aggregates).schema


WINDOWED: dict[str, Callable[[], list[Any]]] = {
    "row by row": lambda: [F.collect_list("v"), F.collect_set("v"), F.listagg(F.col("v").cast("string"), ",")],
    "in panes": lambda: [F.median("v"), F.percentile("v", [0.1, 0.9]), F.count("*")],
}


@pytest.mark.parametrize("how", ["row by row", pytest.param("in panes", marks=needs("percentiles"))])
def test_windows_collect_values(feed: Any, tmp_path: pathlib.Path, how: str) -> None:
    noon = dt.datetime(2024, 3, 10, 12, tzinfo=UTC)
    rng = random.Random(6)

    def batch(start: int) -> list[Any]:
        return [(rng.choice("ab"), noon + dt.timedelta(seconds=start + rng.randrange(20)), i) for i in range(12)]

    def plan(df: Any, group: Callable[..., Any]) -> Any:
        window = F.window("ts", "10 seconds", "5 seconds")
        return group(df.withWatermark("ts", "5 seconds"), window, "k", output_mode="append").agg(*WINDOWED[how]())

    runs = [[batch(0), batch(10)], [batch(30), [("a", noon + dt.timedelta(hours=1), 1)]]]
    ours, sparks = both(feed, tmp_path, "k string, ts timestamp, v int", runs, plan)
    assert ours == sparks
    assert ours


def test_a_restored_state_goes_on(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed("k string, v string", [("a", "x"), ("b", None), ("a", "y")])
    aggregates = [
        fc.collect_list("v", where="v <> 'y'").alias("list"),
        fc.collect_set("v").alias("set"),
        fc.listagg("v").alias("text"),
    ]

    def ours() -> Any:
        return grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(*aggregates)

    (first,) = run(ours(), tmp_path / "checkpoint").batches.values()
    assert rows_of(first) == [("a", ("x",), ("x", "y"), "xy"), ("b", (), (), None)]
    end_state_server(spark)
    source.add([("a", "z"), ("a", "x"), ("b", "w")])
    (second,) = run(ours(), tmp_path / "checkpoint").batches.values()
    assert [(r[0], r[1], sorted(r[2]), r[3]) for r in rows_of(second)] == [
        ("a", ("x", "z", "x"), ["x", "y", "z"], "xyzx"),
        ("b", ("w",), ["w"], "w"),
    ]


def test_a_batch_frame_and_results_as_initial_state(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", None), ("b", None), ("a", 2), ("a", 1)], "k string, v int").coalesce(
        1
    )
    aggregates = [F.collect_list("v").alias("list"), F.collect_set("v").alias("set")]
    result = grouped(frame, "k", state=str(tmp_path / "batch")).agg(*aggregates)
    assert result.schema == frame.groupBy("k").agg(*aggregates).schema
    assert rows_of(result.collect()) == rows_of(frame.groupBy("k").agg(*aggregates).collect())
    later = feed("k string, v int", [("a", 3), ("b", 4), ("a", 2)])
    ours = grouped(later.stream(), "k", state=str(tmp_path / "state")).agg(*aggregates, initial_state=result)
    (rows,) = run(ours, tmp_path / "checkpoint").batches.values()
    assert canonical([(r[0], r[1], sorted(r[2])) for r in sorted(rows)]) == (
        ("a", (1, 2, 1, 3, 2), (1, 2, 3)),
        ("b", (4,), (4,)),
    )


def moved(
    feed: Any,
    folder: pathlib.Path,
    schema: str,
    batches: list[list[Any]],
    aggregates: list[Any],
    built: list[Any] | None = None,
) -> None:
    """The last batch of Spark's query equals the first one of ours, which takes over its state."""
    source = feed(schema, *batches[:-1], name="old")
    run(source.stream().groupBy("k").agg(*aggregates), folder / "moved")
    later = feed(schema, batches[-1], name="later")
    ours = grouped(later.stream(), "k", state=str(folder / "state")).agg(
        *(built or aggregates), initial_state=fc.spark.import_state(folder / "moved")
    )
    (found,) = run(ours, folder / "ours").batches.values()
    source.add(batches[-1])
    expected = run(source.stream().groupBy("k").agg(*aggregates), folder / "moved").batches
    assert rows_of(found) == rows_of(expected[max(expected)])


@needs_readable_checkpoints
def test_sparks_own_state_of_lists_and_counts_goes_on(feed: Any, tmp_path: pathlib.Path) -> None:
    types = [t for t in FLAT if t not in FLOATS]
    schema = "k string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [f(f"c{i}") for i in range(len(types)) for f in (F.collect_list, F.collect_set)]
    aggregates += [F.approx_count_distinct(f"c{i}", rsd) for i in range(len(types)) for rsd in (0.05, 0.3)]
    aggregates += [F.listagg(f"c{types.index('string')}"), F.sum("c3").alias("s"), F.median("c3"), F.median("c4")]
    aggregates += [F.median(f"c{types.index('decimal(20,5)')}"), F.histogram_numeric("c3", F.lit(3))]
    moved(feed, tmp_path, schema, [batch for batches in drawn(7, types) for batch in batches], aggregates)


@needs_readable_checkpoints
@needs("sets of floats")
def test_sparks_own_state_of_floats_and_nested_values_goes_on(feed: Any, tmp_path: pathlib.Path) -> None:
    types = [*FLOATS, *NESTED]
    schema = "k string, often string, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    aggregates = [F.collect_list(f"c{i}") for i in range(len(types))] + [F.median("c1")]
    aggregates += [F.collect_set("c0"), F.collect_set("c1"), F.count("*")]
    batches = [
        [(row[0], "often" if i % 3 else "rarely", *row[1:]) for i, row in enumerate(batch)]
        for batches in drawn(8, types)
        for batch in batches
    ]
    moved(feed, tmp_path, schema, batches, [*aggregates, F.mode("often")], [*aggregates, fc.mode("often")])


REFUSED: dict[str, Callable[[], Any]] = {
    "percentile(v, 0.5, 1)": lambda: F.percentile("v", 0.5),
    "percentile_approx(v, 0.5, 10000)": lambda: F.percentile_approx("v", 0.5),
    "listagg(": lambda: F.listagg(F.col("v").cast("string"), "-"),
    "mode(": lambda: F.mode("v", deterministic=True),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_state_without_the_constants_is_refused(feed: Any, tmp_path: pathlib.Path, text: str) -> None:
    source = feed("k string, v int", [("a", 1)])
    run(source.stream().groupBy("k").agg(REFUSED[text]()), tmp_path / "sparks")
    old = fc.spark.import_state(tmp_path / "sparks")
    with pytest.raises(fc.InvalidArgumentError, match=re.escape(text) + ".* cannot be imported: the constants of"):
        grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(REFUSED[text](), initial_state=old)
