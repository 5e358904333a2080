"""A state folder as a real engine writes it, and a store in memory whose time and failures are a test's.

Owns: the job, the store, checkpoints that say what a test wants. Does not own: what is checked (`test_gc_collector`).
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError, StoreError
from fastchangelog.gc.collector import Roots
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json

DAY = 86_400.0
INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
SPEC = spec_json(
    1,
    INPUT,
    OUTPUT,
    [
        AggregateSpec("count", (), None, False, True, "count(1)"),
        AggregateSpec("sum", (1,), None, False, True, "sum(v)"),
    ],
)


class Engine:
    """A state server in this process, and one shard of a query at it."""

    def __init__(
        self,
        base: Path,
        root: Path,
        query: str = "query",
        name: str = "default",
        options: Mapping[str, str] | None = None,
    ) -> None:
        base.mkdir()
        self.root, self.query, self.name = root, query, name
        self.options = options or {}
        self.socket = base / "s"
        config = {
            "socket": str(self.socket),
            "log": str(base / "log"),
            "data_dir": str(base / "data"),
            "options": {"memory_budget": "64MiB"},
            "failpoints": "",
            "log_level": "info",
            "owns_stdio": False,
            "labels": {},
        }
        self.server = _internal.Server(json.dumps(config))

    def batch(
        self, number: int, handle: str | None, commit: bool = True, rows: int = 50, checkpoint: str | None = None
    ) -> tuple[str, dict[str, list[int]]]:
        """Runs a batch over `handle`: the new handle, and every key that changed with all it has. `checkpoint` is what
        the task says of its query."""
        request = {
            "root": f"file://{self.root}",
            "query_id": self.query,
            "name": self.name,
            "shard": 0,
            "shards": 1,
            "batch": number,
            "handle": handle,
            "checkpoint": checkpoint,
            "spec": SPEC,
            "options": {
                "memory_budget": "64MiB",
                "file_sync": "false",
                "max_handle_segments": "4",
                **self.options,
            },
        }
        splitter = _internal.Splitter(SPEC, 1, 128, 1 << 20)
        keys = pa.array([f"key-{i}" for i in range(rows)], pa.string())
        batch = pa.record_batch([keys, pa.array([number * 100 + i for i in range(rows)], pa.int64())], schema=INPUT)
        with _internal.SessionClient(str(self.socket), json.dumps(request)) as session:
            for _, payload in splitter.push(batch) + splitter.finish():
                session.merge(payload)
            found = {r["k"].decode(): [r["n"], r["total"]] for b in session.finish() for r in b.to_pylist()}
            return (session.commit()[0] if commit else ""), found

    def materialize(self, complete: bool = True) -> None:
        (shard,) = json.loads(self.server.shards())
        assert self.server.materialize(shard["id"], complete)

    def stop(self) -> None:
        assert self.server.stop(30.0)


def expected(batches: int) -> dict[str, list[int]]:
    """What all keys have after so many batches."""
    return {f"key-{i}": [batches, sum(n * 100 + i for n in range(batches))] for i in range(50)}


class Crash(BaseException):
    """The sweep's process dies."""


@dataclasses.dataclass
class World:
    """The content of a bucket, its clock, and the call at which it fails."""

    objects: dict[str, tuple[bytes, float]]
    now: float = 2_000_000_000.0
    calls: int = 0
    fail_at: int | None = None
    #: Raised at `fail_at`: before the call has an effect, or after.
    failure: BaseException | None = None
    after: bool = False
    #: Seconds until a listing shows what was put, and no longer shows what was deleted or what it was before.
    lag: Callable[[], float] = lambda: 0.0
    #: What the clock that dates the next objects is ahead of `now`.
    ahead: float = 0.0
    #: Every call is answered with 503 until then.
    down_until: float = float("-inf")
    #: What listings show in place of what is there, and until when.
    shown: dict[str, tuple[float, tuple[int, float] | None]] = dataclasses.field(default_factory=dict)
    log: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    @classmethod
    def of(cls, root: Path, age: float = 3 * DAY) -> World:
        """A copy of a folder on disk, all of one age."""
        files = (p for p in root.rglob("*") if p.is_file())
        world = cls({})
        world.objects = {str(p.relative_to(root)): (p.read_bytes(), world.now - age) for p in files}
        return world

    def copy(self) -> World:
        return World(dict(self.objects), self.now)

    def restore(self, root: Path) -> Path:
        """Writes everything to disk."""
        for name, (data, _) in self.objects.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return root

    def add(self, root: Path, age: float = 0.0) -> set[str]:
        """Takes over what is new on disk; gives its names."""
        new = {n: data for n, (data, _) in World.of(root).objects.items() if n not in self.objects}
        for name, data in new.items():
            self.put(name, data, age)
        return set(new)

    def put(self, name: str, data: bytes, age: float = 0.0) -> None:
        """What a put does: it can be read at once."""
        self._show(name)
        self.objects[name] = (data, self.now + self.ahead - age)

    def remove(self, name: str) -> None:
        self._show(name)
        self.objects.pop(name, None)

    def _show(self, name: str) -> None:
        """Listings go on to show what they show of `name`, for a while."""
        rows = {n: (size, modified) for n, size, modified in self.rows()}
        lag = self.lag()
        if lag > 0:
            self.shown[name] = (self.now + lag, rows.get(name))

    def rows(self) -> list[tuple[str, int, float]]:
        """What a listing shows."""
        late = {name: row for name, (until, row) in self.shown.items() if self.now < until}
        rows = {name: (len(data), modified) for name, (data, modified) in self.objects.items()}
        found = {**rows, **late}
        return [(name, *row) for name, row in found.items() if row is not None]

    def names(self, folder: str = "") -> set[str]:
        return {name for name in self.objects if name.startswith(folder)}

    def call(self, verb: str, name: str, effect: Callable[[], Any]) -> Any:
        with self.lock:
            self.calls += 1
            self.log.append((verb, name))
            if self.now < self.down_until:
                raise StoreError(f"{verb} {name}: the store answers 503 Slow Down")
            failing = self.fail_at is not None and self.calls >= self.fail_at and self.failure is not None
            if failing and (not self.after or isinstance(self.failure, FastChangelogError)):
                assert self.failure is not None
                raise self.failure
            result = effect()
            if failing:
                assert self.failure is not None
                raise self.failure
            return result


class MemoryFolder:
    """A folder of a `World`, as `collector.StateFolder` wants it."""

    def __init__(self, world: World, prefix: str = "") -> None:
        self._world, self._prefix = world, prefix

    def child(self, folder: str) -> MemoryFolder:
        return MemoryFolder(self._world, f"{self._prefix}{folder}/")

    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        start = self._prefix + (prefix and f"{prefix}/")

        def effect() -> list[tuple[str, int, float]]:
            return [(n.removeprefix(self._prefix), d, t) for n, d, t in self._world.rows() if n.startswith(start)]

        return self._world.call("list", start, effect)  # type: ignore[no-any-return]

    def survey(self, prefix: str, most: int | None = None) -> tuple[list[tuple[str, int, float]], dict[str, str]]:
        found = self.list(prefix)
        if most is not None and len(found) > most:
            raise StoreError(f"more than {most} objects")
        return found, {}

    def read(self, name: str) -> bytes | None:
        name = self._prefix + name
        return self._world.call("read", name, lambda: self._world.objects.get(name, (None, 0.0))[0])  # type: ignore[no-any-return]

    def write(self, name: str, data: bytes) -> None:
        name = self._prefix + name
        self._world.call("write", name, lambda: self._world.put(name, data))

    def delete(self, name: str) -> None:
        name = self._prefix + name
        self._world.call("delete", name, lambda: self._world.remove(name))


class Told:
    """Checkpoints that answer what they were told; an exception is raised, None is a checkpoint that is gone."""

    def __init__(self, **answers: Roots | Exception | None) -> None:
        self.answers = answers
        self.when_read: Callable[[], None] = lambda: None

    def _answer(self, location: str) -> Roots | None:
        if location not in self.answers:
            raise StoreError(f"{location} is not there")
        answer = self.answers[location]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def query_id(self, location: str) -> str | None:
        answer = self._answer(location)
        return None if answer is None else answer.query_id

    def roots(self, location: str) -> Roots:
        answer = self._answer(location)
        assert answer is not None
        self.when_read()
        return answer


def roots(query: str, handles: dict[int, str], running_since: float | None = None) -> Roots:
    """The roots of retained batches."""
    return Roots(query, tuple(sorted(handles)), {h: f"batch {n}" for n, h in handles.items()}, running_since)


def closure(world: World, folder: str, handles: Iterator[str] | list[str]) -> set[str]:
    """All that handles name, by another way than the code under test."""
    found: set[str] = set()
    for text in handles:
        raw = json.loads(_internal.handle_json(text))
        found |= {s["object"]["name"] for s in raw["segments"]}
        if raw["indexed"]:
            name = raw["indexed"]["name"]
            found.add(name)
            data = world.objects[f"{folder}/{name}"][0]
            found |= {o for _, o in json.loads(_internal.segment_index_json(name, data))}
        if raw["base"]:
            name = raw["base"]["manifest"]["name"]
            found.add(name)
            found |= set(json.loads(_internal.manifest_json(name, world.objects[f"{folder}/{name}"][0]))["objects"])
    return {f"{folder}/{name}" for name in found}
