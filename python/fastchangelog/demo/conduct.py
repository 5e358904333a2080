"""Runs the job, kills parts of it at random moments, starts it again, and notes what happened when.

Owns: the job process, the choice of moments (from a seed), the events, the times of recovery.
Does not own: what the job does, what is printed (it calls `show` with one line of progress at a time).

A kill is due in a given batch of a given query: after the batch before it was seen, at a random part of the time that a
batch takes. Recovery is the time from the kill to the end of the next batch, whatever was needed in between: another
attempt of the task, another server, another JVM.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastchangelog.demo import processes
from fastchangelog.demo.plan import Job, Query
from fastchangelog.errors import FastChangelogError

_SILENCE_SECONDS = 180
_MAX_STARTS = 12
_ROLES = {"worker": ("worker",), "state server": ("state server",), "JVM": ("JVM", "driver")}


@dataclasses.dataclass
class Kill:
    """A kill that is due, then what came of it."""

    query: str
    batch: int
    victim: str
    #: Where in the batch, as a part of the time that batches take.
    moment: float
    pid: int = 0
    at: float = 0.0
    recovered: float | None = None
    restarts: int = 0


@dataclasses.dataclass(frozen=True)
class Batch:
    """A finished batch."""

    query: str
    number: int
    rows: int
    millis: int
    metrics: dict[str, int]
    #: First of its start, or hit by a kill: its time is no measure of anything.
    disturbed: bool


def plan_kills(queries: tuple[Query, ...], rng: random.Random) -> list[Kill]:
    """For ours: a worker, a state server and a JVM, in different batches and any order; for native Spark: a JVM."""
    kills = []
    for query in queries:
        victims = ["worker", "state server", "JVM"] if query.kind == "ours" else ["JVM"]
        rng.shuffle(victims)
        # Not in the first batch, where nothing is known yet, and not in the last, after which nothing would be seen.
        batches = range(1, max(2, query.batches - 1))
        chosen = sorted(rng.sample(batches, min(len(victims), len(batches))))
        for batch, victim in zip(chosen, victims, strict=False):
            kills.append(Kill(query.id, batch, victim, rng.uniform(0.05, 0.95)))
    return kills


class Conductor:
    """One run of the demo."""

    def __init__(self, work: Path, run: str, log: Path, kills: list[Kill], rng: random.Random):
        self._work, self._run, self._log = work, run, log
        self._rng = rng
        self.kills = kills
        self.batches: list[Batch] = []
        self.prepared_rows: int | None = None
        self._due: list[Kill] = list(kills)
        self._open: list[Kill] = []
        self._done: set[str] = set()
        self._finished = False
        self._fresh_start = True
        self._hit = False
        self._error: str | None = None
        self._started = time.time()

    def conduct(self, job: Job, show: Callable[[str], None]) -> None:
        """Runs the job to its end, through all kills."""
        starts = 0
        while not self._finished:
            if starts == _MAX_STARTS:
                raise FastChangelogError(f"the job ended {starts} times: {self._why()}; see {self._log}")
            starts += 1
            rest = dataclasses.replace(job, queries=tuple(q for q in job.queries if q.id not in self._done))
            kills_before = len([k for k in self.kills if k.victim == "JVM" and k.pid])
            self._one_start(rest, show, starts)
            for kill in self._open:
                kill.restarts += 1
            jvm_killed = len([k for k in self.kills if k.victim == "JVM" and k.pid]) > kills_before
            if not self._finished and not jvm_killed and not self._open:
                raise FastChangelogError(f"the job failed: {self._why()}; see {self._log}")

    def _why(self) -> str:
        return self._error or "no message"

    def _one_start(self, job: Job, show: Callable[[str], None], number: int) -> None:
        events = self._work / f"events-{number}.jsonl"
        events.touch()
        plan = self._work / f"job-{number}"
        dataclasses.replace(job, events=str(events)).write(plan)
        self._fresh_start, self._hit = True, False
        show("starting Spark" if number == 1 else "starting Spark again")
        local, runtime = self._work / "local", self._work / "run"
        local.mkdir(exist_ok=True)
        runtime.mkdir(mode=0o700, exist_ok=True)
        child = processes.start(
            [sys.executable, "-m", "fastchangelog.demo.job", str(plan)],
            self._run,
            self._work,
            self._log,
            SPARK_LOCAL_DIRS=str(local),
            XDG_RUNTIME_DIR=str(runtime),
            PYSPARK_PYTHON=sys.executable,
            PYSPARK_DRIVER_PYTHON=sys.executable,
            PYTHONUNBUFFERED="1",
        )
        with events.open() as lines:
            heard = time.monotonic()
            while True:
                ended = child.poll() is not None
                while line := lines.readline():
                    heard = time.monotonic()
                    self._take(json.loads(line), show)
                if ended:
                    return
                if time.monotonic() - heard > _SILENCE_SECONDS:
                    raise FastChangelogError(f"nothing happened for {_SILENCE_SECONDS} s; see {self._log}")
                self._kill_if_due()
                time.sleep(0.01)

    # Events of the job.

    def _take(self, event: dict[str, Any], show: Callable[[str], None]) -> None:
        kind = event["event"]
        if kind == "batch":
            disturbed = self._fresh_start or self._hit
            self._fresh_start = self._hit = False
            metrics = {k: int(v) for k, v in event["metrics"].items()}
            self.batches.append(Batch(event["query"], event["batch"], event["rows"], event["ms"], metrics, disturbed))
            for kill in self._open:
                kill.recovered = event["time"] - kill.at
            self._open.clear()
            show(f"{event['query']}: batch {event['batch'] + 1} done")
            self._arm(event["query"], event["batch"] + 1, event["time"])
        elif kind == "prepared":
            self.prepared_rows = int(event["rows"])
            show(f"prepared {self.prepared_rows:,} rows")
        elif kind == "started":
            self._fresh_start = True
            show(f"{event['query']}: running")
        elif kind == "done":
            self._done.add(event["query"])
            self._due = [k for k in self._due if k.query != event["query"]]
        elif kind == "finished":
            self._finished = True
        elif kind == "error":
            self._error = event["message"]

    # Kills.

    def _arm(self, query: str, batch: int, now: float) -> None:
        """The kill of this batch gets its time of day."""
        for kill in self._due:
            if kill.query == query and kill.batch <= batch and not kill.at:
                kill.at = now + kill.moment * self._usual_seconds(query)
                return

    def _usual_seconds(self, query: str) -> float:
        times = [b.millis for b in self.batches if b.query == query and not b.disturbed]
        times = times or [b.millis for b in self.batches[-1:]]
        return statistics.median(times) / 1000 if times else 0.5

    def _kill_if_due(self) -> None:
        for kill in [k for k in self._due if k.at and time.time() >= k.at]:
            living = processes.marked(self._run)
            roles = _ROLES[kill.victim]
            victims = [p for p in living if p.role == roles[0]]
            if not victims:
                continue  # not there yet, as a worker between two tasks: next time round
            victim = self._rng.choice(sorted(victims, key=lambda p: p.pid))
            kill.at = time.time()
            if not processes.kill(victim.pid):
                continue
            for other in living:
                if other.role in roles[1:]:
                    processes.kill(other.pid)
            kill.pid = victim.pid
            self._due.remove(kill)
            self._open.append(kill)
            self._hit = True
