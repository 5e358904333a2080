"""The entries of a savepoint as a table.

Owns: the columns, the file. Does not own: reading entries (the core), the source (`savepoints.source`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import CatalogState, is_processor, states_of
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.options import existing_folder, gather_options
from fastchangelog.savepoints.savepoint import read_savepoint
from fastchangelog.savepoints.source import (
    StateSource,
    savepoint_folder,
    scratch_folder,
    storage_options_of,
)
from fastchangelog.schema import arrow_type

__all__ = ["count_entries", "export_savepoint"]


def export_savepoint(uri: str, to: str, source: StateSource) -> dict[str, Any]:
    """Writes the entries of a savepoint to the new parquet file `to`, keys and values in typed columns."""
    import pyarrow.parquet as parquet

    if os.path.exists(to):
        raise InvalidArgumentError(f"{to} already exists; give the name of a new file")
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
        from fastchangelog.spark.aggregates.stored import labelled_rows, stored_spec

        text, schema = stored_spec(described)
        return schema, (labelled_rows(batch, schema) for batch in folder.entries(scratch, spec=text))
    if is_processor(said["schema"]):
        return _processor_entries(said, source, scratch)
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
        raise InvalidArgumentError(f"the state {state['name']} has the kind {kind}; export a state of values or timers")
    key = pa.field("key", arrow_type("key", state["key"]), False)
    value = pa.field("value", arrow_type("value", state["value"]))
    types, versions = pa.schema([key, value]), state.get("versions")
    if kind == "timers":
        schema = pa.schema([pa.field("time", pa.timestamp("us", tz="UTC"), False), key])
        return schema, folder.entries(scratch, state=state["id"], types=types, layout="timers")
    if not state.get("ttl"):
        return types, folder.entries(scratch, state=state["id"], types=types, versions=versions)
    schema = types.append(pa.field("ends", pa.timestamp("ms", tz="UTC"), False))
    return schema, folder.entries(scratch, state=state["id"], types=types, versions=versions, layout="ending")


def count_entries(uri: str, source: StateSource) -> dict[str, int]:
    """The number of values, elements, map entries or timers of each state in a savepoint of a processor."""
    said = read_savepoint(uri, source)
    if not is_processor(said["schema"]):
        raise InvalidArgumentError(
            f"{uri} holds no states of a stateful processor; its {said['keys']} keys are shown without --count"
        )
    with scratch_folder() as scratch:
        rows = _processor_rows(said, source, scratch)
        return {state.name: sum(batch.num_rows for batch in rows(state)) for state in states_of(said["schema"])}


def _processor_entries(
    said: Mapping[str, Any], source: StateSource, scratch: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows of one state of a processor, with the columns of `read_state`."""
    from fastchangelog.spark.reading.columns import StateColumns
    from fastchangelog.spark.types.spark_arrow import spark_columns, spark_schema

    states = states_of(said["schema"])
    wanted = [state for state in states if source.name == state.name or (source.name is None and len(states) == 1)]
    if not wanted:
        names = ", ".join(state.name for state in states)
        raise InvalidArgumentError(f"{said['uri']} holds the states {names}; say which one with --name")
    columns = StateColumns.of(wanted[0]).spark()
    schema = spark_schema(columns, "the column")
    rows = _processor_rows(said, source, scratch)(wanted[0])
    return schema, (pa.RecordBatch.from_arrays(spark_columns(batch, columns), schema=schema) for batch in rows)


def _processor_rows(
    said: Mapping[str, Any], source: StateSource, scratch: str
) -> Callable[[CatalogState], Iterator[pa.RecordBatch]]:
    """A source of a state's rows in their wire form."""
    from fastchangelog.spark.reading.columns import StateColumns
    from fastchangelog.spark.reading.scan import savepoint_rows

    local, options = _local_copy(said["uri"], source, scratch), gather_options(conf=source.conf)
    return lambda state: savepoint_rows(local, said, state.name, StateColumns.of(state), options)


def _local_copy(uri: str, source: StateSource, scratch: str) -> str:
    """The savepoint in a local folder: a state that is made of one has both in one kind of store."""
    found = existing_folder(uri)
    if found.startswith("file:"):
        return found
    target = _internal.ObjectFolder(f"file://{quote(scratch)}/savepoint", {}, {})
    folder = _internal.ObjectFolder(found, {}, storage_options_of(found, source).show())
    for name, _, _ in folder.list(""):
        data = folder.read(name)
        if data is not None:
            target.write(name, data)
    return target.uri
