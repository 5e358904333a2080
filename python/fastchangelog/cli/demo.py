"""`fastchangelog demo`.

Owns: the command's arguments. Does not own: the demo (`fastchangelog.demo`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fastchangelog.cli.output import COULD_NOT_RUN
from fastchangelog.errors import InvalidArgumentError

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "demo",
        help="replay streams, kill everything at random moments, compare the result row by row",
        description="Replays the New York flights of 2013 and a generated auction, kills workers, the state server and "
        "the JVM with kill -9, starts again from the checkpoint, and compares every row with an independent "
        "computation. With --input it does the same with your own files. Exit code 0 only if every row is exact.",
    )
    parser.add_argument("--input", type=Path, metavar="DIR", help="a folder of parquet, CSV or JSON files")
    parser.add_argument(
        "--key", action="append", default=[], metavar="COLUMN", help="group by this column (repeatable)"
    )
    parser.add_argument(
        "--agg", action="append", default=[], metavar="FN(COLUMN)", help="such as 'sum(price)'; default count(*)"
    )
    parser.add_argument("--seed", type=int, help="of the kills and of the auction; by default a new one, printed")
    parser.add_argument("--auctions", type=int, default=1_000_000, help="keys of the generated auction")
    parser.add_argument("--batches", type=int, default=8, help="of the auction, or of --input")
    parser.add_argument("--rows", type=int, default=200_000, help="bids in each batch of the auction")
    parser.add_argument("--keep", action="store_true", help="keep the working folder, and print where it is")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if args.input is not None and not args.key:
        raise InvalidArgumentError("--input needs at least one --key COLUMN")
    if args.input is None and (args.key or args.agg):
        raise InvalidArgumentError("--key and --agg go with --input DIR")
    if args.batches < 2 or args.rows < 1 or args.auctions < 1:
        raise InvalidArgumentError("--batches must be 2 or more, --rows and --auctions 1 or more")
    from fastchangelog.cli import doctor

    broken = [f for f in doctor.packages_and_java() if not f.ok]
    if broken:
        for finding in broken:
            print(f"{finding.what}: {finding.found}; {finding.fix}", file=sys.stderr)
        return COULD_NOT_RUN
    from fastchangelog.demo import main as demo

    request = demo.DemoRequest(
        args.seed, args.input, tuple(args.key), tuple(args.agg), args.auctions, args.rows, args.batches, args.keep
    )
    return demo.run(request)
