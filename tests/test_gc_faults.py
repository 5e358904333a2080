"""Sweeps of what real engines write, on a store that lists late, with clocks that differ, beside another cluster, and
through an hour of 503: no object that is needed is ever lost, and in the end no other object is left.

Owns: those troubles. Does not own: sweeps on a store that behaves (`test_gc_collector`), the decision (`test_gc_plan`).
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fastchangelog as fc
from fastchangelog.errors import StoreError
from fastchangelog.gc.collector import Collector
from fastchangelog.gc.plan import GcState
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import CHECKPOINT_LOG, FOLDER_META, GC_CHECKPOINTS, GC_STATE
from support.clusters import Cluster, Place
from support.embedded_histories import make, named
from support.swept import DAY, MemoryFolder, Told, World, expected, roots

HOUR = 3_600.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def start(*queries: str) -> Place:
        made.append(Place(tmp_path, *queries))
        return made[-1]

    yield start
    for one in made:
        for cluster in one.clusters:
            cluster.engine.stop()


def grown(place: Callable[..., Place], *queries: str) -> Place:
    """Clusters with batches and snapshots, and unreferenced objects; all of them three days old."""
    found = place(*queries)
    for cluster in found.clusters:
        for number in range(7):
            cluster.batch()
            if number in (1, 4):
                cluster.materialize()
        cluster.attempt()
        cluster.batch()
    found.world.now += 3 * DAY
    return found


def notes_of(cluster: Cluster) -> set[str]:
    return {f"{cluster.folder}/{name}" for name in (FOLDER_META, GC_STATE, GC_CHECKPOINTS)}


def trouble(rng: random.Random, world: World) -> None:
    """New conditions: how late the store lists, what the next objects' clock is ahead, whether it answers."""
    late = rng.choice([0.0, 0.0, 60.0, 0.9 * DAY])
    world.lag = lambda: rng.random() * late
    world.ahead = rng.choice([0.0, 0.0, -HOUR, HOUR, -0.9 * DAY, 0.9 * DAY])
    if rng.random() < 0.2:
        world.fail_at, world.failure = world.calls + rng.randrange(1, 40), StoreError("503 Slow Down")
        world.after = rng.random() < 0.5


@pytest.mark.case("P6", "A-06")
@pytest.mark.parametrize("run", range(6))
def test_in_any_weather_exactly_the_needed_objects_stay(place: Callable[..., Place], run: int) -> None:
    seed = int(os.environ.get("FASTCHANGELOG_SEED") or random.randrange(2**32))
    print("seed", seed)
    rng = random.Random(seed)
    found = place("one", "two")
    world = found.world
    for step in range(60):
        cluster = rng.choice(found.clusters)
        event = rng.choice(["batch", "batch", "attempt", "materialize", "die", "weather", "weather", "sweep", "sweep"])
        if event == "weather":
            trouble(rng, world)
        elif event == "sweep":
            # A sweep of one cluster knows its own checkpoint only; both may be told of at once.
            known = rng.choice([found.clusters, found.clusters, [cluster]])
            for _ in range(rng.choice([1, 1, 3])):
                with contextlib.suppress(StoreError):
                    found.sweep(found.told(*known))
                world.now += rng.choice([0.01, 0.4, 1.0, 1.1]) * DAY
            world.fail_at, world.failure = None, None
        else:
            getattr(cluster, event)()
        world.now += rng.choice([1.0, HOUR, 0.3 * DAY])
        found.assert_needed_is_there(f"seed {seed}, step {step}: {event}")
    world.lag, world.ahead, world.fail_at = lambda: 0.0, 0.0, None
    for cluster in found.clusters:
        cluster.batch()
        cluster.assert_restores()
    world.add(found.root)
    world.now += 3 * DAY
    for _ in range(3):
        reports = found.sweep()
        world.now += DAY
    assert [report.kept_because for report in reports] == [None, None], f"seed {seed}"
    for cluster, report in zip(found.clusters, reports, strict=True):
        takeable = {f"{cluster.folder}/{entry.name}" for entry in report.adoptable}
        notes = notes_of(cluster)
        assert world.names(f"{cluster.query}/") == cluster.needed() | takeable | notes, f"seed {seed}"


# --- a store that lists late


@pytest.mark.case("P6")
def test_an_object_that_is_not_listed_yet_is_a_doubt(
    place: Callable[..., Place],
) -> None:
    found = grown(place, "one")
    world, (cluster,) = found.world, found.clusters
    (first,) = found.sweep()
    assert first.waiting
    world.now += DAY
    world.lag = lambda: HOUR
    cluster.batch()
    before = world.names()
    world.lag = lambda: 0.0
    (report,) = found.sweep()
    assert "is not there" in str(report.kept_because), "its log object is there, and not listed"
    assert world.names() == before
    world.now += HOUR
    (report,) = found.sweep()
    assert (report.kept_because, bool(report.deleted)) == (None, True)
    cluster.assert_restores()


@pytest.mark.case("P6")
def test_a_listing_without_the_probe_deletes_nothing(place: Callable[..., Place]) -> None:
    found = grown(place, "one")
    found.sweep()
    found.world.now += DAY
    before = found.world.names()
    found.world.lag = lambda: HOUR
    (report,) = found.sweep()
    assert "cannot be trusted" in str(report.kept_because)
    assert found.world.names() == before, "nor is the probe left"


@pytest.mark.case("invariant 4")
def test_a_former_time_of_the_mark_makes_no_wait_shorter(
    place: Callable[..., Place],
) -> None:
    found = grown(place, "one")
    world, (cluster,) = found.world, found.clusters
    cluster.RETAINED = 1
    cluster.materialize()
    found.sweep()
    world.now += 5 * DAY
    cluster.batch()  # it takes the new snapshot over, and sets the old one free
    # Listings show the former mark for another hour, and everything else as it is.
    mark, show = f"{cluster.folder}/{GC_STATE}", world._show

    def late(name: str) -> None:
        world.lag = lambda: HOUR if name == mark else 0.0
        show(name)

    world._show = late  # type: ignore[method-assign]
    (second,) = found.sweep()
    free = {entry.name for entry in second.waiting}
    assert free, "objects that the batch has set free"
    seen = GcState.from_bytes(world.objects[mark][0]).unreachable_since
    assert {seen[name] for name in free} == {world.now}
    world.now += 2 * HOUR
    (third,) = found.sweep()
    assert free <= {entry.name for entry in third.waiting}
    assert not {entry.name for entry in third.deleted} & free


def test_a_deleted_object_that_is_listed_costs_time_only(place: Callable[..., Place]) -> None:
    found = grown(place, "one")
    world, (cluster,) = found.world, found.clusters
    found.sweep()
    world.now += DAY
    hide = ("/log/", "/sst/", "/base/", "/index/")
    show = world._show

    def late(name: str) -> None:
        world.lag = lambda: 3 * DAY if any(part in name for part in hide) else 0.0
        show(name)

    world._show = late  # type: ignore[method-assign]
    (report,) = found.sweep()
    gone = {entry.name for entry in report.deleted}
    assert {name.split("/")[0] for name in gone} >= {"log", "base"}
    for _ in range(4):
        world.now += DAY
        found.sweep()
        found.assert_needed_is_there("while ghosts are listed")
    (report,) = found.sweep()
    assert (report.kept_because, report.waiting) == (None, ())
    assert world.names() == cluster.needed() | notes_of(cluster)
    cluster.assert_restores()


class Listing(MemoryFolder):
    """Below `head`, a listing of the state's folder shows nothing of what the root's showed."""

    def child(self, folder: str) -> Listing:
        return Listing(self._world, f"{self._prefix}{folder}/")

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        return [] if prefix == CHECKPOINT_LOG else super().list(prefix)


@pytest.mark.case("P6")
def test_heads_that_only_one_listing_shows_are_a_doubt(tmp_path: Path) -> None:
    handles = make(tmp_path / "state")
    world = World.of(tmp_path / "state")
    before = world.names()
    for _ in range(3):
        (report,) = Collector(Listing(world), Told(), grace=DAY, clock=lambda: world.now, delete=True).run()
        assert "has gone since" in str(report.kept_because)
        world.now += DAY
    assert world.names() == before
    assert named(handles) <= before


@pytest.mark.case("P6")
def test_newest_heads_that_are_not_listed_yet_lose_nothing(tmp_path: Path) -> None:
    make(tmp_path / "state")
    world = World.of(tmp_path / "state")
    world.lag = lambda: 0.9 * DAY
    # The writer continues: its new heads are listed late, and so are the deletions of its old ones.
    with fc.open_state(f"file://{tmp_path}/state", name="profiles") as st:
        table = st.value_state("t", key="string", value="long")
        for number in range(20, 24):
            table["n"] = number
            handle = st.checkpoint()
    world.add(tmp_path / "state")
    gone = world.names() - set(World.of(tmp_path / "state").objects)
    for name in gone:
        world.remove(name)
    world.lag = lambda: 0.0
    for _ in range(6):
        Collector(MemoryFolder(world), Told(), grace=DAY, clock=lambda: world.now, delete=True).run()
        world.now += DAY / 2
    root = world.restore(tmp_path / "left")
    with fc.open_state(f"file://{root}", name="profiles", handle=handle, read_only=True) as st:
        assert st.value_state("t", key="string", value="long")["n"] == 23
    with fc.open_state(f"file://{root}", name="profiles") as st:
        assert st.value_state("t", key="string", value="long")["n"] == 23


# --- two clusters under one root


@pytest.mark.case("P6")
def test_a_cluster_whose_checkpoint_nothing_named_is_left_alone(place: Callable[..., Place]) -> None:
    found = grown(place, "one", "two")
    ours, other = found.clusters
    before = found.world.names("two/")
    for _ in range(3):
        one, two = found.sweep(found.told(ours))
        found.world.now += DAY
    assert "--checkpoint" in str(two.kept_because)
    assert one.kept_because is None
    assert found.world.names("two/") == before
    for _ in range(2):
        one, two = found.sweep(found.told(other), locations=[other.checkpoint])
        found.world.now += DAY
    assert "ckpt-one" in str(one.kept_because), "its location is known, and cannot be read from here"
    assert two.deleted
    for cluster in found.clusters:
        cluster.assert_restores()


@pytest.mark.case("P6")
def test_an_unreachable_cluster_is_no_orphan(place: Callable[..., Place]) -> None:
    found = grown(place, "one", "two")
    ours, other = found.clusters
    found.sweep()
    before = found.world.names("two/")
    told = found.told()
    told.answers[other.checkpoint] = StoreError("the checkpoint's store answers 503")
    for _ in range(3):
        found.world.now += DAY
        _, two = found.sweep(told, locations=[ours.checkpoint], orphans=True)
        assert (two.orphan, "503" in str(two.kept_because)) == (False, True)
    assert found.world.names("two/") == before


@pytest.mark.case("P6")
def test_an_idle_clusters_snapshot_survives_others_sweeps(place: Callable[..., Place]) -> None:
    found = grown(place, "one", "two")
    one, two = found.clusters
    two.materialize()
    for _ in range(8):
        one.batch()
        found.sweep()
        found.world.now += DAY
    two.batch()
    assert '"base":null' not in str(two.last)
    for cluster in found.clusters:
        cluster.assert_restores()
    found.assert_needed_is_there("after the idle time")


class Meanwhile(MemoryFolder):
    """Another sweep runs between this one's listing of the state's folder and its next mark."""

    other: Callable[[], object]

    def child(self, folder: str) -> Meanwhile:
        child = Meanwhile(self._world, f"{self._prefix}{folder}/")
        child.other = self.other
        return child

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        listed = super().list(prefix)
        if self._prefix:
            self.other()
        return listed


@pytest.mark.case("P6")
def test_two_sweeps_at_once_forget_no_checkpoint(place: Callable[..., Place]) -> None:
    """A checkpoint was copied, and each cluster sweeps with its own; both have batches that the other has not."""
    found = grown(place, "one")
    world, (cluster,) = found.world, found.clusters
    told = found.told()
    told.answers["copy"] = roots("one", dict(enumerate(cluster.handles[:2])))

    def sweep(location: str, folder: MemoryFolder) -> FolderReport:
        given = {"grace": DAY, "clock": lambda: world.now, "delete": True, "locations": [location]}
        (report,) = Collector(folder, told, **given).run()  # type: ignore[arg-type]
        return report

    waiting = sweep(cluster.checkpoint, MemoryFolder(world)).waiting
    mark = f"{cluster.folder}/{GC_STATE}"
    world.objects[mark] = (GcState({entry.name: world.now for entry in waiting}).to_bytes(), world.now)
    world.now += DAY
    folder = Meanwhile(world)
    folder.other = lambda: sweep("copy", MemoryFolder(world))
    report = sweep(cluster.checkpoint, folder)
    assert "another sweep has learned of a checkpoint at copy" in str(report.kept_because)
    assert not report.deleted
    assert set(GcState.from_bytes(world.objects[mark][0]).checkpoints) == {cluster.checkpoint, "copy"}


# --- clocks


@pytest.mark.case("P6")
@pytest.mark.parametrize("ahead", [-DAY, -HOUR, HOUR, DAY])
def test_objects_dated_by_another_clock_are_no_garbage(place: Callable[..., Place], ahead: float) -> None:
    """The machines that write are an hour or a day off; the batch is under way while sweeps come and go."""
    found = grown(place, "one")
    world, (cluster,) = found.world, found.clusters
    world.ahead = ahead * 0.99
    cluster.began = world.now
    handle, result = cluster.engine.batch(len(cluster.handles), cluster.last)
    new = world.add(found.root)
    world.ahead = 0.0
    for _ in range(9):
        world.now += DAY / 3
        found.sweep()
        assert new <= world.names(), "what a batch under way has written"
    cluster.handles.append(handle)
    cluster.began = None
    assert result == expected(len(cluster.handles))
    for _ in range(3):
        found.sweep()
        world.now += DAY
    found.assert_needed_is_there("committed")
    cluster.assert_restores()


@pytest.mark.case("P6")
@pytest.mark.parametrize("jumps", [(DAY, -DAY), (-DAY, DAY), (HOUR, HOUR), (400 * DAY, -400 * DAY), (-400 * DAY, 0.0)])
def test_a_stores_clock_that_jumps_between_sweeps_loses_nothing(
    place: Callable[..., Place], jumps: tuple[float, float]
) -> None:
    found = grown(place, "one")
    world, (cluster,) = found.world, found.clusters
    for jump in (*jumps, 0.0):
        cluster.attempt()
        cluster.materialize()
        found.sweep()
        world.now += jump + 60.0
        found.sweep()
        cluster.batch()
        found.assert_needed_is_there(f"a jump of {jump}")
        cluster.assert_restores()
    world.add(found.root)
    world.now += 1_000 * DAY
    for _ in range(3):
        (report,) = found.sweep()
        world.now += DAY
    assert (report.kept_because, report.waiting) == (None, ())
    takeable = {f"{cluster.folder}/{entry.name}" for entry in report.adoptable}
    notes = notes_of(cluster)
    assert world.names() == cluster.needed() | takeable | notes


@pytest.mark.case("P6")
@pytest.mark.parametrize("jump", [-DAY, -HOUR, HOUR, DAY])
def test_the_clock_of_the_sweeping_machine_decides_nothing(place: Callable[..., Place], jump: float) -> None:
    found = grown(place, "one")
    right, twin = found.world, found.world.copy()

    def reports(world: World, ahead: float) -> list[tuple[object, ...]]:
        found.world, told = world, []
        for _ in range(2):
            (report,) = found.sweep(clock=lambda: world.now + ahead)
            told.append((report.deleted, report.waiting, report.young, report.reachable))
            world.now += DAY
        return told

    assert reports(twin, jump) == reports(right, 0.0)
    assert twin.names() == right.names()


# --- a store that fails for an hour, and recovers


@pytest.mark.case("P6")
def test_an_hour_of_503_from_any_call_on_deletes_nothing_needed(
    place: Callable[..., Place],
) -> None:
    found = grown(place, "one")
    (cluster,) = found.clusters
    needed = cluster.needed()
    found.sweep()
    found.world.now += DAY
    start = found.world
    healthy = start.copy()
    found.world = healthy
    found.sweep()
    calls, done = healthy.calls, healthy.names()
    told = found.told()
    for call in range(1, calls + 2):
        world = start.copy()
        world.fail_at, world.failure = call, StoreError("503 Slow Down")
        settings = {"grace": DAY, "clock": lambda world=world: world.now, "delete": True}

        def sweep(world: World = world, settings: dict[str, object] = settings) -> list[FolderReport]:
            locations = list(told.answers)
            return Collector(MemoryFolder(world), told, locations=locations, **settings).run()  # type: ignore[arg-type]

        for _ in range(6):  # every ten minutes, as cron has it
            with contextlib.suppress(StoreError):
                assert sweep()[0].kept_because is not None or call > calls
            assert needed <= world.names(), f"call {call}: {world.log[-1]}"
            world.now += HOUR / 6
        world.fail_at = None
        sweep()
        world.now += 2 * DAY
        sweep()
        world.now += 2 * DAY
        assert sweep()[0].kept_because is None
        assert world.names() == done, f"call {call}"


@pytest.mark.case("P6")
def test_an_embedded_state_is_swept_when_its_store_has_healed(tmp_path: Path) -> None:
    handles = make(tmp_path / "state")
    world = World.of(tmp_path / "state")
    rubbish = f"profiles/log/{5:032x}"
    world.objects[rubbish] = (b"lost attempt", world.now - 3 * DAY)
    needed = named(handles)

    def sweep() -> list[FolderReport]:
        return Collector(MemoryFolder(world), Told(), grace=DAY, clock=lambda: world.now, delete=True).run()

    sweep()
    world.now += DAY
    world.down_until = world.now + HOUR
    for _ in range(6):
        with pytest.raises(StoreError, match="503"):
            sweep()
        world.now += HOUR / 6
    assert needed <= world.names()
    sweep()
    assert rubbish not in world.names()
    assert needed <= world.names()
