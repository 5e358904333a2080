"""Forks of a process whose other threads are busy.

Owns: the locks of the standard library that a child would inherit locked, from a thread that it does not have.
Does not own: the values that a child makes anew (the core), its exit (`_internal`).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

__all__ = ["settle_locks_before_forks"]


def settle_locks_before_forks() -> None:
    """Arranges that no fork happens while a thread holds one of these locks. For the import of the package."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(before=_settle_locks)


def _settle_locks() -> None:
    # `tempfile` looks for its folder and seeds its names under a lock, once. After that it takes the lock no more.
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        with suppress(OSError):  # no folder: the first user of one gets this error
            tempfile.mktemp()  # only makes a name
