"""Sweeps of folders that a real engine wrote: what is left restores, whatever happens meanwhile.

Owns: the sweep's reading and deleting. Does not own: the decision by itself (`test_gc_plan`), Spark's checkpoints
(`spark/test_sweep_spark`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, StateNotFoundError, StoreError
from fastchangelog.gc.collector import Collector
from fastchangelog.gc.plan import GcState
from fastchangelog.layout import FOLDER_META, GC_CHECKPOINTS, GC_STATE
from support.histories import COPY, FOLDER, MARK, META, History, at_ckpt, collector, history, sweep, told, twice
from support.notes import folder_note
from support.swept import DAY, Crash, Engine, MemoryFolder, Told, World, closure, expected, roots

#: Fixtures of this module, too.
__all__ = ["history"]


def assert_restores(world: World, history: History, numbers: list[int], tmp_path: Path) -> None:
    """Every handle, in a server of its own: the next batch has exactly what it must have."""
    root = world.restore(tmp_path / "restored")
    for number in numbers:
        engine = Engine(tmp_path / f"engine-{number}", root)
        assert engine.batch(number + 1, history.handles[number])[1] == expected(number + 2)
        engine.stop()


@pytest.mark.case("A-06", "S-01")
def test_two_sweeps_leave_what_is_reachable_and_it_restores(history: History, tmp_path: Path) -> None:
    world, before = at_ckpt(history.world), len(history.world.objects)
    report = twice(world, told(history, retained=2))
    assert not report.adoptable
    assert world.names() == closure(history.world, FOLDER, list(history.handles[-2:])) | {META, MARK, COPY}
    assert len(world.objects) < before / 2
    assert {e.kind for e in report.deleted} >= {"log", "sst", "base", "index"}
    assert json.loads(world.objects[MARK][0])["unreachable_since"] == {}
    assert_restores(world, history, [10, 11], tmp_path)


@pytest.mark.case("A-06", "S-03")
def test_what_only_an_index_object_lists_is_kept_with_it(tmp_path: Path) -> None:
    engine, handle = Engine(tmp_path / "e", tmp_path / "state"), None
    for number in range(8):
        handle, _ = engine.batch(number, handle)
    engine.stop()
    assert handle is not None
    shown = json.loads(_internal.handle_json(handle))
    assert shown["indexed"], "there are more change sets than a handle lists"
    before = World.of(tmp_path / "state")
    needed = closure(before, FOLDER, [handle])
    assert len([name for name in needed if "/log/" in name]) == 8 > len(shown["segments"])
    world = at_ckpt(before)
    twice(world, Told(ckpt=roots("query", {7: handle})))
    assert world.names() == needed | {META, MARK, COPY}


def test_no_sweep_deletes_within_the_first_grace_period(history: History) -> None:
    world = at_ckpt(history.world)
    first = sweep(world, told(history))
    assert first.waiting
    assert not first.deleted
    world.now += DAY - 1
    assert not sweep(world, told(history)).deleted
    assert world.names() == history.world.names() | {MARK, COPY}


def test_a_dry_run_writes_nothing_and_says_what_it_would_do(history: History) -> None:
    world = at_ckpt(history.world)
    sweep(world, told(history))
    world.now += DAY
    before = dict(world.objects)
    world.log.clear()
    planned = sweep(world, told(history), delete=False)
    assert world.objects == before
    assert {verb for verb, _ in world.log} == {"list", "read"}
    assert planned.deleted == sweep(world, told(history)).deleted != ()


@pytest.mark.case("A-06")
def test_a_sweep_that_dies_at_any_call_is_repaired_by_the_next(history: History) -> None:
    checkpoints, done = told(history), at_ckpt(history.world)
    twice(done, checkpoints)
    needed = closure(history.world, FOLDER, list(history.handles[-3:])) | {META}
    marked = at_ckpt(history.world)
    sweep(marked, checkpoints)
    marked.now += DAY
    total = marked.calls
    sweep(marked.copy(), checkpoints)
    for failure in (Crash(), StoreError("no answer")):
        for after in (False, True):
            for start in (at_ckpt(history.world), marked):
                for call in range(1, total + 60, 3 if after else 1):
                    world = start.copy()
                    world.fail_at, world.failure, world.after = call, failure, after
                    with contextlib.suppress(Crash, StoreError):
                        sweep(world, checkpoints)
                    assert needed <= world.names(), f"call {call}: {world.log[-1]}"
                    world.fail_at = None
                    for _ in range(2):
                        world.now += DAY
                        sweep(world, checkpoints)
                    assert world.names() == done.names(), f"call {call}: {world.log[-1]}"


def test_a_snapshot_that_an_idle_shard_waits_for_is_kept(history: History, tmp_path: Path) -> None:
    world = at_ckpt(history.idle)
    for _ in range(10):
        world.now += DAY
        report = sweep(world, told(history, retained=1))
    assert {e.kind for e in report.adoptable} == {"base", "sst"}
    new = set(history.taken_over.objects) - set(history.idle.objects)
    needed = closure(history.taken_over, FOLDER, [history.last])
    assert needed <= world.names() | new
    assert len(needed - new - closure(history.idle, FOLDER, [history.handles[-1]])) >= 1, "the base is what it is about"
    world.objects.update({name: history.taken_over.objects[name] for name in new})
    engine = Engine(tmp_path / "engine", world.restore(tmp_path / "restored"))
    assert engine.batch(13, history.last)[1] == expected(14)
    engine.stop()
    after = Told(ckpt=roots("query", {12: history.last}))
    world.now += 10 * DAY
    assert not twice(world, after).adoptable
    assert world.names() == needed | {META, MARK, COPY}


def test_a_batch_that_commits_during_a_sweep_keeps_its_objects(history: History) -> None:
    world, checkpoints = at_ckpt(history.idle), told(history, retained=1)
    sweep(world, checkpoints)
    world.now += 5 * DAY
    new = set(history.taken_over.objects) - set(history.idle.objects)
    checkpoints.when_read = lambda: world.objects.update(
        {name: (history.taken_over.objects[name][0], world.now) for name in new}
    )
    assert sweep(world, checkpoints).deleted
    assert closure(history.taken_over, FOLDER, [history.last]) <= world.names()


def test_objects_of_a_batch_under_way_are_kept(history: History) -> None:
    """A batch whose sink takes a week has its objects in the store, and no commit."""
    world = at_ckpt(history.taken_over)
    new = set(history.taken_over.objects) - set(history.idle.objects)
    began = world.now - 2 * DAY
    world.objects.update({name: (world.objects[name][0], began + 1) for name in new})
    checkpoints = told(history, retained=1, running_since=began)
    for _ in range(7):
        world.now += DAY
        sweep(world, checkpoints)
    assert new <= world.names()
    twice(world, told(history, retained=1))
    assert not new & world.names(), "without it they are what a lost attempt left"


@pytest.mark.parametrize("jump", [-400 * DAY, 400 * DAY])
def test_a_wrong_local_clock_deletes_nothing_too_early(history: History, jump: float) -> None:
    world = at_ckpt(history.world)
    young = f"{FOLDER}/log/{7:032x}"
    world.objects[young] = (b"just written", world.now)
    sweep(world, told(history))
    for _ in range(3):
        assert not sweep(world, told(history), clock=lambda: world.now + jump).deleted
    assert not sweep(world, told(history)).deleted, "nor did waiting begin in another time"
    assert young in world.names()
    world.now += DAY + 1
    sweep(world, told(history))
    world.now += DAY + 1
    sweep(world, told(history))
    assert young not in world.names(), "later, with a right clock, it goes"


def test_a_listing_that_lacks_what_was_just_written_is_a_doubt(history: History) -> None:
    world = at_ckpt(history.world)
    sweep(world, told(history))
    world.now += DAY
    hidden = MemoryFolder.list
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            MemoryFolder, "list", lambda self, prefix: [row for row in hidden(self, prefix) if "probe/" not in row[0]]
        )
        assert "cannot be trusted" in str(sweep(world, told(history)).kept_because)
    assert world.names() == history.world.names() | {MARK, COPY}


def test_each_query_is_judged_by_its_own_checkpoint(history: History) -> None:
    world = at_ckpt(history.world)
    for name, value in list(world.objects.items()):
        world.objects[name.replace("query/", "other/")] = value
    world.objects[f"other/default/{GC_STATE}"] = (GcState(checkpoints=("elsewhere",)).to_bytes(), 0.0)
    checkpoints = told(history)
    checkpoints.answers["elsewhere"] = StoreError("connection refused")
    for _ in range(2):
        other, ours = collector(world, checkpoints).run()
        world.now += DAY
    assert "connection refused" in str(other.kept_because)
    notes = {f"other/default/{name}" for name in (GC_STATE, GC_CHECKPOINTS)}
    assert {n.replace("query/", "other/") for n in history.world.objects} | notes == world.names("other/")
    assert ours.deleted


def test_copies_of_a_checkpoint_keep_what_any_of_them_needs(history: History) -> None:
    world = at_ckpt(history.world)
    checkpoints = told(history)
    checkpoints.answers["copy"] = roots("query", {2: history.handles[2]})
    twice(world, checkpoints, locations=["copy"])
    assert closure(history.world, FOLDER, [history.handles[2], *history.handles[-3:]]) <= world.names()


def test_a_location_that_was_named_once_is_known_from_then_on(history: History) -> None:
    world = history.world.copy()
    assert "--checkpoint" in str(sweep(world, told(history)).kept_because)
    assert world.names() == history.world.names()
    sweep(world, told(history), locations=["ckpt"])
    world.now += DAY
    assert sweep(world, told(history)).deleted
    with pytest.raises(StateNotFoundError, match="no checkpoint of a Spark query at nowhere"):
        sweep(world, Told(ckpt=None, nowhere=None), locations=["nowhere"])


def damage_handle(world: World, checkpoints: Told) -> None:
    checkpoints.answers["ckpt"] = dataclasses.replace(checkpoints.answers["ckpt"], handles={"bm90aGluZw==": "batch 3"})  # type: ignore[type-var]


def damage_manifest(world: World, _: Told) -> None:
    for name in world.names(f"{FOLDER}/base/"):
        world.objects[name] = (b"x" * 100, world.now)


def lose_a_log(world: World, checkpoints: Told) -> None:
    text = list(checkpoints.answers["ckpt"].handles)[-1]  # type: ignore[union-attr]
    del world.objects[f"{FOLDER}/{json.loads(_internal.handle_json(text))['segments'][-1]['object']['name']}"]


def lose_everything(world: World, _: Told) -> None:
    for name in world.names() - {META, MARK, COPY}:
        del world.objects[name]
    world.objects[f"{FOLDER}/log/{5:032x}"] = (b"", 0.0)


def lose_the_note(world: World, _: Told) -> None:
    world.objects[MARK] = (GcState(checkpoints=("ckpt",)).to_bytes(), world.now)
    del world.objects[META]


def future_note(world: World, _: Told) -> None:
    world.objects[META] = (b'{"format": 3, "checkpoint": "ckpt"}', 0.0)


def damage_note(world: World, _: Told) -> None:
    world.objects[MARK] = (GcState(checkpoints=("ckpt",)).to_bytes(), world.now)
    data, modified = world.objects[META]
    world.objects[META] = (data.replace(b'"default"', b'"defualt"'), modified)


def damage_the_note(data: bytes) -> Callable[[World, Told], None]:
    def damage(world: World, _: Told) -> None:
        world.objects[MARK] = (GcState(checkpoints=("ckpt",)).to_bytes(), world.now)
        world.objects[META] = (data, 0.0)

    return damage


def fail_to_read(_: World, checkpoints: Told) -> None:
    checkpoints.answers["ckpt"] = StoreError("the checkpoint's file 3.delta is cut off")


def no_handles(_: World, checkpoints: Told) -> None:
    checkpoints.answers["ckpt"] = dataclasses.replace(checkpoints.answers["ckpt"], handles={})  # type: ignore[type-var]


@pytest.mark.case("P6")
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (damage_handle, "cannot be read"),
        (damage_manifest, "snapshot manifest"),
        (lose_a_log, "which is not there"),
        (lose_everything, "which is not there"),
        (lose_the_note, "it has no _fastchangelog.json"),
        (future_note, "has format 3"),
        (damage_note, "corrupt data in _fastchangelog.json"),
        (damage_the_note(b""), "corrupt data in _fastchangelog.json"),
        (damage_the_note(b"\xff\xfe{}"), "corrupt data in _fastchangelog.json"),
        (damage_the_note(b"[1]"), "corrupt data in _fastchangelog.json"),
        (damage_the_note(b"[" * 100_000), "corrupt data in _fastchangelog.json"),
        (damage_the_note(folder_note(sweep_grace_seconds="1d")), "corrupt data in _fastchangelog.json"),
        (damage_the_note(folder_note(sweep_grace_seconds=-1)), "corrupt data in _fastchangelog.json"),
        (fail_to_read, "3.delta is cut off"),
        (no_handles, "none of them holds a handle"),
    ],
)
def test_a_doubt_deletes_nothing_and_is_said(history: History, damage: object, why: str) -> None:
    world, checkpoints = at_ckpt(history.world), told(history)
    sweep(world, checkpoints)  # everything is marked
    world.now += DAY
    damage(world, checkpoints)  # type: ignore[operator]
    before = world.names()
    report = sweep(world, checkpoints)
    assert why in str(report.kept_because)
    assert not report.deleted
    assert world.names() == before


def test_two_operators_of_a_query_each_keep_what_is_theirs(history: History) -> None:
    world = at_ckpt(history.world)
    third = [n for n in history.world.objects if n in closure(history.world, FOLDER, [history.handles[2]])]
    for name in third:
        world.objects[name.replace("default", "second")] = world.objects.pop(name)
    world.objects[f"query/second/{FOLDER_META}"] = world.objects[META]
    world.objects[f"query/second/log/{1:032x}"] = (b"", 0.0)
    checkpoints = Told(ckpt=roots("query", {11: history.handles[11], 2: history.handles[2]}))
    for _ in range(2):
        one, two = collector(world, checkpoints).run()
        world.now += DAY
    assert (one.kept_because, two.kept_because) == (None, None)
    assert world.names("query/second/") == {n.replace("default", "second") for n in third} | {
        f"query/second/{FOLDER_META}",
        f"query/second/{GC_STATE}",
        f"query/second/{GC_CHECKPOINTS}",
    }
    del world.objects[third[0].replace("default", "second")]
    for name in world.names("query/second/log/"):
        del world.objects[name]
    one, two = collector(world, checkpoints).run()
    assert "not there" in str(one.kept_because), "a handle without a home may be of either"
    assert "not there" in str(two.kept_because)


def test_an_orphan_is_listed_and_removed_only_when_asked(history: History) -> None:
    world = at_ckpt(history.world)
    report = twice(world, Told(ckpt=None))
    assert report.orphan
    assert world.names() == history.world.names() | {MARK, COPY}, "and nothing else"
    assert twice(world, Told(ckpt=None), orphans=True).kept_because is None
    assert world.names() == set()


def test_an_orphan_whose_checkpoint_comes_back_is_none(history: History, tmp_path: Path) -> None:
    world = at_ckpt(history.world)
    sweep(world, Told(ckpt=None), orphans=True)
    world.now += DAY
    sweep(world, told(history), orphans=True)
    assert closure(history.world, FOLDER, list(history.handles[-3:])) <= world.names()
    world.now += DAY / 2
    sweep(world, Told(ckpt=None), orphans=True)
    assert closure(history.world, FOLDER, list(history.handles[-3:])) <= world.names(), "waiting starts anew"
    assert_restores(world, history, [11], tmp_path)


def test_what_is_not_ours_is_left_and_listed(history: History) -> None:
    world = at_ckpt(history.world)
    foreign = {"readme": (b"", 0.0), "a/b": (b"", 0.0), "a/b/c": (b"", 0.0), f"{FOLDER}/log/x": (b"", 0.0)}
    world.objects.update(foreign)
    one = collector(world, told(history))
    (report,) = one.run()
    assert {e.name for e in one.unknown} == {"readme", "a/b", "a/b/c"}
    assert [e.name for e in report.unknown] == ["log/x"]
    twice(world, Told(ckpt=None), orphans=True)
    assert world.names() == {*foreign, META, MARK, COPY}


def test_a_store_of_files_is_swept_too(history: History, tmp_path: Path) -> None:
    root = at_ckpt(history.world, sweep_grace_seconds=0).restore(tmp_path / "state")
    left = [root / FOLDER / f"log/{8:032x}#1", root / FOLDER / f"{FOLDER_META}#2", root / FOLDER / f"log/{9:032x}"]
    for path in left:
        path.write_bytes(b"half")
    for path in root.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    folder = _internal.ObjectFolder(str(root), {}, {})
    for _ in range(2):
        (report,) = Collector(
            folder, told(history), grace=0.0, clock=lambda: 4_000_000_000.0, delete=True, locations=["ckpt"]
        ).run()
    assert report.kept_because is None
    assert not any(path.exists() for path in left)
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    takeable = {f"{FOLDER}/{e.name}" for e in report.adoptable}
    assert found == closure(history.world, FOLDER, list(history.handles[-3:])) | takeable | {META, MARK, COPY}
    assert_restores(World.of(root), history, [9, 11], tmp_path)


def test_a_negative_grace_is_refused(history: History) -> None:
    with pytest.raises(InvalidArgumentError):
        sweep(history.world, told(history), grace=-1.0)
    assert issubclass(InvalidArgumentError, FastChangelogError)
