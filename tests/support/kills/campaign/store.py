"""What the campaign does to a query's state from outside: sweeps, savepoints, and the look at what is left.

Owns: the campaign's own Spark session, and a thread of its own beside the strikes. Does not own: when
(`round`), what must hold of objects (`checks`).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark

from fastchangelog import _internal
from fastchangelog.gc.collector import Collector
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import FOLDER_META
from fastchangelog.savepoints.savepoint import take_savepoint
from fastchangelog.savepoints.source import StateSource
from fastchangelog.savepoints.verification import verify_checkpoint, verify_savepoint
from fastchangelog.spark.checkpoint.files import query_checkpoints
from support.kills.answers import Trouble
from support.kills.campaign import checks
from support.kills.campaign.entries import ENTRIES
from support.kills.campaign.run import RETAINED
from support.kills.kinds import KINDS
from support.notes import changed

StateAfter = Callable[[int], dict[Any, Any]]
"""Every entry of the state after a batch."""


class Outside:
    """One Spark session for all rounds."""

    def __init__(self, folder: Path) -> None:
        from pyspark.sql import SparkSession

        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        self._spark: Any = (
            SparkSession.builder.master("local[1]")
            .appName("campaign")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "700m")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.streaming.minBatchesToRetain", str(RETAINED))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "spark"))
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="outside")

    def later(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs it beside the strikes; one at a time."""
        return self._pool.submit(call, *arguments)

    def close(self) -> None:
        """Waits for what runs, and ends the session."""
        self._pool.shutdown(cancel_futures=True)
        self._spark.stop()

    def sweep(self, folder: Path, grace: float) -> list[FolderReport]:
        """One sweep of the query's states, as `fastchangelog sweep --delete` does it."""
        root = _internal.ObjectFolder(str(folder / "state"), {}, {})
        collector = Collector(
            root,
            query_checkpoints(self._spark),
            grace=grace,
            clock=time.time,
            locations=[str(folder / "checkpoint")],
            delete=True,
        )
        reports = list(collector.run())
        for report in reports:
            if any(lost in (report.kept_because or "") for lost in ("not there", "is missing")):
                raise Trouble("lost", f"a sweep found: {report.kept_because}")
        return reports

    def savepoints(self, folder: Path, kind: str, number: int, form: str, state_after: StateAfter) -> dict[str, str]:
        """Takes a savepoint of each state of one batch, verifies them, and compares their entries with the model's;
        where the savepoint of a name is."""
        source = _source(folder)
        taken: dict[str, str] = {}
        entries: list[tuple[Any, Any]] = []
        for name in KINDS[kind].states:
            to = str(folder / f"savepoint-{number}-{name}")
            source = dataclasses.replace(source, name=name)
            batch = int(take_savepoint(source, to, form)["batch"])
            source = dataclasses.replace(source, name=None, batch=batch)
            if damaged := verify_savepoint(to, source)["damaged"]:
                raise Trouble("lost", f"the savepoint {to} of batch {batch} is damaged: {damaged[:3]}")
            taken[name] = to
            entries += ENTRIES[kind](name, to, source)
        if told := difference(entries, state_after(batch)):
            raise Trouble("wrong", f"the savepoints {', '.join(taken.values())} of batch {batch}: {told}")
        return taken

    def at_rest(self, folder: Path, kind: str) -> tuple[int, int]:
        """Sweeps with no grace until nothing more can go; then the bucket must hold what the retained handles reach,
        and nothing else. How many objects were deleted, and how many are left."""
        for note in (folder / "state").rglob(FOLDER_META):  # no server runs that counts on anything
            note.write_bytes(changed(note.read_bytes(), sweep_grace_seconds=0))
        self.sweep(folder, 0.0)
        reports = self.sweep(folder, 0.0)
        if len(reports) != len(KINDS[kind].states):
            raise Trouble(
                "lost", f"a sweep at rest finds {[report.folder for report in reports]} of {KINDS[kind].states}"
            )
        for report in reports:
            if report.kept_because is not None:
                raise Trouble("lost", f"a sweep at rest deletes nothing: {report.kept_because}")
        roots = query_checkpoints(self._spark).roots(str(folder / "checkpoint"))
        root = folder / "state"
        kept = [entry.name for report in reports for entry in report.adoptable]
        lost, leaked = checks.audit([root / report.folder for report in reports], roots.handles, kept)
        if lost:
            raise Trouble("lost", f"{len(lost)} objects that handles reach are not in {root}: {lost[:5]}")
        if leaked:
            raise Trouble("leaked", f"{len(leaked)} objects in {root} are reached by no handle: {leaked[:5]}")
        for report in reports:
            source = dataclasses.replace(_source(folder), name=Path(report.folder).name)
            if damaged := verify_checkpoint(source)["damaged"]:
                raise Trouble("lost", f"objects in {root / report.folder} are damaged: {damaged[:3]}")
        return sum(len(report.deleted) for report in reports), sum(len(report.reachable) for report in reports)


def _source(folder: Path) -> StateSource:
    """The newest batch of a round's query."""
    return StateSource(str(folder / "checkpoint"), str(folder / "state"))


def difference(entries: list[tuple[Any, Any]], wanted: dict[Any, Any]) -> str:
    """How entries of a savepoint differ from the model's; empty if they do not."""
    got, none = dict(entries), "none"
    names = sorted((n for n in got.keys() | wanted.keys() if got.get(n, none) != wanted.get(n, none)), key=repr)
    if names:
        first = names[0]
        return f"{first!r} is {got.get(first, none)}, must be {wanted.get(first, none)}; {len(names)} entries differ"
    return "" if len(entries) == len(got) else "entries come twice"
