"""What can go wrong between a store's client and its server: requests, answers, and the faults that change them.

Owns: the kinds of requests, what each fault does to one request and its answer.
Does not own: which request gets which fault, sockets, counting (all `fault_proxy`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PUT, GET, HEAD, DELETE, LIST, MULTIPART = "PUT", "GET", "HEAD", "DELETE", "LIST", "MULTIPART"
"""Kinds of requests. MULTIPART: the start, a part, the completion or the abort of an upload in parts."""

BOUND = 60.0
"""Seconds after which the proxy gives up on a server or a gate: only a broken test gets there."""


def kind_of(method: str, target: str) -> str:
    """The kind of an S3 or Azure request.

    >>> kind_of("PUT", "/bucket/a"), kind_of("PUT", "/bucket/a?partNumber=1&uploadId=x"), kind_of("POST", "/b?delete")
    ('PUT', 'MULTIPART', 'DELETE')
    """
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    comp = query.get("comp", [""])[0]
    if query.keys() & {"uploads", "uploadId", "partNumber"} or comp in ("block", "blocklist"):
        return MULTIPART
    if method == "POST" and ("delete" in query or comp == "batch"):
        return DELETE
    if method == "GET" and (query.keys() & {"list-type", "prefix"} or comp == "list"):
        return LIST
    return method


@dataclass(frozen=True)
class Request:
    """A request as it came; names of headers in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return kind_of(self.method, self.target)

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def key_id(self) -> str | None:
        """The access key whose secret signed an S3 request."""
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        return found.group(1) if found else None


@dataclass(frozen=True)
class Answer:
    """An answer; `announced` is its Content-Length where that is not the length of the body."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    announced: int | None = None


class Reset(Exception):
    """The client's connection is to be reset."""


class Fault:
    """What happens to one request. This one: nothing."""

    def before(self, request: Request) -> Answer | None:
        """Called before the request is forwarded; an answer given here is sent instead of the server's."""

    def after(self, answer: Answer) -> Answer:
        """The answer to send in place of the server's."""
        return answer


PASS = Fault()


@dataclass(frozen=True)
class Refuse(Fault):
    """The request is answered with an error in S3's form; the server never sees it."""

    status: int
    code: str = "SlowDown"
    message: str = "Please reduce your request rate."

    def before(self, request: Request) -> Answer:
        text = f"<Error><Code>{escape(self.code)}</Code><Message>{escape(self.message)}</Message></Error>"
        return Answer(self.status, text.encode(), (("Content-Type", "application/xml"),))


@dataclass(frozen=True)
class Reply(Fault):
    """The request is answered by the test; the server never sees it."""

    make: Callable[[Request], Answer]

    def before(self, request: Request) -> Answer:
        return self.make(request)


class ResetBefore(Fault):
    """The connection is reset; the server never sees the request."""

    def before(self, request: Request) -> Answer | None:
        raise Reset


class ResetAfter(Fault):
    """The server does what it was asked to do, but its answer is lost with the connection."""

    def after(self, answer: Answer) -> Answer:
        raise Reset


@dataclass(frozen=True)
class Cut(Fault):
    """The connection ends after this fraction of the answer's body."""

    at: float

    def after(self, answer: Answer) -> Answer:
        return replace(answer, body=answer.body[: int(self.at * len(answer.body))], announced=len(answer.body))


@dataclass(frozen=True)
class Shorten(Fault):
    """The answer's body is cut to this fraction of it and declared to be complete."""

    to: float

    def after(self, answer: Answer) -> Answer:
        return replace(answer, body=answer.body[: int(self.to * len(answer.body))])


@dataclass(frozen=True)
class Flip(Fault):
    """A bit of the answer's body is flipped, in the byte at this fraction of it."""

    at: float

    def after(self, answer: Answer) -> Answer:
        body = bytearray(answer.body)
        if body:
            body[min(int(self.at * len(body)), len(body) - 1)] ^= 0x10
        return replace(answer, body=bytes(body))


@dataclass(frozen=True)
class First(Fault):
    """Something else happens just before the request is forwarded."""

    act: Callable[[Request], object]

    def before(self, request: Request) -> None:
        self.act(request)


@dataclass(frozen=True)
class Hold(Fault):
    """The request stays in the proxy until the gate opens, even if its client has left; then it is forwarded."""

    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)

    def before(self, request: Request) -> None:
        self.arrived.set()
        self.gate.wait(BOUND)
