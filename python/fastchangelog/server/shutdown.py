"""Decides when the state server exits.

Owns: the reasons, in their order. Does not own: their observation, and the exit itself (`server.process`).

Whichever comes first: the server is asked to stop (SIGTERM); the executor's JVM ends; the data folder vanishes (Spark
removes it in `spark.stop()`, while the JVM may live on); the socket is removed; without Spark, no client was connected
for `FASTCHANGELOG_SERVER_IDLE` (default 60s).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ShutdownPolicy"]


class ShutdownPolicy:
    """Decides when the server exits. All inputs are injected for tests. One check costs three system calls."""

    def __init__(
        self,
        *,
        jvm_alive: Callable[[], bool],
        folder_exists: Callable[[], bool],
        socket_exists: Callable[[], bool],
        idle_seconds: Callable[[], float],
        idle_timeout: float | None,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._jvm_alive = jvm_alive
        self._folder_exists = folder_exists
        self._socket_exists = socket_exists
        self._idle_seconds = idle_seconds
        self._idle_timeout = idle_timeout
        self._stop_requested = stop_requested

    def reason(self) -> str | None:
        """The reason why the server must exit now; None if there is none."""
        if self._stop_requested():
            return "it was asked to"
        if not self._jvm_alive():
            return "the executor's JVM ended"
        if not self._folder_exists():
            return "its data folder vanished: the application stopped"
        if not self._socket_exists():
            return "its socket was removed: no client can reach it"
        if self._idle_timeout is not None and self._idle_seconds() >= self._idle_timeout:
            return f"no client was connected for {self._idle_timeout:g} s"
        return None
