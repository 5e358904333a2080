"""`fastchangelog verify`: reads and checks every byte of a savepoint, or of what a query's batch needs.

Owns: the command. Does not own: the checks (`savepoints.verification`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_batch, state_source
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, progress_bar, say, show_bytes

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "verify",
        help="read and check every byte of a savepoint, or of what a query's batch needs",
        description="Exit code 1 if something is missing or not as it was written.",
    )
    parser.add_argument("state", metavar="URI", help="a savepoint, or with --checkpoint the state= of grouped()")
    parser.add_argument("--checkpoint", metavar="URI", help="a query's checkpointLocation")
    add_batch(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.savepoints.verification import verify_checkpoint, verify_savepoint

    with progress_bar(args) as report:
        if args.checkpoint is None:
            checked = verify_savepoint(args.state, state_source(args), report)
        else:
            checked = verify_checkpoint(state_source(args), report)
    damaged = checked.pop("damaged")
    if args.json:
        print_json({**checked, "damaged": damaged})
    else:
        read = f"{checked['objects']} objects, {show_bytes(checked['bytes'])}"
        say(f"{checked['uri']}: read {read}; {len(damaged)} damaged")
        if damaged:
            print_table([[d["object"], d["what"]] for d in damaged])
    return FOUND if damaged else OK
