"""Reading the state of a shard at one version, without the server of the query that it belongs to.

Owns: a session at a private server over a handle or over a savepoint, and the walk over a state; the entries of
aggregates of a handle.
Does not own: the private server (`server.private`), columns (`columns`), which handles (`checkpoints.state_handles`).

Nothing is committed and nothing is written to the state's folder. A local copy of the shard is on the executor's disk
while it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import CatalogState, states_of
from fastchangelog.hidden import Hidden
from fastchangelog.options import request_credentials, split_provider
from fastchangelog.server.private import local_folder, private_server, reader_options
from fastchangelog.spark import settings
from fastchangelog.spark.reading.columns import PageReader, StateColumns
from fastchangelog.spark.renewal import credentials, request_text

if TYPE_CHECKING:
    from fastchangelog.hidden import HiddenOptions
    from fastchangelog.types import StorageOptions

__all__ = ["aggregate_rows", "processor_rows", "savepoint_rows"]

#: Bytes of keys and values of one page.
_PAGE_BYTES = 4 * 1024 * 1024


def processor_rows(
    folder: tuple[str, str, str],
    handle: str,
    variable: str,
    columns: StateColumns,
    now: int,
    options: Mapping[str, str],
    storage_options: StorageOptions | HiddenOptions,
) -> Iterator[pa.RecordBatch]:
    """The entries of a state of a processor in the shard of `handle`, as they were at the time `now`, in the wire form.

    `folder` is the root of states, the query's id and the name of its operator.
    """
    hidden = storage_options if isinstance(storage_options, Hidden) else Hidden(storage_options)
    del storage_options
    said = json.loads(_internal.handle_json(handle))
    storage, expires = settings.resolve_with_expiry(hidden)
    request = {
        **_place(*folder),
        **credentials(storage, expires),
        "shard": said["shard"],
        "shards": said["shards"],
        "batch": said["batch"] + 1,
        "handle": handle,
    }
    own = {**reader_options(options), "max_parallelism": str(said["max_parallelism"])}
    with private_server(own) as server, server.open(request_text(request)) as session:
        yield from _scan(session, variable, columns, now)


def savepoint_rows(
    uri: str, said: Mapping[str, Any], variable: str, columns: StateColumns, options: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The entries of a state of a processor in the savepoint of a local folder, in the wire form.

    `said` is what the savepoint says; of what has a TTL, that is there which had not ended when it was taken.
    """
    groups = {"max_parallelism": str(said["max_parallelism"])}
    for shard in range(said["shards"]):
        with local_folder() as root, private_server({**reader_options(options), **groups, "start_from": uri}) as server:
            # The shard begins with its part of the savepoint, in a folder that is removed.
            place = {**_place(_uri(root), "savepoint", "default"), "storage_options": {}}
            request = {**place, "shard": shard, "shards": said["shards"], "batch": 0, "handle": None}
            with server.open(request_text(request)) as session:
                yield from _scan(session, variable, columns, said["taken_millis"])


def aggregate_rows(
    folder: tuple[str, str, str],
    handle: str,
    spec: str,
    options: Mapping[str, str],
    storage_options: StorageOptions | HiddenOptions,
) -> Iterator[pa.RecordBatch]:
    """Keys and results of an aggregation in the shard of `handle`, as `spec` says; strings in their binary form."""
    root, query, name = folder
    hidden = storage_options if isinstance(storage_options, Hidden) else Hidden(storage_options)
    del storage_options
    provider, explicit = split_provider(hidden)
    asked = None if provider is None else partial(request_credentials, provider)
    given = Hidden({key: str(value) for key, value in explicit.show().items()})
    own = reader_options(options)
    state = _internal.SavepointFolder(f"{root.rstrip('/')}/{query}/{name}", own, given.show(), asked)
    with local_folder() as local:
        for part in ("savepoint", "sorted", "read"):
            (local / part).mkdir()
        # As a savepoint of this shard alone: sorted entries, of which a few megabytes at a time are in memory.
        savepoint = _internal.SavepointFolder(_uri(local / "savepoint"), own, {})
        batch = json.loads(_internal.handle_json(handle))["batch"]
        state.take([handle], savepoint, "canonical", query, name, batch, str(local / "sorted"))
        yield from savepoint.entries(str(local / "read"), spec=spec)


def _scan(session: _internal.StateSession, variable: str, columns: StateColumns, now: int) -> Iterator[pa.RecordBatch]:
    catalog = session.catalog
    stored = _stored(catalog, variable, columns)
    if stored is None:
        return
    reader = PageReader(columns, stored)
    session.declare(catalog, now)
    after: bytes | None = None
    while True:
        page, after = session.scan(stored.id, after, _PAGE_BYTES)
        if page.num_rows:
            yield reader.read(page)
        if after is None:
            return


def _stored(catalog: str, variable: str, columns: StateColumns) -> CatalogState | None:
    """The state in a shard's own catalog, where its number may be another one. None if it is not there, or if it is one
    of that name which was deleted meanwhile: the shard will remove it with its next rows."""
    wanted = variable, columns.kind, columns.ttl
    stored = next((state for state in states_of(catalog) if (state.name, state.kind, state.ttl) == wanted), None)
    return None if stored is None or not columns.can_read(stored) else stored


def _place(root: str, query: str, name: str) -> dict[str, str]:
    return {"root": root, "query_id": query, "name": name}


def _uri(path: Path) -> str:
    return "file://" + quote(str(path))
