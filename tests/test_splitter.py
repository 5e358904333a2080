"""The map side from Python: input, output, refusals. Its results are tested in Rust."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError, InvalidArgumentError

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("sum(v)", pa.int64())])
SHARDS, GROUPS = 3, 128


def _schema(schema: pa.Schema) -> str:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _spec(**changes: Any) -> str:
    agg = {"fn": "sum", "args": [1], "where": None, "ignore_nulls": False, "ansi": True, "identity": "sum(v)"}
    spec = {"version": 1, "num_keys": 1, "input": _schema(INPUT), "output": _schema(OUTPUT), "aggs": [agg | changes]}
    return json.dumps(spec)


def _batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch([[f"k{i % 100}" for i in range(rows)], list(range(rows))], schema=INPUT)


def _splitter(payload_bytes: int = 1 << 20) -> _internal.Splitter:
    return _internal.Splitter(_spec(), SHARDS, GROUPS, payload_bytes)


def _keys(payloads: list[tuple[int, bytes]]) -> dict[int, set[bytes]]:
    keys: dict[int, set[bytes]] = {}
    for shard, payload in payloads:
        for batch in pa.ipc.open_stream(payload):
            keys.setdefault(shard, set()).update(batch.column(0).to_pylist())
    return keys


def test_each_key_goes_to_one_shard_however_it_arrives() -> None:
    batch = _batch(1000)
    table = pa.Table.from_batches([batch])
    arrivals = {"a batch": batch, "a table": table, "a stream": table.to_reader()}
    found = {}
    for name, arrival in arrivals.items():
        splitter = _splitter()
        found[name] = _keys(splitter.push(arrival) + splitter.finish())
    assert found["a batch"] == found["a table"] == found["a stream"]
    shards = list(found["a batch"].values())
    assert set(found["a batch"]) == set(range(SHARDS))
    assert sum(map(len, shards)) == len(set().union(*shards)) == 100


def test_what_is_not_arrow_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        _splitter().push([1, 2])  # type: ignore[arg-type]
    with pytest.raises(FastChangelogError):
        _splitter().push(pa.record_batch({"other": [1]}))


def test_specifications_are_checked_where_the_query_is_built() -> None:
    _internal.spec_check(_spec())
    with pytest.raises(InvalidArgumentError):
        _internal.spec_check(_spec(fn="median"))
    with pytest.raises(FastChangelogError):
        _internal.spec_check(_spec(args=[7]))
    with pytest.raises(FastChangelogError) as caught:
        _internal.spec_check("{}")
    assert "\n" not in str(caught.value)
