"""An embedded state that sweeps its own folder while it is open for writing.

Owns: when it does, that it deletes garbage and nothing else, the life of its thread. Does not own: the checkpoint log
as roots (`test_gc_checkpoint_log`), the schedule (`test_gc_background`).
"""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
from pathlib import Path

import pytest

import fastchangelog as fc
from fastchangelog.layout import GC_STATE
from support.embedded_histories import CHECKPOINTS, make, named
from support.waiting import until

LONG_AGO = 1_600_000_000


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def age(root: Path) -> None:
    """Years pass for all that is there."""
    for path in root.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    for mark in root.rglob(GC_STATE):
        said = json.loads(mark.read_text())
        said["unreachable_since"] = dict.fromkeys(said["unreachable_since"], LONG_AGO)
        mark.write_text(json.dumps(said))
        os.utime(mark, (LONG_AGO, LONG_AGO))


def swept(state: fc.State) -> None:
    """A sweep now."""
    sweeper = state._sweeper
    assert sweeper is not None
    now = sweeper._clock() + 1e6
    sweeper._clock = lambda: now
    sweeper.poll()


@pytest.mark.case("P6")
def test_a_state_deletes_unneeded_objects(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastchangelog.embedded")
    handles = make(tmp_path)
    with fc.open_state(f"file://{tmp_path}", name="profiles") as st:
        before = files(tmp_path)
        for _ in range(2):
            age(tmp_path)
            swept(st)
        counted = st.metrics()
        gone = before - files(tmp_path)
        assert gone == named(handles) - named(handles[-8:])
        assert (counted["sweeps"], counted["sweep_deleted"], counted["sweeps_in_doubt"]) == (2, len(gone), 0)
        table = st.value_state("t", key="string", value="long")
        assert table["n"] == CHECKPOINTS - 1
    assert f"deleted={len(gone)}" in caplog.text
    with fc.open_state(f"file://{tmp_path}", name="profiles", read_only=True) as st:
        assert len(st.value_state("t", key="string", value="long")) == CHECKPOINTS + 1


def test_only_a_state_open_for_writing_sweeps(tmp_path: Path) -> None:
    make(tmp_path)
    with fc.open_state(tmp_path, name="profiles", read_only=True) as st:
        assert st._sweeper is None
    with fc.open_state(tmp_path, name="profiles", options={"sweep": "off"}) as st:
        assert st._sweeper is None


def sweepers() -> int:
    return [thread.name for thread in threading.enumerate()].count("fcl-sweep")


def test_the_thread_ends_with_the_state(tmp_path: Path) -> None:
    before = sweepers()
    st = fc.open_state(tmp_path)
    assert sweepers() == before + 1
    st.close()
    assert sweepers() == before
    dropped = fc.open_state(tmp_path)
    del dropped
    gc.collect()
    until("the thread of a state that nothing refers to", lambda: sweepers() == before)


def test_a_state_in_memory_sweeps_itself_too() -> None:
    with fc.open_state("memory://tests/sweeps", name="profiles") as st:
        st.value_state("t", key="string", value="long")["n"] = 1
        st.checkpoint()
        swept(st)
        assert st.metrics()["sweeps"] == 1
        assert st.metrics()["sweeps_in_doubt"] == 0
