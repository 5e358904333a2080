"""Stateful processors in real Spark: kill -9 at every step, in user code too, and exceptions of user code.

One processor has each kind of state, and timers by event time (`support.kills.ledger`). Whatever happens, every batch's
answer is that of a plain model. A failure prints the seed; FASTCHANGELOG_SEED replays.

What is killed takes seconds to come back, so of the points each run tries some, chosen by the seed;
FASTCHANGELOG_KILLS=all tries every one.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from support.kills.kinds import BATCHES_OF_FILES, CLOCKED, PROCESSOR
from support.kills.ledger import DELAY_SECONDS, OUTPUT, Ledger, LedgerModel
from support.kills.points import INITIAL_POINT, PROCESSOR_POINTS, SERVER_POINTS, SINK_POINTS, SPILL_POINTS, USER_POINTS
from support.kills.steps import MATERIALIZE_OFTEN, Start, finish, some, strike, warm
from support.spark.processor_harness import Job, by_value, sides
from support.spark.processor_harness import finish as end
from support.spark.processor_harness import start as start_query
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]
by_value(__name__)
by_value(Ledger.__module__)


def test_workers_and_state_servers_killed_at_every_step(start: Start, seed: int) -> None:
    run = start(kind=PROCESSOR)
    warm(run)
    for point in some(PROCESSOR_POINTS, seed, 4):
        strike(run, "worker", point)
    for point in some(PROCESSOR_POINTS[1:] + SERVER_POINTS, seed + 1, 6):
        if point.startswith("promote"):
            warm(run, 1)  # after a restart nothing is prepared; one batch later it is
        strike(run, "state server", point)
    for point in USER_POINTS:  # an exception that does not come again: Spark repeats the task
        run.arm(point, "error")
        number = run.feed()
        assert run.reached(point, number)
        run.answered(number)
    assert run.starts == 1, "Spark repaired it by itself"
    finish(run)


def test_the_jvm_and_state_servers_killed_while_sessions_spill(start: Start, seed: int) -> None:
    run = start(kind=PROCESSOR, options={**MATERIALIZE_OFTEN, "session_memory": "8KiB"})
    warm(run)
    for point in SPILL_POINTS:
        strike(run, "state server", point)
    assert run.starts == 1, "Spark repaired it by itself"
    others = [point for point in PROCESSOR_POINTS if point not in USER_POINTS]
    points = [*USER_POINTS, *some([*others, *SPILL_POINTS, *SINK_POINTS], seed, 1)]
    for victim, point in zip(itertools.cycle(["machine", "driver"]), points):
        strike(run, victim, point)
    run.answers.compare_all()
    run.stop()


def test_an_initial_state_and_batches_by_the_clock(start: Start, seed: int) -> None:
    """A processor of frames with states that end: a batch that runs again has the time at which it was planned."""
    run = start(kind=CLOCKED)
    kills = [("worker", INITIAL_POINT), ("state server", "session.before-persist"), ("driver", "operator.stored")]
    for _, point in kills:
        run.arm(point)
    number = run.feed()
    for victim, point in kills:
        assert run.reached(point, number)
        if victim == "driver":
            run.kill_everything()
            run.start()
        else:
            assert run.kill(victim), f"no {victim} to kill at {point}"
        run.release(point)
    run.answered(number)
    warm(run)
    for point in some(PROCESSOR_POINTS, seed, 3):
        strike(run, "worker", point)
    for point in some(SERVER_POINTS[3:], seed, 3):
        strike(run, "state server", point)
    assert run.starts == 2, "Spark repaired it by itself"
    strike(run, "driver", "operator.committed")
    run.answers.compare_all()
    run.stop()


def test_two_executors_with_a_state_server_each(start: Start) -> None:
    run = start(kind=PROCESSOR, master="local-cluster[2,1,1024]")
    warm(run, 4)
    assert len(run.living("state server")) == 2
    for shard, servers in run.homes().items():
        assert len(set(servers[2:])) == 1, f"shard {shard} moved: {servers}"
    strike(run, "executor", "user.timer")
    run.answers.compare_all()
    run.stop()


class FaultyInRows(Ledger):
    """Fails in the fourth batch, after some keys were changed and their rows have left."""

    calls = 0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        self.calls += 1
        if self.handle.getQueryInfo().getBatchId() == 3 and self.calls == 5:
            raise ZeroDivisionError("a mistake in handleInputRows")


class FaultyInTimers(Ledger):
    """Fails in the fourth batch, after all rows and some timers."""

    calls = 0

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
        self.calls += 1
        if self.handle.getQueryInfo().getBatchId() == 3 and self.calls == 5:
            raise ZeroDivisionError("a mistake in handleExpiredTimer")


def test_nothing_is_kept_of_a_batch_that_fails(
    feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any, seed: int
) -> None:
    for name, value in BATCHES_OF_FILES.items():
        conf(name, value)
    model = LedgerModel(seed)
    batches = [model.batch(60, 150) for _ in range(6)]
    expected = {number: rows_of(model.apply(rows)) for number, rows in enumerate(batches)}
    assert any(row[1] is not None for row in expected[3]), "timers fire in the batch that fails"
    source = feed("k string, v bigint, ts timestamp", *batches)
    ours, _ = sides(spark, tmp_path)
    got: dict[int, list[Any]] = {}

    def run(processor: type[Ledger]) -> None:
        job = Job(processor, OUTPUT, time_mode="EventTime", watermark=("ts", f"{DELAY_SECONDS} seconds"))
        end(start_query(job.build(source.stream(), ours.group), ours.checkpoint, got))

    for faulty, method in ((FaultyInRows, "handleInputRows"), (FaultyInTimers, "handleExpiredTimer")):
        with pytest.raises(StreamingQueryException, match=f"a mistake in {method}"):
            run(faulty)
        assert sorted(got) == [0, 1, 2]
    run(Ledger)
    assert {number: rows_of(rows) for number, rows in got.items()} == expected
