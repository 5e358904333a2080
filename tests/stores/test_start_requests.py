"""Requests to the store of a query's start and restart, and of its batches, at a real state server.

Owns: how many there are, by kind, of two shards whose tasks run at the same time.
Does not own: requests of checkpoints (`test_checkpoints`), what is read and written (`rust/core`).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from fastchangelog import _internal, server
from fastchangelog.server.paths import ServerPaths
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json
from support import state_servers
from support.stores.faults import GET, HEAD, LIST, PUT
from support.stores.places import S3Place

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
SPEC = spec_json(1, INPUT, OUTPUT, [AggregateSpec("count", (), None, False, True, "count(1)")])
SHARDS = 2
ROWS = [(f"key-{number}", number) for number in range(100)]


class Job:
    """A query of two shards, whose tasks run at the same time, as Spark's in two slots."""

    def __init__(self, place: S3Place) -> None:
        self.place = place
        self.handles: list[str | None] = [None] * SHARDS
        self.batch = 0
        self.options = {"memory_budget": "64MiB", "hedge_percentile": "0"}
        self.payloads: list[list[bytes]] = [[] for _ in range(SHARDS)]
        splitter = _internal.Splitter(SPEC, SHARDS, 128 * SHARDS, 1 << 20)
        rows = pa.record_batch([[k for k, _ in ROWS], [v for _, v in ROWS]], schema=INPUT)
        for shard, payload in splitter.push(rows) + splitter.finish():
            self.payloads[shard].append(payload)

    def _task(self, shard: int) -> int:
        request = {
            "root": self.place.uri,
            "query_id": "query",
            "name": "default",
            "shard": shard,
            "shards": SHARDS,
            "batch": self.batch,
            "handle": self.handles[shard],
            "spec": SPEC,
            "options": {**self.options, "max_parallelism": str(128 * SHARDS)},
            "storage_options": self.place.credentials,
        }
        with server.open_session(json.dumps(request), self.options) as session:
            for payload in self.payloads[shard]:
                session.merge(payload)
            found = [row["n"] for batch in session.finish() for row in batch.to_pylist()]
            self.handles[shard], _, _ = session.commit()
        assert set(found) == {self.batch + 1}
        return len(found)

    def run(self) -> Counter[str]:
        """One batch; the requests that it took."""
        self.place.proxy.forget()
        with ThreadPoolExecutor(SHARDS) as slots:
            assert sum(slots.map(self._task, range(SHARDS))) == len(ROWS)
        self.batch += 1
        return Counter(self.place.proxy.counts())

    def lose_the_machine(self) -> None:
        """The server is killed, and its local disk wiped."""
        place = ServerPaths.here()
        state_servers.kill(place)
        shutil.rmtree(place.data_dir, ignore_errors=True)


@pytest.fixture
def job(bucket: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    for name in ("run", "blockmgr-0"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "blockmgr-0"))
    yield Job(bucket)
    state_servers.kill(ServerPaths.here())


def test_tasks_that_start_together_read_the_note_once(job: Job) -> None:
    counts = job.run()
    names = [job.place.name_of(request) for request in job.place.proxy.requests(GET)]
    assert len([name for name in names if name.endswith("_fastchangelog.json")]) == 1, names
    assert counts[LIST] + counts[HEAD] == 0
    for _ in range(3):
        job.run()
    job.lose_the_machine()
    counts = job.run()
    names = [job.place.name_of(request) for request in job.place.proxy.requests(GET)]
    assert len([name for name in names if name.endswith("_fastchangelog.json")]) == 1, names
    # And each log object once, for both shards.
    assert counts[GET] == 1 + len({name for name in names if "/log/" in name}), names
    assert counts[LIST] + counts[HEAD] == 0


def test_a_restart_reads_what_the_shards_share_once(job: Job) -> None:
    puts = sum((job.run() for _ in range(20)), Counter())[PUT]
    job.lose_the_machine()
    counts = job.run()
    # Twenty batches of two shards; the first start wrote notes and a proof, too.
    assert puts <= 20 + 10
    assert counts[GET] <= 1 + 20 + 5, counts
