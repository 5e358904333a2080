"""Roots of a sweep that no checkpoint of Spark's knows: the heads of a state in process.

Owns: which folders of a root are such states, and reading what their heads name.
Does not own: what is deleted (`sweep`), the sweep itself (`sweeper`), heads' bytes and their removal (the core).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from fastchangelog import _internal
from fastchangelog.errors import StoreError
from fastchangelog.sweep import Handle

__all__ = ["HEADS", "is_head", "retained"]

HEADS = "head"
"""The folder of heads in a state's folder."""

#: How often all heads that were listed may have gone before they are read.
_TURNS = 16


class HeadFolder(Protocol):
    """What this module asks of a state's folder."""

    def list(self, prefix: str) -> Sequence[tuple[str, int, float]]:
        """Names below `prefix`, sizes and times."""

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""


def is_head(name: str) -> bool:
    """True for a head's name in a state's folder.

    >>> is_head("head/00000000000000000042"), is_head("head/42")
    (True, False)
    """
    return _internal.object_type(name) == HEADS


def retained(folder: HeadFolder) -> list[Handle] | None:
    """The handles of all heads that are there; None if there is no head. One that cannot be read is an error.

    A writer removes heads upwards, so a head that has gone since it was listed is older than one that is still there;
    when all have gone, there are newer ones.
    """
    for _ in range(_TURNS):
        names = sorted(name for name, _, _ in folder.list(HEADS) if is_head(name))
        read = [(name, folder.read(name)) for name in names]
        if not names:
            return None
        if read[-1][1] is not None:
            return list(_handles((name, data) for name, data in read if data is not None))
    raise StoreError("the state's heads change faster than they can be read; sweep again")


def _handles(heads: Iterable[tuple[str, bytes]]) -> Iterable[Handle]:
    for name, data in heads:
        head = json.loads(_internal.head_json(name, data))
        if head["handle"] is not None:
            yield Handle.from_json(json.dumps(head["handle"]), name)
