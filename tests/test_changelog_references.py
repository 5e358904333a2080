"""Memory of a program that a plain changelog refers to: which, until when, and that the log is the same as with copies.

Owns: which Python objects are referenced, and their release. Does not own: the log's bytes with and without references,
faults of the store, the bound on memory; those are tested in `rust/changelog/src/references_tests.rs`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastchangelog as fc
from support.waiting import until

PATIENCE = 60
LENGTH = 5_000
VALUES = [bytes([i]) * LENGTH for i in range(8)]
GROUPS = [3] * len(VALUES)
TOTAL = LENGTH * len(VALUES)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[fc.ChangelogStorage]:
    options = {"file_sync": False, "compression": "none"}
    with fc.ChangelogStorage(str(tmp_path / "log"), options=options) as opened:
        yield opened


def held(storage: fc.ChangelogStorage) -> int:
    return storage.metrics()["referenced_bytes"]


def read(storage: fc.ChangelogStorage, handle: fc.ChangelogHandle) -> list[bytes]:
    with storage.reader() as reader:
        return [change.value for change in reader.read(handle)]


def imported(array: pa.Array) -> pa.Array:
    """The array as another library would hand it over: pyarrow does not know who may write to it."""
    return pa.Array._import_from_c_capsule(*array.__arrow_c_array__())


def message(array: pa.Array) -> pa.Array:
    """The array out of an IPC message."""
    sink = io.BytesIO()
    batch = pa.record_batch([array], ["v"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return pa.ipc.open_stream(io.BytesIO(sink.getvalue())).read_next_batch().column(0)


def of_numpy() -> pa.Array:
    offsets = pa.py_buffer(np.arange(len(VALUES) + 1, dtype=np.int32) * np.int32(LENGTH))
    return pa.Array.from_buffers(pa.binary(), len(VALUES), [None, offsets, pa.py_buffer(MEMORY)])


MEMORY = np.frombuffer(b"".join(VALUES), np.uint8).copy()
OFFSETS = np.arange(len(VALUES) + 1) * LENGTH
ARROW = pa.array(VALUES)


@pytest.mark.parametrize(
    ("values", "referenced"),
    [
        (VALUES, TOTAL),
        (imported(ARROW), TOTAL),
        (imported(ARROW.cast(pa.large_binary())), TOTAL),
        (imported(pa.array(VALUES, pa.binary(LENGTH))), TOTAL),
        ((OFFSETS, b"".join(VALUES)), TOTAL),
        (pa.chunked_array([imported(ARROW.slice(0, 4)), imported(ARROW.slice(4))]), TOTAL // 2 + TOTAL),
        (ARROW, 0),
        (of_numpy(), 0),
        ((OFFSETS, MEMORY), 0),
        ((OFFSETS, memoryview(MEMORY).toreadonly()), 0),
        ((OFFSETS, bytearray(b"".join(VALUES))), 0),
    ],
    ids=["list", "binary", "large", "fixed", "bytes", "chunks", "pyarrow", "numpy", "pair", "view", "bytearray"],
)
def test_memory_that_nothing_changes_is_referenced(storage: fc.ChangelogStorage, values: Any, referenced: int) -> None:
    writer = storage.writer("w", key_groups=range(8))
    writer.append_batch(GROUPS, values)
    assert held(storage) == referenced
    assert read(storage, writer.persist(0, 1).result(PATIENCE)) == VALUES
    until("the release", lambda: held(storage) == 0, PATIENCE)


def test_a_message_counts_as_a_whole(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(8))
    writer.append_batch(GROUPS, message(ARROW))
    assert TOTAL < held(storage) < TOTAL + 1_000
    assert read(storage, writer.persist(0, 1).result(PATIENCE)) == VALUES


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(LENGTH)], ids=str)
def test_slices_are_referenced_where_they_are(storage: fc.ChangelogStorage, kind: pa.DataType) -> None:
    writer = storage.writer("w", key_groups=range(8))
    whole = imported(pa.array([b"x" * LENGTH, *VALUES, b"y" * LENGTH], kind))
    writer.append_batch(GROUPS, whole.slice(1, len(VALUES)))
    assert held(storage) >= TOTAL
    writer.append_batch([3], whole.slice(2, 1))
    writer.append_batch([], whole.slice(2, 0))
    assert read(storage, writer.persist(0, 1).result(PATIENCE)) == [*VALUES, VALUES[1]]


def test_memory_that_is_written_later_was_copied(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(8))
    before = MEMORY.copy()
    for checkpoint, values in enumerate((of_numpy(), (OFFSETS, MEMORY))):
        start = writer.rollover()
        writer.append_batch(GROUPS, values)
        MEMORY[:] = 77
        handle = writer.persist(start, checkpoint).result(PATIENCE)
        MEMORY[:] = before
        assert read(storage, handle) == VALUES


@pytest.mark.parametrize("end", ["persist", "truncate", "close"])
def test_memory_is_let_go_of(storage: fc.ChangelogStorage, end: str) -> None:
    writer = storage.writer("w", key_groups=range(8))
    data = b"".join(VALUES)
    users = sys.getrefcount(data)
    allocated = pa.total_allocated_bytes()
    writer.append_batch(GROUPS, (OFFSETS, data))
    writer.append_batch(GROUPS, VALUES)
    assert sys.getrefcount(data) == users + 1
    assert pa.total_allocated_bytes() >= allocated + TOTAL
    if end == "persist":
        writer.persist(0, 1).result(PATIENCE)
    elif end == "truncate":
        writer.truncate(writer.rollover())
    else:
        writer.close()
    until("the release of bytes", lambda: sys.getrefcount(data) == users, PATIENCE)
    until("the release of an array", lambda: pa.total_allocated_bytes() <= allocated, PATIENCE)
    assert held(storage) == 0


def test_compressed_values_are_copied(tmp_path: Path) -> None:
    with fc.ChangelogStorage(str(tmp_path / "log")) as storage:
        writer = storage.writer("w", key_groups=range(8))
        writer.append_batch(GROUPS, VALUES)
        assert held(storage) == 0
        assert read(storage, writer.persist(0, 1).result(PATIENCE)) == VALUES
