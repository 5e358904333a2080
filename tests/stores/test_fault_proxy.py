"""The proxy itself: that it changes nothing unless told to, and then what it was told.

Owns: the proxy in front of a real S3 server, with Amazon's own client and plain HTTP. Does not own: our client.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from pathlib import Path

import pytest

from support.stores.fault_proxy import FaultProxy
from support.stores.faults import (
    BOUND,
    DELETE,
    GET,
    HEAD,
    LIST,
    MULTIPART,
    PASS,
    PUT,
    Answer,
    Cut,
    Flip,
    Hold,
    Refuse,
    Reply,
    ResetAfter,
    ResetBefore,
    Shorten,
    kind_of,
)
from support.stores.places import S3Place, s3_admin
from support.stores.servers import refusing_port, server_tls
from support.waiting import until

CONTENT = bytes(range(256)) * 64


# The server asks for a signature, but does not check it.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, Signature=b"}


def ask(proxy: FaultProxy, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection(proxy.host)) as connection:
        connection.request(method, path, body, SIGNED)
        response = connection.getresponse()
        return response.status, response.read()


@pytest.fixture
def stored(bucket: S3Place) -> S3Place:
    bucket.write("a", CONTENT)
    return bucket


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("PUT", "/b/a", PUT),
        ("GET", "/b/a", GET),
        ("HEAD", "/b/a", HEAD),
        ("DELETE", "/b/a", DELETE),
        ("POST", "/b?delete", DELETE),
        ("GET", "/b?list-type=2&prefix=log%2F", LIST),
        ("POST", "/b/a?uploads", MULTIPART),
        ("PUT", "/b/a?partNumber=1&uploadId=x", MULTIPART),
        ("POST", "/b/a?uploadId=x", MULTIPART),
        ("DELETE", "/b/a?uploadId=x", MULTIPART),
        ("GET", "/account/c?restype=container&comp=list", LIST),
        ("PUT", "/account/c/a?comp=block&blockid=x", MULTIPART),
        ("PUT", "/account/c/a?comp=blocklist", MULTIPART),
        ("POST", "/account/c?restype=container&comp=batch", DELETE),
    ],
)
def test_requests_of_s3_and_azure_are_told_apart(method: str, target: str, kind: str) -> None:
    assert kind_of(method, target) == kind


def test_amazons_own_client_sees_no_difference(stored: S3Place) -> None:
    client = s3_admin(stored.proxy.host)
    client.put_object(Bucket=stored.bucket, Key="b", Body=b"second")
    assert client.get_object(Bucket=stored.bucket, Key="a")["Body"].read() == CONTENT
    assert client.head_object(Bucket=stored.bucket, Key="a")["ContentLength"] == len(CONTENT)
    listed = client.list_objects_v2(Bucket=stored.bucket)["Contents"]
    client.delete_object(Bucket=stored.bucket, Key="a")
    assert [entry["Key"] for entry in listed] == ["a", "b"]
    assert stored.names() == ["b"]
    assert stored.proxy.counts() == {PUT: 1, GET: 1, HEAD: 1, LIST: 1, DELETE: 1}
    assert stored.proxy.bytes_down[GET] == len(CONTENT)
    assert stored.proxy.bytes_up == {PUT: len(b"second"), GET: 0, HEAD: 0, LIST: 0, DELETE: 0}


def test_each_request_gets_the_next_fault_of_the_script(stored: S3Place) -> None:
    path = f"/{stored.bucket}/a"
    stored.proxy.script(PASS, Refuse(503), Refuse(429, "TooMany"), on=GET)
    answers = [ask(stored.proxy, "GET", path) for _ in range(4)]
    assert [status for status, _ in answers] == [200, 503, 429, 200]
    assert b"<Code>SlowDown</Code>" in answers[1][1]
    assert stored.proxy.statuses(GET) == [200, None, None, 200]


def test_a_fault_for_ever_ends_with_healing(stored: S3Place) -> None:
    path = f"/{stored.bucket}/a"
    stored.proxy.always(Refuse(500), on=GET, where=lambda request: request.path.endswith("/a"))
    assert [ask(stored.proxy, "GET", path)[0] for _ in range(3)] == [500] * 3
    assert ask(stored.proxy, "GET", f"/{stored.bucket}/missing")[0] == 404
    stored.proxy.heal()
    assert ask(stored.proxy, "GET", path) == (200, CONTENT)


def test_a_lost_request_never_arrives_a_lost_answer_too_late(bucket: S3Place) -> None:
    bucket.proxy.script(ResetBefore(), ResetAfter(), on=PUT)
    with pytest.raises(ConnectionError):
        ask(bucket.proxy, "PUT", f"/{bucket.bucket}/before", b"x")
    with pytest.raises(ConnectionError):
        ask(bucket.proxy, "PUT", f"/{bucket.bucket}/after", b"x")
    assert bucket.names() == ["after"]
    assert bucket.proxy.statuses(PUT) == [None, 200]


def test_answers_are_cut_shortened_and_damaged(stored: S3Place) -> None:
    path = f"/{stored.bucket}/a"
    stored.proxy.script(Cut(0.25), Shorten(0.5), Flip(0.0), Flip(0.999999), on=GET)
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(stored.proxy, "GET", path)
    assert cut.value.partial == CONTENT[: len(CONTENT) // 4]
    assert ask(stored.proxy, "GET", path) == (200, CONTENT[: len(CONTENT) // 2])
    first, last = ask(stored.proxy, "GET", path)[1], ask(stored.proxy, "GET", path)[1]
    assert (first[0], first[1:]) == (CONTENT[0] ^ 0x10, CONTENT[1:])
    assert (last[-1], last[:-1]) == (CONTENT[-1] ^ 0x10, CONTENT[:-1])


def test_a_held_request_arrives_when_its_gate_opens(bucket: S3Place) -> None:
    held = Hold()
    bucket.proxy.script(held, on=PUT)
    with contextlib.closing(http.client.HTTPConnection(bucket.proxy.host)) as connection:
        connection.request("PUT", f"/{bucket.bucket}/a", b"late")
        assert held.arrived.wait(BOUND)
    assert bucket.names() == []
    held.gate.set()
    until("the held request", lambda: bucket.proxy.statuses(PUT) == [200], BOUND)
    assert bucket.read("a") == b"late"


def test_delays_are_at_least_what_was_asked_for(stored: S3Place) -> None:
    stored.proxy.latency, stored.proxy.bandwidth = 0.05, len(CONTENT) * 10
    start = time.monotonic()
    assert ask(stored.proxy, "GET", f"/{stored.bucket}/a") == (200, CONTENT)
    assert time.monotonic() - start >= 0.05 + 0.1


def test_a_proxy_without_a_server_answers_by_script_alone(tmp_path: Path) -> None:
    with FaultProxy(None, tls=server_tls(tmp_path)) as server:
        server.always(Reply(lambda request: Answer(200, request.query["name"].encode())), on=GET)
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        with contextlib.closing(http.client.HTTPSConnection(server.host, context=trusting)) as connection:
            connection.request("GET", "/?name=ann")
            assert connection.getresponse().read() == b"ann"
            connection.request("PUT", "/")
            assert connection.getresponse().status == 404


def test_a_server_that_is_gone_is_an_answer_too() -> None:
    with refusing_port() as port, FaultProxy(f"127.0.0.1:{port}") as proxy:
        status, text = ask(proxy, "GET", "/b/a")
    assert status == 502
    assert str(port) in text.decode()
