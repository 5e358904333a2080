"""`fastchangelog ls`: states and savepoints under a folder.

Owns: the command. Does not own: the listing (`cli.listing`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_store, object_folder
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, say, show_bytes

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser("ls", help="list states and savepoints under a folder, with their sizes")
    parser.add_argument("uri", help="such as /data or s3://bucket/state")
    add_store(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.cli import listing

    root = object_folder(args)
    found, foreign = listing.survey(root)

    def address(folder: str) -> str:
        return root.child(folder).uri if folder else root.uri

    if args.json:
        rows: list[dict[str, Any]] = [
            {"kind": i.kind, "folder": i.folder, "uri": address(i.folder), "objects": i.count, "bytes": i.bytes}
            for i in found
        ]
        rows += [{"kind": "foreign", "folder": f, "objects": 0, "bytes": 0, "why": why} for f, why in foreign.items()]
        print_json(rows)
        return OK
    if found:
        # In the form in which the folder was given: `URI/folder` leads there.
        is_uri = "://" in args.uri
        shown = [address(i.folder)[len(root.uri) + 1 :] if is_uri else i.folder for i in found]
        body = [
            [i.kind, at or ".", f"{i.count} objects", show_bytes(i.bytes)] for i, at in zip(found, shown, strict=True)
        ]
        print_table([["kind", "folder", "objects", "bytes"], *body])
    else:
        say(f"{args.uri} holds no state and no savepoint")
    for name, why in foreign.items():
        say(f"not ours, left alone: {name} ({why})")
    return OK if found else FOUND
