"""The command `fastchangelog`.

Owns: the program's entry point and its exit codes (0 ok, 1 found something, 2 could not run). Does not own: the
commands, a module each.
"""

from __future__ import annotations

from fastchangelog.cli.command_line import main
from fastchangelog.cli.output import COULD_NOT_RUN, FOUND, INTERRUPTED, OK

__all__ = ["COULD_NOT_RUN", "FOUND", "INTERRUPTED", "OK", "main"]
