"""One round: a query from its first batch to its last, struck as the plan says, then judged at rest.

Owns: doing the steps of a plan, and what must hold after them. Does not own: the plan (`plan`), the single
checks (`run`, `checks`, `store`), counting over rounds (`__main__`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fastchangelog.errors import FastChangelogError
from support.kills.answers import Trouble
from support.kills.campaign import checks
from support.kills.campaign.plan import (
    RUNNING_GRACE,
    Fault,
    Move,
    Restart,
    RollBack,
    Round,
    Savepoint,
    Step,
    Strike,
    Sweep,
)
from support.kills.campaign.report import ANYTIME, Finding, Tally, write_story
from support.kills.campaign.run import CampaignRun
from support.kills.campaign.store import Outside

#: Seconds until a process of a running job must have reached a failpoint; otherwise the kill comes at any moment.
REACH = 10.0
#: Ends in a row without an answer between them after which the job counts as lost.
_GIVE_UP = 3


class Conductor:
    """Does the steps of one round."""

    def __init__(
        self,
        plan: Round,
        run: CampaignRun,
        outside: Outside,
        tally: Tally,
        *,
        say: Callable[[str], None],
        enough: Callable[[], bool],
        rerun: str,
    ) -> None:
        self._plan, self._run, self._outside, self._tally = plan, run, outside, tally
        self._say, self._enough, self._rerun = say, enough, rerun
        query = {"seed": plan.seed, "kind": plan.kind, "partitions": plan.partitions, **plan.options}
        self._decisions = [json.dumps(query)]
        self._beside: list[tuple[str, Future[Any]]] = []
        self._excused: set[Path] = set()
        self._step = "start"
        self._began = time.monotonic()
        self._savepoints = 0
        #: Findings of this round.
        self.found = 0

    def go(self) -> None:
        """The whole round. A finding is counted; one after which the query is worth nothing ends the round."""
        try:
            self._run.start()
            self._guarded(self._first)
            for number, step in enumerate(self._plan.steps):
                if self._enough():
                    break
                self._note(f"step {number}: {step}")
                self._guarded(lambda step=step: self._do(step))  # type: ignore[misc]
            self._note("the end")
            self._finish()
        except Trouble as trouble:
            self._find(trouble)
        finally:
            self._run.end()
            for _, future in self._beside:
                future.cancel()
            self._count("batches", self._run.answers.fed)
            self._count("answers compared", self._run.answers.compared + self._run.answers.repeats)
            self._count("answers of repeated batches", self._run.answers.repeats)
            self._count("starts of the job", self._run.starts)

    # Steps.

    def _first(self) -> None:
        self._run.settle()

    def _do(self, step: Step) -> None:
        if isinstance(step, Strike):
            self._strike(step)
        elif isinstance(step, Fault):
            self._fault(step)
        elif isinstance(step, Sweep):
            self._later("sweep", self._outside.sweep, self._run.folder, RUNNING_GRACE)
        elif isinstance(step, Savepoint):
            self._later("savepoint", self._outside.savepoints, *self._savepoints_of(step.form))
        elif isinstance(step, Restart):
            self._stop()
            if step.wipe:
                self._run.forget_local()
            self._run.start()
        elif isinstance(step, RollBack):
            self._stop()
            first = self._run.answers.batches - step.batches
            if first > 0:
                self._run.answers.roll_back(first)
                self._count("batches rolled back", step.batches)
            self._run.start()
        elif isinstance(step, Move):
            self._move(step)
        self._look_beside()

    def _strike(self, step: Strike) -> None:
        run = self._run
        where = ANYTIME
        if step.point is None:
            until = time.monotonic() + step.pause
            run.wait(lambda: time.monotonic() >= until)
        elif self._reached(step.point, "wait", step.restoring):
            where = step.point
        else:
            self._tally.unreached[step.point] += 1

        def release() -> None:
            if step.point is not None:
                run.release(step.point)

        for victim in step.victims:
            if victim == "local disk":
                run.wipe()
                self._count("local disks wiped", 1)
            elif victim == "driver":
                self._hit(victim, where, run.kill_the_driver())
                release()
                self._guarded(run.expect_nothing_living)
                self._expect_nothing(checks.left_by_ended_servers(run.folder))
                self._again()
            elif victim == "everything":
                self._hit(victim, where, self._kill_everything())
                release()
                self._again()
            else:
                self._hit(victim, where, run.kill_some(victim, step.everyone, step.pick))
        release()
        if step.settle:
            run.settle()

    def _move(self, step: Move) -> None:
        run = self._run
        self._stop()
        try:
            savepoints = self._outside.later(self._outside.savepoints, *self._savepoints_of(step.form)).result()
        except FastChangelogError as error:
            self._count("savepoints refused", 1)
            self._say(f"  savepoint refused: {error}")
            run.start()
            return
        self._count("queries started from savepoints", 1)
        run.move(savepoints, step.partitions)
        run.arm(step.point)
        run.start()
        run.wait(lambda: run.has_reached(step.point) or run.answers.answered)
        where = step.point if run.has_reached(step.point) else ANYTIME
        for victim in step.victims:
            if victim == "local disk":
                run.wipe()
            else:
                self._hit(victim, where, run.kill_some(victim, True, 0))
        run.release(step.point)
        run.settle()

    def _savepoints_of(self, form: str) -> tuple[Any, ...]:
        """What taking the next savepoints is told."""
        self._savepoints += 1
        return self._run.folder, self._plan.kind, self._savepoints, form, self._run.answers.state_after

    def _kill_everything(self) -> int:
        """Also what is just being started; so crashes are looked for before."""
        run = self._run
        living = {process.pid for process in run.living()}
        self._expect_nothing(checks.crashes(run.folder, run.killed | living), "crashed")
        jvms = run.kill_everything()
        run.killed |= checks.started(run.folder)
        return jvms

    def _again(self) -> None:
        """Starts the job after its driver was killed: what it left on the disk is not looked at again."""
        self._excused.update(checks.data_folders(self._run.folder))
        self._run.start()

    def _fault(self, step: Fault) -> None:
        met = 0
        while met < step.times and self._reached(step.point, step.action, step.restoring):
            met += 1
        if met:
            self._tally.faults[step.point, step.action] += met
            self._say(f"  {met} requests met {step.action} at {step.point}")
        else:
            self._tally.unreached[step.point] += 1

    def _empty_servers(self) -> None:
        """The next batch restores its shards."""
        self._hit("state server", ANYTIME, self._run.kill_some("state server", True, 0))
        self._run.wipe()
        self._count("local disks wiped", 1)

    def _reached(self, point: str, action: str, restoring: bool) -> bool:
        """Arms a failpoint and waits until a process has reached it, in a restore if it must be one."""
        run = self._run
        run.arm(point, action)
        if restoring:
            self._empty_servers()
        if run.wait_running(lambda: run.has_reached(point), REACH):
            return True
        run.disarm(point)
        return run.has_reached(point)

    def _stop(self) -> None:
        """Stops cleanly, with everything committed."""
        self._run.drain()
        self._look_beside(wait=True)
        self._run.stop()
        self._count("clean stops", 1)
        folder = self._run.folder
        left = [*checks.left_folders(folder, self._excused), *checks.left_by_ended_servers(folder)]
        self._expect_nothing([*dict.fromkeys([*left, *checks.left_temporary(folder)])])

    def _expect_nothing(self, left: list[str], kind: str = "leaked") -> None:
        if left:
            # Found once, not at every stop.
            self._excused.update(checks.data_folders(self._run.folder))
            self._find(Trouble(kind, f"{len(left)} left: " + "; ".join(left[:5])))

    def _finish(self) -> None:
        """At rest: no process, no file, no object too many, none too few; then from the bucket alone, every key."""
        run, folder = self._run, self._run.folder
        self._guarded(self._stop, again=True)
        deleted, reachable = self._outside.later(self._outside.at_rest, folder, self._plan.kind).result()
        self._count("objects deleted by sweeps", deleted)
        self._count("objects reachable at the ends", reachable)
        run.forget_local()
        self._excused.clear()
        run.start()
        run.feeds = False
        rows = run.feed_touches()
        run.wait(lambda: run.answers.answered == run.answers.batches)
        self._count("rows compared after a restart from the bucket alone", rows)
        run.answers.compare_all()
        self._guarded(self._stop, again=True)
        self._expect_nothing(checks.crashes(folder, run.killed), "crashed")
        self._expect_nothing(checks.internal_errors(folder), "crashed")

    # Beside the strikes.

    def _later(self, what: str, call: Callable[..., Any], *arguments: Any) -> None:
        self._beside.append((what, self._outside.later(call, *arguments)))

    def _look_beside(self, wait: bool = False) -> None:
        """Takes the results of sweeps and savepoints that are done."""
        for what, future in list(self._beside):
            if wait:
                while not future.done():
                    self._run.look()
                    time.sleep(0.05)
            if not future.done():
                continue
            self._beside.remove((what, future))
            error = future.exception()
            if error is None:
                self._count(f"{what}s beside the job", 1)
                if what == "sweep":
                    for report in future.result():
                        self._count("objects deleted by sweeps", len(report.deleted))
                        self._count("sweeps that deleted nothing for a doubt", int(report.kept_because is not None))
                        self._say(f"  swept: {len(report.deleted)} deleted; {report.kept_because or 'no doubt'}")
            elif isinstance(error, Trouble):
                self._find(error)
            elif isinstance(error, FastChangelogError):
                self._count(f"{what}s refused", 1)
                self._say(f"  {what} refused: {error}")
            else:
                raise error

    # Counting and findings.

    def _hit(self, role: str, where: str, processes: int) -> None:
        if processes:
            self._tally.kills[role, where] += 1
            self._tally.processes[role] += processes
            self._say(f"  killed {role} ({processes}) at {where}")
        else:
            self._count("strikes that met no process", 1)

    def _count(self, what: str, number: int) -> None:
        self._tally.counts[what] += number

    def _note(self, text: str) -> None:
        self._step = text
        line = f"{time.monotonic() - self._began:6.1f} s, batch {self._run.answers.answered}: {text}"
        self._decisions.append(line)
        self._say(line)

    def _guarded(self, do: Callable[[], None], again: bool = False) -> None:
        """A job that ended by itself is started again; the rest of the step is left out, or done again."""
        try:
            do()
            return
        except Trouble as trouble:
            if trouble.kind not in ("ended", "leaked"):
                raise
            self._find(trouble)
            if trouble.kind == "leaked":
                return
        self._revive()
        if again:
            do()

    def _revive(self) -> None:
        for _ in range(_GIVE_UP):
            self._kill_everything()
            self._run.disarm()
            self._run.start()
            try:
                self._run.settle()
                return
            except Trouble as trouble:
                if trouble.kind != "ended":
                    raise
                self._find(trouble)
        raise Trouble("lost", f"the job was started {_GIVE_UP} times and ended each time without an answer")

    def _find(self, trouble: Trouble) -> None:
        self.found += 1
        finding = Finding(trouble.kind, trouble.what, self._plan.number, self._step, str(self._run.folder))
        self._tally.findings.append(finding)
        write_story(self._run.folder, finding, self._decisions, self._run.tail(), self._rerun)
        self._say(f"FOUND {trouble.kind}: {trouble.what}; {self._run.folder}")
