"""What garbage collection decides: a model of jobs that write, commit, materialize and die while sweeps run.

Owns: the pure decision (`fastchangelog.gc.plan`). Does not own: reading and deleting (`test_gc_collector`), Spark
(`spark/test_sweep_spark`).
"""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastchangelog import _internal
from fastchangelog.gc.plan import (
    Entry,
    GcInput,
    GcState,
    HandleRefs,
    Manifest,
    Plan,
    Segments,
    SnapshotRef,
    indexes_to_read,
    manifests_to_read,
    plan,
    plan_orphan,
)
from fastchangelog.layout import FOLDER_META, GC_CHECKPOINTS, GC_STATE

DAY = 86_400.0
GRACE = DAY
#: Change sets outside of an index object, as `max_handle_segments`.
CAP = 4


class Names:
    """Names as the store layer draws them, in order."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def __call__(self, folder: str) -> str:
        return f"{folder}/{next(self._next):032x}" + (".sst" if folder == "sst" else "")


@dataclasses.dataclass
class Shard:
    """What a shard's server knows, and would be lost with it."""

    base: SnapshotRef | None = None
    line: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    indexed: tuple[str, int] | None = None
    waiting: SnapshotRef | None = None
    tables: tuple[str, ...] = ()

    def position(self, version: str) -> int | None:
        """The lineage's own rule: change sets up to a version's own, nothing after a snapshot that is not fuzzy."""
        versions = [v for v, _ in self.line]
        if version in versions:
            return versions.index(version) + 1
        return 0 if self.base is not None and {self.base.version, self.base.replay_after} == {version} else None

    def takes(self, base: SnapshotRef) -> bool:
        return self.position(base.version) is not None and self.position(base.replay_after) is not None

    def handle(self, source: str) -> HandleRefs:
        index, n = self.indexed or (None, 0)
        return HandleRefs(source, self.base, index, tuple(self.line[n:]))


class World:
    """Two shards of one query, a store, Spark's retained batches, and a clock."""

    def __init__(self, seed: int, retained: int) -> None:
        self.random = random.Random(seed)
        self.names, self.now, self.retained = Names(), 1_000 * DAY, retained
        self.objects: dict[str, float] = {FOLDER_META: self.now}
        self.indexes: dict[str, Segments] = {}
        self.manifests: dict[str, Manifest] = {}
        self.live = [Shard(), Shard()]
        self.batches: list[tuple[HandleRefs, ...]] = []
        self.number = 0
        #: What a batch under way will commit, and since when it runs.
        self.under_way: tuple[list[Shard], float] | None = None
        self.mark: dict[str, float] = {}

    def put(self, folder: str) -> str:
        name = self.names(folder)
        self.objects[name] = self.now
        return name

    def begin(self) -> None:
        """A batch writes: change sets share a log object, an attempt more leaves another."""
        if self.under_way is not None:
            return
        log, after = self.put("log"), []
        if self.random.random() < 0.5:
            self.put("log")
        for shard in self.live:
            new = dataclasses.replace(shard, line=list(shard.line))
            if self.random.random() < 0.7:
                self.extend(new, log)
            after.append(new)
        self.under_way = (after, self.now)

    def extend(self, shard: Shard, log: str) -> None:
        waiting = shard.waiting
        if waiting is not None and shard.takes(waiting):
            shard.line = shard.line[shard.position(waiting.replay_after) :]
            shard.base, shard.waiting, shard.indexed = waiting, None, None
        if len(shard.line) - (shard.indexed or ("", 0))[1] >= CAP:
            name = self.put("index")
            self.indexes[name] = tuple(shard.line[: len(shard.line) - CAP // 2])
            shard.indexed = (name, len(self.indexes[name]))
        shard.line.append((f"v{next(self.names._next)}", log))

    def commit(self) -> None:
        if self.under_way is None:
            self.begin()
        assert self.under_way is not None
        (after, _), self.under_way = self.under_way, None
        self.live = after
        self.batches.append(tuple(s.handle(f"batch {self.number}, shard {i}") for i, s in enumerate(after)))
        self.number += 1
        self.batches = self.batches[-self.retained :]

    def fail(self) -> None:
        """The attempt is lost; Spark has planned the batch all the same."""
        if self.under_way is not None:
            self.under_way = ([dataclasses.replace(s, line=list(s.line)) for s in self.live], self.under_way[1])

    def materialize(self) -> None:
        shard = self.random.choice(self.live)
        if shard.waiting is not None or not shard.line or self.under_way is not None:
            return
        tables = (*self.random.sample(shard.tables, len(shard.tables) // 2), self.put("sst"))
        cut = self.random.randrange(len(shard.line))
        if self.random.random() < 0.2:
            return  # it dies before the manifest
        name = self.put("base")
        self.manifests[name] = Manifest(shard.line[-1][0], shard.line[cut][0], tables)
        if self.random.random() < 0.8:
            shard.waiting = SnapshotRef(name, shard.line[-1][0], shard.line[cut][0])
            shard.tables = tables

    def die(self) -> None:
        """All servers: what they were about to use is forgotten."""
        for shard in self.live:
            shard.waiting = None
            shard.tables = () if shard.base is None else self.manifests[shard.base.manifest].objects

    def tick(self) -> None:
        self.now += self.random.choice([0.01, 0.3, 1.1, 5.0]) * DAY

    def idle(self) -> None:
        """Nothing happens for days, but sweeps."""
        for _ in range(3):
            self.now += 1.1 * DAY
            assert self.sweep().skip_reason is None

    def roots(self) -> tuple[tuple[HandleRefs, ...], float | None]:
        running = None if self.under_way is None else self.under_way[1]
        return tuple(h for batch in self.batches for h in batch), running

    def sweep(self, steps: int | None = None) -> Plan:
        """One sweep; the job may continue between its reading and its deleting; it may end after some deletions."""
        handles, running = self.roots()
        if steps is not None:
            self.random.choice([self.commit, self.begin, self.die, lambda: None])()
        listing = tuple(Entry(n, 1, t, _internal.object_type(n)) for n, t in self.objects.items())
        given_input = GcInput(handles, False, running, listing)
        given_input = dataclasses.replace(
            given_input, indexes={n: self.indexes[n] for n in indexes_to_read(given_input, self.now, GRACE)}
        )
        given_input = dataclasses.replace(
            given_input, manifests={n: self.manifests[n] for n in manifests_to_read(given_input, self.now, GRACE)}
        )
        decided = plan(given_input, self.mark, self.now, GRACE)
        if decided.skip_reason is None:
            self.mark = dict(decided.unreachable_since)
            for entry in decided.delete[:steps]:
                del self.objects[entry.name]
        return decided

    def closure(self, handles: list[HandleRefs]) -> set[str]:
        """By another way than the code under test: all names that appear, again and again."""
        names, size = {n for h in handles for n in h.names()}, -1
        while len(names) != size:
            size = len(names)
            for name in list(names):
                names |= {n for _, n in self.indexes.get(name, ())}
                names |= set(self.manifests[name].objects if name in self.manifests else ())
        return names

    def needed(self) -> set[str]:
        """What Spark may hand back, and what a live server may still name."""
        handles = [h for batch in self.batches for h in batch]
        shards = [*self.live, *(self.under_way[0] if self.under_way else [])]
        for shard in shards:
            handles.append(shard.handle("live"))
            if shard.waiting is not None and shard.takes(shard.waiting):
                handles.append(HandleRefs("waiting", shard.waiting, None, ()))
        return self.closure(handles)


EVENTS = ["begin", "commit", "commit", "fail", "materialize", "die", "tick", "idle", "sweep", "cut off sweep"]


@pytest.mark.case("P6")
@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.lists(st.sampled_from(EVENTS), min_size=5, max_size=80))
def test_exactly_what_may_be_handed_back_is_left(seed: int, retained: int, events: list[str]) -> None:
    world = World(seed, retained)
    for event in events:
        if event == "sweep":
            assert world.sweep().skip_reason is None
        elif event == "cut off sweep":
            assert world.sweep(steps=world.random.randrange(3)).skip_reason is None
        else:
            getattr(world, event)()
        missing = world.needed() - set(world.objects)
        assert not missing, f"seed {seed}: after {event}: {missing}"
    world.commit()
    world.now += 2 * GRACE
    world.sweep()
    world.now += GRACE
    decided = world.sweep()
    handles = [h for batch in world.batches for h in batch]
    bases = [e.name for e in decided.adoptable if e.kind == "base"]
    shards = [Shard(h.snapshot, [*world.indexes.get(h.index or "", ()), *h.segments]) for h in handles]
    for base in bases:
        manifest = world.manifests[base]
        offered = SnapshotRef(base, manifest.version, manifest.replay_after)
        assert any(shard.takes(offered) for shard in shards), f"seed {seed}: {base} is kept without need"
    adoptable = world.closure([HandleRefs("adoptable", SnapshotRef(base, "", ""), None, ()) for base in bases])
    assert set(world.objects) == world.closure(handles) | adoptable | {FOLDER_META}, f"seed {seed}"
    assert not decided.waiting


def entry(name: str, modified: float, size: int = 1) -> Entry:
    return Entry(name, size, modified, _internal.object_type(name))


def log(n: int) -> str:
    return f"log/{n:032x}"


NOW = 1_000 * DAY
OLD = NOW - 3 * DAY


def given_input(*entries: Entry, handles: tuple[HandleRefs, ...] = (), **more: object) -> GcInput:
    return dataclasses.replace(GcInput(handles, False, None, entries), **more)  # type: ignore[arg-type]


def one_handle(*logs: str) -> HandleRefs:
    return HandleRefs("batch 0", None, None, tuple((f"v{i}", name) for i, name in enumerate(logs)))


def names(entries: tuple[Entry, ...]) -> list[str]:
    return [e.name for e in entries]


@pytest.mark.case("invariant 4")
def test_an_unreachable_object_goes_after_a_grace_period() -> None:
    before = given_input(entry(log(1), OLD), entry(log(2), OLD), handles=(one_handle(log(1)),))
    first = plan(before, {}, NOW, GRACE)
    assert (names(first.reachable), names(first.waiting), first.delete) == ([log(1)], [log(2)], ())
    early = plan(before, first.unreachable_since, NOW + GRACE - 1, GRACE)
    assert (names(early.waiting), early.unreachable_since) == ([log(2)], {log(2): NOW})
    assert names(plan(before, early.unreachable_since, NOW + GRACE, GRACE).delete) == [log(2)]


@pytest.mark.case("invariant 4")
def test_an_object_needed_in_between_starts_anew() -> None:
    free = given_input(entry(log(1), OLD), entry(log(2), OLD), handles=(one_handle(log(1)),))
    seen = plan(free, {}, NOW, GRACE).unreachable_since
    needed = dataclasses.replace(free, handles=(one_handle(log(1), log(2)),))
    seen = plan(needed, seen, NOW + GRACE / 2, GRACE).unreachable_since
    assert seen == {}
    assert plan(free, seen, NOW + 2 * GRACE, GRACE).delete == ()


@pytest.mark.case("invariant 2")
def test_the_grace_period_or_the_batch_says_what_is_young() -> None:
    entries = [entry(log(i), NOW - i * DAY) for i in range(5)]
    everything = given_input(entry(log(9), OLD), *entries, handles=(one_handle(log(9)),))
    assert names(plan(everything, {}, NOW, GRACE).young) == [log(0)]
    running = dataclasses.replace(everything, running_since=NOW - 2.5 * DAY)
    assert names(plan(running, {}, NOW, GRACE).young) == [log(i) for i in range(4)]


@pytest.mark.case("invariant 2")
def test_what_a_young_manifest_names_is_kept_with_it() -> None:
    table, base = f"sst/{1:032x}.sst", f"base/{2:032x}"
    manifests = {base: Manifest("x", "x", (table,))}
    young = given_input(entry(log(1), OLD), entry(table, OLD), entry(base, NOW), handles=(one_handle(log(1)),))
    assert manifests_to_read(young, NOW, GRACE) == [base]
    decided = plan(dataclasses.replace(young, manifests=manifests), {}, NOW, GRACE)
    assert names(decided.young) == [base, table]


@pytest.mark.parametrize("jump", [-400 * DAY, -1.0, 0.0, 1.0])
def test_a_clock_that_was_set_back_deletes_nothing(jump: float) -> None:
    before = given_input(entry(log(1), OLD), entry(log(2), OLD), handles=(one_handle(log(1)),))
    seen = {log(2): NOW}
    decided = plan(before, seen, NOW + jump, GRACE)
    assert decided.delete == ()
    assert all(since <= NOW + jump for since in decided.unreachable_since.values()), (
        "nothing waits for a future that never comes"
    )


@pytest.mark.case("invariant 5")
@pytest.mark.parametrize(
    ("gone", "why"),
    [(log(1), "names log/"), (f"base/{3:032x}", "names base/"), (f"sst/{4:032x}.sst", "which names sst/")],
)
def test_a_missing_object_is_a_doubt(gone: str, why: str) -> None:
    base, table = f"base/{3:032x}", f"sst/{4:032x}.sst"
    handle = dataclasses.replace(one_handle(log(1)), snapshot=SnapshotRef(base, "b", "b"))
    entries = [entry(n, OLD) for n in (log(1), log(2), base, table) if n != gone]
    decided = plan(
        given_input(*entries, handles=(handle,), manifests={base: Manifest("b", "b", (table,))}),
        {log(2): 0.0},
        NOW,
        GRACE,
    )
    assert decided.skip_reason is not None
    assert why in decided.skip_reason
    assert "not there" in decided.skip_reason
    assert decided.delete == decided.waiting == ()


@pytest.mark.case("S-02", "invariant 5")
def test_batches_without_a_handle_are_a_doubt_no_batches_none() -> None:
    nothing = given_input(entry(log(1), OLD), no_handles=True)
    assert "none of them holds a handle" in str(plan(nothing, {log(1): 0.0}, NOW, GRACE).skip_reason)
    fresh = dataclasses.replace(nothing, no_handles=False)
    assert names(plan(fresh, {log(1): 0.0}, NOW, GRACE).delete) == [log(1)]


@pytest.mark.case("invariant 5")
def test_contents_that_were_not_read_are_a_doubt() -> None:
    base, index = f"base/{3:032x}", f"index/{4:032x}"
    for handle in (
        dataclasses.replace(one_handle(log(1)), snapshot=SnapshotRef(base, "b", "b")),
        dataclasses.replace(one_handle(log(1)), index=index),
    ):
        entries = [entry(n, OLD) for n in (log(1), base, index)]
        assert "content is not known" in str(plan(given_input(*entries, handles=(handle,)), {}, NOW, GRACE).skip_reason)


@pytest.mark.case("invariant 6")
def test_only_our_names_go_and_those_that_name_others_first() -> None:
    ours = [f"log/{1:032x}#1", f"sst/{2:032x}.sst", f"index/{3:032x}", f"base/{4:032x}", f"probe/{5:032x}"]
    ours.append(FOLDER_META + "#1")
    foreign = ["notes.txt", "log/readme", f"log/{'A' * 32}", "_fastchangelog.json.bak", f"other/{6:032x}"]
    notes = [FOLDER_META, GC_STATE, GC_CHECKPOINTS]
    everything = given_input(
        *(entry(n, OLD - 2 * GRACE) for n in (*ours, *foreign, *notes)),
        entry(log(9), OLD),
        handles=(one_handle(log(9)),),
    )
    assert manifests_to_read(everything, NOW, GRACE) == [], "older than all that could take it over"
    decided = plan(everything, dict.fromkeys([*ours, *foreign, *notes], 0.0), NOW, GRACE)
    assert [e.kind for e in decided.delete] == ["base", "index", "sst", "log", "probe", "note"]
    assert sorted(names(decided.delete)) == sorted(ours)
    assert sorted(names(decided.unknown)) == sorted(foreign)
    assert sorted(names(decided.notes)) == sorted(notes)


def test_an_orphan_goes_as_a_whole_with_its_name_last() -> None:
    listing = [entry(n, OLD) for n in (FOLDER_META, GC_STATE, GC_CHECKPOINTS, log(1), f"base/{2:032x}")]
    first = plan_orphan(listing, {}, NOW, GRACE)
    assert first.delete == ()
    last = plan_orphan(listing, first.unreachable_since, NOW + GRACE, GRACE)
    assert names(last.delete) == [f"base/{2:032x}", log(1), GC_CHECKPOINTS, GC_STATE, FOLDER_META]


def test_an_orphan_with_young_or_foreign_objects_keeps_notes() -> None:
    listing = [entry(n, OLD) for n in (FOLDER_META, GC_STATE, log(1))]
    seen = dict.fromkeys(names(tuple(listing)), 0.0)
    young = plan_orphan([*listing, entry(log(2), NOW)], seen, NOW, GRACE)
    assert "may be using it" in str(young.skip_reason)
    assert young.delete == ()
    foreign = plan_orphan([*listing, entry("notes.txt", OLD)], seen, NOW, GRACE)
    assert (names(foreign.delete), names(foreign.unknown)) == ([log(1)], ["notes.txt"])
    late = plan_orphan([*listing, entry(log(2), OLD)], seen, NOW, GRACE)
    assert (names(late.delete), names(late.waiting)) == ([log(1)], [log(2)])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"format": 2}', b'{"format": 1}',
     b'{"format": 1, "unreachable_since": {"a": "b"}, "checkpoints": []}',
     b'{"format": 1, "unreachable_since": {"a": NaN}, "checkpoints": []}',
     b'{"format": 1, "unreachable_since": {"a": -Infinity}, "checkpoints": []}',
     b'{"format": 1, "unreachable_since": {"a": false}, "checkpoints": []}',
     b'{"format": 1, "unreachable_since": {}, "checkpoints": [1]}'],
)  # fmt: skip
def test_a_damaged_mark_is_told_apart(data: bytes) -> None:
    with pytest.raises(ValueError):
        GcState.from_bytes(data)
