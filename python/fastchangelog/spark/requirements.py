"""The requirements of the Spark side, checked at import, with a remedy for each one that is missing.

Owns: the list of packages, and the search for Java.
Does not own: what versions of Spark can do (`versions`), Spark's settings (`settings`).
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Mapping

from fastchangelog.spark import versions

__all__ = ["check", "problems"]

_INSTALL = 'pip install "fastchangelog[spark]"'
_PYSPARK = ("pyspark", "pyspark-client", "pyspark-connect")


def check() -> None:
    """Raises ImportError with everything that is missing, and its remedy."""
    found = problems(_version, os.environ, shutil.which)
    if found:
        raise ImportError(f"fastchangelog.spark cannot run here: {'; '.join(found)}")


def problems(
    version: Callable[[str], str | None],
    environ: Mapping[str, str],
    which: Callable[[str], str | None],
) -> list[str]:
    """Everything that is missing, one sentence each; empty if all is well.

    >>> here = {"pyspark": "4.3.0", "pandas": "2.3.3", "pyarrow": "26.0", "protobuf": "7.0"}
    >>> problems(here.get, {}, lambda _: "/java")
    []
    >>> problems({"pyspark": "3.5.1", "pandas": "2.3.3", "pyarrow": "26.0"}.get, {}, lambda _: "/java")
    ['PySpark 3.5.1 is too old, 4.0 is the first with transformWithState: pip install "fastchangelog[spark]"', \
'protobuf is missing, PySpark talks to its state store with it: pip install "fastchangelog[spark]"']
    """
    out = []
    pyspark = next((v for v in map(version, _PYSPARK) if v is not None), None)
    if pyspark is None:
        out.append(f"PySpark is missing: {_INSTALL}")
    elif not versions.SUPPORTED(pyspark):
        first = versions.SUPPORTED
        out.append(f"PySpark {pyspark} is too old, {first} is the first with transformWithState: {_INSTALL}")
    for package, why in (
        ("pandas", "PySpark's stateful operator hands rows over with it"),
        ("pyarrow", "rows travel as Arrow"),
        ("protobuf", "PySpark talks to its state store with it"),
    ):
        if version(package) is None:
            out.append(f"{package} is missing, {why}: {_INSTALL}")
    pandas = version("pandas")
    if pandas is not None and pyspark is not None and versions.needs_older_pandas(pyspark, pandas):
        out.append(f'pandas {pandas} is too new for PySpark {pyspark}: pip install "pandas<3" (or {_INSTALL})')
    if version("pyspark") is not None and not _java(environ, which):
        out.append(
            "Java is missing, Spark runs on it: install Java 17 or 21 (on Debian: apt install openjdk-17-jre-headless) "
            "or point JAVA_HOME at one"
        )
    return out


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java(environ: Mapping[str, str], which: Callable[[str], str | None]) -> bool:
    # No Java is needed here if a JVM started this process, or if Spark runs elsewhere.
    started = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_ENV_LOADED", "PYTHON_WORKER_FACTORY_PORT")
    if any(name in environ for name in started) or any(n.startswith("PYTHON_WORKER_FACTORY") for n in environ):
        return True
    home = environ.get("JAVA_HOME")
    return which("java") is not None or bool(home and os.path.exists(os.path.join(home, "bin", "java")))
