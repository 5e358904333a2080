"""The acknowledgements that a worker sends at once (`fastchangelog.spark.worker_socket`)."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from fastchangelog.spark.task import VersionChecked
from fastchangelog.spark.worker_socket import acknowledge

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system has no TCP_QUICKACK")


def delaying_pair(host: str) -> tuple[socket.socket, socket.socket]:
    """A connection whose second end delays acknowledgements, as after an answer."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        near = socket.create_connection(server.getsockname()[:2])
        far, _ = server.accept()
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert not is_quick(far)
    return near, far


def is_quick(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def test_connections_of_this_machine_acknowledge_at_once() -> None:
    near, far = delaying_pair("127.0.0.1")
    with near, far:
        acknowledge()
        assert is_quick(far)
        near.sendall(b"rows")
        assert far.recv(4) == b"rows"


def test_a_task_that_is_unpickled_acknowledges() -> None:
    near, far = delaying_pair("127.0.0.1")
    with near, far:
        task = VersionChecked()
        VersionChecked().__setstate__(task.__getstate__())
        assert is_quick(far)


def test_other_files_are_left_as_they_are() -> None:
    left, right = socket.socketpair()
    lonely = socket.socket()
    with left, right, lonely:
        before = os.listdir("/proc/self/fd")
        acknowledge()
        assert os.listdir("/proc/self/fd") == before
        left.sendall(b"x")
        assert right.recv(1) == b"x"


def test_without_a_list_of_open_files_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fastchangelog.spark.worker_socket"], "_OPEN_FILES", "/nowhere")
    acknowledge()
