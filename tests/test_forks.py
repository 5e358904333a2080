"""Processes that fork after they have used a state: what works in the child, and what is refused at once.

Owns: what a child makes anew, and its inherited objects. Does not own: how a child exits, and what an inherited object
leaves behind (`test_embedded_process`, `test_changelog_process`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.programs import run

#: Seconds for many forks: on a loaded machine each takes ten times as long.
MANY = 240
#: What a child does by itself: it flushes and compacts, uploads, waits, and is called back.
WORKS = """
    import os, signal, threading, fastchangelog as fc

    def works(folder):
        called = threading.Event()
        options = {"materialization_log_bytes": 1, "file_sync": False}
        with fc.open_state(folder, name=f"s{os.getpid()}", options=options) as st:
            t = st.value_state("t", key="long", value="string")
            for number in range(3):
                t.put_many(range(500), ["x" * 200] * 500)
                future = st.begin_checkpoint()
                future.add_done_callback(lambda _: called.set())
                assert future.result(30).state_keys == 500
            assert called.wait(30)
            assert st.metrics()["checkpoints"] >= 3
        with fc.open_state(folder, name=f"s{os.getpid()}", read_only=True) as st:
            assert len(st.value_state("t", key="long", value="string")) == 500
        with fc.open_state("memory://here") as st:
            st.value_state("t", key="long", value="long")[1] = 1
        with fc.ChangelogStorage(folder + "/log") as storage:
            writer = storage.writer(f"w{os.getpid()}", key_groups=range(8))
            writer.append(1, b"x")
            handle = writer.persist(0, checkpoint_id=1).result(30)
            with storage.reader() as reader:
                assert [change.value for change in reader.read(handle)] == [b"x"]
        assert fc.metrics()["checkpoints"] >= 3

    def in_child(work):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(50)
                work()
                code = 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    """


@pytest.mark.case("A-18")
def test_a_child_has_states_storages_and_readers_of_its_own(tmp_path: Path) -> None:
    outcome = run(
        WORKS
        + """
    import sys
    folder = sys.argv[1]
    works(folder)
    closed = in_child(lambda: works(folder))
    st = fc.open_state(folder, name="open")
    st.value_state("t", key="long", value="long")[1] = 1
    st.checkpoint()
    opened = in_child(lambda: works(folder))
    grandchild = in_child(lambda: os._exit(in_child(lambda: works(folder))))
    print(closed, opened, grandchild)
    works(folder)
    st.close()
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stdout.split()) == (0, ["0", "0", "0"]), outcome.stderr


@pytest.mark.case("A-18")
def test_a_child_works_whatever_its_parents_threads_hold(tmp_path: Path) -> None:
    outcome = run(
        WORKS
        + """
    import sys
    folder = sys.argv[1]
    works(folder)  # imports what each child would import otherwise
    st = fc.open_state(folder, options={"file_sync": False, "materialization_log_bytes": 1})
    storage = fc.ChangelogStorage("memory://busy")
    writer = storage.writer("busy", key_groups=range(8))
    stop = threading.Event()

    def forever(call):
        while not stop.is_set():
            call()

    def persist():
        writer.append(1, b"y")
        writer.persist(writer.next_sequence_number - 1, checkpoint_id=1).result(30)

    # Nothing that allocates in pyarrow: its allocator has locks, too.
    calls = [st.checkpoint, fc.metrics, persist, lambda: st.begin_checkpoint().result(30)]
    threads = [threading.Thread(target=forever, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    ended = [in_child(lambda: works(folder)) for _ in range(12)]
    stop.set()
    for thread in threads:
        thread.join()
    st.close()
    print(*ended)
        """,
        str(tmp_path),
        patience=MANY,
    )
    assert (outcome.returncode, outcome.stdout.split()) == (0, ["0"] * 12), outcome.stderr


@pytest.mark.case("A-18")
def test_forks_return_while_threads_of_the_core_call_python() -> None:
    """CPython makes the state of such a thread under a lock that a child inherits."""
    outcome = run(
        """
        import os, signal, threading, fastchangelog as fc
        storage = fc.ChangelogStorage("memory://busy")
        stop, ended = threading.Event(), set()

        def persist(number):
            writer = storage.writer(f"w{number}", key_groups=range(8))
            while not stop.is_set():
                writer.append(1, b"y")
                writer.persist(writer.next_sequence_number - 1, checkpoint_id=1).result(30)

        threads = [threading.Thread(target=persist, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(1500):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
            signal.alarm(20)
            ended.add(os.waitpid(pid, 0)[1])
            signal.alarm(0)
            if ended != {0}:
                break
        stop.set()
        for thread in threads:
            thread.join()
        print(ended)
        """,
        patience=MANY,
    )
    assert (outcome.returncode, outcome.stdout) == (0, "{0}\n"), outcome.stderr


@pytest.mark.case("A-18")
def test_a_child_finds_the_temp_folder_of_its_parent() -> None:
    outcome = run(
        """
        import os, signal, tempfile, threading, fastchangelog as fc
        looking, forked = threading.Event(), threading.Event()
        find = tempfile._get_default_tempdir

        def slowly():
            looking.set()
            forked.wait(1)  # as long as the fork waits for it
            return find()

        tempfile._get_default_tempdir = slowly
        thread = threading.Thread(target=fc.metrics)
        thread.start()
        looking.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os._exit("checkpoints" not in fc.metrics())
        forked.set()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        thread.join()
        """
    )
    assert (outcome.returncode, outcome.stdout.split()) == (0, ["0"]), outcome.stderr


@pytest.mark.case("A-18")
def test_all_inherited_objects_are_refused_at_once(tmp_path: Path) -> None:
    outcome = run(
        """
        import os, sys, fastchangelog as fc
        st = fc.open_state(sys.argv[1])
        table = st.value_state("t", key="string", value="long")
        storage = fc.ChangelogStorage(sys.argv[1] + "/log")
        writer = storage.writer("w", key_groups=range(4))
        writer.append(1, b"x")
        handle = writer.persist(0, 1).result(30)
        reader = storage.reader()
        changes = reader.read_batches(handle)
        folder = fc._internal.SavepointFolder(sys.argv[1] + "/sp", {}, {}, None)
        objects = fc._internal.ObjectFolder(sys.argv[1], {}, {})
        os.environ["FASTCHANGELOG_FAILPOINTS"] = "local.before-seal=sleep(3000)"
        slow = fc.open_state(sys.argv[1], name="slow")
        pending = slow.begin_checkpoint()
        calls = {
            "state": [lambda: st.uri, lambda: st.metrics(), lambda: st.handle, lambda: st.closed, lambda: table["a"]],
            "storage": [lambda: storage.uri, lambda: storage.metrics(), lambda: storage.reader()],
            "writer": [lambda: writer.append(1, b"y"), lambda: writer.append_meta(b"y"), lambda: writer.rollover(),
                       lambda: writer.next_sequence_number, lambda: writer.closed,
                       lambda: writer.append_batch([1], [b"y"])],
            "reader": [lambda: next(changes), lambda: reader.read_batches(handle)],
            "folders": [lambda: folder.uri, lambda: folder.read(), lambda: objects.uri, lambda: objects.list("")],
            "future": [lambda: pending.result(), lambda: pending.exception()],
        }
        pid = os.fork()
        if pid == 0:
            for name, some in calls.items():
                for number, call in enumerate(some):
                    try:
                        call()
                        print(name, number, "was not refused", flush=True)
                    except fc.ClosedError as error:
                        if "forked child" not in str(error):
                            print(name, number, error, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pending.result(30).state_keys)
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stdout) == (0, "0 0\n"), outcome.stdout + outcome.stderr
