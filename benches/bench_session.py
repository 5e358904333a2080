"""Benchmarks without Spark: the map side alone, and a whole session at a state server on this machine.

Owns: the rows they run on. Does not own: the comparison with Spark (spark_compare), the benchmarks in Rust (criterion).
Each runs once as a test with `--benchmark-disable`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from fastchangelog import _internal
from fastchangelog.server import ensure_server, open_session
from fastchangelog.server.paths import ServerPaths
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROWS = 250_000
ARROW_BATCH = 10_000
SHARDS = 2
GROUPS = 128
PAYLOAD = 4 << 20

_INPUT = pa.schema([("key", pa.string()), ("amount", pa.float64()), ("tsl", pa.int64())])
_OUTPUT = pa.schema([("key", pa.string()), ("cnt", pa.int64()), ("sum", pa.float64()), ("last", pa.int64())])


def spec() -> str:
    """count, sum and max by a text key."""

    def agg(fn: str, args: tuple[int, ...]) -> AggregateSpec:
        return AggregateSpec(fn, args, None, False, True, f"{fn}{args}")

    return spec_json(1, _INPUT, _OUTPUT, [agg("count", ()), agg("sum", (1,)), agg("max", (2,))])


def batches(keys: int) -> list[pa.RecordBatch]:
    """What one map task of a batch of 500,000 rows sees."""
    rng = np.random.default_rng(42)
    out = []
    for _ in range(ROWS // ARROW_BATCH):
        ids = rng.integers(0, keys, ARROW_BATCH)
        columns = [
            pa.array(np.char.add("user-", ids.astype("U10"))),
            pa.array(rng.random(ARROW_BATCH) * 100),
            pa.array(rng.integers(0, 1 << 40, ARROW_BATCH)),
        ]
        out.append(pa.RecordBatch.from_arrays(columns, schema=_INPUT))
    return out


def split(text: str, rows: list[pa.RecordBatch]) -> list[tuple[int, bytes]]:
    """The whole map side."""
    splitter = _internal.Splitter(text, SHARDS, GROUPS, PAYLOAD)
    payloads: list[tuple[int, bytes]] = []
    for batch in rows:
        payloads += splitter.push(batch)
    return payloads + splitter.finish()


@pytest.mark.parametrize("keys", [10_000, 1_000_000], ids=["10k", "1m"])
def test_split(benchmark: BenchmarkFixture, keys: int) -> None:
    text, rows = spec(), batches(keys)
    payloads = benchmark(split, text, rows)
    assert {shard for shard, _ in payloads} == {0, 1}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerPaths]:
    """A state server of our own, ended afterwards."""
    run = Path(tempfile.mkdtemp(prefix="fcl-", dir="/tmp"))  # short: the path of a socket has at most 107 bytes
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    found = ensure_server()
    yield found
    _internal.ServerClient(str(found.socket)).shutdown()
    shutil.rmtree(run, ignore_errors=True)


@pytest.mark.parametrize("keys", [10_000, 1_000_000], ids=["10k", "1m"])
def test_session(benchmark: BenchmarkFixture, place: ServerPaths, tmp_path: Path, keys: int) -> None:
    """open, merge, finish, read the results, commit: one shard's batch, on a state that grows to `keys`."""
    text = spec()
    payloads = [p for shard, p in split(text, batches(keys)) if shard == 0]
    handle: str | None = None
    batch = 0

    def session() -> int:
        nonlocal handle, batch
        with open_session(json.dumps(_request(text, tmp_path, batch, handle))) as client:
            for payload in payloads:
                client.merge(payload)
            rows: int = sum(result.num_rows for result in client.finish())
            handle, _, _ = client.commit()
        batch += 1
        return rows

    assert benchmark(session)


def _request(text: str, root: Path, batch: int, handle: str | None) -> dict[str, Any]:
    return {
        "root": f"file://{root}/state",
        "query_id": "bench",
        "name": "default",
        "shard": 0,
        "shards": SHARDS,
        "batch": batch,
        "handle": handle,
        "spec": text,
        "ephemeral": False,
        "options": {"file_sync": "false"},
        "storage_options": {},
        "checkpoint": None,
    }
