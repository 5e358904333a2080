"""Shards of a processor with the real codec and grouper, over a fake session or over a real state server.

Owns: the runners, a server for each test. Does not own: runs without a codec (`processor_runs`), processors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from fastchangelog import _internal, server
from fastchangelog.server.paths import ServerPaths
from support import state_servers
from support.processor_runs import Runner


class CodecRunner(Runner):
    """One shard of a query over a fake session."""

    codec = _internal.StateCodec

    def __init__(self, root: Path, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.root = root

    def grouped(self, rows: Sequence[tuple[Any, ...]], columns: T.StructType) -> Any:
        batch = self.columns_of(rows, columns)
        splitter = _internal.RowSplitter(len(self.key.fields), batch.schema, 1, 128, 2**20)
        grouper = _internal.RowGrouper(len(self.key.fields), batch.schema, 2**24, self.root)
        for _, payload in [*splitter.push(batch), *splitter.finish()]:
            grouper.push(payload)
        most = self.chunk_rows

        class Cut:
            def finish(self, chunk_rows: int, chunk_bytes: int) -> _internal.RowChunks:
                return grouper.finish(most or chunk_rows, chunk_bytes)

        return Cut()

    def abort(self) -> None:
        """Ends a session that was not committed."""

    def kill_server(self) -> None:
        """Nothing: there is none."""


class ServerRunner(CodecRunner):
    """One shard of a query at a state server."""

    options = {"memory_budget": "64MiB"}

    def __init__(self, root: Path, *args: Any, **settings: Any) -> None:
        super().__init__(root, *args, **settings)
        self.handle: str | None = None
        self.number = 0

    def open(self) -> _internal.StateSession:
        request = {
            "root": f"file://{self.root}/state",
            "query_id": "query",
            "name": "default",
            "shard": 0,
            "shards": 1,
            "batch": self.number,
            "handle": self.handle,
            "operator": "processor",
            "options": self.options,
        }
        return server.open_state_session(json.dumps(request), self.options)

    def commit(self) -> None:
        assert self.session is not None
        self.handle, _ = self.session.commit()
        self.session.close()
        self.number += 1

    def abort(self) -> None:
        self.session.close()

    def kill_server(self) -> None:
        """Kills the server, if there is one, and waits for its end."""
        state_servers.kill(ServerPaths.here())


@pytest.fixture(params=[CodecRunner, ServerRunner])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CodecRunner]]:
    """Makes runners, at a server of this test's own."""
    for variable in ("XDG_RUNTIME_DIR", "SPARK_LOCAL_DIRS"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    made: list[CodecRunner] = []

    def runner(*args: Any, **settings: Any) -> CodecRunner:
        made.append(request.param(tmp_path, *args, **settings))
        return made[-1]

    yield runner
    for one in made[:1]:
        one.kill_server()
