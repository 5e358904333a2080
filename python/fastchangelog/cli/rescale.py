"""`fastchangelog rescale`: a savepoint, and how to start the query from it with another number of partitions.

Owns: the command. Does not own: savepoints (`savepoints`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_batch, state_source
from fastchangelog.cli.output import OK, print_json, progress_bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "rescale",
        help="put the state of a stopped query aside, and say how to start it with another number of partitions",
    )
    parser.add_argument("checkpoint", help="the query's checkpointLocation")
    parser.add_argument("--state", required=True, metavar="ROOT", help="the state= of grouped()")
    parser.add_argument("--to", required=True, metavar="URI", help="a new folder for the savepoint")
    parser.add_argument("--partitions", type=int, help="of the new query")
    add_batch(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.savepoints.rescale import check_partitions, rescale_lines
    from fastchangelog.savepoints.savepoint import take_savepoint

    source = state_source(args)
    if args.partitions is not None:
        check_partitions(source, args.partitions)
    with progress_bar(args) as report:
        taken = take_savepoint(source, args.to, "native", report)
    lines = rescale_lines(taken, args.state, args.partitions)
    if args.json:
        print_json({**taken, "start_with": lines})
        return OK
    print(f"{taken['uri']} holds {taken['keys']} keys of batch {taken['batch']}. Start the query again with")
    for line in lines:
        print(f"    {line}")
    return OK
