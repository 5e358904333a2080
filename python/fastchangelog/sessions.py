"""A Spark session for a command.

Owns: taking the one that is there, or starting a quiet one. Does not own: what is done with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastchangelog.errors import FastChangelogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["on_demand"]


@contextmanager
def on_demand(conf: Mapping[str, str], command: str) -> Iterator[Callable[[], SparkSession]]:
    """Gives a function that gives the active session, or starts one with `conf` when it is first called; what was
    started is stopped at the end."""
    started: list[SparkSession] = []

    def session() -> SparkSession:
        spark, ours = _spark(conf, command)
        started.extend([spark] if ours else [])
        return spark

    try:
        yield session
    finally:
        for spark in started:
            spark.stop()


def _spark(conf: Mapping[str, str], command: str) -> tuple[SparkSession, bool]:
    """A session, and whether it was started here."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active(), False
    except PySparkRuntimeError:
        pass  # there is none
    builder = SparkSession.builder.appName(f"fastchangelog {command}")
    settings = {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise FastChangelogError(f"Spark does not start here: {error}; `fastchangelog doctor` says more") from None
    if "spark.log.level" not in conf:
        spark.sparkContext.setLogLevel("OFF")  # what cannot be read is said by the command
    return spark, True
