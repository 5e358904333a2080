"""Finds this executor's state server, or starts it, and opens sessions at it.

Owns: the start of the server's process under a lock, its memory budget, the session's connection.
Does not own: the process itself (`server.process`), sessions and shards (Rust), the server's files (`server.paths`).

A task that finds no server takes a lock, looks again, and starts one, detached from its worker: Spark's workers come
and go, the server stays with the executor. However many tasks start at once, one server starts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from fastchangelog import _internal
from fastchangelog.errors import RetryableError, error_of_kind
from fastchangelog.hidden import Hidden
from fastchangelog.server import memory, platform
from fastchangelog.server.jvm import Jvm
from fastchangelog.server.paths import ServerPaths

__all__ = ["connect", "ensure_server", "is_answering", "open_session", "open_state_session"]

_Session = TypeVar("_Session", _internal.SessionClient, _internal.StateSession)

START_TIMEOUT = 60.0
"""Seconds until a server must have started: an interpreter, an import and a socket, on a busy machine."""

START_POLL = 0.02
"""Seconds between attempts while another process starts the server."""

_SECRETS = ("PYTHON_WORKER_FACTORY_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH", "_PYSPARK_DRIVER_CALLBACK_HOST")


def open_session(
    request_json: str, options: Mapping[str, str] | None = None, confs: Mapping[str, str] | None = None
) -> _internal.SessionClient:
    """Opens a session at this executor's state server, which is started if need be.

    `request_json` is an open request as the engine reads it; `options` are the gathered ones (`gather_options`);
    `confs` are Spark's settings of memory (`memory.CONFS`).
    What to do about errors: `RetryableError` = fail the task, Spark starts another attempt; others need a change.
    """
    hidden = Hidden(request_json)
    del request_json
    return _opened(_internal.SessionClient, hidden, options, confs)


def open_state_session(
    request_json: str, options: Mapping[str, str] | None = None, confs: Mapping[str, str] | None = None
) -> _internal.StateSession:
    """As `open_session`, for a request whose `operator` is `processor`."""
    hidden = Hidden(request_json)
    del request_json
    return _opened(_internal.StateSession, hidden, options, confs)


def _opened(
    kind: type[_Session], request: Hidden[str], options: Mapping[str, str] | None, confs: Mapping[str, str] | None
) -> _Session:
    options = options or {}
    paths = ServerPaths.here()
    for _ in range(2):
        if paths.has_socket():
            try:
                return connect(kind, paths, request)
            except RetryableError:
                if is_answering(paths):
                    raise
        ensure_server(options, confs, paths=paths)
    return connect(kind, paths, request)


def connect(kind: type[_Session], paths: ServerPaths, request: Hidden[str]) -> _Session:
    """Opens a session at the server that has these paths, which must run."""
    return kind(str(paths.socket), request.show(), log=str(paths.log))


def ensure_server(
    options: Mapping[str, str] | None = None,
    confs: Mapping[str, str] | None = None,
    *,
    paths: ServerPaths | None = None,
    timeout: float = START_TIMEOUT,
) -> ServerPaths:
    """Makes sure that this executor's state server answers; returns its paths.

    The `options` of the first starter hold for the whole server (memory, cache, bounds). Without the option
    `memory_budget` it follows from `confs` and the limits of this process (`memory.default_budget`).
    What to do about errors: each names the option or the log file to look at.
    """
    platform.check()
    paths = paths or ServerPaths.here()
    if is_answering(paths):
        return paths
    paths.prepare()
    options, remark = memory.with_budget(options or {}, confs or {}, memory.Limits.here())
    deadline = time.monotonic() + timeout
    while True:
        with _start_lock(paths, deadline) as locked:
            if is_answering(paths):
                return paths
            if locked:
                _start(paths, options, remark, deadline)
        if time.monotonic() >= deadline:
            raise RetryableError(
                f"the state server did not start within {timeout:g} s; the reason is in its log {_log_and_end(paths)}"
            )


def is_answering(paths: ServerPaths) -> bool:
    """True if a server listens at the socket and answers a ping."""
    if not paths.has_socket():
        return False
    try:
        _internal.ServerClient(str(paths.socket), log=str(paths.log)).ping()
    except RetryableError:
        return False
    return True


@contextlib.contextmanager
def _start_lock(paths: ServerPaths, deadline: float) -> Iterator[bool]:
    """Holds the lock under which a server is started; False when another process holds it: check again."""
    path = paths.run_dir / "start.lock"
    paths.prepare()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The removal of stale folders may delete the file between open and lock: then the lock protects nothing.
            locked = _same_file(descriptor, path)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise RetryableError(f"cannot lock {path}: {error}") from error
            locked = False
        if not locked:
            time.sleep(min(START_POLL, max(0.0, deadline - time.monotonic())))
        yield locked
    finally:
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _start(paths: ServerPaths, options: Mapping[str, str], remark: str, deadline: float) -> None:
    """Starts the server's process and waits for its reply."""
    environ = Hidden(_environment())
    jvm = Jvm.nearest()
    reader, writer = os.pipe()
    settings = {
        "run_dir": str(paths.run_dir),
        "data_dir": str(paths.data_dir),
        "spark_owned": paths.spark_owned,
        "jvm": None if jvm is None else [jvm.pid, jvm.start],
        "options": dict(options),
        "memory": remark,
        "ready": writer,
    }
    log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [os.path.abspath(sys.executable), "-m", "fastchangelog.server.process", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environ.show(),
            pass_fds=(writer,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(reader)
        raise RetryableError(f"cannot start the state server with {sys.executable}: {error}") from error
    finally:
        os.close(writer)
        os.close(log)
    try:
        reply = _read_reply(reader, deadline)
        # The process that was started forks and ends at once, so that no worker has the server for a child.
        process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        reply = ""
    finally:
        os.close(reader)
    if reply.startswith("error "):
        kind, message, remedy, subject, causes = json.loads(reply.removeprefix("error "))
        reason = error_of_kind(kind, f"the state server could not start: {message}", remedy, subject, causes)
        raise reason from reason.__cause__
    if reply not in ("ready", "taken"):
        raise RetryableError(f"the state server ended while it started; the reason is in its log {_log_and_end(paths)}")


def _environment() -> dict[str, str]:
    """The environment of the server's process: this one's, which may have credentials, without Spark's secrets."""
    package_root = str(Path(__file__).resolve().parent.parent.parent)
    environ = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environ.get("PYTHONPATH", "")]))
    # glibc would keep up to 8 arenas per core, each with memory that is free but never given back.
    environ.setdefault("MALLOC_ARENA_MAX", "2")
    # By itself this bound grows with what is freed, until segments of the hot tier come from the heap and stay there.
    environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    environ["PYTHONUNBUFFERED"] = "1"
    return environ


def _read_reply(reader: int, deadline: float) -> str:
    reply = b""
    while not reply.endswith(b"\n"):
        readable, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(reader, 4096) if readable else b""
        if not chunk:
            break
        reply += chunk
    return reply.decode(errors="replace").strip()


def _log_and_end(paths: ServerPaths) -> str:
    """The log's path and its last line, for an error's message."""
    with contextlib.suppress(OSError):
        lines = paths.log.read_text(errors="replace")[-2000:].strip().splitlines()
        if lines:
            return f"{paths.log} (it ends with: {lines[-1][:300]})"
    return str(paths.log)
