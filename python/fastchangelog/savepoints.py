"""`fastchangelog savepoint`, `rescale`, `verify` and `export`: states put aside, moved and read, without their jobs.

Owns: which handles of a checkpoint belong to which state, the words of the reports, the columns of an export.
Does not own: savepoints (the core), reading checkpoints (`spark.checkpoints`), arguments and exit codes (cli).
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgument, SchemaMismatchError, StateNotFoundError
from fastchangelog.layout import FOLDER_META, SAVEPOINT_MANIFEST
from fastchangelog.options import existing_folder, gather_options, gather_storage_options
from fastchangelog.schema import arrow_type

__all__ = [
    "Report",
    "Request",
    "check_partitions",
    "export",
    "is_savepoint",
    "read",
    "rescale_lines",
    "take",
    "verify",
    "verify_checkpoint",
]

Report = Callable[[int, int], object]
"""Called now and then with the bytes that are done, and all bytes."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A batch of a query's checkpoint, and where its state is."""

    checkpoint: str
    root: str
    name: str | None = None
    batch: int | None = None
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    say: Callable[[str], object] | None = dataclasses.field(default=None, repr=False, compare=False)
    """Told in a few words what takes long, and "" when that is over."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """The handles of one batch of one state."""

    query: str
    name: str
    batch: int
    handles: tuple[str, ...]
    uri: str


def take(request: Request, to: str, format: str, report: Report | None = None) -> dict[str, Any]:
    """Takes a savepoint of one batch; the query may run meanwhile.  Gives what the savepoint says, and its `uri`."""
    found = _find(request)
    source, target = _folder(found.uri, request), _folder(_absolute(to), request)
    with _scratch() as scratch:
        said = source.take(found.handles, target, format, found.query, found.name, found.batch, scratch, report)
    return {"uri": target.uri, **json.loads(said)}


def rescale_lines(taken: Mapping[str, Any], root: str, partitions: int | None) -> list[str]:
    """What to type to start the query again from a savepoint with another number of partitions."""
    name = "" if taken["name"] == "default" else f", name={taken['name']!r}"
    more = "" if partitions else f"  # N from 1 to {taken['max_parallelism']}; it was {taken['shards']}"
    return [
        f'spark.conf.set("spark.sql.shuffle.partitions", {partitions or "N"}){more}',
        f'grouped(df, …, state={root!r}{name}, options={{"start_from": {taken["uri"]!r}}}).agg(…)  # as it was',
        '.writeStream.outputMode("update").option("checkpointLocation", "…")  # a new one; sources begin after batch '
        f"{taken['batch']}",
    ]


def check_partitions(request: Request, partitions: int) -> None:
    """Refuses a number of partitions before anything is written."""
    groups = int(json.loads(_internal.handle_json(_find(request).handles[0]))["max_parallelism"])
    if not 1 <= partitions <= groups:
        raise InvalidArgument(
            f"the state cannot be rescaled to {partitions} partitions: ask for 1 to {groups}, its number of key groups "
            "(max_parallelism), which is fixed at its first start"
        )


def is_savepoint(uri: str, request: Request) -> bool:
    """True if the folder is a savepoint, finished or not damaged enough to hide that."""
    folder = _internal.ObjectFolder(existing_folder(uri), {}, _storage(uri, request))
    return folder.read(SAVEPOINT_MANIFEST) is not None


def read(uri: str, request: Request) -> dict[str, Any]:
    """What a savepoint says."""
    said: dict[str, Any] = json.loads(_folder(existing_folder(uri), request).read())
    return {"uri": uri, **said}


def verify(uri: str, request: Request, report: Report | None = None) -> dict[str, Any]:
    """Reads every byte of a savepoint; `damaged` lists what is not as it was written."""
    folder = _folder(existing_folder(uri), request)
    with _scratch() as scratch:
        said, damaged = folder.verify(scratch, report)
    found = json.loads(said)
    return {
        "uri": uri,
        "objects": len(found["files"]),
        "bytes": found["stored_bytes"],
        "keys": found["keys"],
        "damaged": [{"object": name, "what": what} for name, what in damaged],
    }


def verify_checkpoint(request: Request, report: Report | None = None) -> dict[str, Any]:
    """Reads every byte of what one batch of a query's checkpoint needs."""
    found = _find(request)
    objects, size, damaged = _folder(found.uri, request).verify_objects(found.handles, report)
    return {
        "uri": found.uri,
        "batch": found.batch,
        "objects": objects,
        "bytes": size,
        "damaged": [{"object": name, "what": what} for name, what in damaged],
    }


def export(uri: str, to: str, request: Request) -> dict[str, Any]:
    """Writes the entries of a savepoint to the new parquet file `to`, keys and values in typed columns."""
    import pyarrow.parquet as parquet

    if os.path.exists(to):
        raise InvalidArgument(f"{to} is there already; give the name of a new file")
    said = read(uri, request)
    folder = _folder(existing_folder(uri), request)
    rows = 0
    with _scratch() as scratch:
        schema, batches = _entries(folder, said, scratch, request)
        part = f"{to}.part"
        try:
            with parquet.ParquetWriter(part, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
                    rows += batch.num_rows
            os.rename(part, to)
        except OSError as error:
            raise InvalidArgument(f"cannot write {to}: {error.strerror or error}; choose another place") from None
        finally:
            if os.path.exists(part):
                os.remove(part)
    return {"uri": uri, "file": to, "rows": rows, "columns": {f.name: str(f.type) for f in schema}}


def _entries(
    folder: _internal.SavepointFolder, said: Mapping[str, Any], scratch: str, request: Request
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    described = json.loads(said["schema"])
    if isinstance(described, dict):
        text, schema = _spec(described)
        return schema, (_labelled(batch, schema) for batch in folder.entries(scratch, spec=text))
    states = [state for state in described if request.name in (None, state["name"])]
    if len(states) != 1:
        names = ", ".join(state["name"] for state in described)
        raise InvalidArgument(f"{said['uri']} holds the states {names}; say which one with --name")
    types = pa.schema(
        [
            pa.field("key", arrow_type("key", states[0]["key"]), False),
            pa.field("value", arrow_type("value", states[0]["value"])),
        ]
    )
    return types, folder.entries(scratch, state=states[0]["id"], types=types)


def _labelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as `schema`: strings come as binaries, since Spark's need not be UTF-8."""
    return pa.RecordBatch.from_arrays(
        [c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _spec(described: Mapping[str, Any]) -> tuple[str, pa.Schema]:
    """The aggregation whose rows `described` describes: as far as it takes to read them."""
    from fastchangelog.spark.aggregate_spec import AggregateSpec, spec_json

    fields = [pa.field(f"key_{i + 1}", arrow_type("key", text)) for i, text in enumerate(described["keys"])]
    if len(fields) == 1:
        fields = [fields[0].with_name("key")]
    columns, results = list(fields), list(fields)
    calls = []
    for part in described["aggregates"]:
        types = [arrow_type(part["identity"], text) for text in part["types"]]
        args = tuple(range(len(columns), len(columns) + len(types)))
        columns += [pa.field(f"arg_{len(columns) + i}", dtype) for i, dtype in enumerate(types)]
        results.append(pa.field(part["identity"], _result(part["fn"], types)))
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
    text = spec_json(len(fields), pa.schema(columns), pa.schema(results), calls)
    if _internal.spec_schema(text)[1] != json.dumps(described, separators=(",", ":"), ensure_ascii=False):
        raise SchemaMismatchError(
            "this version of fastchangelog cannot read these rows back; use the one that wrote them"
        )
    return text, pa.schema(results)


def _result(function: str, types: list[pa.DataType]) -> pa.DataType:
    """The type of a result, as Spark has it."""
    first = types[0] if types else pa.int64()
    if function == "count":
        return pa.int64()
    if function in ("sum", "avg") and pa.types.is_decimal(first):
        more, scale = (10, 0) if function == "sum" else (4, 4)
        return pa.decimal128(min(38, first.precision + more), min(38, first.scale + scale))
    if function == "sum" and pa.types.is_integer(first):
        return pa.int64()
    if function in ("sum", "avg") and (pa.types.is_floating(first) or pa.types.is_integer(first)):
        return pa.float64()
    return first


def _find(request: Request) -> _Found:
    """The handles of all shards of the batch, with the state they belong to."""
    try:
        from fastchangelog.sessions import on_demand
        from fastchangelog.spark.checkpoints import SparkCheckpoints
    except ImportError as error:
        raise InvalidArgument(f"a checkpoint is read with Spark: {error}") from None
    uri = existing_folder(request.root)
    root = _internal.ObjectFolder(uri, {}, _storage(uri, request))
    with on_demand(request.conf, "savepoint", request.say) as session:
        query, batch, operators = SparkCheckpoints(session).handles(request.checkpoint, request.batch)
    names: dict[str, set[str]] = {}
    for path, _, _ in root.list(f"{query}/"):
        name, _, rest = path.removeprefix(f"{query}/").partition("/")
        names.setdefault(name, set()).add(rest)
    if not names:
        raise StateNotFoundError(f"{request.root} holds no state of the query {query}; give the state= of grouped()")
    name = request.name or next(iter(names))
    if name not in names or (request.name is None and len(names) > 1):
        known = ", ".join(sorted(names))
        raise InvalidArgument(f"the query {query} has the states {known}; say which one with --name")
    fits = [handles for handles in operators.values() if handles and _names(handles) & names[name]]
    if not fits and len(names) == 1:
        fits = [handles for handles in operators.values() if handles]
    if len(fits) != 1:
        raise StateNotFoundError(
            f"no operator of {request.checkpoint} has handles in {request.root}/{query}/{name} at batch {batch}; is "
            "this the state of that checkpoint, and were none of its objects deleted?"
        )
    handles = tuple(handle for _, handle in sorted(fits[0].items()))
    _check_begun(root.child(f"{query}/{name}"), handles)
    return _Found(query, name, batch, handles, f"{uri.rstrip('/')}/{query}/{name}")


def _names(handles: Mapping[int, str]) -> set[str]:
    """Objects that handles name."""
    found: set[str] = set()
    for text in handles.values():
        handle = json.loads(_internal.handle_json(text))
        found.update(segment["object"]["name"] for segment in handle["segments"])
        if handle["base"]:
            found.add(handle["base"]["manifest"]["name"])
    return found


def _check_begun(folder: _internal.ObjectFolder, handles: tuple[str, ...]) -> None:
    """A shard without a handle is empty, unless it has yet to take its part of a savepoint."""
    shards = json.loads(_internal.handle_json(handles[0]))["shards"]
    if len(handles) == shards:
        return
    data = folder.read(FOLDER_META)
    note = {} if data is None else json.loads(_internal.folder_note_json(f"{folder.uri}/{FOLDER_META}", data))
    if note.get("start_from"):
        raise InvalidArgument(
            f"{shards - len(handles)} of {shards} shards of {folder.uri} have not taken their part of the savepoint "
            f"{note['start_from'][0]} yet, because they had no rows; take this savepoint after they had some"
        )


def _storage(uri: str, request: Request) -> dict[str, str]:
    return gather_storage_options(uri, request.storage_options, request.conf)


def _folder(uri: str, request: Request) -> _internal.SavepointFolder:
    return _internal.SavepointFolder(uri, gather_options(conf=request.conf), _storage(uri, request))


def _absolute(uri: str) -> str:
    return uri if "://" in uri else os.path.abspath(uri)


@contextmanager
def _scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fastchangelog-", ignore_cleanup_errors=True) as folder:
        yield folder
