"""Rows of processors from Python: split into payloads, grouped into chunks. What is in them is tested in Rust."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastchangelog import _internal
from fastchangelog.errors import (
    CorruptDataError,
    FastChangelogError,
    InvalidArgumentError,
    RetryableError,
    SchemaMismatchError,
)

INPUT = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
SHARDS, GROUPS = 3, 128
BIG = 1 << 30


def _batch(rows: int, keys: int = 100) -> pa.RecordBatch:
    columns = [[f"k{i % keys}" for i in range(rows)], list(range(rows)), list(range(rows))]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, INPUT, strict=True)], schema=INPUT)


def _split(batch: Any, shards: int = 1, payload_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    splitter = _internal.RowSplitter(1, INPUT, shards, GROUPS, payload_bytes)
    return splitter.push(batch) + splitter.finish()


def _grouped(chunks: Iterable[_internal.RowChunk]) -> dict[str, list[int]]:
    """The values of each key, in order."""
    found: dict[str, list[int]] = {}
    for chunk in chunks:
        assert chunk.rows.schema == INPUT
        chunk.rows.validate(full=True)
        offsets = chunk.offsets.to_pylist()
        assert len(chunk.keys) == len(offsets) - 1
        for start, end in itertools.pairwise(offsets):
            (key,) = set(chunk.rows.column(0)[start:end].to_pylist())
            found.setdefault(key, []).extend(chunk.rows.column(2)[start:end].to_pylist())
    return found


def test_each_key_is_in_one_shard_and_its_rows_are_in_order(tmp_path: Path) -> None:
    batch = _batch(5000)
    table = pa.Table.from_batches([batch])
    for arrival in (batch, table, table.to_reader()):
        payloads = _split(arrival, SHARDS, 10_000)
        found: dict[str, list[int]] = {}
        for shard in range(SHARDS):
            grouper = _internal.RowGrouper(1, INPUT, BIG, tmp_path)
            for of, payload in payloads:
                if of == shard:
                    grouper.push(payload)
            part = _grouped(grouper.finish(700, BIG))
            assert part
            assert not part.keys() & found.keys()
            found |= part
        assert found == {f"k{i}": list(range(i, 5000, 100)) for i in range(100)}


def test_payloads_are_arrow_streams_with_keys_at_the_end() -> None:
    ((_, payload),) = _split(_batch(10))
    read = pa.ipc.open_stream(payload).read_all()
    assert read.num_rows == 10
    assert read.schema.names[:3] == INPUT.names
    assert pa.types.is_binary(read.schema.types[0])
    assert pa.types.is_binary(read.schema.types[3])


def test_a_batch_beyond_memory_is_spilled_and_leaves_no_file(tmp_path: Path) -> None:
    batch = _batch(50_000)
    grouper = _internal.RowGrouper(1, INPUT, 200_000, str(tmp_path / "made"))
    for _, payload in _split(batch, payload_bytes=50_000):
        grouper.push(payload)
    assert grouper.spilled_bytes > 0
    assert _grouped(grouper.finish(1000, BIG)) == {f"k{i}": list(range(i, 50_000, 100)) for i in range(100)}
    assert (grouper.input_rows, grouper.late_rows) == (50_000, 0)
    assert not list((tmp_path / "made").iterdir())


def test_a_key_larger_than_a_chunk_comes_in_parts(tmp_path: Path) -> None:
    grouper = _internal.RowGrouper(1, INPUT, BIG, tmp_path)
    for _, payload in _split(_batch(250, keys=1)):
        grouper.push(payload)
    chunks = list(grouper.finish(100, BIG))
    assert [(c.rows.num_rows, c.continues, c.more) for c in chunks] == [
        (100, False, True),
        (100, True, True),
        (50, True, False),
    ]
    assert _grouped(chunks) == {"k0": list(range(250))}
    assert list(grouper.finish(100, BIG)) == []


def test_late_rows_are_dropped_and_rows_without_a_time_are_kept(tmp_path: Path) -> None:
    batch = _batch(10, keys=1)
    times = pa.array([None if i == 3 else i for i in range(10)], INPUT.field(1).type)
    batch = batch.set_column(1, INPUT.field(1), times)
    grouper = _internal.RowGrouper(1, INPUT, BIG, tmp_path, late=(1, 5))
    for _, payload in _split(batch):
        grouper.push(payload)
    grouper.push(b"")
    assert _grouped(grouper.finish(100, BIG)) == {"k0": [3, 6, 7, 8, 9]}
    assert (grouper.input_rows, grouper.late_rows) == (10, 5)
    with pytest.raises(InvalidArgumentError, match="event times"):
        _internal.RowGrouper(1, INPUT, BIG, tmp_path, late=(2, 5))


def test_strings_are_their_bytes_at_any_depth(tmp_path: Path) -> None:
    raw = pa.array([b"a\xff", b"a", b"a\xff", None], pa.binary())
    nested = pa.struct([("s", pa.string()), ("l", pa.list_(pa.string()))])
    schema = pa.schema([("k", pa.string()), ("v", nested)])
    lists = pa.ListArray.from_arrays([0, 1, 1, 3, 4], raw)
    values = pa.StructArray.from_arrays([raw, lists], names=["s", "l"]).view(nested)
    batch = pa.RecordBatch.from_arrays([raw.view(pa.string()), values], schema=schema)
    splitter = _internal.RowSplitter(1, schema, 1, GROUPS, 1 << 20)
    grouper = _internal.RowGrouper(1, schema, BIG, tmp_path)
    for _, payload in splitter.push(batch) + splitter.finish():
        grouper.push(payload)
    (chunk,) = grouper.finish(100, BIG)
    assert chunk.rows.schema == schema
    assert chunk.offsets.to_pylist() == [0, 1, 2, 4]
    assert chunk.rows.column(0).view(pa.binary()).to_pylist() == [None, b"a", b"a\xff", b"a\xff"]
    inner = chunk.rows.column(1).field("l").values.view(pa.binary()).to_pylist()
    assert inner == [None, b"a\xff", b"a", b"a\xff"]


def test_the_schema_of_chunks_is_the_declared_one(tmp_path: Path) -> None:
    fields = [
        pa.field("n", pa.int64(), nullable=False, metadata={"a": "b"}),
        pa.field("m", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32(), nullable=False)))),
    ]
    schema = pa.schema(fields, metadata={"c": "d"})
    batch = pa.record_batch([pa.array([2, 1]), pa.array([[("x", [1])], None], schema.types[1])], schema=schema)
    splitter = _internal.RowSplitter(1, schema, 1, GROUPS, 1 << 20)
    grouper = _internal.RowGrouper(1, schema, BIG, tmp_path)
    for _, payload in splitter.push(batch) + splitter.finish():
        grouper.push(payload)
    (chunk,) = grouper.finish(100, BIG)
    assert chunk.rows.schema.equals(schema, check_metadata=True)
    assert chunk.rows.to_pylist() == [{"n": 1, "m": None}, {"n": 2, "m": [("x", [1])]}]


def test_damage_other_schemas_and_blocked_folders_are_errors(tmp_path: Path) -> None:
    ((_, payload),) = _split(_batch(1000))
    grouper = _internal.RowGrouper(1, INPUT, BIG, tmp_path)
    at = random.randrange(len(payload))
    damaged = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
    with pytest.raises(CorruptDataError, match=r"a payload of rows at byte \d+"):
        grouper.push(damaged)
    other = _internal.RowGrouper(1, INPUT.set(2, pa.field("w", pa.int64())), BIG, tmp_path)
    with pytest.raises(SchemaMismatchError, match=r"\(k, at, w\)"):
        other.push(payload)
    blocked = tmp_path / "a file"
    blocked.touch()
    small = _internal.RowGrouper(1, INPUT, 1000, blocked)
    small.push(payload)
    with pytest.raises(RetryableError, match=f"{blocked}.*worker_memory"):
        small.push(payload)


def test_what_cannot_be_rows_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="column `d`"):
        _internal.RowSplitter(0, pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))]), 1, GROUPS, 1)
    with pytest.raises(InvalidArgumentError, match="key columns"):
        _internal.RowSplitter(4, INPUT, 1, GROUPS, 1)
    splitter = _internal.RowSplitter(1, INPUT, 1, GROUPS, 1 << 20)
    with pytest.raises(FastChangelogError, match="1 columns"):
        splitter.push(pa.record_batch({"other": [1]}))
    with pytest.raises(InvalidArgumentError, match="column `v` has the type string"):
        splitter.push(_batch(1).set_column(2, "v", pa.array(["x"])))
    with pytest.raises((TypeError, ValueError)):
        splitter.push([1, 2])  # type: ignore[arg-type]
