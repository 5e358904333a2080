"""The state server inside a real Spark application: it follows the application, not the JVM.

Owns: two applications that follow each other in one JVM. They run in a process of their own, so they share no session
with other tests.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

BOUND = 60.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _start_in_workers(spark: SparkSession) -> dict[str, Any]:
    """Lets every task make sure of a server; gives what the tasks saw."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from fastchangelog.server import ensure_server

        for _ in batches:
            pass
        place = ensure_server({"memory_budget": "64MiB"})
        started = [json.loads(line) for line in place.log.read_text().splitlines()]
        pids = [event["pid"] for event in started if event["event"] == "started"]
        seen = {
            "pids": pids,
            "jvm": started[0]["facts"]["jvm"],
            "data": str(place.data_dir),
            "owned": place.spark_owned,
        }
        yield pa.RecordBatch.from_pylist([{"seen": json.dumps(seen)}])

    rows = spark.range(8).repartition(8).mapInArrow(task, "seen string").collect()
    seen = [json.loads(row.seen) for row in rows]
    assert len(seen) == 8
    assert all(one == seen[0] for one in seen), "all tasks of an executor share one server"
    found: dict[str, Any] = seen[0]
    return found


def _ended(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], BOUND)[0])
    finally:
        os.close(descriptor)


def _follow_each_other() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    seen = []
    for _ in range(2):  # the second context lives in the same JVM: it outlives spark.stop()
        spark = builder.getOrCreate()
        seen.append(_start_in_workers(spark))
        assert seen[-1]["owned"]
        assert Path(seen[-1]["data"]).is_dir()
        spark.stop()
        (pid,) = seen[-1]["pids"]
        assert _ended(int(pid)), "within moments of spark.stop(), though the JVM lives on"
        assert not Path(seen[-1]["data"]).parent.exists(), "nothing is left where Spark cleaned up"
    assert seen[0]["jvm"] == seen[1]["jvm"], "one JVM"
    assert seen[0]["data"] != seen[1]["data"], "two applications"
    print("two applications")


def test_the_server_ends_with_its_application(tmp_path: Path) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": path}
    outcome = subprocess.run(
        [sys.executable, __file__], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "two applications\n"


if __name__ == "__main__":
    _follow_each_other()
