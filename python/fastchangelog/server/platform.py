"""The operating systems that a state server runs on.

Owns: the check, and the error on other systems. Does not own: the calls of the check (`client`, `private`, `spark`).

The server needs Linux: it learns the user of each client and the end of the executor's JVM from it. The other parts of
the package need only the native module, which is built for macOS too.
"""

from __future__ import annotations

import sys

from fastchangelog.errors import UnsupportedError

__all__ = ["WORKS_ELSEWHERE", "check", "refusal"]

WORKS_ELSEWHERE = (
    "embedded states (`fastchangelog.open_state`) and `fastchangelog.testing.run_processor` work here; "
    "run Spark queries on Linux, in a container for instance"
)
"""The remedy for a user of another system."""


def refusal() -> str | None:
    """The reason why no state server runs on this system; None if one can."""
    system: str = sys.platform
    return None if system == "linux" else f"the state server runs on Linux only, and this is {system}"


def check() -> None:
    """Raises an error if no state server runs on this system."""
    if (reason := refusal()) is not None:
        error = UnsupportedError(f"{reason}: {WORKS_ELSEWHERE}")
        error.remedy = WORKS_ELSEWHERE
        raise error
