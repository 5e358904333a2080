"""Vectorised processors give what the same logic gives as a row processor of Spark's own operator.

Owns: equality over random batches with restarts, batch DataFrames, errors in user code.
Does not own: the parts without Spark (`tests/test_vectorised.py`).
"""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from processor_harness import by_value, finish, sides, start
from pyspark.sql import Row
from stream_harness import rows_of, skip_without_rows

import fastchangelog as fc
from fastchangelog.spark import grouped

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
by_value(__name__)

SCHEMA = "k string, j int, v long"
OUTPUT = "k string, j int, n long, total long"


class Totals(fc.Processor):
    """Counts and sums the values of each key; forgets a key whose sum is above 100; refuses 666."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n long, total long")

    def process(self, batch: Any) -> Any:
        values = np.asarray(batch.rows["v"].fill_null(0))
        if 666 in values:
            raise RuntimeError("this value is refused")
        old = self.seen.get(batch.keys)
        offsets = np.asarray(batch.offsets)
        n = pc.add(pc.fill_null(pc.struct_field(old, "n"), 0), pa.array(np.diff(offsets)))
        total = pc.add(pc.fill_null(pc.struct_field(old, "total"), 0), pa.array(np.add.reduceat(values, offsets[:-1])))
        gone = pc.greater(total, 100)
        self.seen.put(batch.keys, pa.StructArray.from_arrays([n, total], ["n", "total"], mask=gone))
        yield pa.RecordBatch.from_arrays(
            [batch.keys.field("k"), batch.keys.field("j"), n, total], ["k", "j", "n", "total"]
        )


def row_totals() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class RowTotals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "n long, total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            n, total = self.seen.get() or (0, 0)
            for row in rows:
                n, total = n + 1, total + (row.v or 0)
            if total > 100:
                self.seen.clear()
            else:
                self.seen.update((n, total))
            yield Row(k=key[0], j=key[1], n=n, total=total)

        def close(self) -> None:
            pass

    return RowTotals()


def batches(seed: int) -> list[list[tuple[Any, ...]]]:
    rng = random.Random(seed)
    keys = [(k, j) for k in ("a", "b", "é", "", None) for j in (1, None)]
    return [[(*rng.choice(keys), rng.choice([None, *range(30)])) for _ in range(40)] for _ in range(2)]


def test_equal_to_the_row_processor_with_restarts(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    skip_without_rows()
    _, sparks = sides(spark, tmp_path)
    source, got, wanted = feed(SCHEMA), {}, {}
    for rows in batches(82):
        source.add(rows)
        ours = grouped(source.stream(), "k", "j", state=str(tmp_path / "state"))
        finish(start(ours.transformWithStateInArrow(Totals(), OUTPUT), tmp_path / "ours", got))
        theirs = source.stream().groupBy("k", "j").transformWithState(row_totals(), OUTPUT, "Update", "None")
        finish(start(theirs, sparks.checkpoint, wanted))
    assert {n: rows_of(r) for n, r in got.items()} == {n: rows_of(r) for n, r in wanted.items()}
    assert any(got.values())


def test_an_exception_keeps_nothing(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source, got = feed(SCHEMA), {}
    source.add([("a", 1, 5)])

    def run() -> None:
        ours = grouped(source.stream(), "k", "j", state=str(tmp_path / "state"))
        finish(start(ours.transformWithStateInArrow(Forgiving(), OUTPUT), tmp_path / "ours", got))

    class Forgiving(Totals):
        refuses = False

        def process(self, batch: Any) -> Any:
            yield from super().process(batch)
            if self.refuses:
                raise RuntimeError("this batch is refused")

    run()
    source.add([("a", 1, 7)])
    Forgiving.refuses = True
    with pytest.raises(Exception, match="this batch is refused"):
        run()
    Forgiving.refuses = False
    run()
    assert [tuple(row) for row in got[1]] == [("a", 1, 2, 12)]


def test_a_batch_frame(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.createDataFrame([("a", 1, 5), ("a", 1, 7), (None, None, 1)], SCHEMA)
    answered = grouped(frame, "k", "j", state=str(tmp_path)).transformWithStateInArrow(Totals(), OUTPUT)
    assert {tuple(row) for row in answered.collect()} == {("a", 1, 2, 12), (None, None, 1, 1)}
    empty = grouped(frame.where("v > 100"), "k", state=str(tmp_path))
    assert empty.transformWithStateInArrow(Totals(), OUTPUT).collect() == []
