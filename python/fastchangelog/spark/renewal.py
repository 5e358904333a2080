"""Renewal of credentials that expire while a session is open.

Owns: calling the credential provider again while a session is being opened or is open, and sending its credentials to
the server. Does not own: the provider (`options`), how the server uses credentials, sessions (`server`).

The provider runs in Spark's worker, for which it was pickled. The state server does not have it and gets newer
credentials only from sessions: each open request holds the current ones, and this module sends the next ones.
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
from fastchangelog.hidden import Hidden, show
from fastchangelog.server.paths import ServerPaths

__all__ = ["MIN_PAUSE", "MARGIN", "PAUSE", "CredentialRenewal", "credentials", "request_text"]

_log = logging.getLogger("fastchangelog.spark")

MARGIN = 300.0
"""Seconds before their expiry at which credentials are renewed; half of their remaining time if that is less."""

PAUSE = 10.0
"""Seconds until the next attempt when the provider or the server failed."""

MIN_PAUSE = 1.0
"""Seconds between two calls of the provider, at least."""

Resolve: TypeAlias = "Callable[[], tuple[Mapping[str, str] | Hidden[Mapping[str, str]], float | None]]"


class CredentialRenewal:
    """Keeps the credentials of an open request valid. A context manager around the session.

    `request` is the open request, `expires` is when its credentials expire (None = never: then nothing happens), and
    `resolve` returns new ones. Failures are logged only: requests that need the credentials fail by themselves.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        expires: float | None,
        resolve: Resolve,
        *,
        clock: Callable[[], float] = time.time,
        send: Callable[[str], None] | None = None,
    ) -> None:
        self._of = {name: request[name] for name in ("root", "query_id", "name")}
        self._expires = expires
        self._resolve = resolve
        self._clock = clock
        self._send = send or _send
        self._failed = False
        self._stopped = threading.Event()

    def __enter__(self) -> CredentialRenewal:
        if self._expires is not None:
            # Not joined: a provider may be slow, and the task does not wait for it.
            threading.Thread(target=self._run, name="fcl-renewal", daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stopped.set()

    def pause(self) -> float:
        """Seconds until the credentials are renewed."""
        if self._failed:
            return PAUSE
        left = (self._expires or 0.0) - self._clock()
        return max(MIN_PAUSE, left - MARGIN, left / 2)

    def renew(self) -> None:
        """Calls the provider and sends the credentials to the server."""
        try:
            found, expires = self._resolve()
            storage_options = Hidden(show(found))
            del found
            self._send(request_text({**self._of, **credentials(storage_options, expires)}).show())
            self._expires, self._failed = expires, False
        except Exception as error:
            self._failed = True
            # The provider's text may contain secrets.
            name = type(error.__cause__ or error).__name__
            _log.warning("cannot renew the credentials of an open session: %s", name)

    def _run(self) -> None:
        while self._expires is not None and not self._stopped.wait(self.pause()):
            self.renew()


def credentials(storage_options: Hidden[Mapping[str, str]], expires: float | None) -> dict[str, Any]:
    """Storage options and the expiry of the credentials in them, as fields of a request to the server."""
    return {
        "storage_options": storage_options,
        "credentials_expire_at": None if expires is None else max(0, int(expires * 1000)),
    }


def request_text(request: Mapping[str, Any]) -> Hidden[str]:
    """A request to the server, as its JSON."""
    return Hidden(json.dumps(request, default=show))


def _send(renewal: str) -> None:
    hidden = Hidden(renewal)
    del renewal
    paths = ServerPaths.here()
    _internal.ServerClient(str(paths.socket), log=str(paths.log)).renew(hidden.show())
