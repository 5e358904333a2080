"""A state server inside this process, for one reader.

Owns: its folders, its options, its end. Does not own: sessions and shards (Rust), the server of an executor, which runs
a query's batches (`client`, `process`).

A server has one live version of a shard. Opening another version at the server of a query's own executor would drop
the one that the query goes on from, and its next batch would restore it. So a reader has a server of its own: it shares
nothing with others but the bucket, where it only reads.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fastchangelog import _internal
from fastchangelog.hidden import Hidden
from fastchangelog.options import default_option
from fastchangelog.server import platform
from fastchangelog.server.client import connect
from fastchangelog.server.paths import ServerPaths

__all__ = ["PrivateServer", "local_folder", "private_server", "reader_options"]

#: Seconds that the server gets to end.
_STOP_TIMEOUT = 5.0


def reader_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query as one that reads its state has them.

    A reader has the memory of a Python worker, not that of a server; it answers no metrics; it raises no grace period,
    as a server does that counts on objects for longer; and it starts from a handle.
    """
    memory = options.get("worker_memory") or default_option("worker_memory")
    kept = {name: value for name, value in options.items() if name not in ("start_from", "session_memory")}
    return {
        **kept,
        "memory_budget": memory,
        "metrics_port": "0",
        "sweep_grace": "1m",
        "restore": "eager",
        "local_recovery": "false",
    }


class PrivateServer:
    """A running one; made by `private_server`."""

    def __init__(self, paths: ServerPaths, options: Mapping[str, str]) -> None:
        self._paths = paths
        self._options = options

    def open(self, request: Hidden[str]) -> _internal.StateSession:
        """Opens a state session; the request is one as the engine reads it, without options."""
        own = {"operator": "processor", "options": dict(self._options)}
        text = Hidden(json.dumps({**json.loads(request.show()), **own}))
        return connect(_internal.StateSession, self._paths, text)


@contextlib.contextmanager
def private_server(options: Mapping[str, str]) -> Iterator[PrivateServer]:
    """Starts a server in this process, with `reader_options`; ends it and removes its files afterwards."""
    platform.check()
    run_dir = ServerPaths.here().run_dir.parent / secrets.token_hex(8)
    with local_folder() as folder:
        paths = ServerPaths(run_dir, folder, False)
        paths.prepare()
        try:
            server = _internal.Server(
                json.dumps(
                    {
                        "socket": str(paths.socket),
                        "log": str(paths.log),
                        "data_dir": str(paths.data_dir),
                        "options": dict(options),
                    }
                )
            )
            try:
                yield PrivateServer(paths, options)
            finally:
                server.stop(_STOP_TIMEOUT)
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)


@contextlib.contextmanager
def local_folder() -> Iterator[Path]:
    """An empty folder on the executor's local disk, removed at the end. Spark removes it with the executor, too."""
    here = ServerPaths.here()
    parent = here.data_dir.parent if here.spark_owned else None
    with tempfile.TemporaryDirectory(prefix="fastchangelog-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
