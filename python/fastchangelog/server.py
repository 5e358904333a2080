"""The state server: one process per Spark executor, started by the first task that needs it.

Owns: finding or starting the server (`ensure_server`, `open_session`), and the life of its process (`main`).
Does not own: sessions and shards (Rust), the upkeep of shards (`upkeep`), the place (`place`).

Start: whoever finds no server takes a lock, looks again, and starts one, detached from the worker: Spark's workers come
and go, the server stays with the executor. However many tasks start at once, one server starts.

End, whichever comes first: the executor's JVM ends; the data folder vanishes (Spark removes it in `spark.stop()`, while
the JVM may live on); SIGTERM; without Spark, nobody was connected for `FASTCHANGELOG_SERVER_IDLE` (default 60s).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastchangelog import _internal, config, memory
from fastchangelog.errors import (
    ClosedError,
    FastChangelogError,
    InvalidArgument,
    RetryableError,
    error_of_kind,
    kind_of,
)
from fastchangelog.place import MARKER, Jvm, Place
from fastchangelog.upkeep import Materializers

__all__ = ["ensure_server", "main", "open_session"]

START_TIMEOUT = 60.0
"""Seconds until a server must have started: an interpreter, an import and a socket, on a busy machine."""

START_POLL = 0.02
"""Seconds between looks while another process starts the server."""

TICK = 0.5
"""Seconds between looks of the server's loops: a `spark.stop()` is noticed this late."""

STOP_PATIENCE = 5.0
"""Seconds that sessions get to end before the process ends without them."""

MATERIALIZATION_THREADS = 2
"""Materializations of one server at the same time; each runs its uploads concurrently itself."""

STALE_DAYS = 3
"""Run folders of ended servers are kept this long for their logs."""

_SECRETS = ("PYTHON_WORKER_FACTORY_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH", "_PYSPARK_DRIVER_CALLBACK_HOST")


# ---- the client's side: find or start -----------------------------------------------------------------------------


def open_session(
    request_json: str, options: Mapping[str, str] | None = None, confs: Mapping[str, str] | None = None
) -> _internal.SessionClient:
    """Opens a session at this executor's state server, which is started if need be.

    `request_json` is an open request as the engine reads it; `options` are the gathered ones (`config.gather_options`);
    `confs` are Spark's settings of memory (`memory.CONFS`).
    What to do about errors: `RetryableError` = fail the task, Spark starts another attempt; others need a change.
    """
    options = options or {}
    place = Place.here()
    for _ in range(2):
        if place.socket.exists():
            try:
                return _connect(place, request_json, options)
            except RetryableError:
                if _answers(place):
                    raise
        ensure_server(options, confs, place=place)
    return _connect(place, request_json, options)


def _connect(place: Place, request_json: str, options: Mapping[str, str]) -> _internal.SessionClient:
    return _internal.SessionClient(
        str(place.socket),
        request_json,
        log=str(place.log),
        timeout_seconds=config.duration("session_timeout", _option(options, "session_timeout")).total_seconds(),
        max_message=config.size("max_message_size", _option(options, "max_message_size")),
    )


def _option(options: Mapping[str, str], name: str) -> str:
    return options.get(name) or next(default for known, default, _ in _internal.options_table() if known == name)


def ensure_server(
    options: Mapping[str, str] | None = None,
    confs: Mapping[str, str] | None = None,
    *,
    place: Place | None = None,
    timeout: float = START_TIMEOUT,
) -> Place:
    """Makes sure that this executor's state server answers; gives its place.

    The `options` of the first starter hold for the whole server (memory, cache, bounds). Without the option
    `memory_budget` it follows from `confs` and the limits of this process (`memory.default_budget`).
    What to do about errors: each names the option or the log file to look at.
    """
    place = place or Place.here()
    if _answers(place):
        return place
    place.prepare()
    options, remark = _with_budget(options or {}, confs or {}, memory.Limits.here())
    deadline = time.monotonic() + timeout
    while True:
        with _start_lock(place, deadline) as locked:
            if _answers(place):
                return place
            if locked:
                _start(place, options, remark, deadline)
        if time.monotonic() >= deadline:
            raise RetryableError(
                f"the state server did not start within {timeout:g} s; the reason is in its log {_log_and_end(place)}"
            )


def _answers(place: Place) -> bool:
    if not place.socket.exists():
        return False
    try:
        _internal.ServerClient(str(place.socket), log=str(place.log)).ping()
    except RetryableError:
        return False
    return True


@contextlib.contextmanager
def _start_lock(place: Place, deadline: float) -> Iterator[bool]:
    """Holds the lock under which a server is started; False when it is not ours yet and it is time to look again."""
    path = place.run_dir / "start.lock"
    place.prepare()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A sweep may have removed the file between open and lock: then the lock protects nothing.
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


def _with_budget(
    options: Mapping[str, str], confs: Mapping[str, str], limits: memory.Limits
) -> tuple[dict[str, str], str]:
    """The options with a budget that fits, and what the server's log should say of it."""
    budget = memory.asked_budget(options)
    if budget is None:
        default = memory.default_budget(confs, limits)
        budget, remark = default.bytes, default.why
    else:
        memory.check_container(budget, limits)
        remark = memory.objection(budget, confs, limits) or "as the option says"
    _check_address_space(budget, limits.address_space)
    return {**options, "memory_budget": str(budget)}, remark


def _check_address_space(budget: int, limit: int | None) -> None:
    """A server inherits its starter's limit on address space; one that cannot fit is refused with the reason."""
    needed = memory.needed_address_space(budget)
    if limit is not None and limit < needed:
        raise InvalidArgument(
            f"`spark.executor.pyspark.memory` limits the address space of this worker, and so of the state server, "
            f"to {limit >> 20} MiB; the server needs {needed >> 20} MiB for its `memory_budget` of {budget >> 20} MiB: "
            f"unset `spark.executor.pyspark.memory`, raise it, or lower the option `memory_budget`"
        )


def _start(place: Place, options: Mapping[str, str], remark: str, deadline: float) -> None:
    """Starts the server's process and waits for its word."""
    package_root = str(Path(__file__).resolve().parent.parent)
    environ = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environ.get("PYTHONPATH", "")]))
    # glibc would keep up to 8 arenas per core, each with memory that is free but never given back.
    environ.setdefault("MALLOC_ARENA_MAX", "2")
    # By itself this bound grows with what is freed, until segments of the hot tier come from the heap and stay there.
    environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    environ["PYTHONUNBUFFERED"] = "1"
    jvm = Jvm.nearest()
    reader, writer = os.pipe()
    settings = {
        "run_dir": str(place.run_dir),
        "data_dir": str(place.data_dir),
        "spark_owned": place.spark_owned,
        "jvm": None if jvm is None else [jvm.pid, jvm.start],
        "options": dict(options),
        "memory": remark,
        "ready": writer,
    }
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [os.path.abspath(sys.executable), "-m", "fastchangelog.server", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environ,
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
        word = _read_word(reader, deadline)
        # The process that was started forks and ends at once, so that no worker has the server for a child.
        process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        word = ""
    finally:
        os.close(reader)
    if word.startswith("error "):
        _, kind, message = word.split(" ", 2)
        raise error_of_kind(kind, f"the state server could not start: {message}")
    if word not in ("ready", "taken"):
        raise RetryableError(f"the state server ended while it started; the reason is in its log {_log_and_end(place)}")


def _read_word(reader: int, deadline: float) -> str:
    word = b""
    while not word.endswith(b"\n"):
        readable, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(reader, 4096) if readable else b""
        if not chunk:
            break
        word += chunk
    return word.decode(errors="replace").strip()


def _log_and_end(place: Place) -> str:
    """The log's path and its last line, for an error's message."""
    with contextlib.suppress(OSError):
        lines = place.log.read_text(errors="replace")[-2000:].strip().splitlines()
        if lines:
            return f"{place.log} (it ends with: {lines[-1][:300]})"
    return str(place.log)


# ---- the server's side --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What the starter hands to the process."""

    place: Place
    jvm: Jvm | None
    options: dict[str, str]
    memory: str
    """Why the budget is what it is."""
    idle_timeout: float | None

    @classmethod
    def parse(cls, text: str) -> tuple[Settings, int]:
        """The settings, and the descriptor that waits for the word "ready"."""
        raw: dict[str, Any] = json.loads(text)
        place = Place(Path(raw["run_dir"]), Path(raw["data_dir"]), raw["spark_owned"])
        jvm = Jvm(*raw["jvm"]) if raw["jvm"] else None
        idle = config.duration("FASTCHANGELOG_SERVER_IDLE", os.environ.get("FASTCHANGELOG_SERVER_IDLE", "60s"))
        idle_timeout = None if place.spark_owned and jvm is not None else idle.total_seconds()
        return cls(place, jvm, raw["options"], raw["memory"], idle_timeout), raw["ready"]


class Life:
    """Decides when the server ends. Every sense is a parameter; asking costs three system calls."""

    def __init__(
        self,
        *,
        jvm_alive: Callable[[], bool],
        folder_exists: Callable[[], bool],
        socket_exists: Callable[[], bool],
        idle_seconds: Callable[[], float],
        idle_timeout: float | None,
        asked: Callable[[], bool],
    ) -> None:
        self._jvm_alive = jvm_alive
        self._folder_exists = folder_exists
        self._socket_exists = socket_exists
        self._idle_seconds = idle_seconds
        self._idle_timeout = idle_timeout
        self._asked = asked

    def end(self) -> str | None:
        """Why the server must end now; None while it must not."""
        if self._asked():
            return "it was asked to"
        if not self._jvm_alive():
            return "the executor's JVM ended"
        if not self._folder_exists():
            return "its data folder vanished: the application stopped"
        if not self._socket_exists():
            return "its socket was removed: nobody can reach it"
        if self._idle_timeout is not None and self._idle_seconds() >= self._idle_timeout:
            return f"nobody was connected for {self._idle_timeout:g} s"
        return None


def main(argv: list[str] | None = None) -> int:
    """Runs the state server until its end. Called by `ensure_server`, not by people."""
    settings, ready = Settings.parse((argv or sys.argv)[1])
    if os.fork() != 0:
        # The child has no worker for a parent: nobody waits for it, nobody is left with a zombie.
        os._exit(0)
    _raise_open_files()
    try:
        alive = _take_alive_lock(settings.place)
        if alive is None:
            _say(ready, "taken")
            return 0
        server = _serve(settings)
    except FastChangelogError as error:
        _say(ready, f"error {kind_of(error)} {error}")
        return 1
    except OSError as error:
        _say(ready, f"error retryable {error}")
        return 1
    status = _run(settings, server, lambda: _say(ready, "ready"))
    os.close(alive)
    return status


def _raise_open_files() -> None:
    """Every shard has files and every session a socket: as many as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems call more than they allow their limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say(ready: int, word: str) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, (" ".join(word.split()) + "\n").encode())
        os.close(ready)


def _take_alive_lock(place: Place) -> int | None:
    """The lock that a server holds for its whole life: only its holder may touch the socket's path.

    A server that is just ending still has it for up to its patience, so this waits a little longer than that.
    """
    descriptor = os.open(place.run_dir / "alive.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + STOP_PATIENCE + 2.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if _answers(place) or time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(START_POLL)


def _serve(settings: Settings) -> _internal.Server:
    place = settings.place
    _remove_stale(place)
    if place.spark_owned and not place.data_dir.parent.is_dir():
        raise ClosedError(f"{place.data_dir.parent} is gone: the Spark application has stopped")
    if not place.spark_owned:
        shutil.rmtree(place.data_dir, ignore_errors=True)
    place.data_dir.mkdir(mode=0o700, exist_ok=True)
    (place.data_dir / MARKER).touch(mode=0o600)
    return _internal.Server(
        json.dumps(
            {
                "socket": str(place.socket),
                "log": str(place.log),
                "data_dir": str(place.data_dir),
                "options": settings.options,
                "failpoints": os.environ.get("FASTCHANGELOG_FAILPOINTS", ""),
                "log_level": os.environ.get("FASTCHANGELOG_LOG", "info"),
                "owns_stdio": True,
                "labels": {
                    "jvm": str(settings.jvm and settings.jvm.pid),
                    "data": str(place.data_dir),
                    "memory_budget": f"{settings.options['memory_budget']}: {settings.memory}",
                },
            }
        )
    )


def _remove_stale(place: Place) -> None:
    """Removes run folders of servers that ended days ago; a doubt keeps a folder."""
    oldest = time.time() - STALE_DAYS * 86_400
    for folder in place.run_dir.parent.iterdir():
        with contextlib.suppress(OSError):
            if folder == place.run_dir or max(f.stat().st_mtime for f in (folder, *folder.iterdir())) > oldest:
                continue
            with (folder / "alive.lock").open("a") as lock, (folder / "start.lock").open("a") as start:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _run(settings: Settings, server: _internal.Server, announce: Callable[[], None]) -> int:
    """Announces the server once signals are heard, then watches until the end.

    Materialization has a thread of its own: a slow shard must not delay the watch.
    """
    place, jvm = settings.place, settings.jvm
    asked = threading.Event()
    waker, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    poller = select.poll()
    poller.register(waker, select.POLLIN)
    pidfd = jvm.pidfd() if jvm is not None else None
    if pidfd is not None:
        poller.register(pidfd, select.POLLIN)
    life = Life(
        jvm_alive=lambda: jvm is None or jvm.alive(),
        folder_exists=(place.data_dir / MARKER).exists,
        socket_exists=place.socket.exists,
        idle_seconds=server.idle_seconds,
        idle_timeout=settings.idle_timeout,
        asked=lambda: asked.is_set() or server.shutdown_requested(),
    )
    ending = threading.Event()
    keeper = threading.Thread(target=_keep, args=(server, ending), name="fcl-materialize", daemon=True)
    keeper.start()
    announce()
    while (reason := life.end()) is None:
        poller.poll(TICK * 1000)
    ending.set()
    server.log("INFO", "ending", {"reason": reason})
    application_stopped = not (place.data_dir / MARKER).exists()
    ended = server.stop(STOP_PATIENCE)
    keeper.join(STOP_PATIENCE)
    shutil.rmtree(place.data_dir, ignore_errors=True)
    if place.spark_owned and application_stopped:
        # Spark may have met a file that was just being written, and left its folder behind for that.
        with contextlib.suppress(OSError):
            place.data_dir.parent.rmdir()
    return 0 if ended else 1


def _keep(server: _internal.Server, ending: threading.Event) -> None:
    """Materializes by policy and closes idle shards, until the end."""
    with ThreadPoolExecutor(MATERIALIZATION_THREADS, thread_name_prefix="fcl-materialize") as pool:
        materializers = Materializers(server, pool)
        while not ending.wait(TICK):
            try:
                materializers.poll()
                server.close_idle()
            except Exception as error:
                server.log("ERROR", "materialize loop", {"error": f"{type(error).__name__}: {error}"})
        materializers.close()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the engine may still wait for a store; the process does not wait for them.
    os._exit(code)
