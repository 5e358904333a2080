"""The processes of state servers.

Owns: finding the servers of one run folder, and killing them. Does not own: what a test does with a server.

A pid in a server's log names that server only while it runs: then the system gives the number to another process, or to
a thread of one. So a process counts only if its command line names the run folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from pathlib import Path

from fastchangelog.server.paths import ServerPaths

_BOUND = 60.0


def living(place: ServerPaths) -> list[int]:
    """The pids of the servers that run at this place."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _serves(int(name), place)]


def kill(place: ServerPaths) -> None:
    """Kills the servers of this place, and waits until they are gone."""
    for pid in living(place):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if _serves(pid, place):  # after the open: the descriptor stays with this process
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    assert select.select([descriptor], [], [], _BOUND)[0], f"the state server {pid} is still there"
            finally:
                os.close(descriptor)


def _serves(pid: int, place: ServerPaths) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"fastchangelog.server.process" in words and any(_run_dir(word) == str(place.run_dir) for word in words)


def _run_dir(word: bytes) -> str | None:
    try:
        settings = json.loads(word)
    except ValueError:
        return None
    return settings.get("run_dir") if isinstance(settings, dict) else None
