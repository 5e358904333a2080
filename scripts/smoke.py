"""What a new installation of the wheel must do, without Spark and without this repository: python -I scripts/smoke.py

Owns: the profile of the build, an embedded state that is closed and opened again, a processor in memory, the command.
Does not own: the installation (its caller), everything else (tests).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog import functions as F
from fastchangelog.testing import run_processor


class Counts(fc.Processor):
    """Counts the rows of each key."""

    def open(self, ctx: fc.Context) -> None:
        self.seen = ctx.value_state("seen", "n long")

    def process(self, batch: fc.Batch) -> Iterator[pa.RecordBatch]:
        rows = batch.aggregate(n=F.count())
        self.seen.put(batch.keys, rows)
        yield pa.record_batch({"user": batch.keys.field("user"), "n": rows["n"]})


def embedded(root: str) -> None:
    """A value is there after the state was closed."""
    with fc.open_state(root) as state:
        state.value_state("visits", key="string", value="long")["ann"] = 3
        state.checkpoint()
    with fc.open_state(root) as state:
        assert state.value_state("visits", key="string", value="long")["ann"] == 3


def processor() -> None:
    """A vectorised processor runs in memory."""
    (answer,) = run_processor(Counts(), [pa.table({"user": ["ann", "bob", "ann"]})])
    assert answer.to_pydict() == {"user": ["ann", "bob"], "n": [2, 1]}


def main() -> int:
    """See the text at the top of this file."""
    assert _internal.build_info()["profile"] == "release", "a wheel is optimized"
    with tempfile.TemporaryDirectory() as scratch:
        embedded(f"file://{Path(scratch).as_posix()}/state")
    processor()
    command = Path(sys.executable).parent / "fastchangelog"
    subprocess.run([command, "--version"], check=True, stdin=subprocess.DEVNULL)
    print(f"fastchangelog {fc.__version__} works on Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
