"""The changelog in processes that fork, end, are interrupted or killed.

Owns: scripts that do so, and what is left of them. Does not own: what one process does (`test_changelog`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fastchangelog as fc
from support.programs import PATIENCE, run


@pytest.mark.case("A-18")
def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    outcome = run(
        """
        import os, sys, fastchangelog as fc
        storage = fc.ChangelogStorage(sys.argv[1])
        writer = storage.writer("w", key_groups=range(4))
        writer.append(1, b"parent")
        pid = os.fork()
        if pid == 0:
            for call in (lambda: writer.persist(0, 1), lambda: storage.writer("v", key_groups=range(4)),
                         lambda: storage.reader()):
                try:
                    call()
                    os._exit(1)
                except fc.ClosedError as error:
                    if "fork" not in str(error):
                        os._exit(2)
            writer.close()
            storage.close()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(len(writer.persist(0, 1).result(30)))
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stdout.split()) == (0, ["0", "1"]), outcome.stderr


@pytest.mark.case("A-18")
@pytest.mark.parametrize("closing", ["", "storage.close()", "del storage, writer", "sys.exit(0)"])
def test_the_interpreter_ends_with_work_in_flight(tmp_path: Path, closing: str) -> None:
    outcome = run(
        f"""
        import sys, fastchangelog as fc
        storage = fc.ChangelogStorage(sys.argv[1], options={{"preemptive_persist_threshold": "64KiB"}})
        writer = storage.writer("w", key_groups=range(4))
        for checkpoint in range(1, 200):
            writer.append(1, b"x" * 70_000)
            future = writer.persist(0, checkpoint)
        {closing}
        """,
        str(tmp_path),
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.case("B-10")
def test_ctrl_c_ends_a_throttled_append(tmp_path: Path) -> None:
    script = """
        import os, sys, threading, fastchangelog as fc
        options = {"preemptive_persist_threshold": "1KiB", "persist_size_threshold": "1KiB", "max_in_flight": "1KiB"}
        storage = fc.ChangelogStorage(sys.argv[1], options=options)
        writer = storage.writer("w", key_groups=range(4))

        def interrupt():
            while storage.metrics()["throttled_appends"] == 0:
                pass
            os.kill(os.getpid(), 2)

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            while True:
                writer.append(1, b"x" * 2000)
        except KeyboardInterrupt:
            print("interrupted")
        """
    # The upload that holds the memory does not end during the test: only the signal can end the wait.
    held = {**os.environ, "FASTCHANGELOG_FAILPOINTS": f"write.before-upload=sleep({PATIENCE}000)"}
    outcome = run(script, str(tmp_path), env=held)
    assert (outcome.returncode, outcome.stdout.split()) == (0, ["interrupted"]), outcome.stderr


def test_kill_nine_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, fastchangelog as fc
        storage = fc.ChangelogStorage(sys.argv[1], options={"file_sync": "false"})
        writer = storage.writer("w", key_groups=range(4))
        checkpoint = 0
        while True:
            checkpoint += 1
            writer.append(1, checkpoint.to_bytes(4, "big"))
            print(writer.persist(0, checkpoint).result(30).to_bytes().hex(), flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    handles = [fc.ChangelogHandle.from_bytes(bytes.fromhex(next(child.stdout))) for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    child.wait()
    with fc.ChangelogStorage(str(tmp_path)) as storage:
        assert [change.value for change in storage.reader().read(handles[-1])] == [
            i.to_bytes(4, "big") for i in range(1, 21)
        ]
        swept = storage.sweep([handles[-1]], grace="0s", dry_run=False)
        assert swept.kept == len({one["object"]["name"] for one in handles[-1].to_dict()["sets"]})
