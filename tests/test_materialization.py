"""The materialization policy and its loop: no threads, no sleeps, time moved by hand."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import Future
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastchangelog.errors import ClosedError, InvalidArgumentError, StoreError
from fastchangelog.materialization.periodic import PeriodicMaterializer
from fastchangelog.materialization.policy import MaterializationPolicy, Progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Run:
    def __init__(self) -> None:
        self.future: Future[str] = Future()
        self.ended: list[object] = []
        self.complete_fails = False

    def run(self) -> Future[str]:
        return self.future

    def complete(self, handle: str) -> None:
        if self.complete_fails:
            raise OSError("late")
        self.ended.append(handle)

    def abort(self, error: BaseException) -> None:
        self.ended.append(error)


class Target:
    def __init__(self) -> None:
        self.changed = True
        self.fails = False
        self.runs: list[Run] = []
        self.seen = Progress()

    def begin(self) -> Run | None:
        if self.fails:
            raise OSError("disk full")
        if not self.changed:
            return None
        self.runs.append(Run())
        return self.runs[-1]

    def progress(self) -> Progress:
        return self.seen


class World:
    """A materializer whose first run by time is due."""

    def __init__(self, policy: MaterializationPolicy | None = None) -> None:
        self.clock, self.target = Clock(), Target()
        policy = policy or MaterializationPolicy(interval="10s")
        self.loop: PeriodicMaterializer[str] = PeriodicMaterializer(
            self.target, policy, clock=self.clock, owner="subtask-0"
        )
        if policy.interval is not None:
            self.clock.now = self.loop.next_due

    def begin(self) -> Run:
        runs = len(self.target.runs)
        self.loop.poll()
        assert len(self.target.runs) == runs + 1, "a run starts"
        return self.target.runs[-1]

    def fail(self, run: Run) -> None:
        run.future.set_exception(OSError("no space"))
        self.loop.poll()


@pytest.mark.case("Z-01")
def test_the_first_delay_is_a_stable_part_of_the_interval() -> None:
    policy = MaterializationPolicy(interval="10s")
    delays = [policy.first_delay(f"subtask-{i}") for i in range(100)]
    assert all(0 <= delay < 10 for delay in delays)
    assert policy.first_delay("subtask-0") == delays[0], "stable"
    assert max(delays) - min(delays) > 5, "owners spread"
    assert MaterializationPolicy(interval=None).first_delay("x") == float("inf")


def test_one_run_at_a_time() -> None:
    world = World()
    run = world.begin()
    world.clock.now += 1000
    world.loop.trigger()
    world.loop.poll()
    assert len(world.target.runs) == 1
    assert world.loop.running
    run.future.set_result("base")
    world.loop.poll()
    assert run.ended == ["base"]
    assert len(world.target.runs) == 2, "what was asked for meanwhile starts now"
    assert (world.loop.started, world.loop.completed, world.loop.failed) == (2, 1, 0)


def test_the_interval_counts_from_the_end_of_a_run() -> None:
    world = World()
    run = world.begin()
    world.clock.now += 7
    run.future.set_result("base")
    world.loop.poll()
    assert world.loop.last_duration == 7
    assert world.loop.next_due == world.clock.now + 10
    world.clock.now += 9.5
    world.loop.poll()
    assert not world.loop.running
    world.clock.now += 0.5
    world.begin()


def test_another_policy_counts_from_where_the_one_before_did() -> None:
    world = World(MaterializationPolicy(interval="1h"))
    born = world.clock.now - world.loop.policy.first_delay("subtask-0")
    quick = MaterializationPolicy(interval="10s")
    world.loop.follow(quick)
    assert world.loop.next_due == born + quick.first_delay("subtask-0")
    run = world.begin()
    world.clock.now += 3
    run.future.set_result("base")
    world.loop.poll()
    ended = world.clock.now
    assert world.loop.next_due == ended + 10
    world.clock.now += 4
    world.loop.follow(MaterializationPolicy(interval="30s"))
    assert world.loop.next_due == ended + 30
    world.loop.follow(MaterializationPolicy(interval="30s"))
    assert world.loop.next_due == ended + 30


def test_nothing_to_do_when_nothing_changed() -> None:
    world = World()
    world.target.changed = False
    world.loop.poll()
    assert (world.loop.started, world.loop.completed, world.loop.skipped) == (0, 0, 1)
    assert world.loop.last_duration == -1
    world.loop.poll()
    assert world.loop.skipped == 1, "not before the next interval"
    world.target.changed = True
    world.clock.now += 10
    world.begin()


@pytest.mark.case("A-16", "X-27")
def test_the_log_starts_a_run_by_bytes_and_by_ratio() -> None:
    world = World(MaterializationPolicy(interval="1h", log_bytes="8MiB", log_ratio=4.0))
    world.clock.now = 1000.0
    world.target.seen = Progress(log_bytes=(8 << 20) - 1, state_bytes=1 << 30)
    world.loop.poll()
    assert not world.loop.running
    world.target.seen = Progress(log_bytes=8 << 20, state_bytes=1 << 30)
    world.begin().future.set_result("base")
    world.target.seen = Progress(log_bytes=100, state_bytes=1)
    world.loop.poll()
    assert not world.loop.running, "a tiny log is not worth a base whatever the ratio"
    world.target.seen = Progress(log_bytes=4 << 20, state_bytes=1 << 20)
    world.begin()


@pytest.mark.case("X-27")
def test_a_failing_store_is_tried_again_after_a_growing_pause() -> None:
    world = World(MaterializationPolicy(interval=None, log_bytes=1, max_failures=10))
    world.target.seen = Progress(log_bytes=1)
    run = world.begin()
    for pause in (10, 20, 40, 80):
        world.fail(run)
        world.clock.now += pause - 1
        world.loop.poll()
        assert not world.loop.running
        world.clock.now += 1
        run = world.begin()
    run.future.set_result("base")
    world.loop.poll()
    world.fail(world.target.runs[-1])
    world.clock.now += 10
    world.begin()


@pytest.mark.case("A-10")
def test_an_hour_without_a_store_is_met_with_pauses() -> None:
    world = World(MaterializationPolicy())
    world.target.seen = Progress(log_bytes=1 << 30, state_bytes=1 << 20)
    begun: list[float] = []
    end = world.clock.now + 3600
    while world.clock.now < end:
        with contextlib.suppress(StoreError):
            world.loop.poll()
            if world.loop.running:
                begun.append(world.clock.now)
                world.fail(world.target.runs[-1])
        world.clock.now += 0.5
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert pauses[:3] == [10, 20, 40]
    assert set(pauses[3:]) == {30}, "once the job was failed a healed store is found soon, and not asked more often"
    world.clock.now = begun[-1] + 30
    world.begin().future.set_result("base")
    world.loop.poll()
    assert world.loop.failures_in_a_row == 0
    assert world.loop.completed == 1


def test_the_fourth_failure_in_a_row_fails_the_job() -> None:
    world = World()
    for in_a_row in (1, 2, 3):
        world.fail(world.begin())
        assert world.loop.failures_in_a_row == in_a_row
        world.clock.now += 10
    run = world.begin()
    run.future.set_exception(OSError("no space"))
    with pytest.raises(StoreError, match=r"4 times in a row.*`max_failures` = 3 .*no space"):
        world.loop.poll()
    assert isinstance(run.ended[0], OSError)
    world.clock.now += 10
    world.begin().future.set_result("base")
    world.loop.poll()
    assert world.loop.failures_in_a_row == 0, "later runs are still tried, and a success counts"


def test_a_success_resets_the_count_of_failures() -> None:
    world = World()
    for _ in range(3):
        world.fail(world.begin())
        world.clock.now += 10
    world.begin().future.set_result("base")
    world.loop.poll()
    for _ in range(3):
        world.clock.now += 10
        world.fail(world.begin())
    assert world.loop.failures_in_a_row == 3


@pytest.mark.case("M-09")
def test_a_failed_begin_counts_as_a_failed_run() -> None:
    world = World()
    world.target.fails = True
    world.loop.poll()
    assert (world.loop.started, world.loop.failed, world.loop.completed, world.loop.last_duration) == (1, 1, 0, -1)


def test_a_failed_complete_is_an_abort() -> None:
    world = World()
    run = world.begin()
    run.complete_fails = True
    run.future.set_result("base")
    world.loop.poll()
    assert world.loop.failed == 1
    assert isinstance(run.ended[0], OSError)


def test_a_cancelled_run_is_not_counted() -> None:
    world = World()
    run = world.begin()
    run.future.cancel()
    world.loop.poll()
    assert (world.loop.failed, world.loop.failures_in_a_row) == (0, 0)
    assert len(run.ended) == 1


def test_a_run_whose_state_was_replaced_is_not_counted() -> None:
    world = World()
    for _ in range(5):
        run = world.begin()
        run.future.set_exception(ClosedError("the state was replaced"))
        world.loop.poll()
        assert (world.loop.failed, world.loop.failures_in_a_row, len(run.ended)) == (0, 0, 1)
        world.clock.now = world.loop.next_due


def test_a_late_completion_is_ignored() -> None:
    world = World()
    run = world.begin()
    run.future.set_running_or_notify_cancel()
    world.loop.close()
    world.loop.close()
    run.future.set_result("too late")
    world.loop.poll()
    assert len(run.ended) == 1
    assert isinstance(run.ended[0], Exception)
    assert world.loop.completed == 0


@pytest.mark.case("X-26")
def test_values_that_can_never_work_are_refused() -> None:
    for interval in ("0s", timedelta(-1), "10"):
        with pytest.raises(InvalidArgumentError):
            MaterializationPolicy(interval=interval)
    with pytest.raises(InvalidArgumentError):
        MaterializationPolicy(log_bytes=0)
    with pytest.raises(InvalidArgumentError):
        MaterializationPolicy(log_ratio=0.0)
    with pytest.raises(InvalidArgumentError):
        MaterializationPolicy(max_failures=-1)
    with pytest.raises(InvalidArgumentError, match="`segments`"):
        MaterializationPolicy(segments=0)
    with pytest.raises(InvalidArgumentError, match="`replay_time`"):
        MaterializationPolicy(replay_time="0s")


@pytest.mark.parametrize(
    ("policy", "below", "at"),
    [
        (MaterializationPolicy(None, segments=5), Progress(segments=4), Progress(segments=5)),
        (MaterializationPolicy(None, replay_time="2s"), Progress(replay_seconds=1.9), Progress(replay_seconds=2.0)),
        (
            MaterializationPolicy(None, segments=None, replay_time=None),
            Progress(segments=10**6, replay_seconds=1e6),
            None,
        ),
    ],
)
def test_change_sets_and_the_time_of_a_replay_start_a_run(
    policy: MaterializationPolicy, below: Progress, at: Progress | None
) -> None:
    world = World(policy)
    world.target.seen = below
    world.loop.poll()
    assert not world.target.runs
    if at is not None:
        world.target.seen = at
        world.loop.poll()
        assert len(world.target.runs) == 1


def test_a_policy_from_options() -> None:
    policy = MaterializationPolicy.from_options(
        {
            "materialization_interval": "30s",
            "materialization_log_bytes": "1MiB",
            "materialization_log_ratio": "2",
            "materialization_max_failures": "0",
            "materialization_segments": "0",
            "materialization_replay_time": "1 minute",
            "compression": "lz4",
        }
    )
    assert policy == MaterializationPolicy(timedelta(seconds=30), 1 << 20, 2.0, 0, None, timedelta(minutes=1))
    assert MaterializationPolicy.from_options({}) == MaterializationPolicy()
    assert MaterializationPolicy.from_options({"materialization_log_ratio": "0"}).log_ratio is None


@given(st.lists(st.sampled_from(["poll", "land", "fail", "tick", "ask", "change", "still", "close"]), max_size=60))
def test_each_run_ends_once_and_runs_never_overlap(actions: list[str]) -> None:
    world = World(MaterializationPolicy(interval="10s", max_failures=100))
    for action in actions:
        open_runs = [run for run in world.target.runs if not run.ended]
        assert len(open_runs) <= 1
        if action == "poll":
            world.loop.poll()
        elif action == "tick":
            world.clock.now += 5
        elif action == "ask":
            world.loop.trigger()
        elif action in ("change", "still"):
            world.target.changed = action == "change"
        elif action == "close":
            world.loop.close()
        elif open_runs and not open_runs[0].future.done():
            if action == "land":
                open_runs[0].future.set_result("base")
            else:
                open_runs[0].future.set_exception(OSError("x"))
    world.loop.close()
    assert all(len(run.ended) == 1 for run in world.target.runs)
    assert world.loop.completed == sum(isinstance(run.ended[0], str) for run in world.target.runs)
