"""Waiting for other processes: a condition, a bound, and what was waited for.

Owns: the one place where tests look again after a moment. Nothing is assumed about how long anything takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BOUND = 240.0
_LOOK = 0.01


def until(what: str, done: Callable[[], object], bound: float = BOUND) -> None:
    """Returns when `done` says so; fails naming `what` after `bound` seconds."""
    deadline = time.monotonic() + bound
    while not done():
        assert time.monotonic() < deadline, f"after {bound:.0f} s still waiting for {what}"
        time.sleep(_LOOK)


def pause(seconds: float) -> None:
    """Lets a random moment come: what is right does not depend on it."""
    time.sleep(seconds)
