"""What a server process holds after clients were killed, and after its disk was full: what it held before."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastchangelog.errors import RetryableError
from support.server_jobs import SPEC, Job, job, rows
from support.waiting import until

__all__ = ["job"]

_CLIENT = """
import json, signal, sys
from fastchangelog import server
request, options, payloads, step = json.load(sys.stdin)
session = server.open_session(request, options)
if step != "opened":
    session.merge(bytes.fromhex(payloads[0]))
if step in ("finished", "persisting"):
    results = session.finish(persist=step == "persisting")
    next(iter(results))
print("reached", flush=True)
signal.pause()
"""


def killed_client(one: Job, step: str) -> None:
    """A worker that is killed when its session is at `step`."""
    request = {
        "root": f"file://{one.root}",
        "query_id": "query",
        "name": "default",
        "shard": 0,
        "shards": 1,
        "batch": one.batch,
        "handle": one.handle,
        "spec": SPEC,
        "options": one.options,
    }
    payloads = [payload.hex() for payload in one.payloads(rows(one.batch, 3000))]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(json.dumps([json.dumps(request), one.options, payloads, step]))
    client.stdin.close()
    assert client.stdout.readline() == "reached\n"
    client.kill()
    client.wait()
    client.stdout.close()


#: The kernel keeps 15 characters of a thread's name.
IO_THREAD = "fastchangelog-i"


def thread_names(process: Path) -> Iterator[str]:
    """The names of threads that live."""
    for thread in (process / "task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            yield (thread / "comm").read_text()


def held(one: Job) -> tuple[int, int, list[str], dict[str, int]]:
    """Descriptors, threads, local folders, and the gauges of what sessions take."""
    process = Path(f"/proc/{one.pid()}")
    folders = sorted(
        # Names are random; what kind of folder it is, is not.
        path.name.split("-")[0]
        for path in one.place.data_dir.rglob("*")
        if path.is_dir()
    )
    counters = one.metrics()
    names = ("memory_sessions", "memory_log", "memory_uploads", "memory_downloads", "server_connections")
    gauges = {name: counters[name] for name in names}
    # Threads that block for the store are a pool: how many live on depends on which of them gets the next work.
    own = [name for name in thread_names(process) if not name.startswith(IO_THREAD)]
    return len(list((process / "fd").iterdir())), len(own), folders, gauges


def is_given_back(one: Job, before: tuple[int, int, list[str], dict[str, int]]) -> bool:
    """True when it holds no more than before. Less is fine: some threads end by themselves when they have no work."""
    now = held(one)
    more = Counter(now[2]) - Counter(before[2])
    gauges = all(now[3][name] <= before[3][name] for name in before[3])
    return now[0] <= before[0] and now[1] <= before[1] and not more and gauges


def idle(one: Job) -> bool:
    """True when this process has the only connection, and no session holds memory."""
    counters = one.metrics()
    return counters["server_connections"] == 1 and counters["memory_sessions"] == 0 and counters["memory_log"] == 0


def test_killed_clients_leave_no_overlay_descriptor_or_folder(job: Callable[..., Job]) -> None:
    one = job()
    one.run(rows(0))
    one.run(rows(1))
    steps = ["opened", "merged", "finished", "persisting"]
    for step in steps:  # each once, so that all threads and pools are there
        killed_client(one, step)
    until("the sessions end", lambda: idle(one))
    before = held(one)
    for _ in range(3):
        for step in steps:
            killed_client(one, step)
    until("the sessions end", lambda: idle(one))
    until(f"what they held is given back, up to {before}", lambda: is_given_back(one, before))
    one.run(rows(2))
    assert one.metrics()["sessions_aborted"] >= 12


def run_as_spark(one: Job, rows: list[tuple[str, int]]) -> None:
    """One batch, repeated as Spark does: a state that the disk cannot hold is dropped under an open session."""
    for _ in range(4):
        before = {key: list(entry) for key, entry in one.expected.items()}
        with contextlib.suppress(RetryableError):
            one.run(rows)
            return
        one.expected = before
    raise AssertionError("four attempts have failed")


@pytest.mark.case("A-07")
def test_a_full_disk_that_has_room_again_needs_no_new_server(job: Callable[..., Job]) -> None:
    # Not by time: before the disk is full nothing may complete.
    one = job(materialization_log_bytes="400KiB", materialization_interval="36500 days")
    names = random.Random(7)
    one.run(rows(0))
    pid, before = one.pid(), resource.getrlimit(resource.RLIMIT_FSIZE)
    folders = held(one)[2]
    # Enough for a log object, not for a table of RocksDB.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (256 << 10, before[1]))
    for batch in range(20):
        run_as_spark(one, [(f"{names.getrandbits(60)}", batch) for _ in range(2_000)])
    until("a materialization fails", lambda: one.metrics()["materializations_failed"] >= 1)
    run_as_spark(one, rows(1))
    assert "File too large" in one.place.log.read_text()
    assert one.metrics()["materializations_completed"] == 0, "a half-written base does not count"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def healed() -> bool:
        run_as_spark(one, rows(one.batch))
        return one.metrics()["materializations_completed"] >= 1

    until("a materialization completes in the same server", healed)
    run_as_spark(one, rows(one.batch))
    run_as_spark(one, rows(one.batch))
    assert one.pid() == pid
    until("no folder of a checkpoint is left", lambda: held(one)[2] == folders)
    one.kill()
    one.run(rows(one.batch))
