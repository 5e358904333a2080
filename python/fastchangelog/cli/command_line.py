"""The command `fastchangelog`: finds the command that is asked for and runs it.

Owns: the list of commands, the form of errors. Does not own: arguments and work of a command (its own module).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import fastchangelog
from fastchangelog.cli.output import COULD_NOT_RUN, INTERRUPTED, OK, printable
from fastchangelog.errors import FastChangelogError

__all__ = ["main"]

#: In the order of the help text. The module of each command has its name, and `add_parser(commands)` and `run(args)`.
COMMANDS = ("demo", "doctor", "migrate", "inspect", "sweep", "savepoint", "verify", "export")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return COULD_NOT_RUN
    try:
        return int(args.run(args))
    except FastChangelogError as error:
        print(f"fastchangelog {args.command}: {printable(str(error))}", file=sys.stderr)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print("interrupted; nothing was left running", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has ended: there is no output any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


class _Version(argparse.Action):
    """Loads the native module only when it is asked for: `doctor` must run without it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print("fastchangelog", fastchangelog.__version__)
        parser.exit(OK)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fastchangelog", description="Durable keyed state for PySpark.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"fastchangelog.cli.{name}").add_parser(commands)
    return parser
