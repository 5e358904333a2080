"""Worlds around a sweep: slow reading, other grace periods, folders that no handle names, copies of a checkpoint, many
objects.

Owns: those worlds. Does not own: sweeps of one query that was left alone (`test_gc_collector`), late listings and wrong
clocks (`test_gc_faults`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fastchangelog.errors import StoreError
from fastchangelog.gc.plan import GcState
from fastchangelog.layout import FOLDER_META
from support.histories import COPY, FOLDER, MARK, META, History, at_ckpt, collector, history, sweep, told, twice
from support.swept import DAY, Engine, MemoryFolder, Told, World, closure, expected, roots

#: Fixtures of this module, too.
__all__ = ["history"]


@pytest.mark.case("P6")
def test_objects_written_while_handles_are_read_are_young(
    history: History,
) -> None:
    """Another sweep has seen it meanwhile, and took it for what a lost attempt left."""
    world, checkpoints = at_ckpt(history.idle), told(history, retained=1)
    sweep(world, checkpoints)
    new = set(history.taken_over.objects) - set(history.idle.objects)

    def slowly() -> None:
        world.now += DAY
        world.objects.update({name: (history.taken_over.objects[name][0], world.now) for name in new})
        world.now += 2 * DAY
        mark = GcState.from_bytes(world.objects[MARK][0])
        seen = {**mark.unreachable_since, **{name.removeprefix(f"{FOLDER}/"): world.now for name in new}}
        world.objects[MARK] = (dataclasses.replace(mark, unreachable_since=seen).to_bytes(), world.now)
        world.now += 2 * DAY

    checkpoints.when_read = slowly
    report = sweep(world, checkpoints)
    assert report.deleted, "what was garbage before goes"
    assert closure(history.taken_over, FOLDER, [history.last]) <= world.names()


@pytest.mark.parametrize(
    ("noted", "asked", "in_force"),
    [(86_400, 60.0, DAY), (86_400, 3 * DAY, 3 * DAY), (604_800, DAY, 7 * DAY), (60, 60.0, 60.0), (60, DAY, DAY)],
)
def test_no_sweep_has_a_shorter_grace_than_servers_count_on(
    history: History, noted: int, asked: float, in_force: float
) -> None:
    world = at_ckpt(history.world, sweep_grace_seconds=noted)
    world.now += 7 * DAY
    first = sweep(world, told(history), grace=asked)
    assert first.grace == in_force
    assert any("sweep_grace" in note for note in first.notes) == (in_force > asked)
    world.now += in_force - 1
    assert not sweep(world, told(history), grace=asked).deleted
    world.now += 1
    assert sweep(world, told(history), grace=asked).deleted


def test_a_folder_whose_handles_name_nothing_is_swept(tmp_path: Path) -> None:
    """A query without rows: its handles are of the empty state, and a lost attempt left objects."""
    engine = Engine(tmp_path / "e", tmp_path / "state")
    first, _ = engine.batch(0, None, rows=0)
    engine.batch(1, first)
    second, _ = engine.batch(1, first, rows=0)
    engine.stop()
    assert not closure(World.of(tmp_path / "state"), FOLDER, [first, second])
    world = at_ckpt(World.of(tmp_path / "state"))
    lost = world.names(f"{FOLDER}/log/")
    assert lost
    report = twice(world, Told(ckpt=roots("query", {0: first, 1: second})))
    assert (report.kept_because, {f"{FOLDER}/{e.name}" for e in report.deleted}) == (None, lost)
    assert world.names() == {META, MARK, COPY}


@pytest.mark.case("P6")
def test_an_unnamed_folder_stays_while_a_handle_has_no_home(history: History) -> None:
    """The objects may be in a folder that a late listing does not show, or may have been moved by hand."""
    world = at_ckpt(history.world)
    world.objects[f"query/second/{FOLDER_META}"] = world.objects[META]
    world.objects[f"query/second/log/{1:032x}"] = (b"", 0.0)
    checkpoints = told(history)
    for name in world.names(f"{FOLDER}/") - {META, MARK, COPY}:
        del world.objects[name]
    for _ in range(3):
        for report in collector(world, checkpoints).run():
            assert "which is not there" in str(report.kept_because)
        world.now += DAY
    assert f"query/second/log/{1:032x}" in world.names()


@pytest.mark.case("P6")
def test_queries_from_copies_of_one_checkpoint_share_a_folder(
    tmp_path: Path,
) -> None:
    """Both have the same query id; one continues from batch 3, the other from batch 5, and both make snapshots."""
    engines = [Engine(tmp_path / name, tmp_path / "state") for name in ("one", "two")]
    handles: list[list[str]] = [[], []]
    for number in range(6):
        handles[0].append(engines[0].batch(number, handles[0][-1] if number else None)[0])
    handles[1] = handles[0][:4]
    world = at_ckpt(World.of(tmp_path / "state"))
    for number in range(6, 10):
        for engine, own in zip(engines, handles, strict=True):
            own.append(engine.batch(len(own), own[-1])[0])
            engine.batch(len(own), own[-1], commit=False)
            engine.materialize()
        world.add(tmp_path / "state", age=3 * DAY)
        retained = [dict(list(enumerate(own))[-2:]) for own in handles]
        answers = {name: roots("query", kept) for name, kept in zip(("ckpt", "copy"), retained, strict=True)}
        report = twice(world, Told(**answers), locations=["copy"])
        assert report.kept_because is None, number
        needed = {text for kept in retained for text in kept.values()}
        assert closure(world, FOLDER, sorted(needed)) <= world.names(), number
    for engine, own in zip(engines, handles, strict=True):
        engine.stop()
        fresh = Engine(tmp_path / f"fresh-{len(own)}", world.restore(tmp_path / f"left-{len(own)}"))
        assert fresh.batch(len(own), own[-1])[1] == expected(len(own) + 1)
        fresh.stop()


@pytest.mark.case("P-07")
def test_a_failing_store_is_not_asked_to_delete_the_rest(history: History) -> None:
    world = at_ckpt(history.world)
    rubbish = {f"{FOLDER}/log/{i:032x}" for i in range(2_000)}
    for name in rubbish:
        world.objects[name] = (b"", world.now - 3 * DAY)
    sweep(world, told(history))
    world.now += DAY
    world.log.clear()
    with pytest.MonkeyPatch.context() as patch:

        def refuse(_: MemoryFolder, name: str) -> None:
            world.log.append(("delete", name))
            if "probe/" not in name:
                raise StoreError("503 Slow Down")

        patch.setattr(MemoryFolder, "delete", refuse)
        assert "503" in str(sweep(world, told(history)).kept_because)
    assert 1 < sum(verb == "delete" for verb, _ in world.log) <= 1 + 128
    assert sweep(world, told(history)).kept_because is None
    assert not rubbish & world.names()
