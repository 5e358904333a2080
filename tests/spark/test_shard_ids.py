"""Shard ids: Spark's hash in Python, and one id per partition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastchangelog.spark.shard_ids import shard_ids, shard_of_id, spark_hash

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@given(st.integers(1, 300))
def test_each_partition_gets_exactly_one_shard(partitions: int) -> None:
    ids = shard_ids(partitions)
    assert [spark_hash(i) % partitions for i in ids] == list(range(partitions))
    assert [shard_of_id(i, partitions) for i in ids] == list(range(partitions))


def test_the_hash_is_sparks(spark: Any) -> None:
    from pyspark.sql import functions as F

    edges = [0, 1, -1, 2**31 - 1, -(2**31), 0x5A5A5A5A]
    rows = (
        spark.createDataFrame([(i,) for i in [*edges, *range(-500, 500)]], "i int").select("i", F.hash("i")).collect()
    )
    assert all(spark_hash(r[0]) == r[1] for r in rows)
