"""Strings that are not UTF-8, such as `cast(value as string)` makes of Kafka's bytes, are bytes, as in Spark.

Each case streams some batches through `grouped().agg()` and through Spark's own `groupBy().agg()`, and compares the
bytes of every result.  Python cannot hold such strings, so Spark shows them as hexadecimal digits.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import functions as F

from fastchangelog import cli
from fastchangelog.spark import grouped
from support.spark.stream_harness import end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: No UTF-8, beside texts that begin alike; their order as bytes is that of no decoded text.
STRINGS = [
    b"",
    b"a",
    b"a\xff",
    b"\xffa",
    b"\xc3",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\x80",
    b"a\x00\xfe",
    b"\xef\xbf\xbd",
    bytes(range(255, 200, -1)),
]

#: How a column of each kind is made of the binary columns `a` and `b`, and how it is shown.
KINDS = {
    "string": ("cast(a as string)", "hex(cast({0} as binary))"),
    "varchar": ("cast(a as varchar(100))", "hex(cast({0} as binary))"),
    "array": ("array(cast(a as string), null, cast(b as string))", "transform({0}, x -> hex(cast(x as binary)))"),
    "struct": (
        "named_struct('s', cast(a as string), 'n', length(b), 't', array(cast(b as string)))",
        "concat_ws('/', hex(cast({0}.s as binary)), {0}.n, hex(cast({0}.t[0] as binary)))",
    ),
    "map": (
        "map(cast(a as string), cast(b as string))",
        "transform(map_entries({0}), e -> concat_ws('/', hex(cast(e.key as binary)), hex(cast(e.value as binary))))",
    ),
}


def _rows(seed: int, batches: int) -> list[list[tuple[Any, ...]]]:
    """One row per key and batch, so that the first and the last are certain; orders are distinct."""
    rng = random.Random(seed)
    orders = iter(rng.sample(range(10_000), 2_000))
    made = []
    for _ in range(batches):
        values = rng.sample(STRINGS, len(STRINGS))
        made.append(
            [(a, STRINGS[::-1][i], v, next(orders)) for i, (a, v) in enumerate(zip(STRINGS, values, strict=True))]
        )
    return made


def _compare(source: Any, tmp_path: pathlib.Path, columns: list[str], aggregates: list[Any], shown: list[str]) -> None:
    """Both plans over the same files; `k` is the key."""

    def rows(name: str, group: Any) -> dict[int, list[Any]]:
        df = group(source.stream().selectExpr(*columns)).agg(*aggregates)
        got = run(df.selectExpr(*shown), tmp_path / name).batches
        return {number: rows_of(batch) for number, batch in got.items()}

    ours = rows("ours", lambda df: grouped(df, "k", state=str(tmp_path / "state")))
    sparks = rows("sparks", lambda df: df.groupBy("k"))
    assert ours == sparks
    assert len(ours) > 1
    assert all(ours.values())


@pytest.mark.parametrize("kind", KINDS)
def test_keys_group_as_bytes(feed: Any, tmp_path: pathlib.Path, kind: str) -> None:
    source = feed("a binary, b binary, v binary, o int", *_rows(1, 2))
    made, shown = KINDS[kind]
    columns = [f"{made} as k", "v", "o"]
    aggregates = [F.count("*").alias("n"), F.sum("o").alias("s")]
    _compare(source, tmp_path, columns, aggregates, [f"{shown.format('k')} as k", "n", "s"])


@pytest.mark.parametrize("kind", KINDS)
def test_values_come_back_as_bytes(feed: Any, tmp_path: pathlib.Path, kind: str) -> None:
    made, shown = KINDS[kind]
    rows = [[(v, a, b"%d" % (i % 3), o) for i, (a, _, v, o) in enumerate(batch)] for batch in _rows(2, 3)]
    # Of one key, one row per batch.
    rows = [[row for i, row in enumerate(batch) if i // 3 == n] for n, batch in enumerate(rows)]
    source = feed("a binary, b binary, k binary, o int", *rows)
    aggregates = [F.first("v"), F.last("v"), F.first("v", True), F.max_by("v", "o"), F.min_by("v", "o")]
    if kind != "map":
        aggregates += [F.min("v"), F.max("v")]
    named = [a.alias(f"r{i}") for i, a in enumerate(aggregates)]
    seen = [f"{shown.format(f'r{i}')} as r{i}" for i in range(len(named))]
    _compare(source, tmp_path, ["k", f"{made} as v", "o"], named, ["k", *seen])


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "map"])
def test_values_are_ordered_as_bytes(feed: Any, tmp_path: pathlib.Path, kind: str) -> None:
    made, shown = KINDS[kind]
    # Every pair of strings is compared in one of the groups; within a group no two are equal.
    pairs = [(a, b) for i, a in enumerate(STRINGS) for b in STRINGS[:i]]
    batches = [[(pair[n], b"", n, i) for i, pair in enumerate(pairs)] for n in range(2)]
    source = feed("a binary, b binary, n int, k int", *batches)
    aggregates = [F.min("v").alias("least"), F.max("v").alias("most"), F.max_by("n", "v"), F.min_by("n", "v")]
    named = [*aggregates[:2], aggregates[2].alias("x"), aggregates[3].alias("y")]
    seen = [f"{shown.format(name)} as {name}" for name in ("least", "most")]
    _compare(source, tmp_path, ["k", f"{made} as v", "n"], named, ["k", *seen, "x", "y"])


def test_they_survive_restarts_savepoints_and_exports(
    spark: Any, feed: Any, conf: Any, tmp_path: pathlib.Path, capsys: Any
) -> None:
    schema = "a binary, b binary, v binary, o int"
    batches = _rows(3, 3)
    source = feed(schema, batches[0])
    columns = ["cast(a as string) as k", "cast(v as string) as v"]
    shown = ["hex(cast(k as binary)) k", "n", "hex(cast(m as binary)) m"]
    aggregates = [F.count("*").alias("n"), F.max("v").alias("m")]

    def plan(frame: Any, state: str, **options: str) -> Any:
        made = grouped(frame.selectExpr(*columns), "k", state=str(tmp_path / state), options=options)
        return made.agg(*aggregates).selectExpr(*shown)

    def expected(count: int) -> list[Any]:
        rows = [row for batch in batches[:count] for row in batch]
        frame = spark.createDataFrame(rows, schema).selectExpr(*columns)
        return rows_of(frame.groupBy("k").agg(*aggregates).selectExpr(*shown).collect())

    assert rows_of(run(plan(source.stream(), "state"), tmp_path / "checkpoint").batches[0]) == expected(1)
    end_state_server(spark)
    source.add(batches[1])
    assert rows_of(run(plan(source.stream(), "state"), tmp_path / "checkpoint").batches[1]) == expected(2)

    command = ["savepoint", str(tmp_path / "checkpoint"), "--state", str(tmp_path / "state")]
    assert cli.main([*command, "--to", str(tmp_path / "savepoint"), "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["keys"] == len(STRINGS)
    conf("spark.sql.shuffle.partitions", "3")
    more = feed(schema, batches[2], name="more")
    moved = run(plan(more.stream(), "moved", start_from=str(tmp_path / "savepoint")), tmp_path / "other")
    assert rows_of(moved.batches[0]) == expected(3)

    assert cli.main(["inspect", str(tmp_path / "savepoint")]) == cli.OK
    assert cli.main(["export", str(tmp_path / "savepoint"), "--to", str(tmp_path / "out.parquet")]) == cli.OK
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("key").type == pa.string()
    keys = pa.concat_arrays([chunk.view(pa.binary()) for chunk in table["key"].chunks]).to_pylist()
    assert sorted(keys) == sorted(STRINGS)
    # Spark reads the file as it is.
    read = spark.read.parquet(str(tmp_path / "out.parquet"))
    shown_again = read.toDF("k", *[f"c{i}" for i in range(len(read.columns) - 1)]).selectExpr(
        "hex(cast(k as binary)) k"
    )
    assert {row[0] for row in shown_again.collect()} == {value.hex().upper() for value in STRINGS}
