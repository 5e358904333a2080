"""The executor's JVM: the state server exits with this process.

Owns: the search among this process's ancestors, and the check that the same process still runs.
Does not own: the reaction to its exit (`server.shutdown`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Jvm"]


@dataclass(frozen=True)
class Jvm:
    """A Java process, identified by pid and start time, since a pid may be reused."""

    pid: int
    start: int

    @classmethod
    def nearest(cls, pid: int | None = None) -> Jvm | None:
        """The nearest `java` among the ancestors of `pid` (default: this process); None when there is none.

        In `local-cluster` the ancestors hold two: the nearest is the executor's, the other the driver's.
        """
        current = os.getppid() if pid is None else pid
        while current > 1:
            found = _stat(current)
            if found is None:
                return None
            name, parent, start = found
            if name == "java":
                return cls(current, start)
            current = parent
        return None

    def alive(self) -> bool:
        """True while the same process runs."""
        found = _stat(self.pid)
        return found is not None and found[2] == self.start

    def pidfd(self) -> int | None:
        """A descriptor that becomes readable when the process ends; None where the system has none, or it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return None
        if self.alive():
            return descriptor
        os.close(descriptor)
        return None


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Name, parent and start time of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return name, int(fields[1]), int(fields[19])
