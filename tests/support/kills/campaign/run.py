"""One query of the campaign: fed all the time, watched all the time, killed when asked.

Owns: how much is fed, the settings of Spark for hundreds of kills, kills that wait for their victims. Does not own: the
job's life and what is watched (`kills.run`), what happens when (`round`), files, objects and logs at rest (`checks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from support.kills.answers import Trouble
from support.kills.campaign.plan import Round
from support.kills.kinds import KINDS
from support.kills.run import KillRun

#: Batches that the job has before it: it never waits for input.
_AHEAD = 2
#: Batches that Spark keeps: more than a plan rolls back.
RETAINED = 8
#: Keys and rows of a batch: few or many.
_KEYS, _ROWS = (2, 20, 60, 300), (20, 150, 400)

_CONF = {
    # As many failures of one task as a campaign causes: Spark's default gives up after four.
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
    # A compacted log of the source cannot be rolled back by deleting files.
    "spark.sql.streaming.fileSource.log.compactInterval": "1000000",
}


class CampaignRun(KillRun):
    """A query that has the next batches before it."""

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
            patience=patience,
        )
        #: False while nothing more is fed.
        self.feeds = True

    def look(self) -> None:
        """Also feeds what is missing."""
        super().look()
        while self.feeds and self.answers.batches - self.answers.answered < _AHEAD:
            self.answers.put(self.answers.model.batch(self.chance.choice(_KEYS), self.chance.choice(_ROWS)))

    def feed_touches(self) -> int:
        """Batches that bring out the whole state; how many rows they answer."""
        numbers = [self.answers.put(rows) for rows in self.answers.model.touches()]
        return sum(len(self.answers.expected[number]) for number in numbers)

    def settle(self) -> None:
        """Waits for one more answer."""
        before = self.answers.answered
        self.wait(lambda: self.answers.answered > before)

    def drain(self) -> None:
        """Feeds no more, and waits until every batch is answered and committed."""
        self.feeds = False
        self.wait(lambda: self.answers.answered == self.answers.batches)
        last = self.folder / "checkpoint" / "commits" / str(self.answers.batches - 1)
        if not self.wait(last.exists, self._patience):
            number = self.answers.batches - 1
            raise Trouble("stuck", f"batch {number} was answered and is not committed; {self._stacks()}")

    def start(self) -> None:
        """Also feeds again."""
        super().start()
        self.feeds = True

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

    def kill_some(self, role: str, everyone: bool, pick: int) -> int:
        """Kills all processes of a role, or one of them; waits a little for the first. How many there were."""
        if not self.wait_running(lambda: self.living(role), 10.0):
            return 0
        return self.kill(role, None if everyone else pick)
