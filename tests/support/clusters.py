"""Clusters that run queries with real engines under one root in a bucket, and sweeps of it.

Owns: what each cluster's checkpoint retains, what is needed of the bucket, that servers see what a sweep deletes.
Does not own: the bucket and the engine (`swept`), what goes wrong (`test_gc_faults`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from fastchangelog.gc.collector import Collector
from fastchangelog.gc.report import FolderReport
from support.swept import DAY, Engine, MemoryFolder, Told, World, closure, expected, roots


class Cluster:
    """A query on machines of its own, with the batches that its checkpoint retains."""

    RETAINED = 3

    def __init__(self, base: Path, root: Path, world: World, query: str) -> None:
        self.base, self.root, self.world, self.query = base, root, world, query
        self.folder, self.checkpoint = f"{query}/default", f"ckpt-{query}"
        self.handles: list[str] = []
        self.servers = 0
        self.engine = self.start()
        self.began: float | None = None

    def start(self) -> Engine:
        self.servers += 1
        return Engine(self.base / f"{self.query}-{self.servers}", self.root, self.query)

    @property
    def last(self) -> str | None:
        return self.handles[-1] if self.handles else None

    def batch(self) -> None:
        number = len(self.handles)
        handle, found = self.engine.batch(number, self.last)
        self.world.add(self.root)
        assert found == expected(number + 1), f"batch {number} of {self.query}"
        self.handles.append(handle)
        self.began = None

    def attempt(self) -> None:
        """A batch is planned and writes, and its attempt is lost."""
        self.began = self.world.now if self.began is None else self.began
        self.engine.batch(len(self.handles), self.last)
        self.world.add(self.root)

    def materialize(self) -> None:
        """A snapshot that waits for the next batch, which may be long in coming."""
        if self.handles:
            self.engine.batch(len(self.handles), self.last, commit=False)
            with contextlib.suppress(AssertionError):  # nothing to do
                self.engine.materialize()
            self.world.add(self.root)

    def die(self) -> None:
        self.engine.stop()
        self.engine = self.start()

    def retained(self) -> dict[int, str]:
        return dict(list(enumerate(self.handles))[-self.RETAINED :])

    def needed(self) -> set[str]:
        return closure(self.world, self.folder, list(self.retained().values()))

    def assert_restores(self) -> None:
        """What every retained batch left, in a server of its own that has nothing but the store."""
        for number, handle in self.retained().items():
            engine = self.start()
            assert engine.batch(number + 1, handle)[1] == expected(number + 2), f"{self.query}, batch {number}"
            engine.stop()


class Place:
    """A root in a bucket, and the clusters that share it."""

    def __init__(self, base: Path, *queries: str) -> None:
        self.root = base / "state"
        self.root.mkdir()
        self.world = World({})
        self.clusters = [Cluster(base, self.root, self.world, query) for query in queries]

    def told(self, *clusters: Cluster) -> Told:
        """The checkpoints of these clusters, as they are when they are asked."""
        return Told(**{c.checkpoint: roots(c.query, c.retained(), c.began) for c in clusters or self.clusters})

    def sweep(self, told: Told | None = None, grace: float = DAY, **given: object) -> list[FolderReport]:
        """One sweep, told where all these checkpoints are; what it deletes is gone for the servers, too."""
        told = told or self.told()
        settings: dict[str, object] = {
            "grace": grace,
            "clock": lambda: self.world.now,
            "delete": True,
            "locations": list(told.answers),
            **given,
        }
        try:
            return Collector(MemoryFolder(self.world), told, **settings).run()  # type: ignore[arg-type]
        finally:
            for path in [p for p in self.root.rglob("*") if p.is_file()]:
                if str(path.relative_to(self.root)) not in self.world.objects:
                    path.unlink()

    def assert_needed_is_there(self, when: str) -> None:
        for cluster in self.clusters:
            missing = cluster.needed() - self.world.names()
            assert not missing, f"{when}: {cluster.query} lost {missing}"
