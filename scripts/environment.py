"""The Python side of the set-up: the virtual environment, Spark's classes, and the variables that a command runs with.

Owns: these parts of the cache folder:

    venv-X.Y/       the interpreter, the packages of pyproject.toml with the versions of constraints.txt, this package
                    in place (editable)
    pycache/        bytecode, also of this tree, which stays clean
    uv/             uv's downloads, only while it installs
    spark-X.Y.jsa   Spark's classes as a JVM of that virtual environment keeps them in memory

Does not own: the extension module (setup.py), RocksDB (rocksdb.py), other versions of PySpark (spark_matrix.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cache
import prerequisites
from cache import CACHE, ROOT

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
VENV = CACHE / f"venv-{VERSION}"
PYTHON = VENV / "bin" / "python"
CLASSES = CACHE / f"spark-{VERSION}.jsa"
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT = ROOT / "pyproject.toml"
#: An environment is made again when one of these changes.
SOURCES = (CONSTRAINTS, PYPROJECT, sys.version, sys.base_prefix)


#: Variables that keep bytecode. Without it each worker compiles pandas and pyarrow again: two seconds of CPU.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(CACHE / "pycache")}
#: PySpark from its folder, and not from the archive that Spark puts before it: Python keeps no bytecode of an archive,
#: so each first worker and each driver of a processor would compile PySpark, a second of CPU.
_NO_ARCHIVE = "import sys; sys.path[:] = [path for path in sys.path if not path.endswith('pyspark.zip')]\n"


def pinned(package: str) -> str:
    """The requirement of constraints.txt for a package, such as `uv==0.13.9`."""
    lines = CONSTRAINTS.read_text().splitlines()
    return next(line.split(";")[0].strip() for line in lines if line.lower().startswith(f"{package.lower()}=="))


def make_folder(folder: Path) -> None:
    """An empty virtual environment with uv, unless there is one that works."""
    python = folder / "bin" / "python"
    works = python.exists() and subprocess.run([python, "-m", "uv", "--version"], capture_output=True).returncode == 0
    if works:
        return
    shutil.rmtree(folder, ignore_errors=True)
    cache.run(sys.executable, "-m", "venv", folder)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*map(str, pip), pinned("uv")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        cache.fail(f"set-up failed: pip cannot install {pinned('uv')}; is the package index reachable? {lines[-1]}")
    for packages in folder.glob("lib/python*/site-packages"):
        (packages / "pyspark_in_place.pth").write_text(_NO_ARCHIVE)


def install(*args: str | Path, python: Path = PYTHON, constraints: Path = CONSTRAINTS) -> list[str]:
    """The command that installs packages into an environment with uv, bound to constraints."""
    uv = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--constraints", constraints]
    return [str(part) for part in (*uv, *args)]


#: uv downloads into the cache folder, so that it can make hard links from there instead of copies. It tries again by
#: itself; a slow network needs more than its 30 s.
UV = {"UV_CACHE_DIR": str(CACHE / "uv"), "UV_HTTP_TIMEOUT": "180", "UV_NO_PROGRESS": "1"}


def is_ready() -> bool:
    """True when the virtual environment has all packages."""
    return PYTHON.exists() and cache.is_fresh(VENV.name, cache.fingerprint(*SOURCES))


#: The packages of pyproject.toml that tests, tools and Spark need.
ALL = ("-r", PYPROJECT, "--extra", "spark", "--extra", "dev")


def start_packages() -> subprocess.Popen[bytes]:
    """Begins to install all packages, PySpark among them, into the folder of `make_folder`."""
    return cache.start(*install(*ALL), env=UV)


def finish_packages(packages: subprocess.Popen[bytes]) -> None:
    """Waits for `start_packages`. The downloads are removed: they would take as much room as the environment."""
    cache.finish(packages)
    shutil.rmtree(CACHE / "uv", ignore_errors=True)
    cache.set_stamp(VENV.name, cache.fingerprint(*SOURCES))


def install_all(python: Path, constraints: Path) -> None:
    """Installs all packages into another environment of `make_folder`, with versions of its own."""
    cache.run(*install(*ALL, python=python, constraints=constraints), env=UV)
    shutil.rmtree(CACHE / "uv", ignore_errors=True)


def spark_jars() -> Path | None:
    """The folder of the jars that PySpark brings; None before it is installed."""
    return next(VENV.glob("lib/python*/site-packages/pyspark/jars"), None)


def make_classes() -> None:
    """An archive of Spark's classes: a JVM that maps it needs 4 s and not 10 until its first query has run.

    The JVM of an example writes it. A JVM that has other jars or is another Java goes without it.
    """
    java = Path(str(prerequisites.java())).resolve()
    jars = str(spark_jars())
    key = cache.fingerprint(*SOURCES, *((str(part), Path(part).stat().st_mtime_ns) for part in (jars, java)))
    if cache.is_fresh(CLASSES.name, key):
        return
    with cache.step("archive of Spark's classes"):
        CLASSES.unlink(missing_ok=True)
        example = [str(PYTHON), str(ROOT / "examples" / "sessionization.py")]
        env = {**os.environ, **variables(f"-XX:ArchiveClassesAtExit={CLASSES}")}
        # The JVM outlives Python, and keeps the pipes: this waits for both.
        done = subprocess.run(example, cwd=CACHE, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            CLASSES.unlink(missing_ok=True)
    if not CLASSES.exists():
        cache.say(f"no archive of Spark's classes, all goes on without: {done.stderr[-500:]}")
    cache.set_stamp(CLASSES.name, key)


def variables(classes: str = "") -> dict[str, str]:
    """The variables with which Spark runs this interpreter, and its JVM with an option for the archive of classes."""
    if not classes and CLASSES.exists():
        classes = f"-XX:SharedArchiveFile={CLASSES}"
    path = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", "")])
    # Without logs: an archive that does not fit is no reason for lines in the output of a test.
    jvm = [os.environ.get("SPARK_SUBMIT_OPTS", ""), *([classes, "-Xlog:disable"] if classes else [])]
    python = {"PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON)}
    return {"PATH": path, **python, **BYTECODE, "SPARK_SUBMIT_OPTS": " ".join(jvm)}
