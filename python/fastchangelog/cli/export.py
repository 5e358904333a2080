"""`fastchangelog export`: the entries of a savepoint as a table.

Owns: the command. Does not own: the table (`savepoints.export`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_store, state_source
from fastchangelog.cli.output import OK, print_json, say

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "export",
        help="write the entries of a savepoint as a table",
        description="Writes the entries of a savepoint as a table. What a stateful processor kept has the columns of "
        "read_state(), one state at a time.",
    )
    parser.add_argument("state", metavar="URI", help="a savepoint")
    parser.add_argument("--format", choices=["parquet"], default="parquet")
    parser.add_argument("--to", required=True, metavar="PATH", help="a new local file")
    parser.add_argument("--name", help="the name of a state, if it holds several")
    add_store(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.savepoints.export import export_savepoint

    written = export_savepoint(args.state, args.to, state_source(args))
    if args.json:
        print_json(written)
    else:
        say(f"{written['file']}: {written['rows']} rows of {', '.join(written['columns'])}")
    return OK
