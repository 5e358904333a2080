"""Credentials of a session that outlives them.

Owns: asking the credential provider again while a session is being opened or is open, and handing what it gives to the
server. Does not own: the provider (`config`), what the server does with it, sessions (`server`).

The provider runs where it was pickled for: in Spark's worker. The state server never has it, so it knows newer
credentials only from the sessions: each open brings those of its moment, and while one lasts this brings the next ones.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

from fastchangelog import _internal
from fastchangelog.server.paths import ServerPaths

__all__ = ["LEAST", "MARGIN", "PAUSE", "Renewal", "credentials"]

_log = logging.getLogger("fastchangelog.spark")

MARGIN = 300.0
"""Seconds before their end at which credentials are asked for again; half of their time if that is less."""

PAUSE = 10.0
"""Seconds until the next try when the provider or the server failed."""

LEAST = 1.0
"""Seconds between two questions at least, however soon the credentials end."""

Grant: TypeAlias = "Callable[[], tuple[Mapping[str, str], float | None]]"


class Renewal:
    """Keeps the credentials of an open request good. A context manager around the session.

    `request` is the open request, `ends` says when its credentials end (None = never: then nothing happens), and
    `grant` asks for others. What goes wrong is logged: the requests that need the credentials say it, too.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        ends: float | None,
        grant: Grant,
        *,
        clock: Callable[[], float] = time.time,
        send: Callable[[str], None] | None = None,
    ) -> None:
        self._of = {name: request[name] for name in ("root", "query_id", "name")}
        self._ends = ends
        self._grant = grant
        self._clock = clock
        self._send = send or _send
        self._failed = False
        self._over = threading.Event()

    def __enter__(self) -> Renewal:
        if self._ends is not None:
            # Not joined: a provider may take its time, and the task does not wait for it.
            threading.Thread(target=self._run, name="fcl-renewal", daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()

    def pause(self) -> float:
        """Seconds until the credentials are asked for again."""
        if self._failed:
            return PAUSE
        left = (self._ends or 0.0) - self._clock()
        return max(LEAST, left - MARGIN, left / 2)

    def step(self) -> None:
        """Asks for credentials and hands them to the server."""
        try:
            storage_options, ends = self._grant()
            self._send(json.dumps({**self._of, **credentials(storage_options, ends)}))
            self._ends, self._failed = ends, False
        except Exception as error:
            self._failed = True
            # Its text is the provider's own and may hold what it asked with.
            _log.warning("credentials of an open session could not be renewed: %s", type(error).__name__)

    def _run(self) -> None:
        while self._ends is not None and not self._over.wait(self.pause()):
            self.step()


def credentials(storage_options: Mapping[str, str], ends: float | None) -> dict[str, Any]:
    """Storage options and the end of the credentials in them, as requests to the server name them."""
    return {
        "storage_options": dict(storage_options),
        "credentials_expire_at": None if ends is None else max(0, int(ends * 1000)),
    }


def _send(renewal: str) -> None:
    paths = ServerPaths.here()
    _internal.ServerClient(str(paths.socket), log=str(paths.log)).renew(renewal)
