"""Processes that Spark starts by `python -m MODULE`, forked from one that has imported what they need.

For each start of a query with a processor, Spark starts a Python process that only declares the states: 1.3 s of CPU,
nearly all of it imports. Here Spark starts `client.py` in its place, which hands its files and its environment over.

Owns: the server, the script that Spark takes for its interpreter. Does not own: which session uses it (`quick_spark`).
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

MODULE = "pyspark.sql.streaming.transform_with_state_driver_worker"
_CLIENT = Path(__file__).with_name("client.py")


@contextlib.contextmanager
def interpreter(folder: Path) -> Iterator[str]:
    """Runs the server; gives a program that behaves like this interpreter."""
    place = folder / "forks"
    command = [sys.executable, "-m", __name__, str(place)]
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$2" in\n{MODULE}) exec "{sys.executable}" -I -S "{_CLIENT}" "{place}" ;;\n'
        f'*) exec "{sys.executable}" "$@" ;;\nesac\n'
    )
    script.chmod(0o755)
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdin is not None
        yield str(script)
        server.stdin.close()


def serve(place: str) -> None:
    """Forks a process for each connection, until its standard input ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.compute
    import pyarrow.ipc  # noqa: F401
    import pyspark.sql.pandas.serializers
    import pyspark.sql.streaming.proto.StateMessage_pb2
    import pyspark.sql.streaming.stateful_processor_util
    import pyspark.worker  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their statuses are not asked for
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(connection)
        connection.close()


def _run(connection: socket.socket) -> None:
    """The forked process: becomes what the client's would have been, and answers with its status."""
    status = 1
    try:
        message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
        environment = json.loads(message)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
        # The client dies when Spark ends it: so does this one.
        threading.Thread(target=lambda: (connection.recv(1), os._exit(1)), daemon=True).start()
        sys.argv = [MODULE]
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            connection.send(bytes([status & 0xFF]))
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
