"""What the kill tests do to a job, batch after batch.

Owns: a strike, the choice of points, the end of a run. Does not own: the run (`run`), which points (the tests).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from support.kills.run import KillRun

PATIENCE = 50
"""So many batches may pass before one reaches a point."""
MATERIALIZE_OFTEN = {"materialization_interval": "200ms"}
ALL = os.environ.get("FASTCHANGELOG_KILLS") == "all"

Start = Callable[..., KillRun]


def warm(run: KillRun, batches: int = 2) -> None:
    """So many batches, undisturbed."""
    for _ in range(batches):
        run.answered(run.feed())


def strike(run: KillRun, victim: str, point: str) -> None:
    """In one batch: a process is held at `point`, all processes of the victim's kind are killed, the batch is exact.

    The driver takes all others with it; a machine takes the local disk, too.
    """
    print(f"{victim} at {point}")
    run.arm(point)
    number = run.feed()
    last = number + PATIENCE
    while not run.reached(point, number):  # in the background, some batches may pass
        run.answered(number)
        assert number < last, f"{PATIENCE} batches have passed, and none has reached {point}"
        number = run.feed()
    if victim in ("driver", "machine"):
        run.kill_everything()
        if victim == "machine":
            run.forget_local()
        run.start()
    else:
        assert run.kill(victim), f"no {victim} to kill at {point}"
    run.release(point)
    # The next strike must not meet what the dead have left.
    run.until("the end of what the executors started", lambda: not run.orphans())
    run.answered(number)


def some(points: list[str], seed: int, count: int) -> list[str]:
    """A few of the points in their order, or all of them."""
    chosen = points if ALL else random.Random(seed).sample(points, count)
    return [point for point in points if point in chosen]


def finish(run: KillRun) -> None:
    """The state servers and all that they have on the local disk go: the next batch still knows all. A clean stop."""
    run.kill("state server")
    run.wipe()
    warm(run, 1)
    run.answers.compare_all()
    run.stop()
