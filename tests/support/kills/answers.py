"""The batches of a query that is killed, and the comparison of every answer with a model's.

Owns: files of input, what must come out of each, every look at what came out. Does not own: the query (`job`), its
model (`kinds`), processes (`run`).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class Trouble(Exception):
    """What kills must never lead to; `kind` is one of `campaign.report.KINDS`."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what


class Answers:
    """The numbers of batches are those of their files. An answer is compared when it is there, and when it is written
    again."""

    def __init__(self, folder: Path, model: Any, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self.model = model
        self.expected: list[list[list[Any]]] = []
        self._snapshots: list[dict[Any, Any]] = []
        self._seen: dict[int, tuple[int, int]] = {}
        #: When an answer came last, or the first batch after all were answered.
        self.progress = time.monotonic()
        #: Batches that were fed, of all queries that went on from one another.
        self.fed = 0
        #: Answers compared for the first time, and again.
        self.compared = self.repeats = 0

    @property
    def batches(self) -> int:
        """Batches that were fed to this query."""
        return len(self.expected)

    @property
    def answered(self) -> int:
        """Those of them that have an answer."""
        return len(self._seen)

    def has(self, number: int) -> bool:
        """True when a batch has an answer, which was right."""
        return number in self._seen

    def put(self, rows: list[Any]) -> int:
        """One more batch of these rows; its number."""
        number = self.batches
        if number == self.answered:
            self.progress = time.monotonic()
        self.expected.append(sorted(self.model.apply(rows), key=repr))
        self._snapshots.append(self.model.snapshot())
        new = self._folder / f"{number}.parquet"
        pq.write_table(pa.table([list(column) for column in zip(*rows, strict=True)], schema=self._schema), new)
        os.utime(new, (1_700_000_000 + number, 1_700_000_000 + number))
        new.rename(self._folder / "in" / f"{number:06d}.parquet")
        self.fed += 1
        return number

    def state_after(self, batch: int) -> dict[Any, Any]:
        """Every entry of the state after a batch."""
        return self._snapshots[batch]

    def compare_new(self) -> bool:
        """Compares what was written since the last look; True when something was."""
        found_one = False
        for path in sorted((self._folder / "out").glob("*.json")):
            number, found = int(path.stem), path.stat()
            sign = (found.st_mtime_ns, found.st_ino)
            if self._seen.get(number) == sign:
                continue
            self._check(number)
            if number in self._seen:
                self.repeats += 1
            else:
                self.compared += 1
            self._seen[number] = sign
            self.progress = time.monotonic()
            found_one = True
        return found_one

    def compare_all(self) -> None:
        """Compares every batch again."""
        for number in sorted(self._seen):
            self._check(number)

    def _check(self, number: int) -> None:
        got = json.loads((self._folder / "out" / f"{number:06d}.json").read_text())
        if got != self.expected[number]:
            raise Trouble("wrong", f"batch {number}: {difference(got, self.expected[number])}")

    def roll_back(self, number: int) -> None:
        """As if batches from `number` on had never been committed; their answers go, and are awaited again."""
        checkpoint = self._folder / "checkpoint"
        # The first of them stays planned, as after a crash; of the later ones Spark must not know.
        for log, first in (("commits", number), ("offsets", number + 1), ("sources/0", number + 1)):
            for path in (checkpoint / log).iterdir():
                name = path.name.strip(".").split(".")[0]  # "3", ".3.crc" beside it; every tenth is "9.compact"
                if name.isdigit() and int(name) >= first:
                    path.unlink()
        for path in (self._folder / "out").iterdir():
            if int(path.stem) >= number:
                path.unlink()
        for batch in [batch for batch in self._seen if batch >= number]:
            del self._seen[batch]
            self.compared -= 1

    def begin_again(self) -> None:
        """A new query goes on from here: batches count from 0."""
        self.expected, self._snapshots, self._seen = [], [], {}
        self.model.moved()


def difference(got: list[list[Any]], wanted: list[list[Any]]) -> str:
    """The rows of the first key that are not equal: a processor may answer several for one."""
    rows, want = _by_key(got), _by_key(wanted)
    for key in sorted(rows.keys() | want.keys(), key=repr):
        if rows.get(key) != want.get(key):
            return f"key {key!r} is {rows.get(key)}, must be {want.get(key)}"
    return "rows are not in their order"


def _by_key(rows: list[list[Any]]) -> dict[Any, list[list[Any]]]:
    found: dict[Any, list[list[Any]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found
