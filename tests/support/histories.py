"""Folders that a real engine wrote, with everything that a sweep may meet, and sweeps of them.

Owns: the history of a query. Does not own: the bucket and the engine (`swept`), what must be left (the tests).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from fastchangelog.gc.collector import Collector
from fastchangelog.gc.plan import GcState
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import FOLDER_META, GC_CHECKPOINTS, GC_STATE
from support.notes import changed
from support.swept import DAY, Engine, MemoryFolder, Told, World, expected, roots

FOLDER = "query/default"
META, MARK, COPY = f"{FOLDER}/{FOLDER_META}", f"{FOLDER}/{GC_STATE}", f"{FOLDER}/{GC_CHECKPOINTS}"


@dataclasses.dataclass(frozen=True)
class History:
    """Twelve batches; snapshots in 4 and 9; index objects, a failed materialization, attempts that lost."""

    world: World
    handles: tuple[str, ...]
    #: After one more snapshot that no handle names yet, and after the batch that takes it over.
    idle: World
    taken_over: World
    last: str


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    base = tmp_path_factory.mktemp("engine")
    engine, handles, handle = Engine(base / "e", base / "state"), [], None
    for number in range(12):
        if number % 5 == 3:
            engine.batch(number, handle, commit=False)
        handle, found = engine.batch(number, handle)
        handles.append(handle)
        assert found == expected(number + 1)
        if number in (4, 7, 9):
            engine.batch(number + 1, handle, commit=False)  # what Spark hands back becomes live
            engine.materialize(complete=number != 7)
    world = World.of(base / "state")
    engine.batch(12, handle, commit=False)
    engine.materialize()
    idle = World.of(base / "state")
    last, _ = engine.batch(12, handle)
    yield History(world, tuple(handles), idle, World.of(base / "state"), last)
    engine.stop()


def collector(world: World, told: Told, **given: object) -> Collector:
    settings: dict[str, object] = {"grace": DAY, "clock": lambda: world.now, "delete": True, **given}
    return Collector(MemoryFolder(world), told, **settings)  # type: ignore[arg-type]


def sweep(world: World, told: Told, **given: object) -> FolderReport:
    (report,) = collector(world, told, **given).run()
    return report


def twice(world: World, told: Told, **given: object) -> FolderReport:
    """Two sweeps, a grace period apart."""
    sweep(world, told, **given)
    world.now += DAY
    return sweep(world, told, **given)


def told(history: History, retained: int = 3, **more: object) -> Told:
    handles = dict(list(enumerate(history.handles))[-retained:])
    return Told(ckpt=dataclasses.replace(roots("query", handles), **more))  # type: ignore[arg-type]


def at_ckpt(world: World, **more: object) -> World:
    """An earlier collection was told where the checkpoint is; the note says more."""
    world = world.copy()
    data, modified = world.objects[META]
    world.objects[META] = (changed(data, **more), modified)
    world.objects[MARK] = (GcState(checkpoints=("ckpt",)).to_bytes(), world.now)
    return world
