"""Python programs of a few lines, in a process of their own.

Owns: running them to their end. Does not own: what they do, and what must hold after it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

PATIENCE = 60


def run(script: str, *arguments: str, patience: float = PATIENCE, **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a script with these arguments for at most `patience` seconds; gives its exit code and what it said."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False, **how)
