"""Sweeps in the background: when they run, what they count, how they stop, what they leave to a person.

Owns: the schedule and the bounds, on a clock of the tests; the notes of starts. Does not own: random lives of a query
(`test_gc_histories`), sweeps of the server and of embedded states in their own processes (`test_server_sweeps`).
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fastchangelog import _internal
from fastchangelog.errors import ClosedError, StoreError
from fastchangelog.gc import known
from fastchangelog.gc.background import BackgroundSweeper, Outcome, Sweepable
from fastchangelog.gc.collector import Background
from fastchangelog.gc.pace import Pace, PacedFolder
from fastchangelog.gc.plan import Entry
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import STARTS
from support.histories import COPY, FOLDER, MARK, History, at_ckpt, collector, history, sweep, told
from support.swept import DAY, Engine, MemoryFolder, Told, World, roots

#: Fixtures of this module, too.
__all__ = ["history"]

BACKGROUND = Background("query", 0.0)


def start(world: World, number: int, checkpoint: str | None, gone: bool = False) -> str:
    name = f"{FOLDER}/{STARTS}/{number:020d}"
    world.objects[name] = (_internal.start_note(checkpoint, gone), world.now)
    return name


def alone(world: World) -> World:
    """No sweep was told anything."""
    world = world.copy()
    world.objects = {name: found for name, found in world.objects.items() if "-sweep" not in name}
    return world


# --- the schedule


@dataclasses.dataclass
class Bench:
    """A sweeper over states of a test."""

    now: float = 0.0
    states: list[Sweepable] = dataclasses.field(default_factory=list)
    swept: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    reports: Sequence[FolderReport] | Exception = ()

    def __post_init__(self) -> None:
        self.sweeper = BackgroundSweeper(lambda: self.states, self.outcomes.append, clock=lambda: self.now)

    def add(self, key: str, interval: float) -> None:
        def run(pace: Pace) -> Sequence[FolderReport]:
            self.swept.append((self.now, key))
            if isinstance(self.reports, Exception):
                raise self.reports
            return self.reports

        self.states.append(Sweepable(key, interval, run))

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.sweeper.poll()
            self.now += 1.0

    def times(self, key: str) -> list[float]:
        return [when for when, swept in self.swept if swept == key]


def test_each_state_is_swept_once_in_its_interval() -> None:
    bench = Bench()
    bench.add("hourly", 3_600.0)
    bench.add("often", 10.0)
    bench.live(7_300)
    hourly, often = bench.times("hourly"), bench.times("often")
    assert 30.0 <= hourly[0] <= 61.0, "soon after the start, but not at once"
    assert [b - a for a, b in itertools.pairwise(hourly)] == [3_600.0] * 2
    assert 5.0 <= often[0] <= 11.0
    assert {b - a for a, b in itertools.pairwise(often)} == {10.0}


def test_a_state_that_left_and_comes_back_begins_anew() -> None:
    bench = Bench()
    bench.add("one", 100.0)
    assert bench.sweeper.poll() is not None
    bench.states, kept = [], bench.states
    assert bench.sweeper.poll() is None
    bench.now, bench.states = 1_000.0, kept
    bench.live(10)
    assert not bench.swept


def test_an_outcome_tells_of_deletions_and_of_new_doubts() -> None:
    bench = Bench()
    bench.add("one", 1.0)
    entry = Entry("log/1", 10, 0.0, "log")
    gone = FolderReport("one/default", ("ckpt",), False, None, deleted=(entry, entry), waiting=(entry,))
    bench.reports = [gone]
    bench.live(3)
    assert {(o.deleted, o.deleted_bytes, o.waiting, o.doubt) for o in bench.outcomes} == {(2, 20, 1, None)}
    bench.outcomes.clear()
    bench.reports = [dataclasses.replace(gone, deleted=(), waiting=(), kept_because="its disk is not mounted")]
    bench.live(3)
    bench.reports = StoreError("503")
    bench.live(2)
    bench.reports = RuntimeError("a fault of ours")
    bench.live(2)
    news = [outcome.doubt for outcome in bench.outcomes if outcome.is_news]
    assert news == ["its disk is not mounted", "503", "internal error: RuntimeError: a fault of ours"]
    assert len(bench.outcomes) == 7


def test_a_sweep_that_another_one_has_just_done_is_no_outcome() -> None:
    bench = Bench()
    bench.add("one", 1.0)
    bench.live(5)
    assert len(bench.swept) == 4
    assert not bench.outcomes


def test_a_stopped_sweeper_ends_in_the_middle_of_a_sweep() -> None:
    folder, entered = MemoryFolder(World({})), threading.Event()
    refused: list[str] = []

    def run(pace: Pace) -> Sequence[FolderReport]:
        paced = PacedFolder(folder, pace)
        entered.set()
        try:
            while True:
                paced.list("")
        except ClosedError as error:
            refused.append(str(error))
            raise

    outcomes: list[Outcome] = []
    sweeper = BackgroundSweeper(lambda: [Sweepable("one", 0.01, run)], outcomes.append)
    sweeper.start()
    assert entered.wait(30.0)
    sweeper.stop()
    assert refused
    assert not outcomes, "a sweep that was stopped is neither counted nor in doubt"
    assert "fcl-sweep" not in [thread.name for thread in threading.enumerate()]


def test_requests_follow_each_other_at_a_pace_and_are_counted() -> None:
    stopped = threading.Event()
    pace, world = Pace(stopped, per_second=1e6), World({"a/log/1": (b"x", 0.0)})
    folder = PacedFolder(MemoryFolder(world), pace).child("a")
    folder.write("b", b"y")
    assert (folder.read("b"), len(folder.list("")), len(folder.survey("")[0])) == (b"y", 2, 2)
    folder.delete("b")
    assert pace.requests == len(world.log) == 5
    stopped.set()
    with pytest.raises(ClosedError):
        folder.read("b")
    assert len(world.log) == 5


# --- one query or state under a root


def test_a_background_sweep_looks_at_its_query_alone(history: History) -> None:
    world = at_ckpt(history.world)
    for name, found in list(world.objects.items()):
        world.objects[f"other/{name.partition('/')[2]}"] = found
    sweep_one = collector(world, told(history), background=BACKGROUND)
    (report,) = sweep_one.run()
    assert (report.folder, report.kept_because) == (FOLDER, None)
    assert not [name for verb, name in world.log if name.startswith("other") or (verb, name) == ("list", "")]


def test_a_state_that_another_sweep_has_just_done_is_left(history: History) -> None:
    world, checkpoints = at_ckpt(history.world), told(history)
    sweep(world, checkpoints)
    world.now += 1_799.0
    before = len(world.log)
    assert collector(world, checkpoints, background=Background("query", 1_800.0)).run() == []
    assert len(world.log) == before + 1, "one listing"
    world.now += 2.0
    assert collector(world, checkpoints, background=Background("query", 1_800.0)).run()


def test_a_mark_of_the_future_delays_no_sweep(history: History) -> None:
    world, checkpoints = at_ckpt(history.world), told(history)
    sweep(world, checkpoints)
    world.now -= 3_600.0
    assert collector(world, checkpoints, background=Background("query", 1_800.0)).run()


def test_the_requests_of_a_sweep_without_garbage_are_few(history: History) -> None:
    world, checkpoints = at_ckpt(history.world), told(history)
    for _ in range(3):
        sweep(world, checkpoints)
        world.now += DAY
    world.log.clear()
    report = sweep(world, checkpoints, background=BACKGROUND)
    assert (report.deleted, report.waiting) == ((), ())
    verbs = [verb for verb, _ in world.log]
    assert verbs.count("list") == 2
    assert verbs.count("write") + verbs.count("delete") == 4, "the state twice, the probe and its removal"
    assert verbs.count("read") < 25


# --- the notes of starts


@pytest.mark.case("P6")
def test_a_start_registers_its_checkpoint_before_it_writes(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "e", tmp_path / "state")
    folder = _internal.ObjectFolder(str(tmp_path / "state"), {}, {}).child(FOLDER)
    first, _ = engine.batch(0, None, commit=False, checkpoint="file:/ckpt/")
    assert known.read(folder).known.checkpoints == ("file:/ckpt",)
    first, _ = engine.batch(0, None, checkpoint="file:/ckpt")
    engine.batch(1, first, checkpoint="file:/copy")
    assert known.read(folder).known == known.Known(("file:/ckpt", "file:/copy"))
    engine.batch(1, first, checkpoint="")
    assert known.read(folder).known.unnamed
    engine.stop()
    again = Engine(tmp_path / "again", tmp_path / "state")
    again.batch(1, first, checkpoint="file:/copy")
    again.stop()
    assert len(folder.list(STARTS)) == 3, "each checkpoint once"


@pytest.mark.case("P6")
def test_registered_checkpoints_need_no_person(history: History) -> None:
    world, checkpoints = alone(at_ckpt(history.world)), told(history)
    start(world, 0, "ckpt")
    for _ in range(2):
        report = sweep(world, checkpoints, background=BACKGROUND)
        world.now += DAY
    assert report.deleted
    assert report.checkpoints == ("ckpt",)


@pytest.mark.case("P6")
@pytest.mark.parametrize("answer", [StoreError("only Spark can read hdfs://host/copy"), None, roots("other", {})])
def test_a_registered_checkpoint_that_does_not_answer_is_a_doubt(history: History, answer: StoreError | None) -> None:
    world, checkpoints = alone(at_ckpt(history.world)), told(history)
    start(world, 0, "ckpt")
    start(world, 1, "copy")
    checkpoints.answers["copy"] = answer
    before = world.names()
    for _ in range(3):
        assert "copy" in str(sweep(world, checkpoints, background=BACKGROUND).kept_because)
        world.now += DAY
    assert world.names() == before | {MARK, COPY}
    sweep(world, checkpoints, gone=["copy"])
    world.now += DAY
    assert sweep(world, checkpoints, background=BACKGROUND).deleted
    start(world, 2, "copy")
    assert "copy" in str(sweep(world, checkpoints, background=BACKGROUND).kept_because), "it was started again"


@pytest.mark.case("P6")
def test_without_any_checkpoint_left_nothing_is_deleted(history: History) -> None:
    """Only a person may say that the whole query is gone, with --orphans."""
    world = alone(at_ckpt(history.world))
    start(world, 0, "ckpt")
    before = world.names()
    for _ in range(3):
        report = sweep(world, Told(ckpt=None), background=BACKGROUND, orphans=True)
        assert "is not at ckpt any more" in str(report.kept_because)
        world.now += DAY
    assert world.names() == before | {MARK, COPY}


@pytest.mark.case("P6")
def test_a_start_that_names_no_checkpoint_leaves_all_to_a_person(history: History) -> None:
    world, checkpoints = alone(at_ckpt(history.world)), told(history)
    start(world, 0, "ckpt")
    nameless = start(world, 1, None)
    for _ in range(2):
        assert "checkpoint_location" in str(sweep(world, checkpoints, background=BACKGROUND).kept_because)
        world.now += DAY
    assert sweep(world, checkpoints).kept_because is None, "the command trusts a person"
    sweep(world, checkpoints, locations=["ckpt"], all_given=True)
    assert world.objects[nameless][0] == _internal.start_note(None, True)
    world.now += DAY
    assert sweep(world, checkpoints, background=BACKGROUND).deleted


@pytest.mark.case("P6")
def test_a_damaged_note_of_a_start_is_a_doubt(history: History) -> None:
    world, checkpoints = alone(at_ckpt(history.world)), told(history)
    damaged = start(world, 0, "ckpt")
    world.objects[damaged] = (world.objects[damaged][0].replace(b"ckpt", b"ckpu"), world.now)
    start(world, 1, "ckpt")
    for given in ({"background": BACKGROUND}, {}):
        assert "cannot be read" in str(sweep(world, checkpoints, **given).kept_because)
    sweep(world, checkpoints, locations=["ckpt"], all_given=True)
    world.now += DAY
    assert sweep(world, checkpoints, background=BACKGROUND).deleted


@pytest.mark.case("P6")
def test_a_start_while_a_sweep_reads_stops_that_sweep(history: History) -> None:
    world, checkpoints = alone(at_ckpt(history.world)), told(history)
    start(world, 0, "ckpt")
    sweep(world, checkpoints, background=BACKGROUND)
    world.now += DAY
    checkpoints.answers["copy"] = roots("query", {2: history.handles[2]})
    checkpoints.when_read = lambda: start(world, 1, "copy") and None
    before = world.names()
    report = sweep(world, checkpoints, background=BACKGROUND)
    assert "copy" in str(report.kept_because)
    assert before <= world.names()


def test_notes_of_starts_go_with_their_folder(history: History) -> None:
    world = alone(at_ckpt(history.world))
    start(world, 0, "ckpt")
    for _ in range(2):
        world.now += 3 * DAY
        sweep(world, Told(ckpt=None), orphans=True)
    assert world.names() == set(), sorted(world.names())
