"""The state server: one process per Spark executor, started by the first task that needs it.

Owns: the names that the Spark side uses. Does not own: the client (`client`), the process (`process`), when it ends
(`shutdown`), its sweeps (`sweeper`), its files (`paths`), its memory budget (`memory`), its systems (`platform`).
"""

from __future__ import annotations

from fastchangelog.server.client import ensure_server, open_session, open_state_session

__all__ = ["ensure_server", "open_session", "open_state_session"]
