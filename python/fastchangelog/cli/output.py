"""Output of commands: tables for people, JSON for machines, progress on a terminal; and exit codes.

Owns: the layout. Does not own: the content.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    "COULD_NOT_RUN",
    "FOUND",
    "INTERRUPTED",
    "OK",
    "print_json",
    "print_table",
    "print_values",
    "printable",
    "progress_bar",
    "say",
    "show_bytes",
    "status_line",
    "table",
]


OK, FOUND, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED = 130


def print_json(value: Any) -> None:
    """For machines."""
    print(json.dumps(value, indent=1))


def printable(text: str) -> str:
    r"""The text as one line that does nothing to a terminal: names of others may hold anything.

    >>> printable("a\x1b[2Jb\n\udcffä")
    'a\\x1b[2Jb\\n\\udcffä'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """Prints a line."""
    print(printable(text))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows with aligned columns."""
    for line in table(rows):
        print(line)


def print_values(values: dict[str, Any], as_json: bool, skip: Sequence[str], more: Sequence[list[str]] = ()) -> int:
    """Names and values, without the names in `skip`; returns `OK`."""
    if as_json:
        print_json(values)
    else:
        print_table([*([name, str(value)] for name, value in values.items() if name not in skip), *more])
    return OK


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def show_bytes(number: float) -> str:
    """A number of bytes with a unit.

    >>> show_bytes(999), show_bytes(1234567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def status_line(args: argparse.Namespace) -> Callable[[str], object] | None:
    """Writes one line over the former one, on a terminal; None elsewhere and with --json."""
    if args.json or not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r{text:<60}\r{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(args: argparse.Namespace) -> Iterator[Callable[[int, int], object] | None]:
    """Draws the share of bytes that are done, on a terminal; None elsewhere and with --json."""
    if args.json or not sys.stderr.isatty():
        yield None
        return

    def draw(done: int, total: int) -> None:
        share = min(1.0, done / total) if total else 0.0
        bar = "#" * round(30 * share)
        print(f"\r[{bar:<30}] {100 * share:3.0f} % of {show_bytes(total)}", end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
