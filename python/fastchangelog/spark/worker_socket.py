"""The socket over which Spark's JVM sends a task to this Python worker.

Owns: acknowledging at once what has arrived on it.
Does not own: the protocol on it (PySpark), when a task is unpickled (`task`).

Spark sends a task in two small parts: the functions, then the rows. Its socket waits with the second part until the
first is acknowledged (Nagle's algorithm), and a worker that has nothing to answer delays its acknowledgement by 40 ms
(RFC 1122, 4.2.3.2). Each Python stage of each batch lost these 40 ms. Linux sends an outstanding acknowledgement when
the option TCP_QUICKACK is set (tcp(7)). With `spark.python.unix.domain.socket.enabled` there is no such delay, and
nothing to do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat

__all__ = ["acknowledge"]

_OPEN_FILES = "/proc/self/fd"
#: Only Linux has it.
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


def acknowledge() -> None:
    """Sends the acknowledgements that the kernel delays on this process's connections to its own machine.

    Called when a task is unpickled: its functions have arrived, its rows have not. Does nothing where the kernel has no
    such option.
    """
    if _QUICKACK is None:
        return
    seen: set[int] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_OPEN_FILES):
            with contextlib.suppress(OSError):  # closed meanwhile, or not connected
                _acknowledge(int(name), _QUICKACK, seen)


def _acknowledge(number: int, option: int, seen: set[int]) -> None:
    status = os.fstat(number)
    if not stat.S_ISSOCK(status.st_mode) or status.st_ino in seen:
        return
    seen.add(status.st_ino)  # the worker has several descriptors of one socket
    with socket.socket(fileno=os.dup(number)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        peer = ipaddress.ip_address(connection.getpeername()[0])
        if (getattr(peer, "ipv4_mapped", None) or peer).is_loopback:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)
