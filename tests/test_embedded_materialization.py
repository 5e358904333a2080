"""Snapshots of embedded states: when they are made, what failures mean, and what a kill leaves.

Owns: the policy driving an open state. Does not own: the policy (`test_materialization`), what else a state does
(`test_embedded_state`).
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastchangelog as fc
from support.programs import PATIENCE, run

FAST = {"file_sync": False}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "states")


def reopened(root: str, **how: Any) -> fc.State:
    return fc.open_state(root, options=FAST, **how)


EAGER = {**FAST, "materialization_log_bytes": 1, "materialization_max_failures": 1}
"""Each checkpoint asks for a base."""


def wait_for(st: fc.State, what: Callable[[Any], bool]) -> None:
    """Waits until the state's materializer is as asked for."""
    bases = st._materializer
    assert bases is not None
    with bases.changed:
        assert bases.changed.wait_for(lambda: what(bases.materializer), PATIENCE)


def base_of(handle: fc.StateHandle | None) -> Any:
    assert handle is not None
    return handle.to_dict()["base"]


@pytest.mark.case("V-02")
def test_the_log_asks_for_a_snapshot_for_the_next_checkpoint(root: str) -> None:
    with fc.open_state(root, options=EAGER) as st:
        table = st.value_state("t", key="string", value="long")
        for i in range(1, 4):
            table.put_many([f"k{i}", "last"], [i, i])
            assert (base_of(st.checkpoint()) is not None) == (i > 1)
            wait_for(st, lambda m, i=i: m.completed == i)
        newest = st.checkpoint()
        assert (base_of(newest) is None, len(newest.to_dict()["segments"])) == (False, 0)
        assert st.metrics()["materializations_completed"] == 3
    with reopened(root, read_only=True) as st:
        assert dict(st.value_state("t", key="string", value="long").items()) == {"k1": 1, "k2": 2, "k3": 3, "last": 3}
        assert st.metrics()["replay_bytes"] == 0


def test_the_number_of_change_sets_asks_for_a_snapshot(root: str) -> None:
    options = {**FAST, "materialization_segments": 10, "max_handle_segments": 4}
    longest = 0
    with fc.open_state(root, options=options) as st:
        table = st.value_state("t", key="int", value="int")
        for i in range(100):
            table[i % 7] = i
            handle = st.checkpoint()
            assert len(handle.to_dict()["segments"]) <= 4 + 1, "the others are in an index"
            longest = max(longest, st._native.progress()[1])
            wait_for(st, lambda m: not m.running)
    assert longest <= 20, "a base comes after ten, and is carried by the next"


def test_a_close_waits_for_a_snapshot_that_the_log_asks_for(root: str) -> None:
    """Programs that run for a moment only, again and again."""
    for i in range(4):
        with fc.open_state(root, options={**FAST, "materialization_segments": 3}) as st:
            st.value_state("t", key="int", value="int")[i] = i
        with reopened(root, read_only=True) as st:
            assert st._native.progress()[1] == (i + 1) % 3


@pytest.mark.case("Z-01")
def test_a_close_waits_for_no_snapshot_that_is_only_due(root: str) -> None:
    st = fc.open_state(root, options={**FAST, "materialization_interval": "1h"})
    st.value_state("t", key="int", value="int")[1] = 1
    bases = st._materializer
    assert bases is not None
    assert 0 <= bases.materializer.next_due - time.monotonic() <= 3600
    bases.materializer.trigger()
    st.checkpoint()
    st.close()
    assert not bases.materializer.running
    bases.poll()
    with reopened(root) as st:
        assert dict(st.value_state("t", key="int", value="int").items()) == {1: 1}


@pytest.mark.case("A-16")
def test_too_many_failures_stop_changes_and_lose_nothing(root: str, tmp_path: Path) -> None:
    blocker = Path(root) / "default" / "sst"
    st = fc.open_state(root, options={**EAGER, "max_attempts": 1})
    table = st.value_state("t", key="string", value="binary")
    blocker.write_text("a file where a folder must be")
    table["a"] = os.urandom(100_000)
    bases = st._materializer
    assert bases is not None
    for failures in (1, 2):
        bases.materializer.trigger()
        table["a"] = os.urandom(100_000)
        st.checkpoint()
        wait_for(st, lambda m, failures=failures: m.failed == failures and not m.running)
    with pytest.raises(fc.StoreError, match="`max_failures` = 1"):
        table["b"] = b"no"
    with pytest.raises(fc.StoreError):
        table.delete("a")
    assert st.checkpoint() == st.handle
    blocker.unlink()
    bases.materializer.trigger()
    bases.poll()
    wait_for(st, lambda m: m.completed == 1)
    table["b"] = b"yes"
    st.close()
    with reopened(root, read_only=True) as st:
        assert base_of(st.handle) is not None
        assert st.value_state("t", key="string", value="binary")["b"] == b"yes"


@pytest.mark.parametrize("point", ["materialize.flush", "materialize.checkpoint", "materialize.push"])
@pytest.mark.parametrize("hit", [1, 3])
def test_killed_while_a_snapshot_is_made(root: str, point: str, hit: int) -> None:
    script = """
        import sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1], options={"file_sync": False, "materialization_log_bytes": 1})
        table = st.value_state("t", key="long", value="long")
        i = 0
        while True:
            table.put_many([i, -1], [i, i])
            st.checkpoint()
            print(i, flush=True)
            i += 1
        """
    outcome = run(script, root, env={**os.environ, "FASTCHANGELOG_FAILPOINTS": f"{point}=kill@{hit}"})
    assert outcome.returncode == -signal.SIGKILL
    acknowledged = int(["-1", *outcome.stdout.split()][-1])
    with fc.open_state(root, options=EAGER) as st:
        table = st.value_state("t", key="long", value="long")
        newest = table[-1]
        assert newest in (acknowledged, acknowledged + 1)
        assert list(table) == list(range(-1, newest + 1))
        wait_for(st, lambda m: m.completed == 1)
        table[-1] = -1
    with reopened(root, read_only=True) as st:
        assert list(st.value_state("t", key="long", value="long")) == list(range(-1, newest + 1))


def test_an_unheld_state_is_closed_during_a_snapshot(root: str) -> None:
    st = fc.open_state(root, options=EAGER)
    st.value_state("t", key="int", value="int")[1] = 1
    st.checkpoint()
    gone = threading.Event()
    weakref.finalize(st._materializer, gone.set)
    del st
    gc.collect()
    assert gone.wait(PATIENCE)
    with reopened(root) as st:
        assert dict(st.value_state("t", key="int", value="int").items()) == {1: 1}


def test_readers_make_no_snapshots(root: str) -> None:
    with fc.open_state(root, options=EAGER) as st:
        st.value_state("t", key="int", value="int")[1] = 1
        st.checkpoint()
        with fc.open_state(root, options=EAGER, read_only=True) as reader:
            assert (reader._materializer, reader._native.begin_materialize()) == (None, None)
