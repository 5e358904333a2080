"""`fastchangelog inspect`: what a state folder, a savepoint or a handle holds.

Owns: the command. Does not own: the listing (`cli.listing`), savepoints (`savepoints`), handles (the core).
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from fastchangelog.cli.arguments import add_store, object_folder, state_source
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, print_values, show_bytes

__all__ = ["add_parser", "run"]


#: A handle is longer than this in its text form.
_SHORTEST_HANDLE = 120


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "inspect",
        help="show what a state folder or a handle holds",
        description="Lists queries and operators under a state folder, with objects and bytes by kind; or what a "
        "savepoint says; or what a handle names, as it is kept in Spark's state.",
    )
    parser.add_argument(
        "uri", help="a state folder or a savepoint, such as /data/state or s3://bucket/state, or a handle"
    )
    add_store(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if len(args.uri) > _SHORTEST_HANDLE and not os.path.exists(args.uri) and "://" not in args.uri:
        return _inspect_handle(args.uri, args.json)
    from fastchangelog.cli import listing
    from fastchangelog.savepoints.savepoint import is_savepoint, read_savepoint

    source = state_source(args)
    if is_savepoint(args.uri, source):
        said = read_savepoint(args.uri, source)
        files = [["file", f"{name} ({show_bytes(size)})"] for name, size in said["files"]]
        return print_values(said, args.json, skip=("files",), more=files)
    rows: list[dict[str, Any]] = []
    for item in listing.items(object_folder(args)):
        query, _, name = item.folder.rpartition("/")
        row: dict[str, Any] = {"query": query, "name": name}
        for kind in listing.KINDS:
            row[f"{kind}_objects"], row[f"{kind}_bytes"] = item.objects.get(kind, 0), item.sizes.get(kind, 0)
        rows.append(row)
    if args.json:
        print_json(rows)
        return OK
    if not rows:
        print(f"{args.uri} holds no state")
        return FOUND
    head = ["query", "name", *listing.KINDS]
    body = [
        [r["query"], r["name"], *(f"{r[f'{k}_objects']} ({show_bytes(r[f'{k}_bytes'])})" for k in head[2:])]
        for r in rows
    ]
    print_table([head, *body])
    return OK


def _inspect_handle(text: str, as_json: bool) -> int:
    from fastchangelog import _internal

    handle = json.loads(_internal.handle_json(text))
    for part in (handle, *([handle["base"]] if handle["base"] else []), *handle["segments"]):
        for name in ("instance", "version", "parent", "replay_after"):
            if part.get(name) is not None:
                part[name] = f"{part[name]:032x}"
    if as_json:
        print_json(handle)
        return OK
    rows = [[k, str(v)] for k, v in handle.items() if k not in ("base", "indexed", "segments")]
    base = handle["base"]
    rows.append(["base", f"{base['manifest']['name']} ({show_bytes(base['total_bytes'])})" if base else "none"])
    rows += [
        ["segment", f"{s['object']['name']} at {s['offset']} ({show_bytes(s['length'])})"] for s in handle["segments"]
    ]
    print_table(rows)
    return OK
