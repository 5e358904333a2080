"""The payloads of one shard, grouped by key when all are there.

Owns: the grouper of a shard, and the folder for what spills.
Does not own: sorting, chunks and spilling (the Rust grouper).
"""

from __future__ import annotations

import contextlib
import os
import tempfile

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.server.paths import ServerPaths

__all__ = ["Payloads", "spill_folder"]


class Payloads:
    """Takes payloads; true once there was one with rows.

    The first `keys` columns of `input` are the key; `late` is a column of times and the microseconds up to which a row
    is dropped.
    """

    def __init__(self, keys: int, input: pa.Schema, memory: int, late: tuple[int, int] | None = None):
        self._keys = keys
        self._input = input
        self._memory = memory
        self._late = late
        self._grouper: _internal.RowGrouper | None = None

    def __bool__(self) -> bool:
        return self._grouper is not None

    def push(self, payload: bytes) -> None:
        """Takes one payload; an empty one is a heartbeat."""
        if not payload:
            return
        if self._grouper is None:
            self._grouper = _internal.RowGrouper(self._keys, self._input, self._memory, spill_folder(), late=self._late)
        self._grouper.push(payload)

    def grouped(self) -> _internal.RowGrouper | None:
        """The rows of all payloads; None if there were none."""
        return self._grouper

    def counted(self) -> dict[str, int]:
        """What the metrics of a batch say about the rows."""
        grouper = self._grouper
        if grouper is None:
            return {}
        return {
            "input_rows": grouper.input_rows,
            "late_rows": grouper.late_rows,
            "worker_spilled_bytes": grouper.spilled_bytes,
        }


def spill_folder() -> str:
    """A folder on the executor's local disk. Spark removes it with the executor; files in it go with their owner."""
    folder = ServerPaths.here().data_dir
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder) if os.access(folder, os.W_OK) else tempfile.gettempdir()
