"""Imported states whose rows do not fit into a chunk, from the columns of Spark's source to the writes of a session.

Owns: the order of long lists, long maps, and their times. Does not own: what of a checkpoint is imported
(`spark/test_import_state`).
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from fastchangelog import _internal
from fastchangelog.spark.processor.imported import ImportedRows, VariableSplit, imported_schema, write_imported
from fastchangelog.spark.processor.row_split import RowSplit
from fastchangelog.spark.processor.states.handle import Declaration
from support.fake_state_session import FakeSession

KEY = pa.schema([("k", pa.string())])
NUMBER, TEXT = T.StructType().add("n", "long"), T.StructType().add("s", "string")
NOW, SHARDS = 1000, 1


def payloads(declaration: Declaration, number: int, columns: dict[str, pa.Array]) -> list[bytes]:
    """What the map side makes of the rows of a variable, in small payloads."""
    split = VariableSplit(
        declaration, number, RowSplit(1, imported_schema(KEY), {}, 1, SHARDS, streaming=False, heartbeats=False), KEY
    )
    encoded = split._encoded(pa.RecordBatch.from_pydict(columns))
    splitter = _internal.RowSplitter(1, imported_schema(KEY), SHARDS, 128, 1 << 10)
    found = [splitter.push(encoded.slice(at, 10)) for at in range(0, len(encoded), 10)] + [splitter.finish()]
    return [payload for _, payload in itertools.chain.from_iterable(found)]


def written(folder: pathlib.Path, given: list[bytes], *declarations: Declaration, chunk_rows: int) -> Any:
    """The store after an import of these payloads, in this order."""
    grouper = _internal.RowGrouper(1, imported_schema(KEY), 1 << 20, folder)
    for payload in given:
        grouper.push(payload)
    session = FakeSession()
    kinds = {declaration.name: declaration.kind for declaration in declarations}
    ids = {name: number for number, name in enumerate(kinds)}
    entries = [
        {"id": ids[d.name], "name": d.name, "kind": d.kind, "ttl": d.ttl_millis is not None} for d in declarations
    ]
    session.declare(json.dumps(entries), NOW)
    write_imported(session, ImportedRows(tuple(kinds), grouper.finish(chunk_rows, 1 << 20)), ids, kinds, NOW)
    return session.commit()


def expiry(end: bytes | None) -> int | None:
    return None if end is None else int.from_bytes(end, "big")


def numbers(values: list[bytes]) -> list[int]:
    codec = _internal.StateCodec(pa.struct([("at", pa.int64())]), pa.struct([("n", pa.int64())]), [])
    return [row["n"] for row in pa.array(codec.decode_values(pa.array(values, pa.binary()))).to_pylist()]


@pytest.mark.parametrize("chunk_rows", [7, 100, 10_000])
@pytest.mark.parametrize("ttl", [None, 60_000])
def test_long_lists_keep_their_order(tmp_path: pathlib.Path, chunk_rows: int, ttl: int | None) -> None:
    """Payloads come in any order: Spark sorts them by their shard alone."""
    of = {"a": 3, "b": 500, "c": 0, "d": 600, "e": 1}
    lists = [[{"n": n} for n in range(length)] for length in of.values()]
    ends = [[2000 + n % 3 if n % 50 else 1 for n in range(length)] for length in of.values()]
    columns = {
        "k": pa.array(list(of)),
        "sub": pa.nulls(len(of), pa.binary()),
        "value": pa.array(lists, pa.list_(pa.struct([("n", pa.int64())]))),
        "ends": pa.nulls(len(of), pa.int64()) if ttl is None else pa.array(ends, pa.list_(pa.int64())),
    }
    both = Declaration("l", "list", NUMBER, ttl_millis=ttl), Declaration("second", "list", NUMBER, ttl_millis=ttl)
    given = [payload for number, d in enumerate(both) for payload in payloads(d, number, columns)]
    random.Random(chunk_rows).shuffle(given)
    store = written(tmp_path, given, *both, chunk_rows=chunk_rows)
    kept = [[n for n in range(length) if ttl is None or n % 50] for length in sorted(of.values())]
    kept = [elements for elements in kept if elements]
    for state in (0, 1):
        rows = [row for row in store.rows("list") if row[0] == state]
        found = sorted((list(of_key) for _, of_key in itertools.groupby(rows, lambda row: row[1])), key=len)
        assert [numbers([value for *_, value in rows]) for rows in found] == kept
        assert all(
            expiry(end) == (None if ttl is None else 2000 + n % 3)
            for rows, of in zip(found, kept)
            for (_, _, end, _), n in zip(rows, of)
        )


@pytest.mark.parametrize("chunk_rows", [7, 10_000])
def test_long_maps_keep_all_entries(tmp_path: pathlib.Path, chunk_rows: int) -> None:
    count = 500
    columns = {
        "k": pa.array(["a"] * count + ["b"]),
        "sub": pa.array([{"s": f"{n:05}"} for n in range(count)] + [{"s": "x"}], pa.struct([("s", pa.string())])),
        "value": pa.array([{"n": n} for n in range(count)] + [{"n": 7}], pa.struct([("n", pa.int64())])),
        "ends": pa.array([2000 + n for n in range(count)] + [1]),
    }
    declaration = Declaration("m", "map", NUMBER, TEXT, ttl_millis=60_000)
    given = payloads(declaration, 0, columns)
    random.Random(chunk_rows).shuffle(given)
    in_order = written(tmp_path, given, declaration, chunk_rows=chunk_rows).rows("map")
    assert numbers([value for *_, value in in_order]) == list(range(count)), "the entry of `b` has expired"
    assert [expiry(end) for _, _, end, _ in in_order] == [2000 + n for n in range(count)]


def stored(key: list[Any], value: list[Any], place: list[int] | None = None) -> pa.RecordBatch:
    """Rows as the core reads them."""
    columns = {"key": pa.array(key), "value": pa.array(value)}
    return pa.RecordBatch.from_pydict({**columns, **({} if place is None else {"place": pa.array(place)})})


def of_core(declaration: Declaration | None, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = RowSplit(1, imported_schema(KEY), {}, 1, SHARDS, streaming=False, heartbeats=False)
    return VariableSplit(declaration, 3, rows, KEY).of_core(batch).to_pylist()


def test_rows_of_the_core_are_those_of_sparks_source() -> None:
    """Plain values, elements of a list with their places, entries of a map, ends, timers."""
    value = of_core(Declaration("v", "value", NUMBER), stored([{"k": "a"}], [{"n": 5}]))
    assert numbers([value[0]["value"]]) == [5]
    assert {**value[0], "value": 5} == {"k": "a", "variable": 3, "sub": None, "value": 5, "place": None, "ends": None}
    ttl = Declaration("l", "list", NUMBER, ttl_millis=9)
    kept = [{"value": {"n": n}, "ttlExpirationMs": 70 + n} for n in range(2)]
    rows = of_core(ttl, stored([{"k": "a"}] * 2, kept, [0, 1]))
    assert [(row["place"], row["ends"], *numbers([row["value"]])) for row in rows] == [(0, 70, 0), (1, 71, 1)]
    entry = {"key": {"k": None}, "userKey": {"s": "x"}}
    batch = stored([entry], [{"n": 1}])
    columns = [pa.array([entry], pa.struct([("key", pa.struct([("k", pa.string())])), batch.schema[0].type[1]]))]
    (row,) = of_core(
        Declaration("m", "map", NUMBER, map_key=TEXT),
        pa.RecordBatch.from_arrays([*columns, batch[1]], ["key", "value"]),
    )
    assert (row["k"], row["sub"] is not None, numbers([row["value"]])) == (None, True, [1])
    timer = of_core(None, stored([{"key": {"k": "a"}, "expiryTimestampMs": 77}], [{"__dummy__": True}]))
    assert (timer[0]["value"], int.from_bytes(timer[0]["sub"], "big") & ((1 << 63) - 1)) == (None, 77)
