"""A proxy between a store's client and its server that breaks what a test's script says, and counts everything.

Owns: forwarding of HTTP/1.1, which request gets which fault, the log of requests and bytes.
Does not own: the faults (`faults`), the server behind it (`servers`), nor what a client has to make of a fault.

The n-th request that a script applies to gets the script's n-th fault, so a test is the same each time: nothing is
drawn at random and nothing depends on a moment. Delays are what a test is about, never what makes it right.

Requests and answers are read whole before they are passed on. A proxy without a server behind it answers 404 to
whatever is not scripted: a small server of its own, such as one that hands out credentials.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from support.stores.faults import BOUND, PASS, Answer, Fault, Hold, Request, Reset

_CHUNK = 1 << 16
_HOP_BY_HOP = frozenset({"connection", "expect", "keep-alive", "proxy-connection", "transfer-encoding"})
_NO_BODY = frozenset({204, 304})


@dataclass
class Exchange:
    """What happened to a request: the server's status, or none when the server never saw it (or has not answered)."""

    request: Request
    status: int | None = None


@dataclass
class _Script:
    faults: deque[Fault]
    forever: Fault | None
    on: Collection[str]
    where: Callable[[Request], bool]

    def applies(self, request: Request) -> bool:
        some_left = bool(self.faults) or self.forever is not None
        return some_left and (not self.on or request.kind in self.on) and self.where(request)

    def take(self) -> Fault:
        return self.faults.popleft() if self.faults else self.forever or PASS


def _anything(_: Request) -> bool:
    return True


def _kinds(on: str | Collection[str]) -> Collection[str]:
    return (on,) if isinstance(on, str) else tuple(on)


@dataclass
class FaultProxy:
    """Forwards what comes to `url` to the server `upstream`, through the script. A context manager.

    >>> from faults import GET, Refuse
    >>> with FaultProxy(None) as server:
    ...     server.script(Refuse(503), on=GET)
    ...     connection = http.client.HTTPConnection(server.host)
    ...     connection.request("GET", "/bucket/a")
    ...     connection.getresponse().status, dict(server.counts())
    (503, {'GET': 1})
    """

    upstream: str | None
    """`host:port` of the server; none = there is no server."""

    tls: ssl.SSLContext | None = None
    """Speaks TLS to clients when given."""

    latency: float = 0.0
    """Seconds that every request takes longer than the server does."""

    bandwidth: int | None = None
    """Bytes per second of each connection, in either direction; none = as fast as it goes."""

    log: list[Exchange] = field(default_factory=list)
    """All requests in the order of their arrival, which is before anything is done with them."""

    bytes_up: Counter[str] = field(default_factory=Counter)
    """Bytes of bodies that clients sent, by kind of request."""

    bytes_down: Counter[str] = field(default_factory=Counter)
    """Bytes of bodies that clients were sent, by kind of request."""

    _scripts: list[_Script] = field(default_factory=list)
    _gates: list[threading.Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> FaultProxy:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for gate in self._gates:
            gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.drop_connections()

    @property
    def host(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"{'https' if self.tls else 'http'}://{self.host}"

    def script(
        self, *faults: Fault, on: str | Collection[str] = (), where: Callable[[Request], bool] = _anything
    ) -> None:
        """The next requests of the kinds `on` (default: all) for which `where` holds get these faults, one each.

        A request is taken by the oldest script that applies to it and is not used up.
        """
        self._add(_Script(deque(faults), None, _kinds(on), where))

    def always(
        self, fault: Fault, on: str | Collection[str] = (), where: Callable[[Request], bool] = _anything
    ) -> None:
        """As `script`, for all requests from now on."""
        self._add(_Script(deque(), fault, _kinds(on), where))

    def _add(self, script: _Script) -> None:
        with self._lock:
            self._scripts.append(script)
            # Nothing stays held when the proxy ends.
            self._gates += [fault.gate for fault in (*script.faults, script.forever) if isinstance(fault, Hold)]

    def heal(self) -> None:
        """Ends all scripts."""
        with self._lock:
            self._scripts.clear()

    def forget(self) -> None:
        """Empties the log and the counters."""
        with self._lock:
            self.log.clear()
            self.bytes_up.clear()
            self.bytes_down.clear()

    def requests(self, *kinds: str) -> list[Request]:
        """The requests of these kinds (default: all), in the order of their arrival."""
        return [exchange.request for exchange in self._logged(kinds)]

    def statuses(self, *kinds: str) -> list[int | None]:
        """What the server answered to the requests of these kinds, in the order of their arrival."""
        return [exchange.status for exchange in self._logged(kinds)]

    def counts(self) -> Counter[str]:
        """How many requests of each kind came."""
        return Counter(request.kind for request in self.requests())

    def _logged(self, kinds: Collection[str]) -> list[Exchange]:
        with self._lock:
            return [exchange for exchange in self.log if not kinds or exchange.request.kind in kinds]

    def _handle(self, request: Request) -> Answer:
        exchange = Exchange(request)
        with self._lock:
            self.log.append(exchange)
            self.bytes_up[request.kind] += len(request.body)
            script = next((s for s in self._scripts if s.applies(request)), None)
            fault = script.take() if script else PASS
        if self.latency:
            time.sleep(self.latency)
        answer = fault.before(request)
        if answer is None:
            answer = self._forward(request)
            exchange.status = answer.status
            answer = fault.after(answer)
        with self._lock:
            self.bytes_down[request.kind] += len(answer.body)
        return answer

    def _forward(self, request: Request) -> Answer:
        if self.upstream is None:
            return Answer(404)
        try:
            with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=BOUND)) as connection:
                # The headers as they are, Host included: they are signed.
                connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
                for name, value in request.headers.items():
                    if name not in _HOP_BY_HOP:
                        connection.putheader(name, value)
                connection.endheaders(request.body or None)
                response = connection.getresponse()
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(502, f"no answer from {self.upstream}: {error!r}".encode())
        dropped = _HOP_BY_HOP | {"content-length"}
        headers = tuple((name, value) for name, value in response.getheaders() if name.lower() not in dropped)
        length = response.getheader("Content-Length")
        announced = int(length) if request.method == "HEAD" and length else None
        return Answer(response.status, body, headers, announced)

    def _pace(self, size: int) -> None:
        if self.bandwidth:
            time.sleep(size / self.bandwidth)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(proxy._handle(Request(self.command, self.path, headers, self._read_body())))
        except Reset:
            self._reset()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise ValueError("a body of unannounced length: the clients under test send none")
        left = int(self.headers.get("Content-Length", 0))
        parts = []
        while left:
            part = self.rfile.read(min(left, _CHUNK))
            if not part:
                raise ConnectionResetError("the client left in the middle of a request")
            self.server.proxy._pace(len(part))
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status not in _NO_BODY:
            self.send_header("Content-Length", str(len(answer.body) if answer.announced is None else answer.announced))
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(answer.body), _CHUNK):
            part = answer.body[start : start + _CHUNK]
            self.server.proxy._pace(len(part))
            self.wfile.write(part)
        if answer.announced not in (None, len(answer.body)):
            self.close_connection = True

    def _reset(self) -> None:
        """Closes with a reset rather than an orderly end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()  # the last that keeps the socket open
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the log is `FaultProxy.log`."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.proxy.tls:
            # The handshake comes with the first read, in the connection's own thread.
            connection = self.proxy.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self.open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        for connection in tuple(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that leaves in the middle is what many tests are about; anything else is a fault of the proxy.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
