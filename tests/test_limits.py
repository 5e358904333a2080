"""Limits of the process: threads, open files, address space. An error names the limit; once it is lifted, all goes on.

Owns: programs under such a limit. Does not own: limits of our own (`test_options`), full disks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.programs import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these limits are those of Linux")

#: `limit(resource, value)` until `lift()`. The limit of threads is no limit for root.
LIMITED = """
    import faulthandler, os, resource, sys, tempfile
    faulthandler.dump_traceback_later(45, exit=True)
    import pyarrow.compute, fastchangelog as fc, fastchangelog.embedded.state, fastchangelog.changelog
    import fastchangelog.materialization.embedded
    folder = sys.argv[1]
    if os.geteuid() == 0:
        # The folders of tests belong to their user alone.
        for name in (folder := tempfile.mkdtemp(), temp := tempfile.mkdtemp()):
            os.chmod(name, 0o777)
        os.environ["TMPDIR"], tempfile.tempdir = temp, None
        os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
    before = {}
    def limit(which, soft):
        before[which] = resource.getrlimit(which)
        resource.setrlimit(which, (soft, before[which][1]))
    def lift():
        for which, both in before.items():
            resource.setrlimit(which, both)
    def attempt(call):
        try:
            call()
            return "works"
        except fc.FastChangelogError as error:
            assert not isinstance(error, fc.InternalError) and "report" not in str(error), error
            return str(error)
    def of_threads(more):
        limit(resource.RLIMIT_NPROC, len(os.listdir("/proc/self/task")) + more if os.getuid() == 65534 else 1)
    def of_files(more):
        limit(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + more)
    def of_memory(more):
        pages = int(open("/proc/self/statm").read().split()[0])
        limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)
    def use(name):
        with fc.open_state(folder, name=name, options={"file_sync": False, "materialization_log_bytes": 1}) as st:
            t = st.value_state("t", key="long", value="string")
            for _ in range(3):
                t.put_many(range(500), ["x" * 100] * 500)
                st.checkpoint()
    def log(name):
        with fc.ChangelogStorage(folder + "/log") as storage:
            writer = storage.writer(name, key_groups=range(4))
            writer.append(1, b"x")
            writer.persist(0, checkpoint_id=1).result(20)
    """


@pytest.mark.parametrize(
    ("limit", "says"),
    [(f"of_threads({more})", "ulimit -u") for more in (0, 1, 3, 5, 7, 9)]
    + [(f"of_files({more})", "ulimit -n") for more in (1, 4, 12)]
    + [(f"of_memory({more} << 20)", "ulimit -v") for more in (8, 100, 400)],
)
def test_an_open_under_a_limit_works_or_names_it(tmp_path: Path, limit: str, says: str) -> None:
    outcome = run(
        LIMITED
        + f"""
    {limit}
    said = [attempt(lambda: use("a")), attempt(lambda: log("b"))]
    lift()
    print(*said, sep="\\n")
    print(attempt(lambda: use("a")), attempt(lambda: log("c")))
        """,
        str(tmp_path),
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    *said, after = outcome.stdout.splitlines()
    assert after == "works works", outcome.stdout
    assert all(text == "works" or says in text for text in said), said


@pytest.mark.parametrize(
    ("limit", "says"),
    [("of_threads(0)", "ulimit -u"), ("of_files(1)", "ulimit -n"), ("of_memory(80 << 20)", "ulimit -v")],
)
def test_an_open_state_goes_on_once_a_limit_is_lifted(tmp_path: Path, limit: str, says: str) -> None:
    outcome = run(
        LIMITED
        + f"""
    options = {{"file_sync": True, "materialization_log_bytes": 1}}
    st = fc.open_state(folder, options=options)
    t = st.value_state("t", key="long", value="string")
    storage = fc.ChangelogStorage(folder + "/log")
    writer = storage.writer("w", key_groups=range(4))
    texts = ["x" * 1000] * 20_000
    {limit}
    def change():
        t.put_many(range(20_000), texts)
        st.begin_checkpoint().result(20)
    def persist():
        writer.append(1, b"x")
        writer.persist(0, checkpoint_id=1).result(20)
    said = [attempt(change) for _ in range(3)] + [attempt(persist), attempt(lambda: len(t))]
    lift()
    print(*said, sep="\\n")
    print(attempt(change), attempt(persist), attempt(lambda: len(t)), attempt(st.close), attempt(storage.close))
        """,
        str(tmp_path),
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    *said, after = outcome.stdout.splitlines()
    assert after == "works works works works works", outcome.stdout
    assert all(text == "works" or says in text for text in said), said
