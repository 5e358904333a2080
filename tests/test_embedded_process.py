"""Embedded state, in processes that fork, end or are killed.

Owns: what such a process leaves. Does not own: what a state does otherwise (`test_embedded_state`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fastchangelog as fc
from support.programs import run


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "states")


def reopened(root: str) -> fc.State:
    return fc.open_state(root, options={"file_sync": False})


@pytest.mark.case("A-18")
def test_a_forked_child_is_refused_and_removes_nothing(root: str) -> None:
    outcome = run(
        """
        import gc, os, sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1])
        table = st.value_state("t", key="string", value="long")
        table.put_many(["a", "b"], [1, 2])
        scan = table.scan()
        st.checkpoint()
        pid = os.fork()
        if pid == 0:
            for call in (lambda: table["a"], lambda: table.put("a", 1), st.checkpoint, lambda: next(scan)):
                try:
                    call()
                    os._exit(1)
                except fc.ClosedError as error:
                    if "fork" not in str(error):
                        os._exit(2)
            st._native.close()
            del table, st, scan, call
            gc.collect()
            os._exit(0)  # as multiprocessing ends its children
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        table["c"] = 3
        total = sum(table.get_many(list("abc")).to_pylist())
        print(total, [batch.num_rows for batch in scan], st.checkpoint().state_keys)
        """,
        root,
    )
    assert (outcome.returncode, outcome.stdout.split("\n")[:2]) == (0, ["0", "6 [3] 3"]), outcome.stderr


@pytest.mark.case("A-18")
@pytest.mark.skipif(sys.platform != "linux", reason="exit handlers can be cut short in glibc only")
@pytest.mark.parametrize("ending", ["sys.exit(3)", "del st, table; gc.collect(); sys.exit(3)"])
def test_a_forked_child_exits_as_it_wants(root: str, ending: str) -> None:
    outcome = run(
        f"""
        import atexit, gc, os, sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1])
        table = st.value_state("t", key="string", value="long")
        table["a"] = 1
        st.checkpoint()
        pid = os.fork()
        if pid == 0:
            atexit.register(print, "child's handler")
            print("child")
            {ending}
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), table["a"])
        """,
        root,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.split("\n")[:3] == ["child", "child's handler", "3 1"]


def test_an_interrupt_ends_an_open_at_once(root: str) -> None:
    script = '''
        import signal, sys, threading, time, fastchangelog as fc
        class Interrupt(BaseException):
            """Not KeyboardInterrupt: raised inside of `exec`, it ends Python with SIGINT although it is caught."""
        def interrupt(*_):
            global since
            since = time.monotonic()
            raise Interrupt
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            fc.open_state(sys.argv[1])
        except Interrupt:
            print(time.monotonic() - since)
        '''
    outcome = run(script, root, env={**os.environ, "FASTCHANGELOG_FAILPOINTS": "local.open=sleep(50000)"})
    assert outcome.returncode == 0, outcome.stderr
    assert float(outcome.stdout) < 10, "the open itself takes fifty seconds"
    with pytest.raises(fc.StateNotFoundError):
        fc.open_state(root, read_only=True)


@pytest.mark.case("A-18")
@pytest.mark.parametrize("ending", ["", "del st, table", "sys.exit(0)", "st.close(checkpoint=False)"])
def test_the_interpreter_ends_with_work_in_flight(root: str, ending: str) -> None:
    outcome = run(
        f"""
        import sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1])
        table = st.value_state("t", key="long", value="string")
        for i in range(20):
            table.put_many(range(i * 100, i * 100 + 100), ["x" * 100] * 100)
            future = st.begin_checkpoint()
        {ending}
        """,
        root,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_kill_nine_leaves_what_was_acknowledged(root: str, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1], options={"file_sync": False})
        table = st.value_state("t", key="long", value="long")
        i = 0
        while True:
            table.put_many([i, -1], [i, i])
            st.checkpoint()
            print(i, flush=True)
            i += 1
        """
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", script, root], stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    for _ in range(20):
        acknowledged = int(next(child.stdout))
    child.send_signal(signal.SIGKILL)
    child.wait()
    with reopened(root) as st:
        table = st.value_state("t", key="long", value="long")
        newest = table[-1]
        assert newest >= acknowledged
        assert list(table) == list(range(-1, newest + 1)), "whole checkpoints, and nothing else"


@pytest.mark.parametrize("point", ["local.before-seal", "local.before-head", "local.after-head", "promote.before"])
def test_killed_between_two_steps_of_a_checkpoint(root: str, point: str) -> None:
    script = """
        import sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1], options={"file_sync": False})
        table = st.value_state("t", key="string", value="long")
        for i in range(3):
            table["a"] = i
            table[f"b{i}"] = i
            st.checkpoint()
            print(i, flush=True)
        """
    # Heads are also published by the open, promotions are not.
    hit = 3 if "head" in point else 2
    outcome = run(script, root, env={**os.environ, "FASTCHANGELOG_FAILPOINTS": f"{point}=kill@{hit}"})
    assert outcome.returncode == -signal.SIGKILL
    acknowledged = int(outcome.stdout.split()[-1])
    with reopened(root) as st:
        found = dict(st.value_state("t", key="string", value="long").items())
        newest = found["a"]
        # A checkpoint is acknowledged before it is promoted: its caller may have heard of it, or not.
        assert newest - acknowledged in {"local.after-head": (1,), "promote.before": (0, 1)}.get(point, (0,))
        assert found == {"a": newest, **{f"b{i}": i for i in range(newest + 1)}}


@pytest.mark.parametrize("point", ["local.spill", "local.spilled", "local.part"])
def test_killed_while_changes_are_on_the_local_disk(root: str, point: str) -> None:
    script = """
        import sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1], options={"file_sync": False, "memory_budget": "16MiB"})
        table = st.value_state("t", key="long", value="long")
        table.put_many(range(1_000), [0] * 1_000)
        st.checkpoint()
        for start in range(0, 150_000, 50_000):
            table.put_many(range(start, start + 50_000), [1] * 50_000)
        st.checkpoint()
        """
    outcome = run(script, root, env={**os.environ, "FASTCHANGELOG_FAILPOINTS": f"{point}=kill@2"})
    assert outcome.returncode == -signal.SIGKILL, outcome.stderr
    with reopened(root) as st:
        table = st.value_state("t", key="long", value="long")
        assert dict(table.items()) == dict.fromkeys(range(1_000), 0)


@pytest.mark.parametrize("options", [{}, {"restore": "eager"}], ids=["default", "eager"])
def test_an_open_serves_before_all_is_in_memory(root: str, options: dict[str, str]) -> None:
    with fc.open_state(root, options={"file_sync": False, "materialization_log_bytes": 1}) as st:
        st.value_state("t", key="string", value="long").put_many([f"k{i}" for i in range(1000)], range(1000))
    script = """
        import json, sys, threading, fastchangelog as fc
        options = json.loads(sys.argv[2])
        st = fc.open_state(sys.argv[1], read_only=True, options=options)
        print(st.value_state("t", key="string", value="long")["k7"], flush=True)
        options or threading.Event().wait()
        """
    # The loading in the background would take the process with it.
    env = {**os.environ, "FASTCHANGELOG_FAILPOINTS": "warm.portion=kill"}
    outcome = run(script, root, json.dumps(options), env=env)
    if options:
        assert (outcome.returncode, outcome.stdout) == (0, "7\n"), outcome.stderr
    else:
        assert outcome.returncode == -signal.SIGKILL
