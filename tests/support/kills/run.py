"""A streaming job in processes of its own, kills and faults by command, and a watch over all that must hold meanwhile.

Owns: the job's life, killing by role, holding a process at a failpoint, whose processes must end by themselves. Does
not own: what is killed when (`steps`, `campaign`), the job itself (`job`), its batches and their answers (`answers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyspark

from fastchangelog.demo import processes
from fastchangelog.demo.processes import Process
from support.kills.answers import Answers, Trouble
from support.kills.kinds import AGGREGATES, Kind
from support.spark import quick_spark

#: What a batch of the kill tests has.
_KEYS, _ROWS = 60, 150
_LOOK = 0.02
#: Seconds that a process may live on after the process that it belongs to was killed.
ORPHAN_PATIENCE = 60.0


class KillRun:
    """One query with its files under `folder`. Whatever is waited for, every new answer is compared."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        kind: Kind = AGGREGATES,
        master: str = "local[2,4]",
        partitions: int = 2,
        options: dict[str, str] | None = None,
        conf: dict[str, str] | None = None,
        patience: float = 240.0,
    ):
        self.folder = folder
        self._mark = f"kills-{os.getpid()}-{folder.name}"
        self.chance = random.Random(seed)
        self.answers = Answers(folder, kind.model(seed), kind.schema)
        self._patience = patience
        self._child: subprocess.Popen[bytes] | None = None
        #: When the job gave its first answer since its start.
        self._up: float | None = None
        self._orphans: dict[tuple[int, str], float] = {}
        #: Processes that were killed on purpose.
        self.killed: set[int] = set()
        self.starts = 0
        for name in ("in", "out", "meet", "local", "run", "tmp"):
            (folder / name).mkdir(parents=True)
        self._plan: dict[str, Any] = {
            "kind": kind.name,
            "folder": str(folder),
            "master": master,
            "partitions": partitions,
            "options": {"file_sync": "false", **(options or {})},
            "savepoints": {},
            "conf": {**quick_spark.job_settings(), **kind.conf, **(conf or {})},
        }

    # The job's life.

    def start(self) -> None:
        """Starts it, or starts it again."""
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self._plan))
        self._child = processes.start(
            [sys.executable, "-m", "support.kills.job", str(plan)],
            self._mark,
            self.folder,
            self.folder / "log",
            FASTCHANGELOG_FAILPOINTS=f"*=meet({self.folder / 'meet'})",
            XDG_RUNTIME_DIR=str(self.folder / "run"),
            TMPDIR=str(self.folder / "tmp"),
            SPARK_HOME=str(Path(pyspark.__file__).parent),
        )
        self.starts += 1
        self.answers.progress = time.monotonic()
        self._up = None

    def stop(self) -> None:
        """Ends it as a user would; nothing of it may live on."""
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            code = self._child.wait(self._patience)
        except subprocess.TimeoutExpired:
            raise Trouble("stuck", f"the job does not stop; {self._stacks()}") from None
        if code != 0:
            raise Trouble("ended", f"the job was stopped cleanly and ended with code {code}\n{self.tail()}")
        self.expect_nothing_living()
        self.answers.compare_new()

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

    def end(self) -> None:
        """Ends everything, whatever its state."""
        processes.end_all(self._mark)
        if self._child is not None:
            self._child.wait()

    def move(self, savepoints: dict[str, str], partitions: int) -> None:
        """From now on it is a new query, which begins with a savepoint of each state: batches count from 0, and nothing
        of the old query is there any more."""
        for name in ("in", "out", "checkpoint", "state"):
            shutil.rmtree(self.folder / name)
        for name in ("in", "out"):
            (self.folder / name).mkdir()
        self._plan.update(partitions=partitions, savepoints=savepoints)
        self.answers.begin_again()

    def living(self, *roles: str) -> list[Process]:
        """The job's processes, or those of some roles."""
        return processes.marked(self._mark, *roles)

    # Batches, and watching.

    def feed(self, keys: int = _KEYS) -> int:
        """One more batch of random rows with this many keys and null; its number."""
        return self.answers.put(self.answers.model.batch(keys, _ROWS))

    def answered(self, number: int) -> None:
        """Waits for a batch, which must be exact."""
        self.until(f"batch {number}", lambda: self.answers.has(number))

    def until(self, what: str, done: Callable[[], object]) -> None:
        """Waits until `done` says so."""
        if not self.wait(done, self._patience):
            raise Trouble("stuck", f"after {self._patience:.0f} s still waiting for {what}\n{self.tail()}")

    def look(self) -> None:
        """Compares what is new, and sees whether anything is not as it must be."""
        if self.answers.compare_new():
            self._up = self._up or self.answers.progress
        if self._child is not None and self._child.poll() is not None:
            raise Trouble("ended", f"the job ended by itself with code {self._child.returncode}\n{self.tail()}")
        now = time.monotonic()
        if self.answers.batches > self.answers.answered and now - self.answers.progress > self._patience:
            raise Trouble("stuck", f"no answer for {self._patience:.0f} s; {self._stacks()}\n{self.tail()}")
        late = {orphan: due for orphan, due in self._orphans.items() if due < now}
        for orphan in late:
            del self._orphans[orphan]
            if _identity(orphan[0]) == orphan:
                raise Trouble("leaked", f"process {orphan[0]} outlives its executor: {command(orphan[0])}")

    def wait(self, done: Callable[[], object], patience: float | None = None) -> bool:
        """Watches until `done` says so; False when patience ended."""
        deadline = time.monotonic() + (10 * self._patience if patience is None else patience)
        while True:
            self.look()
            if done():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)

    def orphans(self) -> bool:
        """True while something lives whose executor was killed."""
        return any(_identity(pid) == (pid, since) for pid, since in self._orphans)

    def homes(self) -> dict[int, list[str]]:
        """For each shard the servers that committed its batches, by the servers' logs."""
        found: dict[int, list[tuple[int, str]]] = {}
        for log in (self.folder / "run").rglob("server.log"):
            for line in map(json.loads, log.read_text().splitlines()):
                if line["event"] == "session" and line["outcome"] == "committed":
                    found.setdefault(line["shard"], []).append((line["batch"], log.parent.name))
        return {shard: [server for _, server in sorted(seen)] for shard, seen in found.items()}

    # Failpoints.

    def arm(self, point: str, action: str = "wait") -> None:
        """The next process that reaches `point` does this."""
        for old in (self.folder / "meet").glob(f"{point}.*"):
            old.unlink()
        new = self.folder / f"{point}.new"
        new.write_text(action)
        new.rename(self.folder / "meet" / point)

    def has_reached(self, point: str) -> bool:
        """True when some process has, since it was armed."""
        return (self.folder / "meet" / f"{point}.reached").exists()

    def reached(self, point: str, number: int) -> bool:
        """Waits until some process has, or until the batch is done without."""
        self.until(f"failpoint {point} or batch {number}", lambda: self.has_reached(point) or self.answers.has(number))
        return self.has_reached(point)

    def release(self, point: str) -> None:
        """Lets the processes continue that wait at `point`."""
        (self.folder / "meet" / f"{point}.go").touch()

    def disarm(self, *points: str) -> None:
        """These failpoints, or all, are not set any more."""
        meet = self.folder / "meet"
        for path in [meet / point for point in points] or list(meet.iterdir()):
            path.unlink(missing_ok=True)

    # Kills.

    def kill(self, role: str, pick: int | None = None) -> int:
        """kill -9 to all processes of a role, or to the one that `pick` chooses; how many there were."""
        found = sorted(self.living(role), key=lambda p: p.pid)
        chosen = found if pick is None or not found else [found[pick % len(found)]]
        below = self._below({p.pid for p in chosen}) if role == "executor" else []
        due = time.monotonic() + ORPHAN_PATIENCE
        self.killed |= {p.pid for p in chosen}
        hit = sum(processes.kill(p.pid) for p in chosen)
        self._orphans.update({orphan: due for pid in below if (orphan := _identity(pid))})
        return hit

    def _below(self, executors: set[int]) -> list[int]:
        """What these executors have started: daemons, their workers, state servers."""
        everything = self.living()
        daemons = {p.pid for p in everything if p.parent in executors}
        servers = {p.pid for p in everything if p.role == "state server" and _server_jvm(p.pid) in executors}
        return [p.pid for p in everything if p.pid in daemons | servers or p.parent in daemons]

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
        """All that state servers have on the local disk goes, while they may be writing there; Spark's files stay."""
        for _ in range(3):
            try:
                for data in (self.folder / "local").rglob("fastchangelog-*"):
                    for child in data.iterdir():
                        shutil.rmtree(child, ignore_errors=True) if child.is_dir() else child.unlink(missing_ok=True)
            except FileNotFoundError:
                continue  # something went away by itself meanwhile
            return

    def forget_local(self) -> None:
        """Everything on the local disk goes."""
        shutil.rmtree(self.folder / "local")
        (self.folder / "local").mkdir()

    # What is known of it when something is wrong.

    def _stacks(self) -> str:
        """What lives, and where the stacks of its JVMs were written to."""
        target = self.folder / "stacks"
        for jvm in self.living("JVM", "executor"):
            with target.open("a") as out, contextlib.suppress(subprocess.TimeoutExpired, FileNotFoundError):
                subprocess.run(["jstack", str(jvm.pid)], stdout=out, stderr=out, timeout=20, check=False)
        return ", ".join(f"{p.role} {p.pid}" for p in self.living()) + f"; stacks of the JVMs are in {target}"

    def tail(self) -> str:
        """The end of the job's log and of the servers' logs."""
        log = self.folder / "log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        noise = ("\tat ", "Streaming ", "WARNING: ")
        telling = [line for line in lines if line.strip() and not line.startswith(noise) and " WARN " not in line]
        logs: Sequence[Path] = list((self.folder / "run").rglob("server.log"))
        server = [line[:300] for log in logs for line in log.read_text(errors="replace").splitlines()[-5:]]
        return "\n".join([*(line[:300] for line in telling[-25:]), "server:", *server])


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
