"""Which objects of a state's folder may be deleted: the decision, without any I/O.

Owns: reachability, grace, what one collection stores for the next, and the order of deletions.
Does not own: listing, reading or deleting anything (`gc.collector`), Spark's checkpoint (`checkpoints.handles`),
the clock (a parameter).

Invariants of a `Plan` (P6):
1. an object that a handle of a retained batch or of the checkpoint log names is kept, and so is what a kept manifest or
   index names; the checkpoint log itself is kept;
2. objects younger than the grace period are kept; while a batch is running, its start counts as now, and so does the
   moment when the handles began to be read;
3. a snapshot that a later version may still adopt counts as named by that version;
4. an object is deleted only if a collection at least one grace period ago found it unreachable, every collection since
   did, and this one does;
5. in doubt nothing is deleted: a named object is missing, committed batches hold no handle at all, or handles and the
   folders of a query do not fit;
6. only objects with names of this library are ever deleted, and an object is deleted before those that it names;
7. an object that 1 to 3 do not keep and that does not wait for 4 is deleted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastchangelog.layout import (
    CHECKPOINT_LOG,
    FOLDER_META,
    GC_CHECKPOINTS,
    GC_STATE,
    LOG,
    PROBE,
    SEGMENT_INDEX,
    SNAPSHOT,
    STARTS,
    TABLE,
)

__all__ = [
    "SnapshotRef",
    "Entry",
    "HandleRefs",
    "Manifest",
    "GcState",
    "Plan",
    "GcInput",
    "cutoff",
    "indexes_to_read",
    "is_time",
    "manifests_to_read",
    "misfit",
    "parsed",
    "plan",
    "plan_orphan",
]

#: Deletion order: an object before those that it names, so that a manifest never lacks its files.
_ORDER = {SNAPSHOT: 0, SEGMENT_INDEX: 1, TABLE: 2, LOG: 3, PROBE: 4, "note": 5}

#: Seconds: 30,000 years.
_NO_TIME = 1e12

#: Notes of a folder that only go with the folder.
_NOTES = (FOLDER_META, GC_STATE, GC_CHECKPOINTS)

Segments = tuple[tuple[str, str], ...]
"""Version and object of each change set, oldest first."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """An object as a listing shows it."""

    name: str
    size: int
    modified: float
    """Seconds since the epoch, by the store's clock."""
    kind: str | None
    """By its name; None for a name that is not of this library."""
    why: str = ""
    """Why it can be neither read nor named, if so; then the name has escapes."""


@dataclasses.dataclass(frozen=True)
class SnapshotRef:
    """The snapshot that a handle names."""

    manifest: str
    version: str
    replay_after: str


@dataclasses.dataclass(frozen=True)
class HandleRefs:
    """The objects that a shard's handle names."""

    source: str
    """The place where it was found, for messages."""
    snapshot: SnapshotRef | None
    index: str | None
    segments: Segments
    operator: int | None = None
    """Spark's number of the operator whose handle it is; None where that is not known."""

    @classmethod
    def from_json(cls, text: str, source: str, operator: int | None = None) -> HandleRefs:
        """The handle of `_internal.handle_json`."""
        raw = json.loads(text)
        base = raw["base"]
        return cls(
            source,
            base and SnapshotRef(base["manifest"]["name"], f"{base['version']:032x}", f"{base['replay_after']:032x}"),
            raw["indexed"] and raw["indexed"]["name"],
            tuple((f"{s['version']:032x}", s["object"]["name"]) for s in raw["segments"]),
            operator,
        )

    def names(self) -> Iterator[str]:
        """The objects that the handle itself names."""
        if self.snapshot is not None:
            yield self.snapshot.manifest
        if self.index is not None:
            yield self.index
        for _, name in self.segments:
            yield name


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Content of a snapshot's manifest."""

    version: str
    replay_after: str
    objects: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GcInput:
    """Everything that was read of one folder, in the order of the fields: handles first, then names."""

    handles: tuple[HandleRefs, ...]
    """Of every retained batch."""
    no_handles: bool
    """True if batches are retained but none holds a handle, so their needs are unknown."""
    running_since: float | None
    """When the oldest batch began that is planned and not committed, or when the handles began to be read, if earlier:
    a handle that was not read may name what was written since."""
    listing: tuple[Entry, ...]
    indexes: Mapping[str, Segments] = dataclasses.field(default_factory=dict)
    """Contents of the index objects of `indexes_to_read`."""
    manifests: Mapping[str, Manifest] = dataclasses.field(default_factory=dict)
    """Contents of the manifests of `manifests_to_read`."""

    def lineage(self, handle: HandleRefs) -> Segments:
        """All change sets after the handle's snapshot."""
        older = self.indexes.get(handle.index, ()) if handle.index is not None else ()
        return (*older, *handle.segments)


@dataclasses.dataclass(frozen=True)
class GcState:
    """The note that a collection leaves for the next one."""

    unreachable_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """When a collection first found each object unreachable."""
    checkpoints: tuple[str, ...] = ()
    """The query's checkpoint locations that were given to a collection."""
    gone: tuple[str, ...] = ()
    """Locations that a person declared gone."""

    def to_bytes(self) -> bytes:
        """Its JSON."""
        since = dict(sorted(self.unreachable_since.items()))
        gone = {"gone": list(self.gone)} if self.gone else {}
        fields = {"format": 1, "checkpoints": list(self.checkpoints), **gone, "unreachable_since": since}
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> GcState:
        """The inverse. Anything else is a `ValueError`.

        >>> GcState.from_bytes(GcState({"log/0": 5.0}, ("/ckpt",)).to_bytes())
        GcState(unreachable_since={'log/0': 5.0}, checkpoints=('/ckpt',), gone=())
        """
        raw = parsed(data)
        if not isinstance(raw, dict) or raw.get("format") != 1:
            raise ValueError("not a state of format 1")
        since: Any = raw.get("unreachable_since")
        checkpoints: Any = raw.get("checkpoints")
        gone: Any = raw.get("gone", [])
        if not isinstance(since, dict) or not all(map(is_time, since.values())):
            raise ValueError("a state without times")
        for locations in (checkpoints, gone):
            if not isinstance(locations, list) or not all(isinstance(at, str) for at in locations):
                raise ValueError("a state without a list of checkpoints")
        return cls(since, tuple(checkpoints), tuple(gone))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The objects of a folder, grouped by their fate."""

    skip_reason: str | None = None
    """Why nothing may be deleted; then all other fields but `unknown` are empty."""
    delete: tuple[Entry, ...] = ()
    """In this order."""
    waiting: tuple[Entry, ...] = ()
    """Unreachable, but not yet for a grace period."""
    reachable: tuple[Entry, ...] = ()
    """Named by a retained batch, directly or not."""
    adoptable: tuple[Entry, ...] = ()
    """Of snapshots that a later version may adopt."""
    young: tuple[Entry, ...] = ()
    """Objects younger than the grace period, and the objects that they name."""
    notes: tuple[Entry, ...] = ()
    unknown: tuple[Entry, ...] = ()
    """Not ours."""
    unreachable_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """For the next `GcState`, as before the deletions."""


def parsed(data: bytes) -> Any:
    """A note's JSON, parsed. Anything else is a `ValueError`."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def is_time(value: object) -> bool:
    """True for a number of seconds that a note may hold: neither `NaN` nor beyond the largest date.

    >>> is_time(0), is_time(1.5), is_time(True), is_time(float("nan")), is_time(10**400), is_time("1")
    (True, True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _NO_TIME


def cutoff(now: float, grace: float, running_since: float | None) -> float:
    """Objects written after this are young.

    >>> cutoff(100.0, 10.0, None), cutoff(100.0, 10.0, 40.0)
    (90.0, 30.0)
    """
    return (now if running_since is None else min(now, running_since)) - grace


def indexes_to_read(given: GcInput, now: float, grace: float) -> list[str]:
    """The index objects whose content matters: those that are kept in any case."""
    named = {handle.index for handle in given.handles}
    edge = cutoff(now, grace, given.running_since)
    return [e.name for e in given.listing if _published(e, SEGMENT_INDEX) and (e.name in named or e.modified > edge)]


def manifests_to_read(given: GcInput, now: float, grace: float) -> list[str]:
    """The manifests whose content matters; needs the indexes first.

    A snapshot is made of existing versions: a lineage that is younger than it as a whole cannot adopt it.
    """
    named = {handle.snapshot.manifest for handle in given.handles if handle.snapshot is not None}
    used = {name for handle in given.handles for _, name in given.lineage(handle)} | named
    oldest = min((e.modified for e in given.listing if e.name in used), default=float("inf"))
    edge = min(cutoff(now, grace, given.running_since), oldest - grace)
    return [e.name for e in given.listing if _published(e, SNAPSHOT) and (e.name in named or e.modified > edge)]


def plan(given: GcInput, unreachable_since: Mapping[str, float], now: float, grace: float) -> Plan:
    """The plan for a folder whose query's checkpoint was read."""
    entries = {entry.name: entry for entry in given.listing}
    unknown = tuple(e for e in given.listing if e.kind is None)
    skip_reason = _skip_reason(given, entries)
    if skip_reason is not None:
        return Plan(skip_reason, unknown=unknown)
    edge = cutoff(now, grace, given.running_since)
    kept: dict[str, str] = {}

    def keep(names: Iterable[str], why: str) -> None:
        for name in names:
            if name in kept or name not in entries:
                continue
            kept[name] = why
            keep((n for _, n in given.indexes.get(name, ())), why)
            if name in given.manifests:
                keep(given.manifests[name].objects, why)

    for handle in given.handles:
        keep(handle.names(), "reachable")
    keep((e.name for e in given.listing if e.kind == CHECKPOINT_LOG), "reachable")
    keep(_adoptable(given), "adoptable")
    keep((e.name for e in given.listing if e.kind not in (None, "note") and e.modified > edge), "young")
    notes = {e.name for e in given.listing if _goes_with_folder(e)}
    notes |= {e.name for e in given.listing if e.kind == "note" and e.modified > edge}
    rest = [e for e in given.listing if e.kind is not None and e.name not in kept and e.name not in notes]
    delete, waiting, since = _expired(rest, unreachable_since, now, grace)
    return Plan(
        delete=delete,
        waiting=waiting,
        reachable=_with(entries, kept, "reachable"),
        adoptable=_with(entries, kept, "adoptable"),
        young=_with(entries, kept, "young"),
        notes=tuple(entries[name] for name in sorted(notes)),
        unknown=unknown,
        unreachable_since=since,
    )


def plan_orphan(listing: Sequence[Entry], unreachable_since: Mapping[str, float], now: float, grace: float) -> Plan:
    """The plan for a folder whose query's checkpoint is gone: everything is deleted, the notes last."""
    unknown = tuple(e for e in listing if e.kind is None)
    ours = [e for e in listing if e.kind not in (None, CHECKPOINT_LOG) and e.name not in (GC_STATE, GC_CHECKPOINTS)]
    young = [e for e in ours if e.modified > cutoff(now, grace, None)]
    if young:
        return Plan(f"{young[0].name} was written within the grace period: a query may be using it", unknown=unknown)
    delete, waiting, since = _expired(ours, unreachable_since, now, grace)
    if waiting or unknown:
        # The notes stay as long as any object does: they name its owner.
        delete = tuple(e for e in delete if e.kind != "note")
    else:
        # The copy before the state: without the state it would show a loss.
        states = [e for name in (GC_CHECKPOINTS, GC_STATE) for e in listing if e.name == name]
        delete = (*(e for e in delete if e.name != FOLDER_META), *states, *(e for e in delete if e.name == FOLDER_META))
    return Plan(delete=delete, waiting=waiting, unknown=unknown, unreachable_since=since)


def misfit(handles: Iterable[HandleRefs], listings: Sequence[set[str]], operators: int | None) -> str | None:
    """Why a query's folders under one root may not be collected: there are more than it has operators, or none of them
    holds any object of one of its handles.

    An operator of the query may have its folder under another root. Its handles are no doubt if it has no object here,
    while each folder here is another operator's. `operators` is their number; None if it is not known.
    """
    homes: dict[int | None, set[int]] = {}
    unplaced = []
    for handle in handles:
        named = set(handle.names())
        found = {number for number, listed in enumerate(listings) if not listed.isdisjoint(named)}
        homes.setdefault(handle.operator, set()).update(found)
        if named and not found:
            unplaced.append(handle)
    all_taken = len(set().union(*homes.values())) == len(listings)
    for handle in unplaced:
        if handle.operator is None or homes[handle.operator] or not all_taken:
            return f"{handle.source} names {next(iter(handle.names()))}, which is not there"
    if operators is not None and len(listings) > operators:
        return (
            f"the query has {len(listings)} folders here, and {operators} in its checkpoint: a part of that is "
            "missing, or a folder was left by a start that failed under another name; remove such a folder"
        )
    return None


def _goes_with_folder(entry: Entry) -> bool:
    return entry.name in _NOTES or (_published(entry, "note") and entry.name.startswith(f"{STARTS}/"))


def _published(entry: Entry, kind: str) -> bool:
    """True for an object of that kind that is not an unfinished upload."""
    return entry.kind == kind and "#" not in entry.name


def _skip_reason(given: GcInput, entries: Mapping[str, Entry]) -> str | None:
    for handle in given.handles:
        for name in (*handle.names(), *(n for _, n in given.lineage(handle))):
            if name not in entries:
                return f"{handle.source} names {name}, which is not there"
        if handle.index is not None and handle.index not in given.indexes:
            return f"{handle.source} names {handle.index}, whose content is not known"
        if handle.snapshot is not None:
            manifest = given.manifests.get(handle.snapshot.manifest)
            if manifest is None:
                return f"{handle.source} names {handle.snapshot.manifest}, whose content is not known"
            for name in manifest.objects:
                if name not in entries:
                    return f"{handle.source} names {handle.snapshot.manifest}, which names {name}, which is not there"
    if given.no_handles:
        return "the query has committed batches, but none of them holds a handle"
    return None


def _adoptable(given: GcInput) -> list[str]:
    """Snapshots that the next version of their shard may adopt, by the rule of the shard's lineage.

    Until its next row, an idle shard keeps the snapshot that it made last in the memory of its server only.
    """
    # Only versions that manifests name: thousands of handles may have a thousand change sets each.
    relevant = {v for manifest in given.manifests.values() for v in (manifest.version, manifest.replay_after)}
    lines: set[frozenset[str]] = set()
    for handle in set(given.handles):
        line = {version for version, _ in given.lineage(handle) if version in relevant}
        if handle.snapshot is not None and handle.snapshot.version == handle.snapshot.replay_after:
            line.add(handle.snapshot.version)
        lines.add(frozenset(line))
    found = []
    for name, manifest in given.manifests.items():
        if any(manifest.version in line and manifest.replay_after in line for line in lines):
            found.append(name)
    return found


def _expired(
    unreachable: Iterable[Entry], unreachable_since: Mapping[str, float], now: float, grace: float
) -> tuple[tuple[Entry, ...], tuple[Entry, ...], dict[str, float]]:
    """Objects to delete now, objects to delete later, and since when each is unreachable.

    A time in the future comes from a clock that was moved back: it counts from now.
    """
    entries = sorted(unreachable, key=lambda e: (_ORDER.get(e.kind or "", 9), e.name))
    since = {e.name: min(unreachable_since.get(e.name, now), now) for e in entries}
    expired = {e.name for e in entries if e.name in unreachable_since and since[e.name] <= now - grace}
    return tuple(e for e in entries if e.name in expired), tuple(e for e in entries if e.name not in expired), since


def _with(entries: Mapping[str, Entry], kept: Mapping[str, str], why: str) -> tuple[Entry, ...]:
    return tuple(entries[name] for name in sorted(kept) if kept[name] == why)
