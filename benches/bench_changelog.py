"""Benchmarks of the changelog in this process: appends, persists, replays. And the comparison, small, once.

Owns: the values they run on. Does not own: the comparison with Flink (changelog_compare), the benchmarks in Rust
(criterion). Each runs once as a test with `--benchmark-disable`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import fastchangelog as fc

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROWS = 65_536
SIZE = 100
GROUPS = 128
CALLS = 1_000
COMPRESSIONS = ["none", "lz4", "zstd"]


def storage(folder: Path, compression: str = "none") -> Any:
    """A changelog that waits neither for other writers nor for the disk."""
    options = {"compression": compression, "persist_delay": "0ms", "file_sync": "false"}
    return fc.ChangelogStorage(folder.as_uri(), options=options)


@pytest.fixture
def rows() -> tuple[Any, pa.BinaryArray]:
    """Key groups in turns; values of which one half is random and the other a text."""
    data = np.frombuffer(b"user=000000;state=active;" * 4, np.uint8) * np.ones((ROWS, 1), np.uint8)
    data[:, : SIZE // 2] = np.random.default_rng(42).integers(0, 256, (ROWS, SIZE // 2), np.uint8)
    offsets = pa.py_buffer(np.arange(ROWS + 1, dtype=np.int32) * np.int32(SIZE))
    values = pa.Array.from_buffers(pa.binary(), ROWS, [None, offsets, pa.py_buffer(data)])
    return (np.arange(ROWS) % GROUPS).astype(np.uint16), values


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Any]:
    """A writer of all key groups."""
    with storage(tmp_path / "log") as changelog:
        opened = changelog.writer("op", key_groups=range(GROUPS))
        yield opened
        opened.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_changelog_append_batch(
    benchmark: BenchmarkFixture, tmp_path: Path, rows: tuple[Any, pa.BinaryArray], compression: str
) -> None:
    """65,536 changes of 100 bytes until they are durable."""
    with storage(tmp_path / "log", compression) as changelog:
        writer = changelog.writer("op", key_groups=range(GROUPS))
        checkpoints = itertools.count(1)

        def append() -> Any:
            start = writer.next_sequence_number
            writer.append_batch(*rows)
            handle = writer.persist(start, checkpoint_id=next(checkpoints)).result()
            writer.truncate(writer.next_sequence_number)
            return handle

        handle = benchmark(append)
        writer.close()
    assert handle


def test_changelog_append(benchmark: BenchmarkFixture, writer: Any) -> None:
    """1,000 calls, thrown away."""
    value = bytes(SIZE)

    def append() -> None:
        for _ in range(CALLS):
            writer.append(7, value)
        writer.truncate(writer.rollover())

    benchmark(append)
    assert writer.next_sequence_number > 0


@pytest.mark.parametrize("rows_outstanding", [100, 10_000], ids=["10kB", "1MB"])
def test_changelog_persist(
    benchmark: BenchmarkFixture, writer: Any, rows: tuple[Any, pa.BinaryArray], rows_outstanding: int
) -> None:
    """From the call of persist to the handle; the appends before it are not measured."""
    groups, values = rows[0][:rows_outstanding], rows[1].slice(0, rows_outstanding)
    checkpoints = itertools.count(1)

    def outstanding() -> tuple[tuple[int], dict[str, Any]]:
        start = writer.next_sequence_number
        writer.truncate(start)
        writer.append_batch(groups, values)
        return (start,), {}

    def persist(start: int) -> Any:
        return writer.persist(start, checkpoint_id=next(checkpoints)).result()

    assert benchmark.pedantic(persist, setup=outstanding, rounds=100)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["direct", "cache"])
def test_changelog_replay(
    benchmark: BenchmarkFixture, tmp_path: Path, rows: tuple[Any, pa.BinaryArray], kind: str, compression: str
) -> None:
    """All changes as Arrow batches; with a cache, one that is filled in the first round."""
    with storage(tmp_path / "log", compression) as changelog:
        writer = changelog.writer("op", key_groups=range(GROUPS))
        start = writer.next_sequence_number
        for _ in range(4):
            writer.append_batch(*rows)
        handle = writer.persist(start, checkpoint_id=1).result()
        writer.close()
        with changelog.reader(cache_dir=tmp_path / "cache" if kind == "cache" else None) as reader:

            def replay() -> int:
                return sum(batch.num_rows for batch in reader.read_batches(handle))

            assert benchmark(replay) == 4 * ROWS


def test_changelog_compare_quick(tmp_path: Path) -> None:
    """All cases of the comparison, our side alone."""
    script, out = Path(__file__).with_name("changelog_compare.py"), tmp_path / "out.json"
    command = [sys.executable, str(script), "--quick", "--work", str(tmp_path), "--out", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert all(json.loads(out.read_text())["cases"].values())


def test_changelog_s3_quick() -> None:
    script = Path(__file__).with_name("changelog_s3.py")
    env = {**os.environ, "PYTHONPATH": str(script.parent.parent / "tests")}
    done = subprocess.run(
        [sys.executable, str(script), "--quick"], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "200 writers: 1 PUT" in done.stdout, done.stdout
