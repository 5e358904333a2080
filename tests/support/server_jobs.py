"""One shard of an aggregating query at a real state server, fed batch by batch.

Owns: the query, its exact results, a server for each test. Does not own: faults (the tests).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastchangelog import _internal, server
from fastchangelog.server.paths import ServerPaths
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json
from support import state_servers

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
SPEC = spec_json(
    1,
    INPUT,
    OUTPUT,
    [
        AggregateSpec("count", (), None, False, True, "count(1)"),
        AggregateSpec("sum", (1,), None, False, True, "sum(v)"),
    ],
)
GROUPS = 128


class Job:
    """One shard of a query, fed batch by batch as Spark would."""

    def __init__(self, root: Path, **options: str) -> None:
        self.root = root
        self.options = {"memory_budget": "64MiB", **options}
        self.handle: str | None = None
        self.batch = 0
        self.expected: dict[str, list[int]] = {}

    @property
    def place(self) -> ServerPaths:
        return ServerPaths.here()

    def open(self, handle: str | None = None) -> _internal.SessionClient:
        request = {
            "root": f"file://{self.root}",
            "query_id": "query",
            "name": "default",
            "shard": 0,
            "shards": 1,
            "batch": self.batch,
            "handle": handle or self.handle,
            "spec": SPEC,
            "options": self.options,
        }
        return server.open_session(json.dumps(request), self.options)

    def payloads(self, rows: list[tuple[str, int]]) -> list[bytes]:
        splitter = _internal.Splitter(SPEC, 1, GROUPS, 1 << 20)
        batch = pa.record_batch([[k for k, _ in rows], [v for _, v in rows]], schema=INPUT)
        return [payload for _, payload in splitter.push(batch) + splitter.finish()]

    def run(self, rows: list[tuple[str, int]], persist: bool = True) -> dict[str, int]:
        """One batch: checks every result row, and keeps the handle as Spark would."""
        changed = set()
        for key, value in rows:
            entry = self.expected.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += value
            changed.add(key)
        with self.open() as session:
            for payload in self.payloads(rows):
                session.merge(payload)
            results = session.finish(persist=persist)
            assert results.schema.names == OUTPUT.names
            found = {row["k"].decode(): [row["n"], row["total"]] for batch in results for row in batch.to_pylist()}
            assert found == {key: self.expected[key] for key in changed}
            self.handle, numbers, _ = session.commit()
        self.batch += 1
        return numbers

    def metrics(self) -> dict[str, int]:
        """Of this job's server alone: `fc.metrics()` also has what earlier tests counted in this process."""
        found: dict[str, int] = json.loads(_internal.ServerClient(str(self.place.socket)).metrics())
        return found

    def pid(self) -> int:
        events = [json.loads(line) for line in self.place.log.read_text().splitlines() if line.startswith("{")]
        return int([event["pid"] for event in events if event["event"] == "started"][-1])

    def kill(self) -> None:
        state_servers.kill(self.place)


def jobs_in(folder: Path, monkeypatch: pytest.MonkeyPatch, new: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Makes jobs of a program with a run folder of its own; at the end their servers are killed."""
    (folder / "run").mkdir()
    (folder / "blockmgr-0").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder / "blockmgr-0"))
    jobs: list[Any] = []

    def make(**options: str) -> Any:
        jobs.append(new(folder / "state", **options))
        return jobs[-1]

    yield make
    for one in jobs:
        one.kill()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    yield from jobs_in(tmp_path, monkeypatch, Job)


def rows(batch: int, n: int = 500) -> list[tuple[str, int]]:
    return [(f"key-{(i * 7 + batch) % 200}", i * (batch + 1)) for i in range(n)]
