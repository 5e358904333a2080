"""Averages and sums of decimals of every precision and scale equal Spark's own, digit by digit."""

from __future__ import annotations

import decimal
import pathlib
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import functions as F

from fastchangelog.spark import grouped

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

GROUPS, ROWS = 500, 2_600
WIDE = decimal.Context(prec=80)

#: Every scale where it can matter, and some of each precision.
TYPES: dict[str, list[tuple[int, int]]] = {
    "up to 11 digits": [(p, s) for p in range(1, 12) for s in sorted({0, p // 2, p})] + [(11, s) for s in range(12)],
    "12 to 27 digits": [(p, s) for p in range(12, 28) for s in sorted({0, 2, p // 2, p})],
    "28 to 37 digits": [(p, s) for p in range(28, 38) for s in sorted({0, 2, p // 2, p - 4, p - 2, p})],
    "38 digits": [(38, s) for s in range(39)],
}


def _decimals(rng: random.Random, precision: int, scale: int) -> pa.Array:
    """Values of any length; few of the longest, so that some sums overflow and most do not."""

    def unscaled() -> int:
        digits = precision - (2 if precision == 38 and rng.random() < 0.98 else 0)
        if rng.random() < 0.3:
            digits = rng.randint(0, precision)
        return rng.randint(-(10**digits) + 1, 10**digits - 1)

    values = [None if rng.random() < 0.05 else WIDE.scaleb(decimal.Decimal(unscaled()), -scale) for _ in range(ROWS)]
    return pa.array(values, pa.decimal128(precision, scale))


@pytest.mark.parametrize("types", TYPES)
def test_averages_and_sums_are_sparks(spark: Any, conf: Any, tmp_path: pathlib.Path, types: str) -> None:
    conf("spark.sql.ansi.enabled", "false")  # an overflow is null, in both
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    names = {f"c{i}": t for i, t in enumerate(sorted(set(TYPES[types])))}
    columns = {name: _decimals(rng, *t) for name, t in names.items()}
    keys = pa.array([min(rng.randrange(GROUPS), rng.randrange(GROUPS)) for _ in range(ROWS)], pa.int32())
    # One file: the order in which a group's values are added is the same in both, and so is which sum overflows.
    parquet.write_table(pa.table({"k": keys, **columns}), tmp_path / "in.parquet")
    frame = spark.read.parquet(str(tmp_path / "in.parquet")).coalesce(1)
    aggregates = [f(name).alias(f"{f.__name__}_{name}") for name in names for f in (F.avg, F.sum)]
    aggregates += [F.avg(F.when(F.col("k") % 3 > 0, F.col(name))).alias(f"some_{name}") for name in list(names)[::7]]
    ours = grouped(frame, "k", state=str(tmp_path / "state")).agg(*aggregates)
    sparks = frame.groupBy("k").agg(*aggregates)
    assert ours.schema == sparks.schema

    def texts(df: Any) -> dict[int, Any]:
        shown = [F.col(c).cast("string").alias(c) for c in df.columns[1:]]
        return {row[0]: row[1:] for row in df.select("k", *shown).collect()}

    found, expected = texts(ours), texts(sparks)
    assert found.keys() == expected.keys()
    assert len(expected) > GROUPS // 2
    wrong: dict[str, list[Any]] = {}
    for key, row in expected.items():
        for column, a, b in zip(ours.columns[1:], found[key], row, strict=True):
            if a != b:
                wrong.setdefault(f"{column} {names[column.split('_')[1]]}", []).append((key, a, b))
    assert not wrong, f"seed {seed}: {[(c, len(v), v[0]) for c, v in wrong.items()]}"
    assert any(value is None for row in expected.values() for value in row)
