"""What a sweep was told of checkpoints: it knows it until it is told otherwise, and a doubt about it deletes nothing.

Owns: locations that are missing, of another query, gone for good; lost notes; queries with operators under two roots.
Does not own: what a sweep deletes when nothing is in doubt (`test_gc_collector`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from fastchangelog.errors import InvalidArgumentError, StoreError
from fastchangelog.gc.collector import Collector, Roots
from fastchangelog.gc.known import Known
from fastchangelog.gc.plan import GcState
from fastchangelog.layout import FOLDER_META
from support.histories import COPY, FOLDER, MARK, META, History, at_ckpt, collector, history, sweep, told, twice
from support.swept import DAY, Engine, MemoryFolder, Told, World, closure, roots

#: Fixtures of this module, too.
__all__ = ["history"]

#: The batch that only the second copy of the checkpoint retains.
OLD = 2


@pytest.fixture
def copies(history: History) -> tuple[World, Told]:
    """A root whose sweep was told of a checkpoint and of a copy of it, a grace period ago."""
    world = at_ckpt(history.world)
    checkpoints = told(history)
    checkpoints.answers["copy"] = roots("query", {OLD: history.handles[OLD]})
    sweep(world, checkpoints, locations=["copy"])
    world.now += DAY
    return world, checkpoints


def only_of_the_copy(history: History) -> set[str]:
    newest = closure(history.world, FOLDER, list(history.handles[-3:]))
    return closure(history.world, FOLDER, [history.handles[OLD]]) - newest


def assert_a_doubt(world: World, checkpoints: Told, why: str, **given: object) -> None:
    before = world.names()
    for _ in range(3):
        report = sweep(world, checkpoints, **given)
        assert why in str(report.kept_because)
        assert not report.deleted
        world.now += DAY
    assert world.names() == before


# --- a known checkpoint that does not answer


@pytest.mark.case("P6")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "is not at copy any more"),
        (roots("another", {}), "the checkpoint at copy is of another query, another"),
        (StoreError("its parent is empty; check that its disk is mounted"), "its disk is mounted"),
    ],
)
@pytest.mark.parametrize("orphans", [False, True])
def test_a_known_copy_with_another_answer_deletes_nothing(
    history: History, copies: tuple[World, Told], answer: Roots | Exception | None, why: str, orphans: bool
) -> None:
    world, checkpoints = copies
    back = checkpoints.answers["copy"]
    checkpoints.answers["copy"] = answer
    assert only_of_the_copy(history)
    assert_a_doubt(world, checkpoints, why, orphans=orphans)
    assert_a_doubt(world, checkpoints, "--gone copy", orphans=orphans)
    checkpoints.answers["copy"] = back
    assert sweep(world, checkpoints).deleted
    assert only_of_the_copy(history) <= world.names()


@pytest.mark.case("P6")
def test_another_query_at_the_only_checkpoint_makes_an_orphan(history: History) -> None:
    world = at_ckpt(history.world)
    other = Told(ckpt=roots("another", {}))
    sweep(world, other)
    assert_a_doubt(world, other, "the checkpoint at ckpt is of another query, another", orphans=True)
    assert sweep(world, other, orphans=True).orphan
    twice(world, other, gone=["ckpt"], orphans=True)
    assert world.names() == set()


def test_a_location_declared_gone_is_forgotten_for_good(history: History, copies: tuple[World, Told]) -> None:
    world, checkpoints = copies
    checkpoints.answers["copy"] = None
    planned = sweep(world, checkpoints, gone=["copy/"], delete=False)
    assert (planned.kept_because, planned.checkpoints) == (None, ("ckpt",))
    assert "not at copy" in str(sweep(world, checkpoints).kept_because), "a dry run tells nothing"
    sweep(world, checkpoints, gone=["copy/"])
    world.now += DAY
    report = sweep(world, checkpoints)
    assert (report.kept_because, report.checkpoints) == (None, ("ckpt",))
    assert not only_of_the_copy(history) & world.names()


def test_a_location_that_is_given_again_is_known_again(history: History, copies: tuple[World, Told]) -> None:
    world, checkpoints = copies
    back, checkpoints.answers["copy"] = checkpoints.answers["copy"], None
    sweep(world, checkpoints, gone=["copy"])
    checkpoints.answers["copy"] = back
    assert set(sweep(world, checkpoints, locations=["copy"]).checkpoints) == {"ckpt", "copy"}
    assert set(sweep(world, checkpoints).checkpoints) == {"ckpt", "copy"}


def test_a_query_without_checkpoints_is_an_orphan_from_then_on(history: History) -> None:
    world = at_ckpt(history.world)
    unreachable = Told(ckpt=StoreError("its parent is missing"))
    assert "--gone ckpt" in str(sweep(world, unreachable, orphans=True).kept_because)
    report = sweep(world, unreachable, gone=["ckpt"])
    assert (report.orphan, report.kept_because) == (True, None)
    assert twice(world, unreachable, orphans=True).orphan
    assert world.names() == set()


@pytest.mark.parametrize(
    ("gone", "why"),
    [("nowhere", "no sweep under this root was told of a checkpoint at nowhere"), ("ckpt", "so it is not gone")],
)
def test_what_is_there_or_was_never_known_cannot_be_gone(
    history: History, copies: tuple[World, Told], gone: str, why: str
) -> None:
    world, checkpoints = copies
    before = dict(world.objects)
    with pytest.raises(InvalidArgumentError, match=why):
        sweep(world, checkpoints, gone=[gone])
    assert world.objects == before


@pytest.mark.case("P6")
def test_a_doubtful_sweep_passes_on_its_locations(history: History) -> None:
    world = at_ckpt(history.world)
    checkpoints = told(history)
    readable = checkpoints.answers["ckpt"]
    checkpoints.answers["ckpt"] = StoreError("connection refused")
    checkpoints.answers["copy"] = roots("query", {OLD: history.handles[OLD]})
    assert "connection refused" in str(sweep(world, checkpoints, locations=["copy"]).kept_because)
    checkpoints.answers["ckpt"] = readable
    assert twice(world, checkpoints).deleted
    assert only_of_the_copy(history) <= world.names()


# --- lost notes


def remove(name: str) -> Callable[[World], None]:
    return lambda world: world.remove(name)


def replace(name: str, data: bytes) -> Callable[[World], None]:
    return lambda world: world.put(name, data)


@pytest.mark.case("P6")
@pytest.mark.parametrize(
    "lose",
    [
        remove(MARK),
        replace(MARK, b""),
        replace(MARK, b"\0" * 40),
        replace(MARK, b"{}"),
        replace(COPY, b"\xff{"),
        replace(COPY, b'{"format": 2}'),
    ],
    ids=["gone", "empty", "zeros", "another object", "a damaged copy", "a copy of another version"],
)
def test_a_lost_note_waits_for_a_person_whatever_cron_names(
    history: History, copies: tuple[World, Told], lose: Callable[[World], None]
) -> None:
    world, checkpoints = copies
    lose(world)
    assert_a_doubt(world, checkpoints, "--all-given")
    assert_a_doubt(world, checkpoints, "--all-given", locations=["ckpt"])
    assert_a_doubt(world, checkpoints, "--all-given", all_given=True)
    first = sweep(world, checkpoints, locations=["ckpt", "copy"], all_given=True)
    world.now += DAY
    report = sweep(world, checkpoints)
    assert (report.kept_because, set(report.checkpoints)) == (None, {"ckpt", "copy"})
    assert (first.deleted, report.deleted) != ((), ())
    assert only_of_the_copy(history) <= world.names()


@pytest.mark.case("P6")
@pytest.mark.parametrize("stale", [GcState(), GcState(checkpoints=("ckpt",))], ids=["empty", "of before the copy"])
def test_a_note_of_an_earlier_time_does_not_make_a_copy_unknown(
    history: History, copies: tuple[World, Told], stale: GcState
) -> None:
    world, checkpoints = copies
    world.put(MARK, stale.to_bytes())
    assert twice(world, checkpoints, locations=["ckpt"]).deleted
    assert only_of_the_copy(history) <= world.names()


def test_a_copy_that_was_lost_is_written_again(history: History, copies: tuple[World, Told]) -> None:
    world, checkpoints = copies
    world.remove(COPY)
    assert sweep(world, checkpoints).kept_because is None
    assert set(GcState.from_bytes(world.objects[COPY][0]).checkpoints) == {"ckpt", "copy"}


def test_a_query_that_no_sweep_was_told_of_gets_no_notes(history: History) -> None:
    world = history.world.copy()
    sweep(world, told(history))
    assert world.names() == history.world.names()


def test_any_note_counts_and_the_other_is_told_otherwise() -> None:
    both = Known(("a", "b"), ("c",)) | Known(("c/",), ("b", "d"))
    assert (both.checkpoints, both.gone) == (("a", "b", "c/"), ("d",))


# --- operators under two roots


def two_roots(tmp_path: Path) -> tuple[tuple[World, World], Roots, tuple[set[str], set[str]]]:
    """A query of two operators, each with a state under a root of its own; what their retained batches need."""
    worlds, handles, needed = [], {}, []
    numbers = {}
    for number, name in enumerate(("one", "two")):
        engine = Engine(tmp_path / f"engine-{name}", tmp_path / name)
        handle: str | None = None
        for batch in range(4):
            engine.batch(batch, handle, commit=False)
            engine.batch(batch, handle)  # an attempt that lost
            handle, _ = engine.batch(batch, handle)
            if batch >= 2:
                handles[handle], numbers[handle] = f"batch {batch}, operator {number}", number
        engine.stop()
        worlds.append(World.of(tmp_path / name))
        own = [text for text, of in numbers.items() if of == number]
        needed.append(closure(worlds[-1], FOLDER, own))
    return (
        (worlds[0], worlds[1]),
        Roots("query", (2, 3), handles, operators=numbers, operator_count=2),
        (needed[0], needed[1]),
    )


def test_operators_under_two_roots_are_collected_under_each(tmp_path: Path) -> None:
    worlds, found, needed = two_roots(tmp_path)
    for world, kept in zip(worlds, needed, strict=True):
        report = twice(world, Told(ckpt=found), locations=["ckpt"])
        assert report.kept_because is None
        assert report.deleted
        assert world.names() == kept | {META, MARK, COPY}


@pytest.mark.case("P6")
def test_an_operator_that_may_have_lost_objects_is_a_doubt(tmp_path: Path) -> None:
    """A folder that no handle names may be its folder, and so may the one that some of its handles name."""
    worlds, found, _ = two_roots(tmp_path)
    world = worlds[0].copy()
    world.put(f"query/lost/{FOLDER_META}", world.objects[META][0])
    world.put(f"query/lost/log/{1:032x}", b"", age=3 * DAY)
    for _ in range(3):
        for report in collector(world, Told(ckpt=found), locations=["ckpt"]).run():
            assert "which is not there" in str(report.kept_because)
        world.now += DAY
    world, one_operator = worlds[0].copy(), dataclasses.replace(found, operators=dict.fromkeys(found.handles, 0))
    sweep(world, Told(ckpt=one_operator), locations=["ckpt"])
    world.now += DAY
    assert "which is not there" in str(sweep(world, Told(ckpt=one_operator)).kept_because)
    unknown = dataclasses.replace(found, operators={})
    assert "which is not there" in str(sweep(world, Told(ckpt=unknown)).kept_because)


@pytest.mark.case("P6")
def test_more_folders_than_operators_are_a_doubt(history: History) -> None:
    """A copy of a checkpoint may lack the state of an operator: what its folder needs is unknown then."""
    world = at_ckpt(history.world)
    world.put(f"query/second/{FOLDER_META}", world.objects[META][0])
    world.put(f"query/second/log/{1:032x}", b"", age=3 * DAY)
    before = {name for name in world.names() if "/log/" in name}
    checkpoints = told(history, operator_count=1)
    for _ in range(3):
        for report in collector(world, checkpoints).run():
            assert "the query has 2 folders here, and 1 in its checkpoint" in str(report.kept_because)
        world.now += DAY
    assert before <= world.names()
    checkpoints = told(history, operator_count=2)
    assert [report.kept_because for report in collector(world, checkpoints).run()] == [None, None]


def test_folders_of_one_query_share_what_they_were_told(tmp_path: Path, history: History) -> None:
    """The note of one folder is enough: a state that was added later has none yet."""
    world = at_ckpt(history.world)
    world.put(f"query/second/{FOLDER_META}", world.objects[META][0])
    world.put(f"query/second/log/{1:032x}", b"", age=3 * DAY)
    checkpoints = told(history)
    for _ in range(2):
        reports = Collector(MemoryFolder(world), checkpoints, grace=DAY, clock=lambda: world.now, delete=True).run()
        assert [report.checkpoints for report in reports] == [("ckpt",), ("ckpt",)]
        world.now += DAY
    assert f"query/second/log/{1:032x}" not in world.names()
