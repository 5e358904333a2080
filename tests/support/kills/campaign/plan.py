"""What a campaign will do, decided from one seed before it does anything.

Owns: victims, failpoints, faults of the store, and the steps of each round, as data. Does not own: doing them
(`round`). The same seed gives the same steps; how they meet the job's own timing differs from run to run.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import TypeVar

from support.kills.points import (
    BACKGROUND_POINTS,
    PROCESSOR_POINTS,
    RESTORE_POINTS,
    SERVER_POINTS,
    SINK_POINTS,
    SPILL_POINTS,
    USER_POINTS,
    WORKER_POINTS,
)

T = TypeVar("T")

#: Points of a restore beside those of the kill tests; a server is killed and its disk wiped so that there is one.
ALL_RESTORE_POINTS = [
    *RESTORE_POINTS,
    "rebuild.fetched",
    "rebuild.replayed",
    "restore.replayed",
    "restore.warm",
    "warm.portion",
]
ALL_BACKGROUND_POINTS = [*BACKGROUND_POINTS, "checkpoint.link", "checkpoint.made", "materialize.offer"]
#: Points of the first batch after a savepoint; those of `rescale` in a native one only.
MOVE_POINTS = [
    "beginning.load",
    "rescale.before",
    "rescale.lineages",
    "rebuild.fetched",
    "rebuild.exported",
    "rebuild.ingested",
    "rebuild.taken-over",
    "rebuild.replayed",
    "rescale.done",
    "beginning.push",
]
#: By kind of query. Rounds take turns.
TASK_POINTS = {
    "aggregates": [*WORKER_POINTS, *SERVER_POINTS],
    "processor": [*PROCESSOR_POINTS, *SERVER_POINTS],
    "windows": [*WORKER_POINTS, *SERVER_POINTS],
}

#: Seconds of grace of sweeps while the job runs, and what its servers count on: longer than an upload, or a task that
#: Spark gave up, may go on. What is held at a failpoint is killed or released within the patience for it.
RUNNING_GRACE = 60

#: Points in the sources at which the campaign's job never is, and why.
ELSEWHERE = {
    "local.open": "states in process",
    "local.before-head": "states in process",
    "local.after-head": "states in process",
    "local.before-seal": "states in process",
    "local.spill": "states in process",
    "local.spilled": "states in process",
    "local.part": "states in process",
    "savepoint.begin": "taken by the campaign's own process",
    "savepoint.before-manifest": "taken by the campaign's own process",
    "savepoint.part": "taken by the campaign's own process",
    "savepoint.copy": "taken by the campaign's own process",
    "checkpoint.copy": "a disk without hard links",
    "transfer.disk-full": "a fault of FAULTS",
    **dict.fromkeys(
        ("sweep.probed", "sweep.planned", "sweep.noted", "sweep.deleted"),
        "background sweeps run in some rounds; test_gc_histories ends them at every request",
    ),
    **dict.fromkeys(SPILL_POINTS, "in some rounds sessions spill, and are killed at any moment of it"),
}

#: What a store does to requests: the point, and what happens there.
FAULTS = [
    *((point, action) for point in ("store.before-put", "store.after-put", "store.before-get", "write.after-upload")
      for action in ("error", "store-error", "sleep(1500)")),
    ("snapshot.before-sst", "error"),
    ("snapshot.before-manifest", "store-error"),
    ("snapshot.after-manifest", "error"),
    ("materialize.push", "store-error"),
    ("checkpoint.link", "error"),
    ("transfer.disk-full", "error"),
    ("rebuild.taken-over", "error"),
    ("session.before-persist", "error"),
    ("promote.applied", "error"),
    ("operator.committed", "error"),
]  # fmt: skip
#: Exceptions of a processor's own code.
USER_FAULTS = [(point, "error") for point in USER_POINTS]
#: Faults that only a restore meets.
_READING = {"store.before-get", "transfer.disk-full", "rebuild.taken-over"}

#: Victims without a JVM among them, and how often each is chosen.
VICTIMS: list[tuple[tuple[str, ...], int]] = [
    (("worker",), 36),
    (("worker daemon",), 10),
    (("state server",), 26),
    (("state server", "local disk"), 10),
    (("local disk",), 4),
    (("worker", "state server"), 9),
    (("worker daemon", "state server"), 5),
]
#: Victims with a JVM: "driver" is the driver alone, "everything" all processes of the job.
JVM_VICTIMS: list[tuple[tuple[str, ...], int]] = [
    (("executor",), 58),
    (("executor", "state server"), 10),
    (("driver",), 20),
    (("everything",), 12),
]


@dataclasses.dataclass(frozen=True)
class Strike:
    """kill -9 to processes of these roles, at a failpoint or after a pause."""

    victims: tuple[str, ...]
    #: Some process of the job is held here when the victims die; None: after `pause`.
    point: str | None
    pause: float
    #: All processes of each role, or the one that `pick` chooses.
    everyone: bool
    pick: int
    #: Kill a state server and wipe its disk first, so that a restore begins.
    restoring: bool
    #: Whether the next step waits for an answer.
    settle: bool

    def __str__(self) -> str:
        who = " + ".join(self.victims)
        when = f"at {self.point}" if self.point else f"after {self.pause:.2f} s"
        return f"kill {who} {when}"


@dataclasses.dataclass(frozen=True)
class Fault:
    """So many requests in a row meet `action` at `point`."""

    point: str
    action: str
    times: int
    #: Kill the state servers and wipe their disks first, so that there is something to read.
    restoring: bool

    def __str__(self) -> str:
        return f"{self.times} x {self.action} at {self.point}"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep while the job runs."""

    def __str__(self) -> str:
        return "sweep"


@dataclasses.dataclass(frozen=True)
class Savepoint:
    """A savepoint while the job runs, compared with the model."""

    form: str

    def __str__(self) -> str:
        return f"{self.form} savepoint"


@dataclasses.dataclass(frozen=True)
class Restart:
    """A clean stop and a start."""

    wipe: bool

    def __str__(self) -> str:
        return "clean stop, local disk wiped, start" if self.wipe else "clean stop, start"


@dataclasses.dataclass(frozen=True)
class RollBack:
    """A clean stop, the newest commits deleted, a start."""

    batches: int

    def __str__(self) -> str:
        return f"clean stop, {self.batches} commits deleted, start"


@dataclasses.dataclass(frozen=True)
class Move:
    """A clean stop, a savepoint, a new query that begins with it at so many partitions, struck in its first batch."""

    form: str
    partitions: int
    victims: tuple[str, ...]
    point: str

    def __str__(self) -> str:
        who = " + ".join(self.victims)
        return f"{self.form} savepoint, start from it at {self.partitions} partitions, kill {who} at {self.point}"


Step = Strike | Fault | Sweep | Savepoint | Restart | RollBack | Move


@dataclasses.dataclass(frozen=True)
class Round:
    """One query from its first batch to its last."""

    number: int
    seed: int
    partitions: int
    options: dict[str, str]
    steps: tuple[Step, ...]
    kind: str


def plan_round(
    seed: int, number: int, strikes: int, jvms: int, cluster: bool = True, queries: Sequence[str] = tuple(TASK_POINTS)
) -> Round:
    """The round `number` of the campaign of this seed: so many strikes, `jvms` of them at JVMs; one of these kinds of
    queries."""
    kind = queries[number % len(queries)]
    rng = random.Random(f"{seed}/{number}")
    at_jvms = [True] * jvms + [False] * (strikes - jvms)
    rng.shuffle(at_jvms)
    steps: list[Step] = []
    for jvm in at_jvms:
        steps.append(_strike(rng, jvm, cluster, kind))
        if rng.random() < 0.25:
            steps.append(_fault(rng, kind))
        if rng.random() < 0.06:
            steps.append(Sweep())
        if rng.random() < 0.02:
            steps.append(Savepoint(rng.choice(["canonical", "native"])))
        if rng.random() < 0.015:
            steps.append(Restart(rng.random() < 0.5))
    # Each of these costs a start of the job: one of them in some rounds.
    if rng.random() < 0.5:
        steps.insert(rng.randrange(len(steps) // 2, len(steps) + 1), RollBack(rng.randint(1, 4)))
    if rng.random() < 0.4:
        steps.insert(rng.randrange(len(steps) // 2, len(steps) + 1), _move(rng))
    return Round(number, rng.randrange(1 << 32), rng.choice([2, 2, 3, 4]), _options(rng), tuple(steps), kind)


def _options(rng: random.Random) -> dict[str, str]:
    return {
        "materialization_interval": rng.choice(["200ms", "200ms", "2s"]),
        # Faults of a store may hit any number of materializations in a row: what the job does then is tested elsewhere.
        "materialization_max_failures": "1000",
        "retry_delay": "10ms",
        "max_handle_segments": rng.choice(["2", "4", "32"]),
        "restore": rng.choice(["eager", "lazy"]),
        "persist_delay": rng.choice(["0ms", "500ms"]),
        "incremental": rng.choice(["true", "true", "false"]),
        "snapshot_pack_below": rng.choice(["0", "1MiB"]),
        "compression": rng.choice(["auto", "zstd", "none"]),
        "max_prepared_versions": rng.choice(["1", "8"]),
        "memory_budget": "128MiB",
        "sweep_grace": f"{RUNNING_GRACE}s",
        # Servers sweep beside the campaign's own sweeps.
        "sweep_interval": rng.choice(["5s", "1h"]),
        # Some batches are larger than this: their sessions spill.
        "session_memory": rng.choice(["0", "0", "8KiB"]),
    }


def _strike(rng: random.Random, jvm: bool, cluster: bool, kind: str) -> Strike:
    (victims,) = _weighted(rng, JVM_VICTIMS if jvm else VICTIMS)
    if "executor" in victims and not cluster:
        victims = ("driver",)
    groups = [(TASK_POINTS[kind], 60), (ALL_BACKGROUND_POINTS, 16), (ALL_RESTORE_POINTS, 10), (SINK_POINTS, 4)]
    (points,) = _weighted(rng, groups)
    point = None if rng.random() < 0.25 else rng.choice(points)
    return Strike(
        victims,
        point,
        rng.uniform(0.0, 1.0),
        rng.random() < 0.5,
        rng.randrange(1 << 16),
        point in ALL_RESTORE_POINTS,
        rng.random() < 0.5,
    )


def _move(rng: random.Random) -> Move:
    (victims,) = _weighted(rng, [victims for victims in VICTIMS if victims[0] != ("local disk",)])
    return Move(rng.choice(["canonical", "native", "native"]), rng.randint(1, 5), victims, rng.choice(MOVE_POINTS))


def _fault(rng: random.Random, kind: str) -> Fault:
    point, action = rng.choice([*FAULTS, *USER_FAULTS] if kind == "processor" else FAULTS)
    return Fault(point, action, rng.choice([1, 1, 2, 5]) if action != "sleep(1500)" else 1, point in _READING)


def _weighted(rng: random.Random, choices: Sequence[tuple[T, int]]) -> list[T]:
    return rng.choices([what for what, _ in choices], [weight for _, weight in choices])
