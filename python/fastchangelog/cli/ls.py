"""`fastchangelog ls`: states and savepoints under a folder.

Owns: the command. Does not own: the listing (`cli.listing`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_store, object_folder
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, show_bytes

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

    found = listing.items(object_folder(args))
    if args.json:
        rows = [{"kind": i.kind, "folder": i.folder, "objects": i.count, "bytes": i.bytes} for i in found]
        print_json(rows)
        return OK
    if not found:
        print(f"{args.uri} holds no state and no savepoint")
        return FOUND
    body = [[i.kind, i.folder or ".", f"{i.count} objects", show_bytes(i.bytes)] for i in found]
    print_table([["kind", "folder", "objects", "bytes"], *body])
    return OK
