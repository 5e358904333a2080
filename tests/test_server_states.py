"""State sessions of a processor through a real server process and the real engine: exact, whatever dies in between."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fastchangelog import _internal, server
from fastchangelog.errors import (
    ClosedError,
    FastChangelogError,
    InvalidArgumentError,
    RetryableError,
    SchemaMismatchError,
)
from fastchangelog.server.paths import ServerPaths
from support import state_servers
from support.server_jobs import jobs_in

CLEAR, PUT, DELETE, APPEND = 0, 1, 2, 3
VALUE, LIST, MAP, TIMERS = 0, 1, 2, 3
NAMES = ("count", "events", "by day", "$timers")
CATALOG = json.dumps(
    [
        {"id": i, "name": name, "kind": kind, "key": "string", "value": "bigint", "encoding": 1, "ttl": False}
        for i, (name, kind) in enumerate(zip(NAMES, ("value", "list", "map", "timers")))
    ]
)


def column(values: Any) -> Any:
    return pa.array(list(values), pa.binary())


def time_of(millis: int) -> bytes:
    return struct.pack(">q", millis)


class Job:
    """One shard of a processor, batch by batch as Spark would, beside a plain model of its states."""

    def __init__(self, root: Path, **options: str) -> None:
        self.root = root
        self.options = {"memory_budget": "64MiB", **options}
        self.handle: str | None = None
        self.batch = 0
        self.watermark: int | None = None
        self.values: dict[bytes, bytes] = {}
        self.lists: dict[bytes, list[bytes]] = {}
        self.maps: dict[bytes, dict[bytes, bytes]] = {}
        self.timers: set[tuple[int, bytes]] = set()

    def undeclared(self) -> _internal.StateSession:
        request = {
            "root": f"file://{self.root}",
            "query_id": "query",
            "name": "default",
            "shard": 0,
            "shards": 1,
            "batch": self.batch,
            "handle": self.handle,
            "operator": "processor",
            "options": self.options,
        }
        return server.open_state_session(json.dumps(request), self.options)

    def open(self) -> _internal.StateSession:
        session = self.undeclared()
        assert session.watermark == self.watermark
        assert session.catalog == (CATALOG if self.handle else "[]")
        session.declare(CATALOG, self.batch)
        return session

    def commit(self, session: _internal.StateSession, watermark: int | None) -> dict[str, int]:
        self.handle, numbers = session.commit(watermark)
        self.batch += 1
        self.watermark = watermark
        return numbers

    def check(self, session: _internal.StateSession) -> None:
        """All that the session reads is in the model, and the other way round."""
        keys = sorted({*self.values, *self.lists, *self.maps, *(key for _, key in self.timers), b"none"})
        found = session.get(VALUE, column(keys))
        assert found.to_pylist() == [self.values.get(key) for key in keys]
        for state, model in ((LIST, self.lists), (MAP, self.maps)):
            lists, more = session.read_entries(state, column(keys), 40)
            for key, entries, goes_on in zip(keys, lists.to_pylist(), more.to_pylist(), strict=True):
                entries = list(entries)
                after = struct.pack(">Q", len(entries)) if state == LIST else entries[-1]["sub"] if entries else None
                while goes_on:
                    page, after = session.read_page(state, key, after if entries else None, 60)
                    entries += page.to_pylist()
                    goes_on = after is not None
                kept = model.get(key, {})
                pairs = [(None, value) for value in kept] if state == LIST else sorted(kept.items())
                assert [(entry["sub"], entry["value"]) for entry in entries] == pairs
        pairs = [(key, sub) for key, entries in self.maps.items() for sub in (*entries, b"none")]
        found = session.get_entries(MAP, column(key for key, _ in pairs), column(sub for _, sub in pairs))
        assert found.to_pylist() == [self.maps[key].get(sub) for key, sub in pairs]
        times = session.timers_of(column(keys))
        assert times.to_pylist() == [sorted(time for time, of in self.timers if of == key) for key in keys]
        assert session.next_timer() == min((time for time, _ in self.timers), default=None)
        due: list[tuple[int, bytes]] = []
        while True:
            some, of, more = session.due_timers(0, due[-1] if due else None, 3)
            due += zip(some.to_pylist(), of.to_pylist())
            if not more:
                break
        assert due == sorted(timer for timer in self.timers if timer[0] <= 0)
        scanned: dict[bytes, bytes] = {}
        after = None
        while True:
            page, after = session.scan(VALUE, after, 50)
            scanned.update(zip(page.column("key").to_pylist(), page.column("value").to_pylist()))
            if after is None:
                break
        assert scanned == self.values

    def change(self, session: _internal.StateSession, some: random.Random) -> None:
        """Random changes of all states, in several writes; a read in between sees those before it."""
        for _ in range(3):
            rows: dict[int, list[tuple[int, bytes, bytes | None, bytes | None]]] = {0: [], 1: [], 2: [], 3: []}
            for _ in range(40):
                key = b"key-%d" % some.randrange(12)
                value, sub = some.randbytes(some.randrange(12)), b"%d" % some.randrange(9)
                match some.randrange(9):
                    case 0 | 1:
                        rows[VALUE].append((PUT, key, None, value))
                        self.values[key] = value
                    case 2:
                        rows[VALUE].append((DELETE, key, None, None))
                        self.values.pop(key, None)
                    case 3 | 4:
                        rows[LIST].append((APPEND, key, None, value))
                        self.lists.setdefault(key, []).append(value)
                    case 5 | 6:
                        rows[MAP].append((PUT, key, sub, value))
                        self.maps.setdefault(key, {})[sub] = value
                    case 7:
                        rows[MAP].append((DELETE, key, sub, None))
                        self.maps.get(key, {}).pop(sub, None)
                        state = some.choice([LIST, MAP])
                        rows[state].append((CLEAR, key, None, None))
                        (self.lists if state == LIST else self.maps).pop(key, None)
                    case _:
                        time = some.randrange(-20, 20)
                        rows[TIMERS].append((PUT, key, time_of(time), None))
                        self.timers.add((time, key))
                        if some.random() < 0.5 and self.timers:
                            time, key = some.choice(sorted(self.timers))
                            rows[TIMERS].append((DELETE, key, time_of(time), None))
                            self.timers.discard((time, key))
            for state, changes in rows.items():
                if changes:
                    ops, keys, subs, values = zip(*changes)
                    session.write(
                        state,
                        pa.array(ops, pa.uint8()),
                        column(keys),
                        column(subs) if state in (MAP, TIMERS) else None,
                        column(values) if state != TIMERS else None,
                    )
            self.check(session)

    @property
    def place(self) -> ServerPaths:
        return ServerPaths.here()

    def kill(self) -> None:
        state_servers.kill(self.place)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    yield from jobs_in(tmp_path, monkeypatch, Job)


def seeded() -> random.Random:
    seed = int(os.environ.get("FASTCHANGELOG_SEED") or random.randrange(2**32))
    print(f"FASTCHANGELOG_SEED={seed}")
    return random.Random(seed)


def test_all_kinds_of_state_survive_a_killed_server(job: Callable[..., Job]) -> None:
    one, some = job(), seeded()
    for batch in range(6):
        with one.open() as session:
            one.check(session)
            one.change(session, some)
            numbers = one.commit(session, batch * 1_000)
            assert numbers["write_calls"] > 0
            assert numbers["get_micros"] > 0
        if some.random() < 0.5:
            one.kill()
    with one.open() as session:
        one.check(session)
    sessions = [json.loads(line) for line in one.place.log.read_text().splitlines() if '"session"' in line]
    assert {line["operator"] for line in sessions if line["event"] == "session"} == {"processor"}


def test_what_is_not_committed_is_gone(job: Callable[..., Job]) -> None:
    one = job()
    with one.open() as session:
        session.write(VALUE, pa.array([PUT], pa.uint8()), column([b"k"]), None, column([b"kept"]))
        one.values[b"k"] = b"kept"
        one.commit(session, None)
    abandoned = one.open()
    abandoned.write(VALUE, pa.array([PUT], pa.uint8()), column([b"k"]), None, column([b"lost"]))
    assert abandoned.get(VALUE, column([b"k"])).to_pylist() == [b"lost"]
    abandoned.close()
    with pytest.raises(ClosedError):
        abandoned.commit()
    dying = one.open()
    dying.write(VALUE, pa.array([PUT], pa.uint8()), column([b"k"]), None, column([b"lost"]))
    one.kill()
    with pytest.raises(RetryableError, match=r"server\.log"):
        dying.commit()
    with one.open() as session:
        one.check(session)
        session.clear_all(VALUE)
        one.values.clear()
        one.check(session)


def test_errors_of_writes_arrive_by_the_commit(job: Callable[..., Job]) -> None:
    one = job()
    session = one.open()
    session.write(9, pa.array([PUT], pa.uint8()), column([b"k"]), None, column([b"v"]))
    with pytest.raises(InvalidArgumentError, match="9"):
        session.commit()
    session = one.open()
    with pytest.raises(FastChangelogError, match=r"all columns .* same length|length"):
        session.write(VALUE, pa.array([PUT], pa.uint8()), column([b"k", b"l"]), None, column([b"v"]))
    with pytest.raises(InvalidArgumentError, match="`ops` is an array of type Int64"):
        session.write(VALUE, pa.array([1]), column([b"k"]), None, column([b"v"]))
    with pytest.raises(TypeError, match="not an Arrow array"):
        session.get(VALUE, [b"k"])
    session.commit()


def test_large_values_are_answered_for_the_first_keys(job: Callable[..., Job]) -> None:
    megabyte, most = 1 << 20, 64 << 20
    keys = [b"%03d" % i for i in range(140)]
    # Each tells whose value it is.
    sizes = [megabyte + i for i in range(140)]

    def check(get: Callable[[Any], Any], count: int) -> None:
        # Keys without a value come first, and last.
        asked = [*(b"none %d" % i for i in range(5_000)), *keys[:count], b"none"]
        found: list[int | None] = []
        calls = 0
        while len(found) < len(asked):
            answer = get(column(asked[len(found) :]))
            assert 0 < answer.nbytes < most + megabyte
            found += pc.binary_length(answer).to_pylist()
            calls += 1
        assert found == [*([None] * 5_000), *sizes[:count], None]
        assert calls == count // 63 + 1

    one = job(session_memory="32MiB")
    with one.open() as session:
        put = pa.array([PUT], pa.uint8())
        for key, size in zip(keys, sizes):
            session.write(VALUE, put, column([key]), None, column([bytes(size)]))
        for key, size in zip(keys[:70], sizes):
            session.write(MAP, put, column([b"map"]), column([key]), column([bytes(size)]))
        check(lambda rest: session.get(VALUE, rest), 140)
        check(lambda rest: session.get_entries(MAP, column([b"map"]), rest), 70)
        check(lambda rest: session.get_entries(MAP, column([b"map"] * len(rest)), rest), 70)
        one.commit(session, None)
    with one.open() as session:
        check(lambda rest: session.get(VALUE, rest), 140)
    one.kill()
    with one.open() as session:
        check(lambda rest: session.get(VALUE, rest), 140)


def test_stored_states_keep_their_names_and_kinds(job: Callable[..., Job]) -> None:
    one = job()
    with one.open() as session:
        one.commit(session, None)
    with one.undeclared() as session, pytest.raises(SchemaMismatchError, match="events"):
        session.declare(CATALOG.replace('"list"', '"value"'), 0)
