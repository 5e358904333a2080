"""The process of the state server: `python -m fastchangelog.server.process SETTINGS`.

Owns: the process from its start to its end: locks, signals, the watch loop.
Does not own: the reasons to exit (`server.shutdown`), sessions, shards and their materialization (Rust), sweeps
(`server.sweeper`), the server's files (`server.paths`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastchangelog import _internal
from fastchangelog.errors import ClosedError, FastChangelogError, parts_of
from fastchangelog.options import parse_duration
from fastchangelog.server.client import START_POLL, is_answering
from fastchangelog.server.jvm import Jvm
from fastchangelog.server.paths import MARKER, ServerPaths
from fastchangelog.server.shutdown import ShutdownPolicy
from fastchangelog.server.sweeper import server_sweeper

__all__ = ["main"]

POLL_INTERVAL = 0.5
"""Seconds between checks of the server's loops: a `spark.stop()` is noticed this late."""

STOP_TIMEOUT = 5.0
"""Seconds that sessions get to end before the process ends without them."""

STALE_DAYS = 3
"""Run folders of ended servers are kept this long for their logs."""


@dataclass(frozen=True)
class ProcessSettings:
    """The settings that the client passes to the process."""

    paths: ServerPaths
    jvm: Jvm | None
    options: dict[str, str]
    memory: str
    """The reason for the memory budget, for the log."""
    idle_timeout: float | None

    @classmethod
    def parse(cls, text: str) -> tuple[ProcessSettings, int]:
        """The settings, and the descriptor on which the starter waits for the reply."""
        raw: dict[str, Any] = json.loads(text)
        paths = ServerPaths(Path(raw["run_dir"]), Path(raw["data_dir"]), raw["spark_owned"])
        jvm = Jvm(*raw["jvm"]) if raw["jvm"] else None
        idle = parse_duration("FASTCHANGELOG_SERVER_IDLE", os.environ.get("FASTCHANGELOG_SERVER_IDLE", "60s"))
        idle_timeout = None if paths.spark_owned and jvm is not None else idle.total_seconds()
        return cls(paths, jvm, raw["options"], raw["memory"], idle_timeout), raw["ready"]


def main(argv: list[str] | None = None) -> int:
    """Runs the state server until its end. Only `ensure_server` calls it."""
    settings, ready = ProcessSettings.parse((argv or sys.argv)[1])
    if os.fork() != 0:
        # The child is re-parented: no worker waits for it, and none is left with a zombie.
        os._exit(0)
    _raise_open_files()
    try:
        alive = _take_alive_lock(settings.paths)
        if alive is None:
            _reply(ready, "taken")
            return 0
        server = _start_server(settings)
    except FastChangelogError as error:
        _reply(ready, f"error {json.dumps(parts_of(error))}")
        return 1
    except OSError as error:
        _reply(ready, f"error {json.dumps(['retryable', str(error), None, None, [[str(error), error.errno]]])}")
        return 1
    status = _watch(settings, server, lambda: _reply(ready, "ready"))
    os.close(alive)
    return status


def _raise_open_files() -> None:
    """Raises the limit on open files as far as the system allows: every shard has files, every session a socket."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems report a hard limit that they refuse to set
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _reply(ready: int, reply: str) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, (" ".join(reply.split()) + "\n").encode())
        os.close(ready)


def _take_alive_lock(paths: ServerPaths) -> int | None:
    """The lock that a server holds for its whole life: only its holder may touch the socket's path.

    A server that is stopping still holds it for up to `STOP_TIMEOUT`, so this waits a little longer.
    """
    descriptor = os.open(paths.run_dir / "alive.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + STOP_TIMEOUT + 2.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if is_answering(paths) or time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(START_POLL)


def _start_server(settings: ProcessSettings) -> _internal.Server:
    paths = settings.paths
    _remove_stale(paths)
    if paths.spark_owned and not paths.data_dir.parent.is_dir():
        raise ClosedError(f"{paths.data_dir.parent} is gone: the Spark application has stopped")
    if not paths.spark_owned:
        shutil.rmtree(paths.data_dir, ignore_errors=True)
    paths.data_dir.mkdir(mode=0o700, exist_ok=True)
    (paths.data_dir / MARKER).touch(mode=0o600)
    return _internal.Server(
        json.dumps(
            {
                "socket": str(paths.socket),
                "log": str(paths.log),
                "data_dir": str(paths.data_dir),
                "options": settings.options,
                "failpoints": os.environ.get("FASTCHANGELOG_FAILPOINTS", ""),
                "log_level": os.environ.get("FASTCHANGELOG_LOG", "info"),
                "owns_stdio": True,
                "labels": {
                    "jvm": str(settings.jvm and settings.jvm.pid),
                    "data": str(paths.data_dir),
                    "memory_budget": f"{settings.options['memory_budget']}: {settings.memory}",
                },
            }
        )
    )


def _remove_stale(paths: ServerPaths) -> None:
    """Removes run folders of servers that ended days ago. A folder that cannot be checked is kept."""
    oldest = time.time() - STALE_DAYS * 86_400
    for folder in paths.run_dir.parent.iterdir():
        with contextlib.suppress(OSError):
            if folder == paths.run_dir or max(f.stat().st_mtime for f in (folder, *folder.iterdir())) > oldest:
                continue
            with (folder / "alive.lock").open("a") as lock, (folder / "start.lock").open("a") as start:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _watch(settings: ProcessSettings, server: _internal.Server, announce: Callable[[], None]) -> int:
    """Announces the server once signal handlers are set, then watches until the end."""
    paths, jvm = settings.paths, settings.jvm
    stop_requested = threading.Event()
    waker, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_requested.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    poller = select.poll()
    poller.register(waker, select.POLLIN)
    pidfd = jvm.pidfd() if jvm is not None else None
    if pidfd is not None:
        poller.register(pidfd, select.POLLIN)
    policy = ShutdownPolicy(
        jvm_alive=lambda: jvm is None or jvm.alive(),
        folder_exists=(paths.data_dir / MARKER).exists,
        socket_exists=paths.socket.exists,
        idle_seconds=server.idle_seconds,
        idle_timeout=settings.idle_timeout,
        stop_requested=lambda: stop_requested.is_set() or server.shutdown_requested(),
    )
    server.maintain()
    sweeper = server_sweeper(server, paths.data_dir)
    sweeper.start()
    announce()
    while (reason := policy.reason()) is None:
        poller.poll(POLL_INTERVAL * 1000)
    server.log("INFO", "ending", {"reason": reason})
    sweeper.stop()
    application_stopped = not (paths.data_dir / MARKER).exists()
    ended = server.stop(STOP_TIMEOUT)
    shutil.rmtree(paths.data_dir, ignore_errors=True)
    if paths.spark_owned and application_stopped:
        # Spark may have met a file that was being written, and left its folder behind.
        with contextlib.suppress(OSError):
            paths.data_dir.parent.rmdir()
    return 0 if ended else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the engine may still wait for a store; the process does not wait for them.
    os._exit(code)
