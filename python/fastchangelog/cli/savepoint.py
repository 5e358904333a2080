"""`fastchangelog savepoint`: the state of one batch of a query, copied to a folder of its own.

Owns: the command. Does not own: savepoints (`savepoints`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_batch, state_source
from fastchangelog.cli.output import print_values, progress_bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "savepoint",
        help="put the state of a query's batch aside in a folder of its own",
        description="Reads the handles of one batch in a query's checkpoint and writes its state as a savepoint. The "
        "query may run meanwhile. A new query starts from it with start_from=URI.",
    )
    parser.add_argument("checkpoint", help="the query's checkpointLocation")
    parser.add_argument("--state", required=True, metavar="ROOT", help="the state= of grouped()")
    parser.add_argument("--to", required=True, metavar="URI", help="a new folder")
    parser.add_argument(
        "--format", choices=["canonical", "native"], default="canonical", help="sorted entries, or copied files"
    )
    add_batch(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.savepoints.savepoint import take_savepoint

    with progress_bar(args) as report:
        taken = take_savepoint(state_source(args), args.to, args.format, report)
    return print_values(taken, args.json, skip=("files", "schema", "schema_id"))
