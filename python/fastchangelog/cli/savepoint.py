"""`fastchangelog savepoint`: the state of one batch of a query, copied to a folder of its own.

Owns: the command. Does not own: savepoints and the lines that start a query from one (`savepoints`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_batch, state_source
from fastchangelog.cli.output import OK, print_json, print_values, progress_bar, say

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "savepoint",
        help="copy the state of a query's batch to a folder of its own, for example to change the number of partitions",
        description="Reads the handles of one batch in a query's checkpoint and writes its state as a savepoint. The "
        "query may run meanwhile. A new query starts from it with start_from=URI. With --partitions the command checks "
        "the number first, and prints the lines that start the query again with that number.",
    )
    parser.add_argument("checkpoint", help="the query's checkpointLocation")
    parser.add_argument("--state", required=True, metavar="ROOT", help="the state= of grouped()")
    parser.add_argument("--to", required=True, metavar="URI", help="a new folder")
    parser.add_argument(
        "--partitions", type=int, metavar="N", help="rescale: the number of partitions of the new query"
    )
    parser.add_argument(
        "--format",
        choices=["canonical", "native"],
        help="sorted entries, or copied files (default: canonical, native with --partitions)",
    )
    add_batch(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.savepoints.rescale import check_partitions, rescale_lines
    from fastchangelog.savepoints.savepoint import take_savepoint

    source = state_source(args)
    rescales = args.partitions is not None
    if rescales:
        check_partitions(source, args.partitions)
    with progress_bar(args) as report:
        taken = take_savepoint(source, args.to, args.format or ("native" if rescales else "canonical"), report)
    if not rescales:
        return print_values(taken, args.json, skip=("files", "schema", "schema_id"))
    lines = rescale_lines(taken, args.state, args.partitions)
    if args.json:
        print_json({**taken, "start_with": lines})
        return OK
    say(f"{taken['uri']} holds {taken['keys']} keys of batch {taken['batch']}. Start the query again with")
    for line in lines:
        say(f"    {line}")
    return OK
