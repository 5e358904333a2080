"""How the session of the tests spends little on batches with a handful of rows.

Measured on the comparisons of a few rows: a third of the JVM's time went into generating code that runs once, and each
batch forked `readlink` 42 times and `chmod` 11 times, for checkpoint files that Spark renames on the local disk.

Jobs that are killed generate no code either: each of their JVMs would do it again. They manage their checkpoint files
as Spark does by default, since that is what a kill may hit.

Owns: the settings, a memory for the names that py4j looks up, the choice of what is forked. Does not own: the session
(conftest.py), the forks (`warm_pyspark`), the JVM's own options (tests/conftest.py), jobs that are killed
(`support.kills`).

With FASTCHANGELOG_SPARK_DEFAULTS=1, as in `make test-matrix`, all have Spark's defaults.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView

from support.warm_pyspark import forks

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

#: Expressions are interpreted.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

SETTINGS = {
    **INTERPRETED,
    # Files are renamed through Hadoop's FileSystem, which asks for no links; FileContext does by a process each time.
    "spark.sql.streaming.checkpointFileManagerClass": _FILES,
}


def are_defaults() -> bool:
    """True if the session must run as users run it."""
    return os.environ.get("FASTCHANGELOG_SPARK_DEFAULTS") == "1"


def settings() -> dict[str, str]:
    """The settings of the session beside those that the tests are about."""
    return {} if are_defaults() else SETTINGS


def job_settings() -> dict[str, str]:
    """The settings of a job that is killed beside those that its test is about."""
    return {} if are_defaults() else INTERPRETED


@contextlib.contextmanager
def python(folders: pytest.TempPathFactory) -> Iterator[str]:
    """The program that Spark takes for Python, while the block runs."""
    if are_defaults():
        yield sys.executable
        return
    with forks.interpreter(folders.mktemp("python")) as program:
        yield program


def remember_names() -> None:
    """From here on each name of the JVM is looked up once, in this process. py4j has 250 jars searched every time."""
    if are_defaults():
        return
    for view in (JVMView, JavaPackage):
        look_up = view.__getattr__

        def remembered(self: Any, name: str, look_up: Any = look_up) -> Any:
            names = vars(vars(self)["_gateway_client"]).setdefault("_names", {})
            key = (vars(self).get("_fqn"), name)
            if key not in names:
                found = look_up(self, name)
                if not isinstance(found, (JavaClass, JavaPackage)):
                    return found
                names[key] = found
            return names[key]

        view.__getattr__ = remembered
