"""Where a state server lives: identities, short paths, private folders, the executor's JVM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastchangelog.errors import InvalidArgumentError, PermissionDeniedError
from fastchangelog.server.jvm import Jvm
from fastchangelog.server.paths import MAX_SOCKET_PATH, ServerPaths, private_dir

CLUSTER_DIR = (
    "/tmp/spark-0e856bb6-870d-42c0-9d5b-0e3f455e30ee/executor-48344a2f-20aa-4336-9d90-e41799aefba5/"
    "blockmgr-aba3e616-a923-4767-9d5f-59d921d9c179"
)


def test_one_place_for_each_set_of_local_folders(tmp_path: Path) -> None:
    run = {"XDG_RUNTIME_DIR": str(tmp_path)}
    a = ServerPaths.here({**run, "SPARK_LOCAL_DIRS": CLUSTER_DIR})
    again = ServerPaths.here({**run, "SPARK_LOCAL_DIRS": CLUSTER_DIR})
    b = ServerPaths.here({**run, "SPARK_LOCAL_DIRS": CLUSTER_DIR[:-1] + "0"})
    none = ServerPaths.here(run)
    assert a == again
    assert len({a.run_dir, b.run_dir, none.run_dir}) == 3
    assert a.spark_owned
    assert a.data_dir.parent == Path(CLUSTER_DIR)
    assert not none.spark_owned
    assert none.data_dir.is_relative_to(none.run_dir)


@pytest.mark.case("L-07")
def test_of_several_local_folders_the_first_holds_the_data() -> None:
    paths = ServerPaths.here({"SPARK_LOCAL_DIRS": "/ssd/blockmgr-1,/hdd/blockmgr-2"})
    assert paths.data_dir.parent == Path("/ssd/blockmgr-1")


def test_a_users_own_local_dirs_are_not_mistaken_for_sparks() -> None:
    """On a driver, or outside of Spark, the variable may be the user's: that folder is never removed."""
    paths = ServerPaths.here({"SPARK_LOCAL_DIRS": "/ssd"})
    assert not paths.spark_owned
    assert not paths.data_dir.is_relative_to("/ssd")


def test_socket_paths_are_short_however_long_the_folders(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    paths = ServerPaths.here({"SPARK_LOCAL_DIRS": CLUSTER_DIR * 5, "XDG_RUNTIME_DIR": str(deep)})
    assert len(os.fsencode(paths.socket)) < MAX_SOCKET_PATH
    assert not paths.socket.is_relative_to(deep), "falls back where the path would be too long"


def test_no_folder_that_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InvalidArgumentError, match="XDG_RUNTIME_DIR"):
        ServerPaths.here({})


def test_folders_that_others_can_enter_are_refused(tmp_path: Path) -> None:
    private_dir(tmp_path / "good")
    private_dir(tmp_path / "good")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "file").touch()
    for name in ("open", "link", "file"):
        with pytest.raises(PermissionDeniedError, match=r"XDG_RUNTIME_DIR|cannot make"):
            private_dir(tmp_path / name)


def test_a_process_is_known_by_its_pid_and_its_start() -> None:
    with Path("/proc/self/stat").open() as stat:
        start = int(stat.read().rsplit(")", 1)[1].split()[19])
    assert Jvm(os.getpid(), start).alive()
    descriptor = Jvm(os.getpid(), start).pidfd()
    assert descriptor is not None
    os.close(descriptor)
    assert not Jvm(os.getpid(), start + 1).alive(), "a later process with the same pid is another one"
    assert Jvm(os.getpid(), start + 1).pidfd() is None
    assert Jvm.nearest(1) is None
