"""Due timers that are changed while they fire: which come, and how much of the changes is kept in memory."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastchangelog.state import due_timers
from fastchangelog.state.due_timers import DueTimers, Timer

FIRST = 200_000


class Again:
    """A session of `FIRST` timers, each of a key of its own; `again` of them have a second one, at a time behind."""

    def __init__(self) -> None:
        self.again = 0

    def due_timers(self, until: int, after: Timer | None, limit: int) -> Any:
        start = 0 if after is None else after[0] + 1
        end = FIRST + self.again
        times = np.arange(start, min(start + limit, end), dtype=np.int64)
        return (
            pa.array(times),
            pa.array([b"%08d" % n for n in (times % FIRST).tolist()], pa.binary()),
            end > start + limit,
        )

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        found = [(int(key), FIRST + int(key)) for key in keys.to_pylist()]
        return pa.array([times[: 1 + (times[0] < self.again)] for times in found], pa.list_(pa.int64()))


def test_timers_registered_while_they_fire_take_no_memory(tmp_path: Path) -> None:
    session: Any = Again()
    due = DueTimers(session, 2 * FIRST, 1000, lambda: str(tmp_path))
    fired = 0
    session.timers_of(pa.array([b"0"]))  # Arrow imports pandas
    tracemalloc.start()
    while page := due.next_page():
        assert [time for time, _ in page] == list(range(fired, fired + len(page)))
        fired += len(page)
        near = [((FIRST + time, key), True) for time, key in page if due.may_be_ahead(FIRST + time)]
        if near:
            due.notice(near)
        session.again += len(page)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    due.close()
    assert fired == FIRST
    assert due_timers._KEPT_BYTES // 2 < peak < due_timers._KEPT_BYTES + 2 * 1024 * 1024
    assert not list(tmp_path.iterdir())


def test_keys_count_with_their_bytes(tmp_path: Path) -> None:
    class One(Again):
        def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
            return pa.array([[]] * len(keys), pa.list_(pa.int64()))

    session: Any = One()
    due = DueTimers(session, 2 * FIRST, 1000, lambda: str(tmp_path))
    for i in range(3):
        due.notice([((FIRST + i, bytes(3 * 1024 * 1024)), True)])
        assert due.may_be_ahead(0) is (i < 2)
    due.close()


class Set:
    """A session of a set of timers, with short pages."""

    def __init__(self, timers: set[Timer], rng: random.Random) -> None:
        self.timers, self.rng = timers, rng

    def due_timers(self, until: int, after: Timer | None, limit: int) -> Any:
        found = sorted(t for t in self.timers if t[0] <= until and (after is None or t > after))
        page = found[: self.rng.randint(1, limit)]
        return (
            pa.array([t for t, _ in page], pa.int64()),
            pa.array([k for _, k in page], pa.binary()),
            len(found) > len(page),
        )

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        found = [[time for time, of in sorted(self.timers) if of == key] for key in keys.to_pylist()]
        return pa.array(found[: self.rng.randint(1, 3)], pa.list_(pa.int64()))


@pytest.mark.parametrize("seed", range(60))
def test_what_was_due_at_first_comes_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(due_timers, "_KEPT_BYTES", rng.choice((0, 1, 8, 30, 10_000)) * 257)

    def some(most: int) -> list[Timer]:
        return [(rng.randrange(20), rng.choice((b"a", b"b", b"c"))) for _ in range(rng.randrange(most))]

    timers = set(some(40))
    until = rng.randrange(12, 20)
    expected = sorted(timer for timer in timers if timer[0] <= until)
    session: Any = Set(timers, rng)
    due = DueTimers(session, until, rng.randint(1, 8))
    found: list[Timer] = []
    while page := due.next_page():
        found += page
        waiting: list[tuple[Timer, bool]] = []
        for _ in range(rng.randrange(3)):
            # Several may be noticed before the first is sent.
            waiting += [(timer, rng.random() < 0.5) for timer in some(6)]
            near = [change for change in waiting if due.may_be_ahead(change[0][0])]
            if near:
                due.notice(near)
            if rng.random() < 0.5:
                continue
            for timer, is_there in waiting:
                timers.add(timer) if is_there else timers.discard(timer)
            waiting = []
        for timer, is_there in waiting:
            timers.add(timer) if is_there else timers.discard(timer)
    due.close()
    assert found == expected
