"""`fastchangelog inspect`: what a root, a folder of states, a batch of a query, a savepoint or a handle holds.

Owns: the command, its lists of folders. Does not own: the survey of a folder (`cli.listing`), savepoints and batches
(`savepoints`), handles (the core), declared states (`catalog`).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastchangelog.cli.arguments import add_batch, object_folder, state_source
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, print_values, say, show_bytes
from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.savepoints.source import StateSource

__all__ = ["add_parser", "run"]


#: A handle is longer than this in its text form.
_SHORTEST_HANDLE = 120


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "inspect",
        help="list the states and savepoints under a folder, or show one of them, a query's batch or a handle",
        description="Of a folder with states and savepoints, the command lists them with their sizes. Of the folder of "
        "one query or one state, it also shows objects and bytes by kind. Of a savepoint, a query's batch (with "
        "--checkpoint) and a handle, as Spark's state keeps it, it shows the contents with the states that a processor "
        "or a program has declared.",
    )
    parser.add_argument(
        "uri", help="a folder with states or savepoints, such as /data/state or s3://bucket/state, or a handle"
    )
    parser.add_argument(
        "--checkpoint", metavar="URI", help="a query's checkpointLocation; the state folder is the state= of grouped()"
    )
    parser.add_argument(
        "--count",
        action="store_true",
        help="read the batch of a query, or the savepoint of a processor, and count the entries of each state",
    )
    add_batch(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if len(args.uri) > _SHORTEST_HANDLE and not os.path.exists(args.uri) and "://" not in args.uri:
        if args.count:
            raise InvalidArgumentError(
                "a handle does not say where its objects are; --count reads a savepoint, or a query's batch with "
                "--checkpoint"
            )
        return _inspect_handle(args.uri, args.json)
    from fastchangelog.savepoints.savepoint import is_savepoint

    source = state_source(args)
    if args.checkpoint is not None:
        return _inspect_batch(args, source)
    if is_savepoint(args.uri, source):
        return _inspect_savepoint(args, source)
    if args.count:
        raise InvalidArgumentError(
            f"there is no savepoint in {args.uri} to count in; for the state of a query give its checkpointLocation "
            "with --checkpoint, and for a state of open_state take a savepoint"
        )
    return _inspect_folder(args)


def _inspect_folder(args: argparse.Namespace) -> int:
    from fastchangelog.cli import listing

    root = object_folder(args)
    found, foreign = listing.survey(root)
    kinds = listing.KINDS if listing.is_one(found) else ()

    def address(folder: str) -> str:
        return root.child(folder).uri if folder else root.uri

    if args.json:
        rows: list[dict[str, Any]] = []
        for item in found:
            sums = {"objects": item.count, "bytes": item.bytes}
            for kind in kinds:
                sums |= {f"{kind}_objects": item.objects.get(kind, 0), f"{kind}_bytes": item.sizes.get(kind, 0)}
            rows.append({"kind": item.kind, "folder": item.folder, "uri": address(item.folder), **sums})
        rows += [{"kind": "foreign", "folder": f, "objects": 0, "bytes": 0, "why": why} for f, why in foreign.items()]
        print_json(rows)
        return OK
    if found:
        body = []
        for item in found:
            # In the form in which the folder was given: `URI/folder` leads there.
            shown = address(item.folder)[len(root.uri) + 1 :] if "://" in args.uri else item.folder
            parts = [f"{item.objects.get(k, 0)} ({show_bytes(item.sizes.get(k, 0))})" for k in kinds]
            body.append([item.kind, shown or ".", f"{item.count} objects", show_bytes(item.bytes), *parts])
        print_table([["kind", "folder", "objects", "bytes", *kinds], *body])
    else:
        say(f"{args.uri} holds no state and no savepoint")
    for name, why in foreign.items():
        say(f"not ours, left alone: {name} ({why})")
    return OK if found else FOUND


def _inspect_savepoint(args: argparse.Namespace, source: StateSource) -> int:
    from fastchangelog.savepoints.savepoint import read_savepoint

    said = read_savepoint(args.uri, source)
    counts: dict[str, int] = {}
    if args.count:
        from fastchangelog.savepoints.export import count_entries

        counts = count_entries(args.uri, source)
    states, shown = _states(said["schema"], counts)
    files = [["file", f"{name} ({show_bytes(size)})"] for name, size in said["files"]]
    left_out = ("files", *(("schema", "states") if shown else ()))
    return print_values({**said, **states}, args.json, skip=left_out, more=shown + files)


def _inspect_batch(args: argparse.Namespace, source: StateSource) -> int:
    from fastchangelog.savepoints.batch import describe_batch

    said = describe_batch(source, count=args.count)
    states, shown = _states(said["schema"], said.pop("counts", {}))
    return print_values({**said, **states}, args.json, skip=("schema", "states") if shown else (), more=shown)


def _inspect_handle(text: str, as_json: bool) -> int:
    from fastchangelog import _internal

    handle = json.loads(_internal.handle_json(text))
    for part in (handle, *([handle["base"]] if handle["base"] else []), *handle["segments"]):
        for name in ("instance", "version", "parent", "replay_after"):
            if part.get(name) is not None:
                part[name] = f"{part[name]:032x}"
    states, shown = _states(handle["schema"], {})
    if as_json:
        print_json({**handle, **states})
        return OK
    left_out = ("base", "indexed", "segments", *(("schema",) if shown else ()))
    rows = [[k, str(v)] for k, v in handle.items() if k not in left_out]
    base = handle["base"]
    rows.append(["base", f"{base['manifest']['name']} ({show_bytes(base['total_bytes'])})" if base else "none"])
    rows += [
        ["segment", f"{s['object']['name']} at {s['offset']} ({show_bytes(s['length'])})"] for s in handle["segments"]
    ]
    print_table(rows + shown)
    return OK


def _states(schema: str, counts: Mapping[str, int]) -> tuple[dict[str, Any], list[list[str]]]:
    """The declared states in a schema text, for machines and for people; none of aggregates."""
    from fastchangelog.catalog import state_rows

    states = [{**row, **({"entries": counts[str(row["name"])]} if counts else {})} for row in state_rows(schema)]
    return ({"states": states} if states else {}), [["state", _line(state)] for state in states]


def _line(state: dict[str, Any]) -> str:
    """One state, such as `seen: map (k string), (day date) → (n bigint), with a TTL`."""
    key = f"({state['key']})"
    if "map_key" in state:
        key += f", ({state['map_key']})"
    versions = len(state.get("versions", ())) or 1
    parts = [
        f"{state['name']}: {state['kind']} {key}" + (f" → ({state['value']})" if "value" in state else ""),
        *([f"by {state['time_mode']}"] if "time_mode" in state else []),
        *(["with a TTL"] if state.get("ttl") else []),
        *([f"in {versions} versions"] if versions > 1 else []),
        *([f"{state['entries']} entries"] if "entries" in state else []),
    ]
    return ", ".join(parts)
