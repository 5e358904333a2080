"""Random lives of a query that sweeps itself: batches, lost attempts, restarts from older batches, copies of its
checkpoint that start or never do, savepoints, and sweeps that end at any request, beside others.

Owns: these lives. Does not own: troubles of the store and of clocks (`test_gc_faults`), the schedule of sweeps
(`test_gc_background`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastchangelog import _internal
from fastchangelog.errors import StoreError
from fastchangelog.gc.collector import Background, Collector, Roots
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import FOLDER_META, GC_CHECKPOINTS, GC_STATE, STARTS
from support.swept import DAY, Crash, Engine, MemoryFolder, World, closure, expected

HOUR = 3_600.0
QUERY, FOLDER = "query", "query/default"
RETAINED = 3
POINTS = ["sweep.probed", "sweep.planned", "sweep.noted", "sweep.deleted"]


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint, the handles of its committed batches, and when it planned batches."""

    location: str
    committed: dict[int, str]
    planned: dict[int, float]
    #: When it was copied; None once a query has started from it.
    copied: float | None
    #: What says that the query runs.
    engine: Engine | None = None

    @property
    def newest(self) -> int:
        return max(self.committed, default=-1)

    def roots(self) -> Roots:
        running = [time for batch, time in self.planned.items() if batch > self.newest]
        handles = {handle: f"batch {batch}" for batch, handle in self.committed.items()}
        return Roots(QUERY, tuple(sorted(self.committed)), handles, min(running, default=None))


class Life:
    """One query's folder, and all checkpoints that it ever had."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self.base, self.root, self.rng = base, base / "state", rng
        self.root.mkdir()
        self.world = World({})
        self.checkpoints = [Checkpoint("first", {}, {}, None)]
        self.servers = 0
        #: What savepoints under way read, and until when.
        self.reading: list[tuple[float, set[str]]] = []
        self.when_read: Callable[[], None] = lambda: None

    def end(self) -> None:
        for checkpoint in self.checkpoints:
            self._end(checkpoint)

    # --- reading checkpoints, as the collector does

    def _at(self, location: str) -> Checkpoint:
        return next(one for one in self.checkpoints if one.location == location)

    def query_id(self, location: str) -> str:
        self._at(location)
        return QUERY

    def roots(self, location: str) -> Roots:
        found = self._at(location).roots()
        self.when_read()
        return found

    # --- events

    def started(self) -> list[Checkpoint]:
        return [one for one in self.checkpoints if one.copied is None]

    def _engine(self, checkpoint: Checkpoint) -> Engine:
        if checkpoint.engine is None:
            self.servers += 1
            checkpoint.engine = Engine(self.base / f"e{self.servers}", self.root, QUERY)
        return checkpoint.engine

    def _run(self, checkpoint: Checkpoint, commits: bool, materializes: bool = False) -> None:
        number = checkpoint.newest + 1
        checkpoint.planned.setdefault(number, self.world.now)
        engine = self._engine(checkpoint)
        last = checkpoint.committed.get(checkpoint.newest)
        handle, found = engine.batch(number, last, commit=not materializes, checkpoint=checkpoint.location)
        if materializes:
            with contextlib.suppress(AssertionError):  # nothing to do
                engine.materialize()
        self.world.add(self.root)
        assert found == expected(number + 1), f"batch {number} from {checkpoint.location}"
        if commits:
            checkpoint.committed[number] = handle
            for old in sorted(checkpoint.committed)[:-RETAINED]:
                del checkpoint.committed[old]

    def batch(self) -> None:
        self._run(self.rng.choice(self.started()), commits=True)

    def attempt(self) -> None:
        self._run(self.rng.choice(self.started()), commits=False)

    def materialize(self) -> None:
        checkpoint = self.rng.choice(self.started())
        if checkpoint.committed:
            self._run(checkpoint, commits=False, materializes=True)

    def die(self) -> None:
        self._end(self.rng.choice(self.started()))

    def _end(self, checkpoint: Checkpoint) -> None:
        if checkpoint.engine is not None:
            checkpoint.engine.stop()
            checkpoint.engine = None

    def roll_back(self) -> None:
        """The newest commits are deleted; the query starts from an older batch."""
        checkpoint = self.rng.choice(self.started())
        self._end(checkpoint)
        for batch in sorted(checkpoint.committed)[1:][-self.rng.randrange(1, 3) :]:
            del checkpoint.committed[batch]

    def copy(self) -> None:
        source = self.rng.choice(self.checkpoints)
        if source.committed and len(self.checkpoints) < 4:
            location = f"copy-{len(self.checkpoints)}"
            copied = self.world.now if source.copied is None else source.copied
            made = Checkpoint(location, dict(source.committed), dict(source.planned), copied)
            self.checkpoints.append(made)

    def start_copy(self) -> None:
        """A query starts from a copy, which the grace alone protects until then."""
        young = [c for c in self.checkpoints if c.copied is not None and self.world.now - c.copied < 0.9 * DAY]
        for checkpoint in young[:1]:
            checkpoint.copied = None
            self._run(checkpoint, commits=self.rng.random() < 0.8)

    def go_on(self, checkpoint: Checkpoint) -> None:
        """A server that has nothing but the store answers as it must, until no planned batch is left."""
        self._end(checkpoint)
        self._run(checkpoint, commits=True)
        while max(checkpoint.planned) > checkpoint.newest:
            self._run(checkpoint, commits=True)

    def savepoint(self) -> None:
        """Reads what a batch needs over some hours, and knows nothing of sweeps."""
        checkpoint = self.rng.choice(self.started())
        if checkpoint.committed:
            needed = closure(self.world, FOLDER, [self.rng.choice(list(checkpoint.committed.values()))])
            self.reading.append((self.world.now + 0.9 * DAY, needed))

    def wait(self) -> None:
        self.world.now += self.rng.choice([60.0, HOUR, 6 * HOUR, DAY])

    def sweep(self) -> list[FolderReport]:
        """A background sweep; what it deletes is gone for the servers, too."""
        background = Background(QUERY, 0.0)
        settings = {"grace": DAY, "clock": lambda: self.world.now, "delete": True, "background": background}
        try:
            return Collector(MemoryFolder(self.world), self, **settings).run()  # type: ignore[arg-type]
        finally:
            for path in [p for p in self.root.rglob("*") if p.is_file()]:
                if str(path.relative_to(self.root)) not in self.world.objects:
                    path.unlink()

    def killed_sweep(self) -> None:
        """Its process dies at some request, before or after it has an effect; or a request fails for good."""
        world = self.world
        world.fail_at = world.calls + self.rng.randrange(1, 60)
        world.failure, world.after = self.rng.choice([Crash(), StoreError("503")]), self.rng.random() < 0.5
        try:
            with contextlib.suppress(Crash, StoreError):
                self.sweep()
        finally:
            world.fail_at = None

    def two_sweeps(self) -> None:
        """While one has read a checkpoint, anything else happens, another sweep among it."""

        def meanwhile() -> None:
            self.when_read = lambda: None
            self.rng.choice([self.batch, self.attempt, self.start_copy, self.copy, self.sweep, self.materialize])()

        self.when_read = meanwhile
        self.sweep()
        self.when_read = lambda: None

    # --- what must hold

    def needed(self) -> set[str]:
        handles = [handle for one in self.started() for handle in one.committed.values()]
        return closure(self.world, FOLDER, sorted(set(handles)))

    def assert_all_is_there(self, when: str) -> None:
        missing = self.needed() - self.world.names()
        assert not missing, f"{when}: lost {missing}"
        self.reading = [(until, names) for until, names in self.reading if self.world.now < until]
        for _, names in self.reading:
            assert names <= self.world.names(), f"{when}: a savepoint under way lost {names - self.world.names()}"

    def notes(self) -> set[str]:
        starts = self.world.names(f"{FOLDER}/{STARTS}/")
        return starts | {f"{FOLDER}/{name}" for name in (FOLDER_META, GC_STATE, GC_CHECKPOINTS)}

    def assert_nothing_else_is_left(self, when: str) -> None:
        """After a day for the youngest objects, and one more for those that no sweep had found."""
        reports: list[FolderReport] = []
        for _ in range(3):
            self.world.now += DAY + HOUR
            reports = self.sweep()
        (report,) = reports
        assert report.kept_because is None, when
        adoptable = {f"{FOLDER}/{entry.name}" for entry in report.adoptable}
        assert self.world.names() == self.needed() | adoptable | self.notes(), when


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Callable[[random.Random], Life]]:
    lives: list[Life] = []

    def begin(rng: random.Random) -> Life:
        lives.append(Life(tmp_path, rng))
        return lives[-1]

    yield begin
    for one in lives:
        one.end()


@pytest.mark.case("P6")
@pytest.mark.parametrize("run", range(6))
def test_a_query_keeps_what_it_needs_and_nothing_else(life: Callable[[random.Random], Life], run: int) -> None:
    seed = int(os.environ.get("FASTCHANGELOG_SEED") or random.randrange(2**32))
    print("seed", seed)
    rng = random.Random(seed)
    one = life(rng)
    one.batch()
    events = [
        *[one.batch] * 4,
        *[one.attempt, one.materialize, one.die, one.roll_back, one.copy, one.start_copy, one.savepoint],
        *[one.sweep] * 3,
        *[one.killed_sweep] * 2,
        one.two_sweeps,
        *[one.wait] * 5,
    ]
    for step in range(70):
        event = rng.choice(events)
        event()
        one.assert_all_is_there(f"seed {seed}, step {step}: {event.__name__}")
    for checkpoint in one.started():
        one.go_on(checkpoint)
    one.assert_nothing_else_is_left(f"seed {seed}")


@pytest.mark.case("P6")
@pytest.mark.parametrize("point", POINTS)
def test_a_sweep_that_is_killed_at_a_step_harms_nothing(
    life: Callable[[random.Random], Life], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = life(random.Random(7))
    for _ in range(5):
        one.attempt()
        one.batch()
    killed: list[str] = []

    def failpoint(name: str) -> None:
        if name == point:
            killed.append(name)
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(_internal, "failpoint", failpoint)
        for _ in range(4):
            one.world.now += DAY + HOUR
            with contextlib.suppress(Crash):
                one.sweep()
            one.assert_all_is_there(point)
    assert killed
    one.assert_nothing_else_is_left(point)
