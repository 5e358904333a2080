"""P1, P2, P3 and P8 in real Spark: kill -9 to every process at every step, faults of the store, an older timeline.

Each test runs one query through many batches; in each batch one process is held at one failpoint and one is killed.
Whatever happens, every batch's answer is that of a plain dict. A failure prints the seed; FASTCHANGELOG_SEED replays.

What is killed takes seconds to come back, so of the points each run tries some, chosen by the seed;
FASTCHANGELOG_KILLS=all tries every one.
"""

from __future__ import annotations

import itertools

import pytest

from support.kills.points import BACKGROUND_POINTS, RESTORE_POINTS, SERVER_POINTS, WORKER_POINTS
from support.kills.steps import MATERIALIZE_OFTEN, Start, finish, some, strike, warm
from support.waiting import pause

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.mark.case("P3", "P8")
def test_workers_and_state_servers_killed_at_every_step(start: Start, seed: int) -> None:
    run = start()
    warm(run)
    for point in some(WORKER_POINTS + SERVER_POINTS, seed, 7):
        strike(run, "worker", point)
    for point in some(WORKER_POINTS[1:] + SERVER_POINTS, seed + 1, 7):
        if point.startswith("promote"):
            warm(run, 1)  # after a restart nothing is prepared; one batch later it is
        strike(run, "state server", point)
    assert run.starts == 1, "Spark repaired it by itself"
    finish(run)


@pytest.mark.case("P1")
def test_the_driver_is_killed_at_every_step(start: Start, seed: int) -> None:
    """First after the state's commit: that state must not come back, also not for a shard that was idle meanwhile.
    At the end the commits of three batches are deleted by hand: Spark runs them again, from the state before, and
    nothing of it is on the local disk any more."""
    run = start(partitions=4, options=MATERIALIZE_OFTEN)
    warm(run)
    strike(run, "driver", "sink.after")
    points = some([*WORKER_POINTS, *SERVER_POINTS, "sink.before", *BACKGROUND_POINTS], seed, 2)
    for victim, point in zip(itertools.cycle(["machine", "driver"]), points):
        run.answered(run.feed(keys=2))  # most shards have no rows: after one restart and before the next
        strike(run, victim, point)
    warm(run, 3)
    last = run.feed()
    run.answered(last)
    run.answers.compare_all()
    run.stop()
    run.forget_local()
    run.answers.roll_back(last - 2)
    run.start()
    for number in (last - 2, last - 1, last):
        run.answered(number)
    run.answers.compare_all()
    run.stop()


@pytest.mark.case("P3")
def test_two_executors_are_sticky_and_killed_at_every_step(start: Start, seed: int) -> None:
    run = start(master="local-cluster[2,1,1024]", options=MATERIALIZE_OFTEN)
    warm(run, 8)
    assert len(run.living("state server")) == 2, "one server for each executor"
    homes = run.homes()
    assert sorted(homes) == [0, 1]
    for shard, servers in homes.items():
        assert len(set(servers[2:])) == 1, f"shard {shard} moved: {servers}"
    for point in some([*WORKER_POINTS, *SERVER_POINTS, *BACKGROUND_POINTS], seed, 2):
        strike(run, "executor", point)
    assert run.starts == 1, "Spark repaired it by itself"
    finish(run)


@pytest.mark.case("E-01", "E-03", "P3", "P6")
def test_the_state_server_is_killed_at_random_moments(start: Start, seed: int) -> None:
    """During materialization, during a restore, and whenever."""
    run = start(options=MATERIALIZE_OFTEN)
    warm(run)
    for point in some(BACKGROUND_POINTS, seed, 3):
        strike(run, "state server", point)
    for point in RESTORE_POINTS:
        warm(run, 3)  # so that there is a snapshot to restore from
        run.kill("state server")
        run.wipe()
        strike(run, "state server", point)
    for _ in range(12):
        number = run.feed()
        victim = run.chance.choice(["worker", "state server", "local disk"])
        pause(run.chance.uniform(0, 1))
        print(f"{victim} in batch {number}")
        if victim == "local disk":
            run.kill("state server")
            run.wipe()
        else:
            run.kill(victim)
        run.answered(number)
    finish(run)


@pytest.mark.case("P2")
def test_faults_of_the_store(start: Start) -> None:
    """An error once, an error that no retry mends, a slow answer; `after-put`: the object is there, the answer lost."""
    run = start(options={"retry_delay": "10ms"})
    warm(run)
    for point in ("store.before-put", "store.after-put", "store.before-get", "write.after-upload"):
        for action in ("error", "store-error", "sleep(1500)"):
            print(f"{point}: {action}")
            run.arm(point, action)
            if point == "store.before-get":  # nothing is read while all is live
                run.kill("state server")
                run.wipe()
            number = run.feed()
            assert run.reached(point, number)
            run.answered(number)
    assert run.starts == 1
    finish(run)
