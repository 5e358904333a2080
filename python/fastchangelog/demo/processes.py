"""Starting a job, and finding and killing exactly what it started.

Owns: the mark that every process below the job inherits in its environment, and the roles of those processes.
Does not own: when to kill what (conduct; the kill tests, which start their jobs by the same functions).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

MARK = "FASTCHANGELOG_DEMO_RUN"


@dataclasses.dataclass(frozen=True)
class Process:
    """A living process of the run."""

    pid: int
    parent: int
    #: "JVM", "executor", "worker", "worker daemon", "state server", "driver" or "other".
    role: str


def start(command: Sequence[str], run: str, folder: Path, log: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Starts a job in a folder. Its standard input is held open: the job ends when we do."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env={**os.environ, MARK: run, **variables},
            cwd=folder,
            start_new_session=True,  # Ctrl-C in the terminal is ours alone
        )


def marked(run: str, *roles: str) -> list[Process]:
    """All living processes that carry the mark of this run, or those of some roles.

    Needs no list of children: a detached one counts too.
    """
    wanted = f"{MARK}={run}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # gone in the meantime, or not ours
            continue
        if fields[0] != "Z":
            found.append((int(name), int(fields[1]), command))
    living = [Process(pid, parent, _role(command, parent, found)) for pid, parent, command in found]
    return [process for process in living if not roles or process.role in roles]


def _role(command: str, parent: int, everything: list[tuple[int, int, str]]) -> str:
    program = command.split(" ", 1)[0].rsplit("/", 1)[-1]
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if program == "java" or "org.apache.spark.deploy" in command:
        return "JVM"
    if "pyspark.daemon" in command or "pyspark/daemon" in command:
        above = next((c for pid, _, c in everything if pid == parent), "")
        return "worker" if "daemon" in above and "java" not in above else "worker daemon"
    if "fastchangelog.demo.job" in command:
        return "driver"
    if "-m fastchangelog.server.process" in command:
        return "state server"
    return "other"


def kill(pid: int) -> bool:
    """kill -9; False when it was gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def end_all(run: str, *, timeout: float = 10.0) -> int:
    """Kills everything of the run until nothing is left; returns how many were left after the timeout."""
    deadline = time.monotonic() + timeout
    quiet = 0
    while quiet < 2:  # a process that is just being started has no environment yet: look twice
        left = marked(run)
        quiet = 0 if left else quiet + 1
        for process in left:
            kill(process.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        if left and time.monotonic() > deadline:
            return len(left)
        time.sleep(0.05)
    return 0
