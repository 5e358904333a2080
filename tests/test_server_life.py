"""The life of the state server's process: one starts for any number of clients, and it ends with its executor."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import fastchangelog
from fastchangelog import _internal, server
from fastchangelog.errors import ClosedError, InvalidArgumentError, PermissionDeniedError, RetryableError
from fastchangelog.process_metrics import metrics
from fastchangelog.server import memory
from fastchangelog.server.paths import ServerPaths
from fastchangelog.server.shutdown import ShutdownPolicy
from support import state_servers

STARTERS = 64

BOUND = 60.0
"""Seconds after which a test gives up waiting. Nothing is asserted about how long things take."""


class ServerWorld:
    """A place of its own for one test; every server that was started there is gone at the end."""

    def __init__(self, base: Path, monkeypatch: Any, *, spark: bool = True) -> None:
        self.base = base
        runtime = base / "run"
        runtime.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        self.local_dir = base / "blockmgr-0000"
        if spark:
            self.local_dir.mkdir()
            monkeypatch.setenv("SPARK_LOCAL_DIRS", str(self.local_dir))
        else:
            monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)

    @property
    def place(self) -> ServerPaths:
        return ServerPaths.here()

    def start(self, options: Mapping[str, str] | None = None) -> int:
        """Starts the server, or finds it; gives the pid of the newest one."""
        server.ensure_server(options)
        return self.pids()[-1]

    def events(self) -> list[dict[str, Any]]:
        if not self.place.log.exists():
            return []
        lines = self.place.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def pids(self) -> list[int]:
        """Pids of all servers that were started here, in order."""
        return [int(event["pid"]) for event in self.events() if event["event"] == "started"]

    def close(self) -> None:
        state_servers.kill(self.place)


def running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def ended(pid: int) -> bool:
    """Waits until the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([descriptor], [], [], BOUND)
        return bool(readable)
    finally:
        os.close(descriptor)


def status(pid: int, field: int) -> int:
    """A field of /proc/<pid>/stat after the name: 1 = parent, 3 = session."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[field])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerWorld]:
    world = ServerWorld(tmp_path, monkeypatch)
    yield world
    world.close()


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerWorld]:
    """Without Spark's folders. The run folder is this test's own: without them all processes of a user share one."""
    world = ServerWorld(tmp_path, monkeypatch, spark=False)
    with tempfile.TemporaryDirectory(prefix="fcl-") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield world
        world.close()


def _start_at_once(gate: Connection, results: Connection) -> None:
    gate.recv_bytes()
    try:
        server.ensure_server()
        results.send("ready")
    except Exception as error:
        results.send(repr(error))


@pytest.mark.case("P-04")
def test_many_starters_get_one_server(world: ServerWorld) -> None:
    forks = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(STARTERS):
        child_gate, gate = forks.Pipe(duplex=False)
        result, child_result = forks.Pipe(duplex=False)
        process = forks.Process(target=_start_at_once, args=(child_gate, child_result))
        process.start()
        pipes.append((process, gate, result))
    for _, gate, _ in pipes:
        gate.send_bytes(b"go")
    answers = [result.recv() for _, _, result in pipes]
    for process, _, _ in pipes:
        process.join()
    assert answers == ["ready"] * STARTERS
    assert len(world.pids()) == 1


def test_a_server_that_answers_is_used_again(world: ServerWorld) -> None:
    assert world.start() == world.start()
    assert metrics()["server_connections"] == 1


def test_the_server_belongs_to_nothing(world: ServerWorld, tmp_path: Path) -> None:
    inherited = (tmp_path / "inherited").open("w")
    os.set_inheritable(inherited.fileno(), True)
    pid = world.start()
    assert status(pid, 1) != os.getpid(), "no zombie is left with the starter"
    assert status(pid, 3) not in (os.getsid(0), 0), "signals for the starter's session pass it by"
    targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert str(tmp_path / "inherited") not in targets
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (1, 2)} == {str(world.place.log)}
    environ = Path(f"/proc/{pid}/environ").read_text()
    assert "MALLOC_ARENA_MAX=2" in environ
    inherited.close()


def test_its_folders_and_socket_are_private(world: ServerWorld) -> None:
    world.start()
    for path, mode in (
        (world.place.run_dir.parent, 0o700),
        (world.place.run_dir, 0o700),
        (world.place.data_dir, 0o700),
        (world.place.socket, 0o600),
        (world.place.log, 0o600),
    ):
        assert path.stat().st_mode & 0o777 == mode, path


def test_it_ends_when_its_data_folder_vanishes(world: ServerWorld) -> None:
    pid = world.start()
    shutil.rmtree(world.local_dir, ignore_errors=True)  # the server may remove the rest first
    assert ended(pid)
    assert not world.place.socket.exists()
    assert world.events()[-1]["reason"].startswith("its data folder vanished")
    assert not world.local_dir.exists(), "nothing is made again"


@pytest.mark.case("L-10")
def test_it_takes_its_data_along_when_terminated(world: ServerWorld) -> None:
    pid = world.start()
    os.kill(pid, signal.SIGTERM)
    assert ended(pid)
    assert not world.place.data_dir.exists()
    assert not world.place.socket.exists()
    assert world.local_dir.exists(), "the folder above belongs to Spark"


def test_it_ends_when_a_client_asks(world: ServerWorld) -> None:
    pid = world.start()
    _internal.ServerClient(str(world.place.socket)).shutdown()
    assert ended(pid)


def test_a_killed_server_is_followed_by_another(world: ServerWorld) -> None:
    first = world.start()
    client = _internal.ServerClient(str(world.place.socket), log=str(world.place.log))
    os.kill(first, signal.SIGKILL)
    assert ended(first)
    with pytest.raises(RetryableError, match=f"its log|log {world.place.log}"):
        client.ping()
    assert world.start() != first
    assert len(world.pids()) == 2


def test_without_spark_it_ends_when_nothing_needs_it(lonely: ServerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCHANGELOG_SERVER_IDLE", "10ms")
    pid = lonely.start()
    assert ended(pid)
    assert not lonely.place.data_dir.exists()


FAKE_JVM = """
import os, subprocess, sys
subprocess.run([{python!r}, "-c", "from fastchangelog.server import ensure_server; ensure_server()"], check=True)
print("started", flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_jvm_of_its_starter(world: ServerWorld, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(os.path.realpath(sys.executable))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    jvm = subprocess.Popen(
        [java, "-c", FAKE_JVM.format(python=sys.executable)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    )
    assert jvm.stdout is not None
    assert jvm.stdout.readline() == "started\n"
    (pid,) = world.pids()
    assert world.events()[0]["facts"]["jvm"] == str(jvm.pid)
    assert running(pid)
    jvm.kill()
    jvm.communicate()
    assert ended(pid)
    assert world.events()[-1]["reason"] == "the executor's JVM ended"
    assert not world.place.data_dir.exists()


def test_a_limited_address_space_names_its_setting(world: ServerWorld) -> None:
    code = "from fastchangelog.server import ensure_server; ensure_server({'memory_budget': '1GiB'})"
    limit = 2 << 30
    found = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "`spark.executor.pyspark.memory`" in found.stderr, found.stderr
    assert "`memory_budget`" in found.stderr
    assert world.pids() == []


def test_the_first_line_of_the_log_explains_the_budget(world: ServerWorld) -> None:
    expected = memory.default_budget({}, memory.Limits.here())
    assert running(world.start())
    assert world.events()[0]["facts"]["memory_budget"] == f"{expected.bytes}: {expected.why}"
    assert metrics()["memory_budget"] == expected.bytes


def test_the_server_may_open_as_many_files_as_the_system_allows(world: ServerWorld) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Another process: this one may hold more files than that already.
    program = (
        "import resource; from fastchangelog import server; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard)); server.ensure_server()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=BOUND)
    pid = world.pids()[-1]
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_bad_option_is_told_to_the_starter(world: ServerWorld) -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean `memory_budget`"):
        server.ensure_server({"memory_bugdet": "1GiB"})
    assert not world.place.socket.exists()
    assert running(world.start()), "the next starter is not held up"


def _hello(protocol: int, version: bytes) -> bytes:
    return b"fclhello" + struct.pack("<II", protocol, len(version)) + version


def test_another_version_in_the_cluster_is_named(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def answer() -> None:
        peer, _ = listener.accept()
        peer.sendall(_hello(7, b"9.9.9"))
        peer.recv(100)
        peer.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(InvalidArgumentError, match="two fastchangelog versions in one cluster") as caught:
        _internal.ServerClient(str(tmp_path / "s"))
    assert "9.9.9" in str(caught.value)
    assert _internal.__version__ in str(caught.value)
    thread.join()
    listener.close()


def test_no_byte_goes_to_a_socket_that_others_can_change(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen()
    listener.setblocking(False)
    with pytest.raises(PermissionDeniedError, match="does not belong to this user's state server"):
        _internal.SessionClient(str(folder / "s"), '{"storage_options": {"aws_secret_access_key": "s"}}')
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


def test_ctrl_c_is_heard_while_the_server_is_silent(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def interrupt() -> None:
        peer, _ = listener.accept()
        peer.recv(100)
        os.kill(os.getpid(), signal.SIGINT)
        peer.recv(1)  # until the client has given up
        peer.close()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        _internal.ServerClient(str(tmp_path / "s"), timeout_seconds=BOUND)
    thread.join()
    listener.close()


def _use_in_child(client: _internal.ServerClient, result: Connection) -> None:
    try:
        client.ping()
        result.send("it worked")
    except ClosedError as error:
        result.send(str(error))


@pytest.mark.case("A-18")
def test_a_forked_child_is_refused(world: ServerWorld) -> None:
    world.start()
    client = _internal.ServerClient(str(world.place.socket))
    forks = multiprocessing.get_context("fork")
    result, child_result = forks.Pipe(duplex=False)
    process = forks.Process(target=_use_in_child, args=(client, child_result))
    process.start()
    assert "forked child" in result.recv()
    process.join()
    client.ping()


def test_why_a_server_ends() -> None:
    inputs = {"jvm": True, "folder": True, "socket": True, "asked": False}
    idle = [0.0]

    def policy(timeout: float | None) -> ShutdownPolicy:
        return ShutdownPolicy(
            jvm_alive=lambda: inputs["jvm"],
            folder_exists=lambda: inputs["folder"],
            socket_exists=lambda: inputs["socket"],
            idle_seconds=lambda: idle[0],
            idle_timeout=timeout,
            stop_requested=lambda: inputs["asked"],
        )

    assert policy(10.0).reason() is None
    idle[0] = 10.0
    assert policy(10.0).reason() == "no client was connected for 10 s"
    assert policy(None).reason() is None, "in Spark, idleness is no reason: batches may be hours apart"
    for name, value, reason in (("jvm", False, "JVM"), ("folder", False, "application"), ("asked", True, "asked")):
        inputs[name] = value
        assert reason in str(policy(None).reason())
        inputs[name] = not value


def test_the_package_is_the_same_inside(world: ServerWorld) -> None:
    """The server imports the package that its starter has, wherever that lies."""
    pid = world.start()
    environ = dict(item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item)
    root = str(Path(fastchangelog.__file__ or "").resolve().parent.parent)
    assert environ["PYTHONPATH"].split(os.pathsep)[0] == root
    assert json.loads(_internal.ServerClient(str(world.place.socket)).shards()) == []
