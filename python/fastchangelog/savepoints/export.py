"""The entries of a savepoint as a table.

Owns: the columns, the file. Does not own: reading entries (the core), the source (`savepoints.source`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.options import existing_folder
from fastchangelog.savepoints.savepoint import read_savepoint
from fastchangelog.savepoints.source import (
    StateSource,
    savepoint_folder,
    scratch_folder,
)
from fastchangelog.schema import arrow_type

__all__ = ["export_savepoint"]


def export_savepoint(uri: str, to: str, source: StateSource) -> dict[str, Any]:
    """Writes the entries of a savepoint to the new parquet file `to`, keys and values in typed columns."""
    import pyarrow.parquet as parquet

    if os.path.exists(to):
        raise InvalidArgumentError(f"{to} is there already; give the name of a new file")
    said = read_savepoint(uri, source)
    folder = savepoint_folder(existing_folder(uri), source)
    rows = 0
    with scratch_folder() as scratch:
        schema, batches = _entries(folder, said, scratch, source)
        part = f"{to}.part"
        try:
            with parquet.ParquetWriter(part, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
                    rows += batch.num_rows
            os.rename(part, to)
        except OSError as error:
            raise InvalidArgumentError(f"cannot write {to}: {error.strerror or error}; choose another place") from None
        finally:
            if os.path.exists(part):
                os.remove(part)
    return {"uri": uri, "file": to, "rows": rows, "columns": {f.name: str(f.type) for f in schema}}


def _entries(
    folder: _internal.SavepointFolder, said: Mapping[str, Any], scratch: str, source: StateSource
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    described = json.loads(said["schema"])
    if isinstance(described, dict):
        text, schema = _spec(described)
        return schema, (_labelled(batch, schema) for batch in folder.entries(scratch, spec=text))
    states = [state for state in described if source.name in (None, state["name"])]
    if len(states) != 1:
        names = ", ".join(state["name"] for state in described)
        raise InvalidArgumentError(f"{said['uri']} holds the states {names}; say which one with --name")
    return _entries_of(folder, states[0], scratch)


def _entries_of(
    folder: _internal.SavepointFolder, state: Mapping[str, Any], scratch: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    kind = state["kind"]
    if kind not in ("value", "timers"):
        raise InvalidArgumentError(f"the state {state['name']} is one of kind {kind}; values and timers are exported")
    key = pa.field("key", arrow_type("key", state["key"]), False)
    value = pa.field("value", arrow_type("value", state["value"]))
    types = pa.schema([key, value])
    if kind == "timers":
        schema = pa.schema([pa.field("time", pa.timestamp("us", tz="UTC"), False), key])
        return schema, folder.entries(scratch, state=state["id"], types=types, layout="timers")
    if not state.get("ttl"):
        return types, folder.entries(scratch, state=state["id"], types=types)
    schema = types.append(pa.field("ends", pa.timestamp("ms", tz="UTC"), False))
    return schema, folder.entries(scratch, state=state["id"], types=types, layout="ending")


def _labelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as `schema`: strings come as binaries, since Spark's need not be UTF-8."""
    return pa.RecordBatch.from_arrays(
        [c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _spec(described: Mapping[str, Any]) -> tuple[str, pa.Schema]:
    """The part of the described aggregation that is needed to read its rows."""
    from fastchangelog.spark.aggregate_spec import AggregateSpec, calls_json, spec_json

    fields = [pa.field(f"key_{i + 1}", arrow_type("key", text)) for i, text in enumerate(described["keys"])]
    if len(fields) == 1:
        fields = [fields[0].with_name("key")]
    columns = list(fields)
    calls = []
    for part in described["aggregates"]:
        types = [arrow_type(part["identity"], text) for text in part["types"]]
        args = tuple(range(len(columns), len(columns) + len(types)))
        columns += [pa.field(f"arg_{len(columns) + i}", dtype) for i, dtype in enumerate(types)]
        ansi = part.get("ansi")
        calls.append(
            AggregateSpec(
                part["fn"],
                args,
                None,
                part.get("ignore_nulls", False),
                True if ansi is None else ansi,
                part["identity"],
            )
        )
    results = pa.schema([*fields, *_internal.aggregate_results(pa.schema(columns), calls_json(calls))])
    text = spec_json(len(fields), pa.schema(columns), results, calls)
    if _internal.spec_schema(text)[1] != json.dumps(described, separators=(",", ":"), ensure_ascii=False):
        raise SchemaMismatchError(
            "this version of fastchangelog cannot read these rows back; use the one that wrote them"
        )
    return text, results
