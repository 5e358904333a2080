"""The files of this executor's state server: its identity, its socket, its folders.

Owns: the identity, short socket paths, private folders.
Does not own: starting or running the server (`server.client`, `server.process`).

Spark gives each Python worker `SPARK_LOCAL_DIRS`: the block manager's own folders, named at random for each
SparkContext and executor and removed by `spark.stop()` or with the executor. So they give a server its
identity, hold its data, and their removal is its end. Without them (no Spark) the temp folder is used, and a server
ends when no client has been connected for a while.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, PermissionDeniedError

__all__ = ["ServerPaths"]

MAX_SOCKET_PATH = 100
"""Bytes of a socket's path. The system's limit is 108 with the closing zero (104 on BSD)."""

SOCKET = "s"
LOG = "server.log"
MARKER = "alive"
"""File in the data folder; when it is gone, the folder was removed."""


@dataclass(frozen=True)
class ServerPaths:
    """The state server's paths for one executor and one version of the package."""

    run_dir: Path
    """Private folder of the socket, the locks and the log."""

    data_dir: Path
    """Folder of everything local; may vanish at any moment."""

    spark_owned: bool
    """True when Spark removes the data folder at the end of the application."""

    @property
    def socket(self) -> Path:
        """The socket of the server."""
        return self.run_dir / SOCKET

    @property
    def log(self) -> Path:
        """The log: JSON lines, bounded in size."""
        return self.run_dir / LOG

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None) -> ServerPaths:
        """The paths for this process, without touching the disk."""
        # The environment may hold credentials: it is in no local variable.
        local_dirs = (os.environ if environ is None else environ).get("SPARK_LOCAL_DIRS", "")
        runtime_dir = (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR", "")
        first = next((d for d in local_dirs.split(",") if d), "")
        spark_owned = Path(first).name.startswith("blockmgr-")
        uid = os.getuid()
        parts = (local_dirs or tempfile.gettempdir(), _internal.PROTOCOL_VERSION, _internal.__version__, uid)
        name = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
        run_dir = _short_base(runtime_dir, uid, name) / f"fcl-{uid}" / name
        data_dir = Path(first) / f"fastchangelog-{name}" if spark_owned else run_dir / "data"
        return cls(run_dir, data_dir, spark_owned)

    def has_socket(self) -> bool:
        """True if something is at the socket's path. A folder that this user cannot enter has none: `prepare` refuses
        it."""
        return os.path.exists(self.socket)

    def prepare(self) -> None:
        """Makes the run folder, for this user only. Refuses a folder that another user could have prepared."""
        private_dir(self.run_dir.parent)
        private_dir(self.run_dir)


def _short_base(runtime_dir: str, uid: int, name: str) -> Path:
    """The first of the runtime folder, the temp folder and /tmp under which the socket's path fits."""
    tail = len(os.fsencode(f"/fcl-{uid}/{name}/{SOCKET}"))
    candidates = [runtime_dir, tempfile.gettempdir(), "/tmp"]
    for candidate in candidates:
        fits = len(os.fsencode(candidate)) + tail < MAX_SOCKET_PATH
        if candidate.startswith("/") and fits and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    raise InvalidArgumentError(
        f"no folder for the state server's socket: none of {[c for c in candidates if c]} is writable and short enough "
        f"(below {MAX_SOCKET_PATH - tail} bytes); set XDG_RUNTIME_DIR to a short private folder"
    )


def private_dir(path: Path) -> None:
    """Makes `path` a folder that belongs to this user and that no other user can enter."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise PermissionDeniedError(f"cannot make the state server's folder {path}: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionDeniedError(
            f"{path} is not a folder that only this user can enter (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):o}); remove it, or set XDG_RUNTIME_DIR to a private folder"
        )
