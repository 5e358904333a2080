"""Sweeps of embedded states: the roots are their heads.

Owns: what is left of such a state, and that it opens. Does not own: the rest of a sweep (`test_gc_collector`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fastchangelog as fc
from fastchangelog import cli
from fastchangelog.gc import checkpoint_log
from fastchangelog.gc.collector import Collector
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import GC_STATE
from support.embedded_histories import CHECKPOINTS, make, named
from support.notes import folder_note
from support.swept import DAY, MemoryFolder, Told, World


def sweep(world: World, **given: object) -> FolderReport:
    settings: dict[str, object] = {"grace": DAY, "clock": lambda: world.now, "delete": True, **given}
    (report,) = Collector(MemoryFolder(world), Told(), **settings).run()  # type: ignore[arg-type]
    return report


def twice(world: World) -> FolderReport:
    """Two sweeps, a grace period apart."""
    sweep(world)
    world.now += DAY
    return sweep(world)


@pytest.mark.case("A-06")
def test_two_sweeps_leave_what_heads_name_and_it_opens(tmp_path: Path) -> None:
    handles = make(tmp_path / "state")
    world = World.of(tmp_path / "state")
    kept = {name for name in world.objects if checkpoint_log.is_entry(name.removeprefix("profiles/"))}
    assert 0 < len(kept) < CHECKPOINTS, "old heads are removed by the writer"
    rubbish = {f"profiles/log/{5:032x}", f"profiles/sst/{5:032x}.sst"}
    world.objects.update(dict.fromkeys(rubbish, (b"lost attempt", world.now - 3 * DAY)))
    foreign = "profiles/head/42"
    world.objects[foreign] = (b"", 0.0)
    report = twice(world)
    assert report.kept_because is None
    assert {f"profiles/{e.name}" for e in report.deleted} == rubbish
    assert [e.name for e in report.unknown] == ["head/42"]
    assert world.names() == named(handles) | kept | {foreign, f"profiles/{GC_STATE}"}
    root = world.restore(tmp_path / "left")
    for number, handle in list(enumerate(handles))[-6:]:
        with fc.open_state(f"file://{root}", name="profiles", handle=handle, read_only=True) as st:
            table = st.value_state("t", key="string", value="long")
            assert (table["n"], f"k{number}" in table, f"k{number + 1}" in table) == (number, True, False)


def test_states_at_any_depth_are_swept_also_inside_another(tmp_path: Path) -> None:
    root = tmp_path / "state"
    folders = ["profiles", "team/profiles", "team/a/b/c", "team/profiles/inside"]
    needed, rubbish = set(), set()
    for folder in folders:
        parent, _, name = folder.rpartition("/")
        handles = make(root / parent, name)
        needed |= {f"{folder}/{obj.removeprefix('profiles/')}" for obj in named(handles)}
    world = World.of(root)
    heads = {name for name in world.objects if "/head/" in name}
    for folder in folders:
        rubbish.add(f"{folder}/log/{5:032x}")
    world.objects.update(dict.fromkeys(rubbish, (b"lost attempt", world.now - 3 * DAY)))
    for _ in range(2):
        reports = Collector(MemoryFolder(world), Told(), grace=DAY, clock=lambda: world.now, delete=True).run()
        assert {(r.folder, r.embedded, r.kept_because, r.unknown) for r in reports} == {
            (folder, True, None, ()) for folder in folders
        }
        world.now += DAY
    assert world.names() == needed | heads | {f"{folder}/{GC_STATE}" for folder in folders}


@pytest.mark.case("P6")
def test_a_checkpoint_log_beside_the_note_of_a_query_is_a_doubt(tmp_path: Path) -> None:
    make(tmp_path / "state" / "query", "default")
    world = World.of(tmp_path / "state")
    world.objects["query/default/_fastchangelog.json"] = (folder_note(), world.now)
    world.objects[f"query/default/log/{5:032x}"] = (b"of the query", world.now - 3 * DAY)
    before = world.names()
    assert "a query's _fastchangelog.json as well" in str(twice(world).kept_because)
    assert world.names() == before


@pytest.mark.case("P6")
@pytest.mark.parametrize("damaged", [b"", b"FCLN", b"not ours at all, but long enough to hold a header"])
def test_a_head_that_cannot_be_read_keeps_everything(tmp_path: Path, damaged: bytes) -> None:
    make(tmp_path / "state")
    world = World.of(tmp_path / "state")
    newest = max(name for name in world.objects if "/head/" in name)
    world.objects[newest] = (damaged, world.now)
    world.objects[f"profiles/log/{5:032x}"] = (b"lost", 0.0)
    before = world.names()
    report = twice(world)
    assert newest.removeprefix("profiles/") in (report.kept_because or "")
    assert world.names() == before


def test_heads_that_go_while_read_are_older_than_others(tmp_path: Path) -> None:
    handles = make(tmp_path / "state")
    world = World.of(tmp_path / "state")

    class Moving(MemoryFolder):
        """Its writer continues: what is listed first is removed before it is read."""

        left = 5

        def read(self, name: str) -> bytes | None:
            if self.left:
                self.left -= 1
                return None
            return super().read(name)

    found = checkpoint_log.retained(Moving(world, "profiles/"))
    newest = {segment["object"]["name"] for segment in handles[-1].to_dict()["segments"]}
    assert newest in [set(handle.names()) for handle in found]


def test_the_command_sweeps_them_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "state"
    make(root / "team")
    lost = root / "team" / "profiles" / "log" / f"{5:032x}"
    lost.write_bytes(b"lost")
    os.utime(lost, (1_700_000_000, 1_700_000_000))
    assert cli.main(["sweep", str(root), "--grace", "0s", "--json"]) == cli.FOUND
    (folder,) = json.loads(capsys.readouterr().out)["folders"]
    assert (folder["query"], folder["name"], folder["kept_because"]) == (None, "team/profiles", None)
    assert folder["waiting"] == [f"log/{5:032x}"]
    assert cli.main(["sweep", str(root), "--grace", "0s"]) == cli.FOUND
    assert "an embedded state" in capsys.readouterr().out
