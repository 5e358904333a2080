"""What may be deleted of a state's folder: the decision, and nothing but the decision.

Owns: reachability, grace, the mark that one sweep leaves to the next, and the order of deletions.
Does not own: listing, reading or deleting anything (`sweeper`), Spark's checkpoint (`spark.roots`), the clock (a
parameter).

Invariants of a `Plan` (P6):
1. what a handle of a retained batch or of a head names is kept, and what any kept manifest or index names is kept with
   it; so are heads;
2. what is younger than the grace period is kept; while a batch is under way, its start counts as now, and so does the
   moment when the handles began to be read;
3. a base that a later version may still take over counts as named by it;
4. an object is deleted only if a sweep at least one grace period ago found it unreachable, every sweep since did, and
   this one does;
5. a doubt deletes nothing: something named is missing, or committed batches hold no handle at all;
6. only objects with names that this library gives are ever deleted, and those that name others go first;
7. nothing else is left: what is neither kept by 1 to 3 nor waiting for 4 is deleted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "FOLDER_META",
    "SWEEP_MARK",
    "Base",
    "Entry",
    "Handle",
    "Manifest",
    "Mark",
    "Plan",
    "Scene",
    "cutoff",
    "indexes_to_read",
    "is_time",
    "manifests_to_read",
    "parsed",
    "plan",
    "plan_orphan",
]

FOLDER_META = "_fastchangelog.json"
"""Says whose folder it is; written before anything else, deleted after everything else."""

SWEEP_MARK = "_fastchangelog-sweep.json"
"""What the last sweep saw."""

#: Those that name others first: whoever meets a manifest also meets its files.
_ORDER = {"base": 0, "index": 1, "sst": 2, "log": 3, "probe": 4, "note": 5}

#: Seconds: 30,000 years.
_NO_TIME = 1e12

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
    """What its name says it is; None for a name that is not ours."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The base that a handle names."""

    manifest: str
    version: str
    replay_after: str


@dataclasses.dataclass(frozen=True)
class Handle:
    """What a shard's handle names."""

    source: str
    """Where it was found, for messages."""
    base: Base | None
    index: str | None
    segments: Segments

    @classmethod
    def from_json(cls, text: str, source: str) -> Handle:
        """The handle of `_internal.handle_json`."""
        raw = json.loads(text)
        base = raw["base"]
        return cls(
            source,
            base and Base(base["manifest"]["name"], f"{base['version']:032x}", f"{base['replay_after']:032x}"),
            raw["indexed"] and raw["indexed"]["name"],
            tuple((f"{s['version']:032x}", s["object"]["name"]) for s in raw["segments"]),
        )

    def names(self) -> Iterator[str]:
        """The objects that the handle itself names."""
        if self.base is not None:
            yield self.base.manifest
        if self.index is not None:
            yield self.index
        for _, name in self.segments:
            yield name


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a base's manifest says."""

    version: str
    replay_after: str
    objects: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Scene:
    """All that is known of one folder. What can change was read in the order of the fields: handles, then names."""

    handles: tuple[Handle, ...]
    """Of every retained batch."""
    silent: bool
    """True when there is a retained batch, but no handle in any: then nothing is known of what it needs."""
    running_since: float | None
    """When the oldest batch began that is planned and not committed, or reading the handles began if that was before:
    what was written since may be named by a handle that was not read."""
    listing: tuple[Entry, ...]
    indexes: Mapping[str, Segments] = dataclasses.field(default_factory=dict)
    """Contents of the index objects of `indexes_to_read`."""
    manifests: Mapping[str, Manifest] = dataclasses.field(default_factory=dict)
    """Contents of the manifests of `manifests_to_read`."""

    def lineage(self, handle: Handle) -> Segments:
        """All change sets after the handle's base."""
        older = self.indexes.get(handle.index, ()) if handle.index is not None else ()
        return (*older, *handle.segments)


@dataclasses.dataclass(frozen=True)
class Mark:
    """What sweeps tell the next one."""

    seen: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Since when each object has been unreachable, as far as sweeps looked."""
    checkpoints: tuple[str, ...] = ()
    """Where the query's checkpoint is, if somebody said so."""

    def to_bytes(self) -> bytes:
        """Its JSON."""
        seen = dict(sorted(self.seen.items()))
        return json.dumps({"format": 1, "checkpoints": list(self.checkpoints), "unreachable_since": seen}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Mark:
        """The inverse. Anything else is a `ValueError`.

        >>> Mark.from_bytes(Mark({"log/0": 5.0}, ("/ckpt",)).to_bytes())
        Mark(seen={'log/0': 5.0}, checkpoints=('/ckpt',))
        """
        raw = parsed(data)
        if not isinstance(raw, dict) or raw.get("format") != 1:
            raise ValueError("not a mark of format 1")
        seen, checkpoints = raw.get("unreachable_since"), raw.get("checkpoints")
        if not isinstance(seen, dict) or not all(map(is_time, seen.values())):
            raise ValueError("a mark without times")
        if not isinstance(checkpoints, list) or not all(isinstance(c, str) for c in checkpoints):
            raise ValueError("a mark without a list of checkpoints")
        return cls(seen, tuple(checkpoints))


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do with a folder."""

    doubt: str | None = None
    """Why nothing may be deleted; then all else is empty, except `unknown`."""
    delete: tuple[Entry, ...] = ()
    """In this order."""
    waiting: tuple[Entry, ...] = ()
    """Unreachable, but not for long enough as far as sweeps know."""
    reachable: tuple[Entry, ...] = ()
    """Named by a retained batch, directly or not."""
    takeable: tuple[Entry, ...] = ()
    """Of bases that a later version may take over."""
    young: tuple[Entry, ...] = ()
    """Younger than the grace period, and what they name."""
    notes: tuple[Entry, ...] = ()
    unknown: tuple[Entry, ...] = ()
    """Not ours."""
    seen: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """For the next mark, as it is before the deletions."""


def parsed(data: bytes) -> Any:
    """What a note's JSON says. Anything else is a `ValueError`."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def is_time(value: object) -> bool:
    """True for a number of seconds that a note may hold: neither `NaN` nor beyond all dates.

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


def indexes_to_read(scene: Scene, now: float, grace: float) -> list[str]:
    """The index objects whose content decides: those that are surely kept."""
    named = {handle.index for handle in scene.handles}
    edge = cutoff(now, grace, scene.running_since)
    return [e.name for e in scene.listing if _published(e, "index") and (e.name in named or e.modified > edge)]


def manifests_to_read(scene: Scene, now: float, grace: float) -> list[str]:
    """The manifests whose content decides; wants the indexes first.

    A base is made of versions that are there: it cannot be taken over by a lineage all of which is younger than it.
    """
    named = {handle.base.manifest for handle in scene.handles if handle.base is not None}
    used = {name for handle in scene.handles for _, name in scene.lineage(handle)} | named
    oldest = min((e.modified for e in scene.listing if e.name in used), default=float("inf"))
    edge = min(cutoff(now, grace, scene.running_since), oldest - grace)
    return [e.name for e in scene.listing if _published(e, "base") and (e.name in named or e.modified > edge)]


def plan(scene: Scene, seen: Mapping[str, float], now: float, grace: float) -> Plan:
    """Decides about a folder whose query's checkpoint was read."""
    entries = {entry.name: entry for entry in scene.listing}
    unknown = tuple(e for e in scene.listing if e.kind is None)
    doubt = _doubt(scene, entries)
    if doubt is not None:
        return Plan(doubt, unknown=unknown)
    edge = cutoff(now, grace, scene.running_since)
    kept: dict[str, str] = {}

    def keep(names: Iterable[str], why: str) -> None:
        for name in names:
            if name in kept or name not in entries:
                continue
            kept[name] = why
            keep((n for _, n in scene.indexes.get(name, ())), why)
            if name in scene.manifests:
                keep(scene.manifests[name].objects, why)

    for handle in scene.handles:
        keep(handle.names(), "reachable")
    keep((e.name for e in scene.listing if e.kind == "head"), "reachable")
    keep(_takeable(scene), "takeable")
    keep((e.name for e in scene.listing if e.kind not in (None, "note") and e.modified > edge), "young")
    notes = {e.name for e in scene.listing if e.name in (FOLDER_META, SWEEP_MARK)}
    notes |= {e.name for e in scene.listing if e.kind == "note" and e.modified > edge}
    rest = [e for e in scene.listing if e.kind is not None and e.name not in kept and e.name not in notes]
    delete, waiting, since = _ripe(rest, seen, now, grace)
    return Plan(
        delete=delete,
        waiting=waiting,
        reachable=_with(entries, kept, "reachable"),
        takeable=_with(entries, kept, "takeable"),
        young=_with(entries, kept, "young"),
        notes=tuple(entries[name] for name in sorted(notes)),
        unknown=unknown,
        seen=since,
    )


def plan_orphan(listing: Sequence[Entry], seen: Mapping[str, float], now: float, grace: float) -> Plan:
    """Decides about a folder whose query's checkpoint is gone: all of it goes, the notes last."""
    unknown = tuple(e for e in listing if e.kind is None)
    ours = [e for e in listing if e.kind not in (None, "head") and e.name != SWEEP_MARK]
    young = [e for e in ours if e.modified > cutoff(now, grace, None)]
    if young:
        return Plan(f"{young[0].name} was written within the grace period: somebody may be using it", unknown=unknown)
    delete, waiting, since = _ripe(ours, seen, now, grace)
    if waiting or unknown:
        # The notes stay as long as anything does: they say whose it was.
        delete = tuple(e for e in delete if e.kind != "note")
    else:
        mark = [e for e in listing if e.name == SWEEP_MARK]
        delete = (*(e for e in delete if e.name != FOLDER_META), *mark, *(e for e in delete if e.name == FOLDER_META))
    return Plan(delete=delete, waiting=waiting, unknown=unknown, seen=since)


def _published(entry: Entry, kind: str) -> bool:
    """True for an object of that kind that is no unfinished upload."""
    return entry.kind == kind and "#" not in entry.name


def _doubt(scene: Scene, entries: Mapping[str, Entry]) -> str | None:
    for handle in scene.handles:
        for name in (*handle.names(), *(n for _, n in scene.lineage(handle))):
            if name not in entries:
                return f"{handle.source} names {name}, which is not there"
        if handle.index is not None and handle.index not in scene.indexes:
            return f"{handle.source} names {handle.index}, whose content is not known"
        if handle.base is not None:
            manifest = scene.manifests.get(handle.base.manifest)
            if manifest is None:
                return f"{handle.source} names {handle.base.manifest}, whose content is not known"
            for name in manifest.objects:
                if name not in entries:
                    return f"{handle.source} names {handle.base.manifest}, which names {name}, which is not there"
    if scene.silent:
        return "the query has committed batches, but none of them holds a handle"
    return None


def _takeable(scene: Scene) -> list[str]:
    """Bases that are waiting for the next version of their shard, or may be: the rule of the shard's lineage.

    An idle shard keeps the base that it made last for as long as no row comes, in the memory of its server only.
    """
    # Of a line, only what the manifests say: there may be a thousand change sets in each of thousands of handles.
    asked = {version for manifest in scene.manifests.values() for version in (manifest.version, manifest.replay_after)}
    lines: set[frozenset[str]] = set()
    for handle in set(scene.handles):
        line = {version for version, _ in scene.lineage(handle) if version in asked}
        if handle.base is not None and handle.base.version == handle.base.replay_after:
            line.add(handle.base.version)
        lines.add(frozenset(line))
    found = []
    for name, manifest in scene.manifests.items():
        if any(manifest.version in line and manifest.replay_after in line for line in lines):
            found.append(name)
    return found


def _ripe(
    unreachable: Iterable[Entry], seen: Mapping[str, float], now: float, grace: float
) -> tuple[tuple[Entry, ...], tuple[Entry, ...], dict[str, float]]:
    """What is deleted now, what later, and since when each is unreachable.

    A time in the future is a clock that was moved: it counts from now.
    """
    entries = sorted(unreachable, key=lambda e: (_ORDER.get(e.kind or "", 9), e.name))
    since = {e.name: min(seen.get(e.name, now), now) for e in entries}
    ripe = {e.name for e in entries if e.name in seen and since[e.name] <= now - grace}
    return tuple(e for e in entries if e.name in ripe), tuple(e for e in entries if e.name not in ripe), since


def _with(entries: Mapping[str, Entry], kept: Mapping[str, str], why: str) -> tuple[Entry, ...]:
    return tuple(entries[name] for name in sorted(kept) if kept[name] == why)
