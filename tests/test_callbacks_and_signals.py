"""Code of the program that runs in the middle of our calls: callbacks of futures, handlers of signals, clocks.

Owns: what such code may call. Does not own: the calls themselves (`test_embedded_state`, `test_changelog`), Ctrl-C
(`test_embedded_process`).
"""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

import fastchangelog as fc
from support.programs import run

PATIENCE = 30
NO_SYNC = {"file_sync": False}


def test_a_callback_may_use_its_state_and_wait_for_another(tmp_path: Path) -> None:
    st = fc.open_state(tmp_path, options=NO_SYNC)
    t = st.value_state("t", key="string", value="long")
    t["a"] = 1
    got: list[int] = []
    done = threading.Event()

    def waits(_: object) -> None:
        t["b"] = 2
        got.append(st.checkpoint().state_keys)
        got.append(st.begin_checkpoint().result(PATIENCE).state_keys)
        st.close()
        done.set()

    st.begin_checkpoint().add_done_callback(waits)
    assert done.wait(PATIENCE)
    assert (got, st.closed) == ([2, 2], True)


def test_a_slow_callback_holds_up_nothing_else(tmp_path: Path) -> None:
    options = {**NO_SYNC, "materialization_log_bytes": 1}
    slow, other = (fc.open_state(tmp_path, name=name, options=options) for name in ("slow", "other"))
    held = threading.Event()
    slow.begin_checkpoint().add_done_callback(lambda _: held.wait(PATIENCE))
    with other:
        other.value_state("t", key="string", value="long")["a"] = 1
        called = threading.Event()
        future = other.begin_checkpoint()
        future.add_done_callback(lambda _: called.set())
        assert future.result(PATIENCE).state_keys == 1
        assert called.wait(PATIENCE)
    assert slow.begin_checkpoint().result(PATIENCE).state_keys == 0
    held.set()
    slow.close()


def test_callbacks_come_in_the_order_of_checkpoints(tmp_path: Path) -> None:
    order: list[int] = []
    at_once: list[int] = []
    done = threading.Event()

    def called(_: object, number: int) -> None:
        # A callback that is added once its checkpoint has ended is called at once, by this thread.
        (at_once if threading.current_thread() is threading.main_thread() else order).append(number)
        if len(order) + len(at_once) == 20:
            done.set()

    with fc.open_state(tmp_path, options=NO_SYNC) as st:
        for number in range(20):
            st.begin_checkpoint().add_done_callback(partial(called, number=number))
        assert done.wait(PATIENCE)
    assert order == sorted(order)
    assert sorted(order + at_once) == list(range(20))


def test_a_callback_of_a_persist_may_persist_the_next(tmp_path: Path) -> None:
    got: list[int] = []
    done = threading.Event()
    with fc.ChangelogStorage(tmp_path) as storage:
        writer = storage.writer("w", key_groups=range(4))

        def next_one(_: object) -> None:
            writer.append(1, b"y")
            got.append(len(writer.persist(0, checkpoint_id=2).result(PATIENCE)))
            done.set()

        writer.append(1, b"x")
        writer.persist(0, checkpoint_id=1).add_done_callback(next_one)
        assert done.wait(PATIENCE)
    assert got == [2]


#: `handled` is how often the handler came and could do its work.
HANDLER = """
    import faulthandler, os, signal, sys, threading, fastchangelog as fc
    faulthandler.dump_traceback_later(40, exit=True)
    handled = []
    def on(number, work):
        def handler(*_):
            signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                handled.append(work() and "ok")
            except fc.FastChangelogError as error:
                handled.append(type(error).__name__)
        signal.signal(number, handler)
    """


@pytest.mark.parametrize("work", ["st.checkpoint()", "st.close() or True", "st.begin_checkpoint().result(20)"])
def test_a_signal_handler_may_call_us_during_a_checkpoint(tmp_path: Path, work: str) -> None:
    outcome = run(
        HANDLER
        + f"""
    st = fc.open_state(sys.argv[1])
    on(signal.SIGALRM, lambda: {work})
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        while not handled:
            st.begin_checkpoint()
    except fc.ClosedError:
        pass
    print(handled)
        """,
        str(tmp_path),
        env={**os.environ, "FASTCHANGELOG_FAILPOINTS": "local.before-seal=sleep(60)"},
    )
    assert (outcome.returncode, outcome.stdout) == (0, "['ok']\n"), outcome.stderr


@pytest.mark.parametrize(
    "call", ["a.add(1, 2)", "l.append(1, 2)", "v.put(1, 2)", "v.get(1)", "list(v.scan())", "st.checkpoint()"]
)
def test_a_handler_may_call_us_while_the_clock_is_asked(tmp_path: Path, call: str) -> None:
    outcome = run(
        HANDLER
        + f"""
    ready = False
    def clock():
        global ready
        if ready:
            ready = False
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000): pass  # the handler runs between two bytecodes
        return 1.0
    st = fc.open_state(sys.argv[1], clock=clock)
    a = st.aggregating_state("a", fc.sum("value"), key="long", value="long", ttl="1h")
    l = st.list_state("l", key="long", value="long", ttl="1h")
    v = st.value_state("v", key="long", value="long", ttl="1h")
    a.add(7, 1)
    on(signal.SIGTERM, lambda: (a.add(1, 1), l.append(1, 1), v.put(1, 1), st.checkpoint()))
    ready = True
    {call}
    print(handled)
    st.close()
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stdout) == (0, "['ok']\n"), outcome.stderr


def test_a_handler_may_close_us_while_a_savepoint_is_taken(tmp_path: Path) -> None:
    outcome = run(
        HANDLER
        + """
    st, other = fc.open_state(sys.argv[1]), fc.open_state(sys.argv[1], name="other")
    storage = fc.ChangelogStorage(sys.argv[1] + "/log")
    st.value_state("t", key="long", value="long")[1] = 1
    st.checkpoint()
    on(signal.SIGALRM, lambda: (other.close(), storage.close(), st.checkpoint()))
    os.environ["FASTCHANGELOG_FAILPOINTS"] = "store.before-put=sleep(700)@1"
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    st.savepoint(sys.argv[1] + "/savepoint")
    print(handled, other.closed)
    st.close()
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stdout) == (0, "['ok'] True\n"), outcome.stderr


@pytest.mark.case("A-18")
@pytest.mark.parametrize(
    "call", ["t[5]", "t.put_many(range(500), numbers)", "list(t.scan(batch_size=50))", "st.checkpoint()"]
)
def test_the_interpreter_ends_with_daemon_threads_in_calls(tmp_path: Path, call: str) -> None:
    outcome = run(
        f"""
        import sys, threading, fastchangelog as fc
        st = fc.open_state(sys.argv[1], options={{"file_sync": False}})
        t = st.value_state("t", key="long", value="long")
        numbers = list(range(500))
        t.put_many(numbers, numbers)
        calling = threading.Barrier(5)
        def forever():
            calling.wait()
            while True:
                try:
                    {call}
                except fc.ClosedError:
                    pass
        for _ in range(4):
            threading.Thread(target=forever, daemon=True).start()
        calling.wait()
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
