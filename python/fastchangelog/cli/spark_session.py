"""A Spark session for a command.

Owns: using the active one, or starting one whose start-up messages are shown only if it fails.
Does not own: its use.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from fastchangelog.errors import FastChangelogError
from fastchangelog.hidden import Hidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["on_demand"]


_LOG_LEVEL = "spark.log.level"
_NOISE = re.compile(r"^(at |\.\.\. |WARNING:|Setting default log|Using Spark's|To adjust)| (WARN|INFO) ")


@contextmanager
def on_demand(
    conf: Hidden[Mapping[str, str]], command: str, status: Callable[[str], object] | None = None
) -> Iterator[Callable[[], SparkSession]]:
    """Yields a function that returns the active session, or starts one with `conf` when it is first called. A session
    that was started is stopped at the end.

    `status` is called with the name of a long step, and with "" when it has ended.
    """
    started: list[SparkSession] = []
    report = status or (lambda text: None)

    def session() -> SparkSession:
        report("Spark starts and reads the checkpoint …")
        spark, ours = _spark(conf, command)
        started.extend([spark] if ours else [])
        return spark

    try:
        yield session
    finally:
        try:
            for spark in started:
                spark.stop()
        finally:
            report("")


def _spark(conf: Hidden[Mapping[str, str]], command: str) -> tuple[SparkSession, bool]:
    """A session, and whether it was started here."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active(), False
    except PySparkRuntimeError:
        pass  # there is none
    settings = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    named = SparkSession.builder.appName(f"fastchangelog {command}")
    builder = named.config(map={**settings, **conf.show()})
    has_level = _LOG_LEVEL in conf.show()
    with contextlib.nullcontext() if has_level else _captured_stderr() as log:
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            why = " ".join(str(error).split())
            raise FastChangelogError(
                f"Spark does not start here: {why}{_reason(log)}; `fastchangelog doctor` says more"
            ) from None
    if not has_level:
        spark.sparkContext.setLogLevel("OFF")  # the command itself reports what cannot be read
    return spark, True


@contextmanager
def _captured_stderr() -> Iterator[IO[bytes] | None]:
    """Redirects standard error of this process, and of those that it starts meanwhile, to an unnamed file.

    The launcher and the JVM write a dozen lines before any log level applies, some of them without a logger.
    """
    sys.stderr.flush()
    try:
        terminal = os.dup(2)
    except OSError:  # there is no standard error
        yield None
        return
    try:
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)
            try:
                yield log
            finally:
                sys.stderr.flush()
                os.dup2(terminal, 2)
    finally:
        os.close(terminal)


def _reason(log: IO[bytes] | None) -> str:
    """The start-up messages without warnings and stacks, in one line."""
    if log is None:
        return ""
    log.seek(0)
    lines = [line.strip() for line in log.read(1 << 20).decode(errors="replace").splitlines()]
    telling = [line for line in lines if line and not _NOISE.search(line)]
    return f" ({'; '.join(telling[:3])[:400]})" if telling else ""
