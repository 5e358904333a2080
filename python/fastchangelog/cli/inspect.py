"""`fastchangelog inspect`: what a state folder, a batch of a query, a savepoint or a handle holds.

Owns: the command. Does not own: the listing (`cli.listing`), savepoints and batches (`savepoints`), handles (the core),
declared states (`catalog`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastchangelog.cli.arguments import add_batch, object_folder, state_source
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, print_values, printable, say, show_bytes
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
        help="show what a state folder or a handle holds",
        description="Lists queries and operators under a state folder, with objects and bytes by kind; or with "
        "--checkpoint the state of a query's batch; or what a savepoint says; or what a handle names, as it is kept in "
        "Spark's state. Of all but folders also the states that a processor or a program has declared.",
    )
    parser.add_argument(
        "uri", help="a state folder or a savepoint, such as /data/state or s3://bucket/state, or a handle"
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
    from fastchangelog.cli import listing
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
    rows: list[dict[str, Any]] = []
    found, foreign = listing.survey(object_folder(args))
    for item in found:
        query, _, name = item.folder.rpartition("/")
        row: dict[str, Any] = {"query": query, "name": name}
        for kind in listing.KINDS:
            row[f"{kind}_objects"], row[f"{kind}_bytes"] = item.objects.get(kind, 0), item.sizes.get(kind, 0)
        rows.append(row)
    for name, why in foreign.items():
        print(printable(f"not ours, left alone: {name} ({why})"), file=sys.stderr)
    if args.json:
        print_json(rows)
        return OK
    if not rows:
        say(f"{args.uri} holds no state")
        return FOUND
    head = ["query", "name", *listing.KINDS]
    body = [
        [r["query"], r["name"], *(f"{r[f'{k}_objects']} ({show_bytes(r[f'{k}_bytes'])})" for k in head[2:])]
        for r in rows
    ]
    print_table([head, *body])
    return OK


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
