"""A streaming job in processes of its own, kills and faults by command, and a plain model of what it must answer.

Owns: the job's life, its input, killing by role, holding a process at a failpoint. Does not own: which kill is tried
when (`test_kills`), the job itself (`job`), its query and the model of it (`kinds`).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from fastchangelog.demo import processes
from fastchangelog.demo.processes import Process
from support.kills.kinds import AGGREGATES, Kind
from support.spark import quick_spark
from support.waiting import until

_KEYS = 60
_ROWS = 150


class KillRun:
    """One query with its files under `folder`; the numbers of its batches are those of its input files."""

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
        program: str = "support.kills.job",
    ):
        self.folder = folder
        self._mark = f"kills-{os.getpid()}-{folder.name}"
        self._program = program
        self._random = random.Random(seed)
        self.kind = kind
        self._model = kind.model(seed)
        self._expected: list[list[list[Any]]] = []
        self._child: subprocess.Popen[bytes] | None = None
        self.starts = 0
        for name in ("in", "out", "meet", "local", "run", "tmp"):
            (folder / name).mkdir(parents=True)
        self._plan = {
            "kind": kind.name,
            "folder": str(folder),
            "master": master,
            "partitions": partitions,
            "options": {"file_sync": "false", **(options or {})},
            "conf": {**quick_spark.job_settings(), **kind.conf, **(conf or {})},
        }

    # The job.

    def start(self) -> None:
        """Starts it, or starts it again."""
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self._plan))
        env = {
            **os.environ,
            processes.MARK: self._mark,
            "FASTCHANGELOG_FAILPOINTS": f"*=meet({self.folder / 'meet'})",
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "TMPDIR": str(self.folder / "tmp"),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", self._program, str(plan)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )
        self.starts += 1

    def stop(self) -> None:
        """Ends it as a user would; nothing of it may be left."""
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._until("the job's end", lambda: self._child is None or self._child.poll() is not None, alive=False)
        assert self._child.returncode == 0, self._tail()
        until(f"the end of all processes: {self.living()}", lambda: not self.living())

    def end(self) -> None:
        """Ends everything, whatever its state."""
        processes.end_all(self._mark)
        if self._child is not None:
            self._child.wait()

    def forget_state_server(self) -> None:
        """All that the state servers have on the local disk goes; Spark's own files stay."""
        for data in (self.folder / "local").rglob("fastchangelog-*"):
            for child in data.iterdir():
                shutil.rmtree(child, ignore_errors=True) if child.is_dir() else child.unlink(missing_ok=True)

    def forget_local(self) -> None:
        """Everything on the local disk goes."""
        shutil.rmtree(self.folder / "local")
        (self.folder / "local").mkdir()

    def living(self, *roles: str) -> list[Process]:
        """The job's processes, or those of some roles."""
        return [p for p in processes.marked(self._mark) if not roles or p.role in roles]

    # Input and output.

    def feed(self, keys: int = _KEYS) -> int:
        """One more batch of random rows with this many keys and null; its number."""
        return self._put(self._model.batch(keys, _ROWS))

    def _put(self, rows: list[Any]) -> int:
        """One more batch of these rows; its number."""
        number = len(self._expected)
        self._expected.append(sorted(self._model.apply(rows), key=repr))
        new = self.folder / f"{number}.parquet"
        pq.write_table(pa.table([list(column) for column in zip(*rows, strict=True)], schema=self.kind.schema), new)
        os.utime(new, (1_700_000_000 + number, 1_700_000_000 + number))
        new.rename(self.folder / "in" / f"{number:06d}.parquet")
        return number

    def answered(self, number: int) -> None:
        """Waits for a batch and compares it."""
        self._until(f"batch {number}", self._out(number).exists)
        self._compare(number)

    def _out(self, number: int) -> Path:
        return self.folder / "out" / f"{number:06d}.json"

    def check_all(self) -> None:
        """Every batch again: one that ran twice must have answered the same."""
        for number in range(len(self._expected)):
            self._compare(number)

    def _compare(self, number: int) -> None:
        got = json.loads(self._out(number).read_text())
        assert got == self._expected[number], f"batch {number} is not exact"

    # Faults.

    def arm(self, point: str, action: str = "wait") -> None:
        """The next process that reaches `point` does this."""
        for old in (self.folder / "meet").glob(f"{point}.*"):
            old.unlink()
        new = self.folder / f"{point}.new"
        new.write_text(action)
        new.rename(self.folder / "meet" / point)

    def reached(self, point: str, number: int) -> bool:
        """Waits until some process has, or until the batch is done without."""
        sign = self.folder / "meet" / f"{point}.reached"
        out = self._out(number)
        self._until(f"failpoint {point} or batch {number}", lambda: sign.exists() or out.exists())
        return sign.exists()

    def release(self, point: str) -> None:
        """Lets the processes continue that wait at `point`."""
        (self.folder / "meet" / f"{point}.go").touch()

    def kill(self, *roles: str) -> int:
        """kill -9 to all processes of these roles; how many there were."""
        return sum(processes.kill(p.pid) for p in self.living(*roles))

    def kill_driver(self) -> None:
        """kill -9 to everything; then the job is started again."""
        self.end()
        self.start()

    def lose_machine(self) -> None:
        """The same, and everything on the local disk is gone."""
        self.end()
        self.forget_local()
        self.start()

    def roll_back(self, number: int) -> None:
        """As if batches from `number` on had never been committed; their answers go too."""
        checkpoint = self.folder / "checkpoint"
        # The first of them stays planned, as after a crash; of the later ones Spark must not know.
        for log, first in (("commits", number), ("offsets", number + 1), ("sources/0", number + 1)):
            for path in (checkpoint / log).iterdir():
                name = path.name.strip(".").split(".")[0]  # "3", ".3.crc" beside it; every tenth is "9.compact"
                if name.isdigit() and int(name) >= first:
                    path.unlink()
        for path in (self.folder / "out").iterdir():
            if int(path.stem) >= number:
                path.unlink()

    def homes(self) -> dict[int, list[str]]:
        """For each shard the servers that committed its batches, by the servers' logs."""
        found: dict[int, list[tuple[int, str]]] = {}
        for log in (self.folder / "run").rglob("server.log"):
            for line in map(json.loads, log.read_text().splitlines()):
                if line["event"] == "session" and line["outcome"] == "committed":
                    found.setdefault(line["shard"], []).append((line["batch"], log.parent.name))
        return {shard: [server for _, server in sorted(seen)] for shard, seen in found.items()}

    # Chance, from the run's seed.

    def random_moment(self, seconds: float) -> float:
        """A part of it."""
        return self._random.uniform(0, seconds)

    def choose(self, among: list[str]) -> str:
        """One of them."""
        return self._random.choice(among)

    def _until(self, what: str, done: Any, alive: bool = True) -> None:
        def look() -> bool:
            if done():
                return True
            if alive and self._child is not None and self._child.poll() is not None:
                raise AssertionError(f"the job ended while waiting for {what}\n{self._tail()}")
            return False

        try:
            until(what, look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._tail()}") from None

    def _tail(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        noise = ("\tat ", "Streaming ", "WARNING: ")
        telling = [line for line in lines if line.strip() and not line.startswith(noise) and " WARN " not in line]
        logs: Sequence[Path] = list((self.folder / "run").rglob("server.log"))
        server = [line[:300] for log in logs for line in log.read_text(errors="replace").splitlines()[-5:]]
        return "\n".join([*(line[:300] for line in telling[-25:]), "server:", *server])
