"""Systems other than Linux: what refuses to start, and that the rest needs nothing that only Linux has.

Owns: the error and its places; the names and files of Linux that the other parts must do without.
Does not own: the native module on other systems (`platform.rs` in `rust/store` and `rust/server`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fastchangelog import server
from fastchangelog.cli import doctor
from fastchangelog.errors import UnsupportedError
from fastchangelog.server import platform
from fastchangelog.server.private import private_server
from support.programs import run

SAYS = "state server runs on Linux only.*embedded states.*run_processor` work here"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process as on macOS; the folder in which a server would have its socket."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_server_is_refused_before_anything_is_made(mac: Path) -> None:
    with pytest.raises(UnsupportedError, match=SAYS) as refused:
        server.ensure_server()
    assert refused.value.remedy == platform.WORKS_ELSEWHERE
    with pytest.raises(UnsupportedError, match=SAYS):
        server.open_session("{}")
    with pytest.raises(UnsupportedError, match=SAYS), private_server({}):
        pass
    assert list(mac.iterdir()) == []


class Passed(Exception):
    """The check let the frame pass."""


class Frame:
    """As much of a DataFrame as is looked at until the check has passed."""

    def __init__(self, master: str | None) -> None:
        self._master = master

    @property
    def sparkSession(self) -> Frame:
        return self

    @property
    def conf(self) -> Frame:
        return self

    def get(self, name: str, default: None) -> str | None:
        assert name == "spark.master"
        return default if self._master is None else self._master

    def groupBy(self) -> None: ...

    @property
    def isStreaming(self) -> bool:
        raise Passed


@pytest.fixture
def grouped() -> Any:
    pytest.importorskip("pyspark")
    from fastchangelog.spark.grouped_stream import grouped

    return grouped


@pytest.mark.parametrize("master", [None, "local", "local[*]", "local-cluster[2,1,1024]"])
def test_queries_whose_tasks_run_here_are_refused(grouped: Any, mac: Path, master: str | None) -> None:
    with pytest.raises(UnsupportedError, match=SAYS):
        grouped(Frame(master), "key", state="/state")


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:443"])
def test_tasks_of_a_cluster_are_checked_where_they_run(grouped: Any, mac: Path, master: str) -> None:
    with pytest.raises(Passed):
        grouped(Frame(master), "key", state="/state")


def test_on_linux_no_setting_is_asked_for(grouped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Frame, "get", None)
    platform.check()
    with pytest.raises(Passed):
        grouped(Frame("local"), "key", state="/state")


def test_doctor_says_what_works(mac: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = [f for f in doctor.check() if f.what == "state server"]
    assert not found.ok
    assert "Linux only" in found.found
    assert found.fix == platform.WORKS_ELSEWHERE
    monkeypatch.setattr(sys, "platform", "linux")
    (found,) = [f for f in doctor.check() if f.what == "state server"]
    assert found.ok


def test_the_demo_is_refused(mac: Path) -> None:
    from fastchangelog.demo.main import DemoRequest
    from fastchangelog.demo.main import run as run_demo

    with pytest.raises(UnsupportedError, match=SAYS):
        run_demo(DemoRequest())


#: Names of the standard library that Linux has and macOS does not, and the folder /proc, are gone.
WITHOUT_LINUX = """
    import asyncio, concurrent.futures, fcntl, importlib, os, pkgutil, resource, select, signal, socket, subprocess, sys
    import numpy, pyarrow, pyarrow.compute, pyarrow.parquet  # the standard library and others ask for the system, too
    names = {
        os: "eventfd memfd_create pidfd_open pipe2 posix_fadvise sched_getaffinity splice O_DIRECT O_PATH O_TMPFILE",
        resource: "prlimit",
        select: "epoll",
        signal: "pidfd_send_signal",
        socket: "SO_PEERCRED TCP_QUICKACK",
    }
    for module, gone in names.items():
        for name in gone.split():
            vars(module).pop(name, None)
    sys.platform = "darwin"

    def no_proc(event, arguments):
        if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
            raise FileNotFoundError(arguments[0])

    sys.addaudithook(no_proc)
"""


def test_all_but_the_server_needs_nothing_of_linux() -> None:
    """Also the modules of the server can be imported: `metrics` and `doctor` use some of them."""
    ended = run(
        WITHOUT_LINUX
        + """
    import fastchangelog as fc
    import fastchangelog.types
    from fastchangelog import server, testing
    from fastchangelog.cli import command_line, doctor

    command_line._parser()
    assert all(getattr(fc, name) is not None for name in fc.__all__)
    for module in pkgutil.iter_modules(server.__path__, "fastchangelog.server."):
        importlib.import_module(module.name)

    with fc.open_state("memory://platform/state") as st:
        st.value_state("visits", key="string", value="long")["ann"] = 3
        assert st.checkpoint().state_keys == 1
        assert fc.metrics()["checkpoints"] == 1

    class Counts(fc.Processor):
        def open(self, ctx):
            self.seen = ctx.value_state("seen", "long")

        def process(self, batch):
            now = pyarrow.compute.add(
                pyarrow.compute.fill_null(self.seen.get(batch.keys), 0), numpy.diff(batch.offsets)
            )
            self.seen.put(batch.keys, now)
            yield pyarrow.RecordBatch.from_arrays([batch.keys.field("user"), now], ["user", "n"])

    clicks = pyarrow.table({"user": ["ann", "bob", "ann"]})
    (answer,) = testing.run_processor(Counts(), [clicks])
    assert answer.to_pylist() == [{"user": "ann", "n": 2}, {"user": "bob", "n": 1}]
    assert not all(finding.ok for finding in doctor.check())
    try:
        server.ensure_server()
    except fc.UnsupportedError as error:
        print(error)
    """
    )
    assert ended.returncode == 0, ended.stderr
    assert "the state server runs on Linux only" in ended.stdout
