"""The check that the Python workers of a Spark Connect server have this package.

Owns: one tiny job for each session of Spark Connect, and the error that says what to set.
Does not own: the choice of an interpreter in local mode (`internals`), other requirements (`requirements`).

A worker without the package cannot unpickle what runs in it: the query would end with a `ModuleNotFoundError` and
without a remedy, since no code of this package runs there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import internals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check"]

#: The ids of sessions whose workers have the package.
_checked: set[str] = set()
_lock = threading.Lock()


def check(spark: SparkSession) -> None:
    """Refuses a session of Spark Connect whose workers do not have this package; asks once per session."""
    if not internals.is_connect(spark):
        return
    session = internals.session_id(spark)
    with _lock:
        if session in _checked:
            return
    found = spark.range(1).select(F.udf(_probe(), "string", useArrow=False)("id")).first()
    missing = None if found is None else found[0]
    if missing:
        raise InvalidArgumentError(
            f"the Python of the Spark Connect server's workers, {missing}, has no fastchangelog: install it there, "
            'pip install "fastchangelog[spark]", or set PYSPARK_PYTHON where the server is started to an interpreter '
            "that has it"
        )
    with _lock:
        _checked.add(session)


def _probe() -> Callable[[int], str]:
    def interpreter_without_package(_: int) -> str:
        """Pickled by value, since it is no name of this module: a worker without the package can run it."""
        import importlib.util
        import sys

        return "" if importlib.util.find_spec("fastchangelog") else sys.executable

    return interpreter_without_package
