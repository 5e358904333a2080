"""What holds for all tests.

Owns: the environment that every test's processes start from, which process runs which test. Does not own: fixtures
(they stand beside their tests).
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

HERE = str(pathlib.Path(__file__).parent)

# Spark's workers, also those of scripts that tests start, run this interpreter and not the first one on the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

# The JVMs of tests end before their second compiler pays, and two cores have no use for a collector with many threads.
# With one compiler the JVM keeps 48 MB of code, where Spark's needs more.
_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
# Their workers are forked with pandas and PyArrow in them.
_JVM += " -Dspark.python.daemon.module=support.warm_pyspark.daemon"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))
if _JVM not in os.environ.get("SPARK_SUBMIT_OPTS", ""):  # a worker of pytest-xdist has what its parent has
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_JVM}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`: a query leaves a third of its core idle, and a test may need 3 GB for its JVMs."""
    from fastchangelog.server.memory import Limits

    limits = Limits.here()
    memory = min(bound for bound in (limits.machine, limits.cgroup, 1 << 60) if bound)
    return max(1, min(len(os.sched_getaffinity(0)) * 3 // 2, memory // (3 << 30)))


def _starts_jobs(nodeid: str) -> bool:
    """True for a test that starts Spark in processes of its own, for minutes: it shares nothing with its file."""
    return nodeid.split("::")[0].endswith("kills.py")


class _Scheduler(LoadFileScheduling):
    """A file's tests run in one process, and share its Spark; those that share nothing run in any."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if _starts_jobs(nodeid) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduler:
    """The scheduler of `-n`, with any `--dist`."""
    return _Scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Says how a crashed test process ended: pytest-xdist itself does not tell a signal from an exit."""
    if not error:
        return
    try:
        end = f"exit status {node.gateway._io.popen.wait(timeout=10)}"
    except (AttributeError, subprocess.TimeoutExpired) as reason:
        end = f"no exit status ({type(reason).__name__})"
    memory = [*_lines("/proc/meminfo", "MemAvailable"), *_lines("/sys/fs/cgroup/memory.events", "oom")]
    print(f"\n{node.gateway.id}: {'; '.join([end, *memory])}", file=sys.stderr)


def _lines(path: str, word: str) -> list[str]:
    file = pathlib.Path(path)
    return [line for line in file.read_text().splitlines() if word in line] if file.exists() else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first."""
    items.sort(key=lambda item: not _starts_jobs(item.nodeid))
