"""The names of folders and notes that Python holds are those of the core.

Owns: the comparison. Does not own: the names (`fastchangelog.layout`), what they stand for (docs/format.md).
"""

from __future__ import annotations

import pytest

from fastchangelog import _internal, layout

ID = f"{1:032x}"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (layout.LOG, ID),
        (layout.TABLE, f"{ID}.sst"),
        (layout.SNAPSHOT, ID),
        (layout.SEGMENT_INDEX, ID),
        (layout.CHECKPOINT_LOG, f"{1:020}"),
        (layout.PROBE, ID),
    ],
)
def test_the_core_knows_each_folder_by_the_same_name(folder: str, name: str) -> None:
    assert _internal.object_type(f"{folder}/{name}") == folder


@pytest.mark.parametrize("name", [layout.FOLDER_META, layout.GC_STATE, layout.GC_CHECKPOINTS])
def test_the_core_takes_notes_for_notes(name: str) -> None:
    assert _internal.object_type(name) == "note"
    assert name.startswith(layout.OWN_PREFIX)


def test_the_note_of_a_store_is_known_in_any_root() -> None:
    assert _internal.object_type("_fastchangelog-creates-0123abcd") == layout.CREATES
    assert _internal.object_type("_fastchangelog-creates-0123abcd/x") is None
