"""A first start on a backlog: the payloads of one shard and batch come to more than the JVM holds outside of its heap.

Owns: that such a batch goes through, and what a worker holds of it. Does not own: the query (`backlog_job`).
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fastchangelog.demo import processes
from fastchangelog.spark import settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 125_000
#: 488 MiB of payloads: the JVM has 288 MiB for all its Arrow vectors.
PAYLOADS = ROWS * 4096


@pytest.fixture
def mark() -> Iterator[str]:
    name = f"backlog-{os.getpid()}"
    yield name
    processes.end_all(name)


@pytest.mark.case("P7")
@pytest.mark.parametrize("confs", [[], [f"{settings.ARROW_BYTES}={2**31 - 1}"]], ids=["default", "switched off"])
def test_payloads_beyond_the_jvms_direct_memory_go_through(tmp_path: pathlib.Path, mark: str, confs: list[str]) -> None:
    env = {**os.environ, processes.MARK: mark, "XDG_RUNTIME_DIR": str(tmp_path)}
    line = [sys.executable, "-m", "support.spark.backlog_job", str(tmp_path / "q"), str(ROWS), *confs]
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["batches"] == {"0": [5_000, ROWS, 5_000 * 4096]}
    assert said["worker_bytes"] < PAYLOADS, "a worker never holds all of them"
