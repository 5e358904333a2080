"""The roots of an embedded state: its checkpoint log, the folder of its newest checkpoints.

Owns: reading the log, the handles in its entries, and recognizing a state's folder by them.
Does not own: what is deleted (`gc.plan`), the collection (`gc.collector`), the bytes of an entry and the removal of old
entries (the core).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from fastchangelog import _internal
from fastchangelog.errors import StoreError
from fastchangelog.gc.plan import HandleRefs
from fastchangelog.layout import CHECKPOINT_LOG

__all__ = ["is_entry", "retained", "state_of"]

#: Retries when all listed entries were removed before they could be read.
_MAX_RELISTS = 16


class LogFolder(Protocol):
    """The part of `collector.StateFolder` that is needed here."""

    def list(self, prefix: str) -> Sequence[tuple[str, int, float]]:
        """Names below `prefix`, sizes and times."""

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""


def is_entry(name: str) -> bool:
    """True for the name of an entry of the log in a state's folder.

    >>> is_entry("head/00000000000000000042"), is_entry("head/42")
    (True, False)
    """
    return _internal.object_type(name) == CHECKPOINT_LOG


def state_of(path: str) -> str | None:
    """The state's folder, if `path` is an entry of its log; None for any other path.

    >>> state_of("team/profiles/head/00000000000000000042"), state_of("team/profiles/log/42")
    ('team/profiles', None)
    """
    parts = path.rsplit("/", 2)
    return parts[0] if len(parts) == 3 and parts[0] and is_entry("/".join(parts[1:])) else None


def retained(folder: LogFolder) -> list[HandleRefs] | None:
    """The handles of all entries; None if there is none. An entry that cannot be read is an error.

    A writer removes the oldest entries first, so an entry that vanished since the listing is older than those that are
    left. When all have vanished, there are newer ones.
    """
    for _ in range(_MAX_RELISTS):
        names = sorted(name for name, _, _ in folder.list(CHECKPOINT_LOG) if is_entry(name))
        read = [(name, folder.read(name)) for name in names]
        if not names:
            return None
        if read[-1][1] is not None:
            return list(_handles((name, data) for name, data in read if data is not None))
    raise StoreError("the state's checkpoint log changes faster than it can be read; sweep again")


def _handles(entries: Iterable[tuple[str, bytes]]) -> Iterable[HandleRefs]:
    for name, data in entries:
        entry = json.loads(_internal.head_json(name, data))
        if entry["handle"] is not None:
            yield HandleRefs.from_json(json.dumps(entry["handle"]), name)
