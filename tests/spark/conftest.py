"""One Spark session for all tests of this folder, and a harness that streams the same batches through two plans.

Owns: the session, the harness. Does not own: what is compared (the tests).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import fastchangelog

# Spark's workers must find the same package and the same interpreter as this process.
_ROOT = str(pathlib.Path(fastchangelog.__file__).parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

STORE = "spark.sql.streaming.stateStore."
PROVIDER = STORE + "providerClass"
FORMAT = STORE + "checkpointFormatVersion"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("fastchangelog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.streaming.numRecentProgressUpdates", "50")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def conf(spark: Any) -> Iterator[Callable[[str, str | None], None]]:
    """Sets (or with None unsets) a Spark setting until the test ends."""
    before: dict[str, str | None] = {}

    def set_(key: str, value: str | None) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)

    yield set_
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@dataclasses.dataclass
class Feed:
    """A folder that a stream reads, one file per batch."""

    spark: Any
    folder: pathlib.Path
    schema: Any
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def add(self, rows: Sequence[Any]) -> None:
        number = next(self.numbers)
        target = self.folder / f"{number:04d}"
        self.spark.createDataFrame(list(rows), self.schema).coalesce(1).write.parquet(str(target))
        for part in target.glob("*.parquet"):  # files are taken by age: make it certain
            os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))

    def stream(self) -> Any:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "*"))


@pytest.fixture
def feed(spark: Any, tmp_path: pathlib.Path) -> Callable[..., Feed]:
    def make(schema: Any, *batches: Sequence[Any], name: str = "in") -> Feed:
        out = Feed(spark, tmp_path / name, schema)
        for rows in batches:
            out.add(rows)
        return out

    return make


@dataclasses.dataclass
class Ran:
    """What a query answered: rows by batch id, and its progress objects."""

    batches: dict[int, list[Any]]
    progress: list[Any]


def run(df: Any, checkpoint: pathlib.Path, sink: Callable[[Any, int], Any] | None = None) -> Ran:
    """Runs `df` over everything there is, in update mode, and collects each batch (or hands it to `sink`)."""
    got: dict[int, list[Any]] = {}

    def take(batch: Any, number: int) -> None:
        got[number] = batch.collect() if sink is None else sink(batch, number)

    query = (
        df.writeStream.foreachBatch(take)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(180)
        assert not query.isActive, "the query did not end"
    finally:
        query.stop()
    return Ran(got, list(query.recentProgress))


def canonical(value: Any) -> Any:
    """A value that compares equal where Spark says equal: NaN to NaN, bytes to bytearrays, dicts to any order."""
    if isinstance(value, float):
        return "NaN" if value != value else value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return ("map", frozenset((canonical(k), canonical(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(canonical(v) for v in value)
    return value


def rows_of(rows: Sequence[Any]) -> list[Any]:
    """Rows in an order of their own, comparable."""
    return sorted((canonical(tuple(r)) for r in rows), key=repr)
