"""One query of the campaign: fed all the time, watched all the time, killed when asked.

Owns: the job's life as a campaign needs it, the comparison of every answer whenever it is written, whose processes must
end by themselves. Does not own: what happens when (`round`), files, objects and logs at rest
(`checks`).
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastchangelog.demo import processes
from fastchangelog.demo.processes import Process
from support.kills.campaign.kinds import KINDS
from support.kills.campaign.plan import Round
from support.kills.run import KillRun

_LOOK = 0.02
#: Batches that the job has before it: it never waits for input.
_AHEAD = 2
#: Seconds that a process may live on after the process that it belongs to was killed.
ORPHAN_PATIENCE = 60.0
#: Batches that Spark keeps: more than a plan rolls back.
RETAINED = 8

_CONF = {
    # As many failures of one task as a campaign causes: Spark's default gives up after four.
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
    # A compacted log of the source cannot be rolled back by deleting files.
    "spark.sql.streaming.fileSource.log.compactInterval": "1000000",
}


class Trouble(Exception):
    """What a campaign looks for."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what


class CampaignRun(KillRun):
    """A query whose answers are compared with the model's as soon as they are there, and again when written again."""

    def __init__(self, folder: Path, plan: Round, master: str, patience: float) -> None:
        java = {
            f"spark.{side}.extraJavaOptions": f"-Djava.io.tmpdir={folder / 'tmp'}" for side in ("driver", "executor")
        }
        super().__init__(
            folder,
            plan.seed,
            kind=KINDS[plan.kind],
            master=master,
            partitions=plan.partitions,
            options=plan.options,
            conf={**_CONF, **java},
            program="support.kills.campaign.job",
        )
        self._patience = patience
        self._snapshots: list[dict[Any, Any]] = []
        self._seen: dict[int, tuple[int, int]] = {}
        self._progress = time.monotonic()
        #: When the job gave its first answer since its start.
        self._up: float | None = None
        self._orphans: dict[tuple[int, str], float] = {}
        #: Processes that were killed on purpose.
        self.killed: set[int] = set()
        #: Batches that were fed, of all queries that went on from one another.
        self.fed = 0
        #: Answers compared for the first time, and again.
        self.answers = self.repeats = 0

    # Input and output.

    @property
    def batches(self) -> int:
        """Batches that were fed to this query."""
        return len(self._expected)

    @property
    def answered_batches(self) -> int:
        """Those of them that have an answer."""
        return len(self._seen)

    def feed_more(self, rows: list[Any] | None = None) -> int:
        """One more batch of these rows, or of random ones; its number."""
        number = self._put(self._model.rows() if rows is None else rows)
        self.fed += 1
        self._snapshots.append(self._model.snapshot())
        return number

    def feed_touches(self) -> int:
        """One more batch with a row for every key; how many keys there are."""
        rows = self._model.touches()
        self.feed_more(rows)
        return len(rows)

    def state_after(self, batch: int) -> dict[Any, Any]:
        """What every key had after a batch."""
        return self._snapshots[batch]

    def compare_new(self) -> None:
        """Compares what was written since the last look."""
        for path in sorted((self.folder / "out").glob("*.json")):
            number, found = int(path.stem), path.stat()
            sign = (found.st_mtime_ns, found.st_ino)
            if self._seen.get(number) == sign:
                continue
            self._check(number)
            if number in self._seen:
                self.repeats += 1
            else:
                self.answers += 1
            self._seen[number] = sign
            self._progress = time.monotonic()
            self._up = self._up or self._progress

    def compare_all(self) -> None:
        """Compares every batch again."""
        for number in sorted(self._seen):
            self._check(number)

    def _check(self, number: int) -> None:
        got, wanted = json.loads(self._out(number).read_text()), self._expected[number]
        if got != wanted:
            raise Trouble("wrong", f"batch {number}: {_difference(got, wanted)}")

    def roll_back(self, number: int) -> None:
        """See `KillRun.roll_back`: the answers from `number` on are awaited again."""
        super().roll_back(number)
        for batch in [batch for batch in self._seen if batch >= number]:
            del self._seen[batch]
            self.answers -= 1

    # Watching.

    def look(self, feed: bool = True) -> None:
        """Compares what is new, feeds what is missing, and sees whether anything is not as it must be."""
        self.compare_new()
        while feed and self.batches - self.answered_batches < _AHEAD:
            if self.batches == self.answered_batches:
                self._progress = time.monotonic()
            self.feed_more()
        if self._child is not None and self._child.poll() is not None:
            raise Trouble("ended", f"the job ended by itself with code {self._child.returncode}")
        now = time.monotonic()
        if self.batches > self.answered_batches and now - self._progress > self._patience:
            raise Trouble("stuck", f"no answer for {self._patience:.0f} s; {self._stacks()}")
        late = {orphan: due for orphan, due in self._orphans.items() if due < now}
        for orphan in late:
            del self._orphans[orphan]
            if _identity(orphan[0]) == orphan:
                raise Trouble("leaked", f"process {orphan[0]} outlives its executor: {command(orphan[0])}")

    def wait(self, done: Callable[[], object], patience: float | None = None, feed: bool = True) -> bool:
        """Watches until `done` says so; False when patience ended."""
        deadline = time.monotonic() + (10 * self._patience if patience is None else patience)
        while True:
            self.look(feed)
            if done():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)

    def wait_running(self, done: Callable[[], object], patience: float) -> bool:
        """As `wait`; the patience begins when the job has answered for the first time since its start."""
        asked = time.monotonic()
        ended = False

        def look() -> bool:
            nonlocal ended
            ended = self._up is not None and time.monotonic() > max(self._up, asked) + patience
            return bool(done()) or ended

        self.wait(look)
        return not ended or bool(done())

    def settle(self) -> None:
        """Waits for one more answer."""
        before = self.answered_batches
        self.wait(lambda: self.answered_batches > before)

    def drain(self) -> None:
        """Waits until every batch is answered and committed."""
        self.wait(lambda: self.answered_batches == self.batches, feed=False)
        last = self.folder / "checkpoint" / "commits" / str(self.batches - 1)
        if not self.wait(last.exists, self._patience, feed=False):
            raise Trouble("stuck", f"batch {self.batches - 1} was answered and is not committed; {self._stacks()}")

    # The job's life.

    def start(self) -> None:
        """Starts it, or starts it again."""
        super().start()
        self._progress = time.monotonic()
        self._up = None

    def stop_cleanly(self) -> None:
        """Ends it as a user would; nothing of it may live on."""
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            code = self._child.wait(self._patience)
        except subprocess.TimeoutExpired:
            raise Trouble("stuck", f"the job does not stop; {self._stacks()}") from None
        if code != 0:
            raise Trouble("ended", f"the job was stopped cleanly and ended with code {code}")
        self.expect_nothing_living()
        self.compare_new()

    def expect_nothing_living(self) -> None:
        """Whatever belongs to the job ends by itself; what does not is ended here."""
        deadline = time.monotonic() + ORPHAN_PATIENCE
        while left := self.living():
            if time.monotonic() > deadline:
                told = "; ".join(f"{p.role} {p.pid}: {command(p.pid)}" for p in left)
                self.killed |= {p.pid for p in left}
                processes.end_all(self._mark)
                raise Trouble("leaked", f"{len(left)} processes outlive the job: {told}")
            time.sleep(_LOOK)
        self._orphans.clear()

    def move(self, savepoint: str, partitions: int) -> None:
        """From now on it is a new query, which begins with a savepoint: batches count from 0, and nothing of the old
        query is there any more."""
        for name in ("in", "out", "checkpoint", "state"):
            shutil.rmtree(self.folder / name)
        for name in ("in", "out"):
            (self.folder / name).mkdir()
        self._plan.update(partitions=partitions, options={**self._plan["options"], "start_from": savepoint})
        self._expected, self._snapshots, self._seen = [], [], {}
        self._model.moved()

    # Kills.

    def kill_some(self, role: str, everyone: bool, pick: int) -> int:
        """kill -9 to all processes of a role, or to one of them; waits a little for the first. How many there were."""
        found: list[Process] = []

        def look() -> bool:
            found[:] = sorted(self.living(role), key=lambda p: p.pid)
            return bool(found)

        if not self.wait_running(look, 10.0):
            return 0
        chosen = found if everyone else [found[pick % len(found)]]
        below = self._below({p.pid for p in chosen}) if role == "executor" else []
        due = time.monotonic() + ORPHAN_PATIENCE
        hit = 0
        for process in chosen:
            self.killed.add(process.pid)
            hit += processes.kill(process.pid)
        self._orphans.update({orphan: due for pid in below if (orphan := _identity(pid))})
        return hit

    def _below(self, executors: set[int]) -> list[int]:
        """What these executors have started: daemons, their workers, state servers."""
        everything = self.living()
        daemons = {p.pid for p in everything if p.parent in executors}
        servers = {p.pid for p in everything if p.role == "state server" and _server_jvm(p.pid) in executors}
        return [p.pid for p in everything if p.pid in daemons | servers or p.parent in daemons]

    def disarm(self) -> None:
        """No failpoint is set any more."""
        for path in (self.folder / "meet").iterdir():
            path.unlink(missing_ok=True)

    def kill_the_driver(self) -> int:
        """kill -9 to the driver's Python and JVM; all else must end by itself."""
        assert self._child is not None
        jvms = [p.pid for p in self.living("JVM")]
        self.killed |= {*jvms, self._child.pid}
        hit = sum(processes.kill(pid) for pid in [*jvms, self._child.pid])
        self._child.wait()
        return int(hit > 0)

    def kill_everything(self) -> int:
        """kill -9 to all processes; how many JVMs there were."""
        found = self.living()
        self.killed |= {p.pid for p in found}
        self.end()
        self._orphans.clear()
        return sum(p.role in ("JVM", "executor") for p in found)

    def wipe(self) -> None:
        """What the state servers have on the local disk goes, while they may be writing there."""
        for _ in range(3):
            try:
                self.forget_state_server()
            except FileNotFoundError:
                continue  # something went away by itself meanwhile
            return

    def _stacks(self) -> str:
        """What lives, and where the stacks of its JVMs were written to."""
        target = self.folder / "stacks"
        for jvm in self.living("JVM", "executor"):
            with target.open("a") as out, subprocess.Popen(["jstack", str(jvm.pid)], stdout=out, stderr=out) as process:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
        return ", ".join(f"{p.role} {p.pid}" for p in self.living()) + f"; stacks of the JVMs are in {target}"

    def tail(self) -> str:
        """The end of the job's log and of the servers' logs."""
        return self._tail()


def command(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "gone"


def _identity(pid: int) -> tuple[int, str] | None:
    """A process told apart from later ones of the same pid; None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (pid, fields[19])


def _server_jvm(pid: int) -> int | None:
    """The executor that a state server belongs to, by its command line."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    found = re.search(r'"jvm": \[(\d+),', text)
    return int(found[1]) if found else None


def _difference(got: list[list[Any]], wanted: list[list[Any]]) -> str:
    """The rows of the first key that are not equal: a processor may answer several for one."""
    rows, want = _by_key(got), _by_key(wanted)
    for key in sorted(rows.keys() | want.keys(), key=repr):
        if rows.get(key) != want.get(key):
            return f"key {key!r} is {rows.get(key)}, must be {want.get(key)}"
    return "rows are not in their order"


def _by_key(rows: list[list[Any]]) -> dict[Any, list[list[Any]]]:
    found: dict[Any, list[list[Any]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found
