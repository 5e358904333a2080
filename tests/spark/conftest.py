"""One Spark session for all tests of this folder, and fixtures around it.

Owns: the session, settings that end with a test, the seed and the end of jobs that are killed. Does not own: the
harness (`stream_harness`), such jobs (`support.kills`).
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import fastchangelog
from support.spark import quick_spark
from support.spark.stream_harness import Feed

# Spark's workers must find the same package and the same interpreter as this process.
_ROOT = str(pathlib.Path(fastchangelog.__file__).parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = (
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
    )
    for name, value in quick_spark.settings().items():
        builder = builder.config(name, value)
    quick_spark.remember_names()
    with quick_spark.python(tmp_path_factory) as python:
        session = builder.getOrCreate()
        session.sparkContext.pythonExec = python
        session.sparkContext.setLogLevel("OFF")
        jvm = session.sparkContext._gateway.proc
        yield session
        if jvm.poll() is None:
            session.stop()
        else:  # a test that needed it has failed; else it ended after the last one
            warnings.warn(f"Spark's JVM has ended by itself, with code {jvm.returncode}", stacklevel=1)


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


@pytest.fixture
def feed(spark: Any, tmp_path: pathlib.Path) -> Callable[..., Feed]:
    def make(schema: Any, *batches: Sequence[Any], name: str = "in") -> Feed:
        out = Feed(spark, tmp_path / name, schema)
        for rows in batches:
            out.add(rows)
        return out

    return make


@pytest.fixture
def only_spark_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are in a file system that the core does not reach."""
    from fastchangelog.checkpoints import handles

    monkeypatch.setattr(handles, "core_uri", lambda *_, **__: None)


@pytest.fixture
def seed() -> int:
    """Of all that a test draws; a failed test shows it."""
    chosen = int(os.environ.get("FASTCHANGELOG_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FASTCHANGELOG_SEED={chosen}")
    return chosen


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Callable[..., Any]]:
    """Starts jobs in processes of their own, which a test may kill."""
    from support.kills.run import KillRun

    runs: list[KillRun] = []
    # A short path: the socket of a state server is put elsewhere, and its log with it, when its path is too long.
    folder = tmp_path_factory.mktemp("run")

    def make(**settings: Any) -> KillRun:
        runs.append(KillRun(folder / f"r{len(runs)}", seed, **settings))
        runs[-1].start()
        return runs[-1]

    yield make
    for run in runs:
        run.end()
