"""Garbage collection of a state root: reads it, plans, and executes the plan.

Owns: the order of reading and writing, folders and their owners.
Does not own: the decision (`gc.plan`), Spark's checkpoints (any `CheckpointReader`), the report (`gc.report`), output
(`cli.sweep`).

Order, and why:
1. list the root, for its folders and their queries; read their notes, which also hold the grace period that their
   servers rely on;
2. read each query's checkpoints, or an embedded state's checkpoint log. A checkpoint that cannot be read keeps all
   folders of its query;
3. with `delete`, write the folder's state again, with the checkpoints that were read, and a probe under a new name;
4. list the folder anew: everything that a handle of step 2 names was written before, so it is in the listing, or the
   plan deletes nothing. The probe's time in the listing is the store's own clock. The state's time would not do: a
   store with late listings may show its former time, and waiting objects would seem to have waited since then;
5. read index objects, then manifests; plan;
6. with `delete`, write the new state, so that waiting objects start to wait, then delete the expired ones, each before
   those that it names. If another collection has written a checkpoint into the state that this one did not read,
   nothing is deleted.

A collection may end after any step, and any number may run at once: deleting twice is fine, and a lost state only
restarts the waiting.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, StateNotFoundError, StoreError
from fastchangelog.gc import checkpoint_log
from fastchangelog.gc.plan import (
    Entry,
    GcInput,
    GcState,
    HandleRefs,
    Manifest,
    Plan,
    Segments,
    indexes_to_read,
    manifests_to_read,
    plan,
    plan_orphan,
)
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import CREATES, FOLDER_META, GC_STATE, PROBE
from fastchangelog.options import default_option, parse_duration

__all__ = ["CheckpointReader", "Collector", "Roots", "StateFolder"]

#: Requests at once: reads of manifests and deletions only wait for the store.
_PARALLEL = 16
#: Requests that may begin before all earlier ones have succeeded.
_MAX_QUEUED = 8 * _PARALLEL

#: The grace period of embedded states, which have no note, in seconds: the option's default.
_DEFAULT_GRACE = parse_duration("sweep_grace", default_option("sweep_grace")).total_seconds()

S = TypeVar("S")
T = TypeVar("T")


class StateFolder(Protocol):
    """A folder of objects: `_internal.ObjectFolder`."""

    def child(self, folder: str) -> StateFolder:
        """A folder of it."""

    def list(self, prefix: str) -> Sequence[tuple[str, int, float]]:
        """Names below `prefix`, sizes and times of writing in seconds since the epoch."""

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Writes an object as a whole, also over another one."""

    def delete(self, name: str) -> None:
        """Deletes an object; one that is not there is fine."""


@dataclasses.dataclass(frozen=True)
class Roots:
    """The handles that Spark may still pass to a task, from one checkpoint."""

    query_id: str
    batches: tuple[int, ...]
    """The retained ones."""
    handles: Mapping[str, str]
    """Every handle that a retained batch holds, in its text form, and where it was first found."""
    running_since: float | None = None
    """When the oldest batch began that is planned and not committed, in seconds since the epoch."""
    notes: tuple[str, ...] = ()
    """Remarks for the report."""


class CheckpointReader(Protocol):
    """Reads Spark's checkpoints."""

    def query_id(self, location: str) -> str | None:
        """The query that the checkpoint at `location` belongs to; None if there is certainly no checkpoint.

        Anything else that prevents an answer is an error.
        """

    def roots(self, location: str) -> Roots:
        """The handles that the checkpoint retains. A checkpoint that cannot be read in full is an error."""


@dataclasses.dataclass
class _Query:
    """What is known of a query before its folders are read."""

    checkpoints: tuple[str, ...] = ()
    roots: tuple[Roots, ...] = ()
    handles: tuple[HandleRefs, ...] = ()
    orphan: bool = False
    skip_reason: str | None = None
    embedded: bool = False
    """True for the folder of an embedded state, which has a checkpoint log and no Spark checkpoint."""
    read_started: float = 0.0
    """When its handles began to be read, by the clock of the collecting machine."""


class _Folder:
    """A folder during a collection."""

    def __init__(self, name: str, store: StateFolder, query: _Query) -> None:
        self.name, self.store, self.query = name, store, query
        self.state, self.now, self.grace = GcState(), 0.0, float("inf")
        #: By the same clock as `now`: a handle that was not read may name what was written since.
        self.read_started = 0.0
        self.listing: tuple[Entry, ...] = ()
        self.report = FolderReport(
            name,
            query.checkpoints,
            query.orphan,
            query.skip_reason,
            notes=tuple(note for roots in query.roots for note in roots.notes),
            batches=tuple(sorted({batch for roots in query.roots for batch in roots.batches})),
        )


class Collector:
    """Collects the garbage under one root."""

    def __init__(
        self,
        root: StateFolder,
        checkpoints: CheckpointReader,
        *,
        grace: float,
        clock: Callable[[], float],
        locations: Iterable[str] = (),
        delete: bool = False,
        orphans: bool = False,
    ) -> None:
        """`grace` in seconds; `clock` for dry runs, which write nothing that the store could date; `locations`:
        checkpoints that the folders don't know of; `delete` and `orphans`: what may be deleted."""
        if grace < 0:
            raise InvalidArgumentError("the grace period is negative")
        self._root = root
        self._checkpoints = checkpoints
        self._grace = grace
        self._clock = clock
        self._locations = tuple(locations)
        self._delete = delete
        self._orphans = orphans
        self.unknown: tuple[Entry, ...] = ()
        """Objects outside of all folders of states."""

    def run(self) -> list[FolderReport]:
        """One collection: a report for each folder."""
        given = self._given_locations()
        folders, states, self.unknown = _folders([row for row in self._root.list("") if not _is_of_a_root(row[0])])
        by_query: dict[str, list[str]] = {}
        for folder in sorted(folders):
            by_query.setdefault(folder.split("/", 1)[0], []).append(folder)
        reports = []
        for name in sorted(states):
            store, read_started = self._root.child(name), self._clock()
            query = dataclasses.replace(self._embedded_query(store), read_started=read_started)
            reports += self._collect(query, [_Folder(name, store, query)])
        for name, own in by_query.items():
            locations = [*given.get(name, ()), *(at for folder in own for at in self._recorded_locations(folder))]
            read_started = self._clock()
            query = dataclasses.replace(self._query(name, tuple(dict.fromkeys(locations))), read_started=read_started)
            reports += self._collect(query, [_Folder(folder, self._root.child(folder), query) for folder in own])
        return reports

    def _given_locations(self) -> dict[str, list[str]]:
        """The locations that the caller named, by query."""
        given: dict[str, list[str]] = {}
        for location in self._locations:
            query = self._checkpoints.query_id(location)
            if query is None:
                raise StateNotFoundError(f"there is no checkpoint of a Spark query at {location}; check --checkpoint")
            given.setdefault(query, []).append(location)
        return given

    def _recorded_locations(self, folder: str) -> list[str]:
        """The locations that earlier collections were told of."""
        return list(self._read_state(folder)[0].checkpoints)

    def _read_state(self, folder: str) -> tuple[GcState, str | None]:
        """The state of the last collection, and a remark if it cannot be read."""
        data = self._root.read(f"{folder}/{GC_STATE}")
        try:
            return (GcState() if data is None else GcState.from_bytes(data)), None
        except ValueError as error:
            return GcState(), f"the state of the last sweep cannot be read ({error}): waiting starts anew"

    def _embedded_query(self, store: StateFolder) -> _Query:
        """An embedded state: the handles of its checkpoint log."""
        try:
            found = checkpoint_log.retained(store)
        except FastChangelogError as error:
            return _Query(skip_reason=f"its checkpoint log cannot be read: {error}", embedded=True)
        if found is None:
            return _Query(skip_reason="its checkpoint log was listed, but has gone since: sweep again", embedded=True)
        return _Query(handles=tuple(found), embedded=True)

    def _query(self, query: str, locations: tuple[str, ...]) -> _Query:
        if not locations:
            return _Query(
                skip_reason="this query's checkpoint is unknown: name it with --checkpoint, once with --delete"
            )
        found: list[Roots] = []
        handles: dict[object, HandleRefs] = {}
        try:
            for location in locations:
                if self._checkpoints.query_id(location) == query:
                    roots = self._checkpoints.roots(location)
                    if roots.query_id != query:
                        return _Query(locations, skip_reason=f"the checkpoint at {location} changed while it was read")
                    found.append(roots)
                    for text, source in roots.handles.items():
                        handle = HandleRefs.from_json(_internal.handle_json(text), source)
                        handles.setdefault((handle.snapshot, handle.index, handle.segments), handle)
        except FastChangelogError as error:
            return _Query(locations, skip_reason=f"its checkpoint cannot be read: {error}")
        return _Query(locations, tuple(found), tuple(handles.values()), orphan=not found)

    def _collect(self, query: _Query, folders: list[_Folder]) -> list[FolderReport]:
        """Steps 3 to 6 for all folders of a query: a handle does not tell which of them holds its objects."""
        deletes = self._delete and (self._orphans or not query.orphan)
        if query.skip_reason is None:
            for folder in folders:
                self._step(folder, lambda folder: self._list(folder, deletes))
            unplaced = _unplaced_handle(query, folders)
            for folder in folders:
                folder.report.kept_because = folder.report.kept_because or unplaced
                self._step(folder, lambda folder: self._decide(folder, deletes))
        return [folder.report for folder in folders]

    def _step(self, folder: _Folder, step: Callable[[_Folder], None]) -> None:
        if folder.report.kept_because is None:
            try:
                step(folder)
            except FastChangelogError as error:
                folder.report.kept_because = f"not to the end: {error}"

    def _list(self, folder: _Folder, deletes: bool) -> None:
        server_grace = _DEFAULT_GRACE
        if not folder.query.embedded:
            meta = folder.store.read(FOLDER_META)
            folder.report.kept_because = _foreign_reason(meta)
            if meta is None or folder.report.kept_because is not None:
                return
            server_grace = _parse_note(meta)["sweep_grace_seconds"]
        folder.grace = folder.report.grace = max(self._grace, server_grace)
        if folder.grace > self._grace:
            folder.report.notes += (
                f"its servers rely on objects of the last {folder.grace:g} seconds (option `sweep_grace`): this is "
                f"the grace period here, not {self._grace:g} seconds",
            )
        state, remark = self._read_state(folder.name)
        if remark is not None:
            folder.report.notes += (remark,)
        folder.state = dataclasses.replace(state, checkpoints=folder.query.checkpoints)
        folder.now = self._clock()
        took = max(0.0, folder.now - folder.query.read_started)
        probe = f"{PROBE}/{secrets.token_hex(16)}"
        if deletes:
            # 3. ages are measured by the clock that dates the objects
            folder.store.write(GC_STATE, folder.state.to_bytes())
            folder.store.write(probe, b"fastchangelog")
        listed = folder.store.list("")
        own = [row for row in listed if row[0] != probe and not _is_of_a_root(row[0])]
        folder.listing = tuple(Entry(n, size, t, _internal.object_type(n)) for n, size, t in own)
        if deletes:
            folder.store.delete(probe)
            stamped = [modified for name, _, modified in listed if name == probe]
            if not stamped:
                raise StoreError(f"{probe} was written, but the store does not list it: a listing cannot be trusted")
            folder.now = stamped[0]
        # Only a duration comes from this machine's clock: it is right even if the clock is not.
        folder.read_started = folder.now - took

    def _decide(self, folder: _Folder, deletes: bool) -> None:
        decided = self._plan(folder)
        report = folder.report
        report.kept_because, report.deleted, report.waiting = decided.skip_reason, decided.delete, decided.waiting
        report.reachable, report.adoptable, report.young = decided.reachable, decided.adoptable, decided.young
        report.unknown = decided.unknown
        if deletes and decided.skip_reason is None:
            report.deleted = ()
            self._execute(folder, decided)

    def _plan(self, folder: _Folder) -> Plan:
        query, state, now = folder.query, folder.state, folder.now
        if query.orphan:
            return plan_orphan(folder.listing, state.unreachable_since, now, folder.grace)
        names = {e.name for e in folder.listing}
        handles = tuple(h for h in query.handles if not names.isdisjoint(h.names()))
        started = [roots.running_since for roots in query.roots if roots.running_since is not None]
        no_handles = any(roots.batches and not roots.handles for roots in query.roots)
        given = GcInput(handles, no_handles, min([*started, folder.read_started]), folder.listing)

        def read(wanted: Sequence[str], decode: Callable[[str, bytes], T]) -> dict[str, T]:
            def one(name: str) -> T:
                data = folder.store.read(name)
                if data is None:
                    raise StateNotFoundError(f"{name} was listed, and is not there: is another sweep running?")
                return decode(name, data)

            return dict(zip(wanted, _in_parallel(one, wanted), strict=True))

        given = dataclasses.replace(given, indexes=read(indexes_to_read(given, now, folder.grace), _index))
        given = dataclasses.replace(given, manifests=read(manifests_to_read(given, now, folder.grace), _manifest))
        return plan(given, state.unreachable_since, now, folder.grace)

    def _execute(self, folder: _Folder, decided: Plan) -> None:
        # 6. the state first: if the collection ends in between, what waits has lost no time
        store, state = folder.store, folder.state
        others = tuple(at for at in self._read_state(folder.name)[0].checkpoints if at not in state.checkpoints)
        if others:
            store.write(GC_STATE, dataclasses.replace(state, checkpoints=(*state.checkpoints, *others)).to_bytes())
            raise StoreError(f"another sweep was told meanwhile of a checkpoint at {others[0]}: sweep again")
        store.write(GC_STATE, dataclasses.replace(state, unreachable_since=decided.unreachable_since).to_bytes())
        done: list[Entry] = []
        try:
            for group in _in_groups(decided.delete):
                done.extend(_in_parallel(lambda entry: _deleted(store, entry), group))
        finally:
            folder.report.deleted = tuple(done)
        gone = {entry.name for entry in done}
        if gone and GC_STATE not in gone:
            left = {name: since for name, since in decided.unreachable_since.items() if name not in gone}
            store.write(GC_STATE, dataclasses.replace(state, unreachable_since=left).to_bytes())


def _unplaced_handle(query: _Query, folders: list[_Folder]) -> str | None:
    """Why no folder of a query may be collected: none of them holds any object of one of its handles."""
    names = {entry.name for folder in folders for entry in folder.listing}
    for handle in query.handles:
        named = set(handle.names())
        if named and names.isdisjoint(named):
            return f"{handle.source} names {next(iter(handle.names()))}, which is not there"
    return None


def _in_parallel(do: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """The results in order, of a few at a time. After an error no further one begins, so
    that an unavailable store does not get a hundred thousand requests."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for start in range(0, len(items), _MAX_QUEUED):
            yield from pool.map(do, items[start : start + _MAX_QUEUED])


def _deleted(store: StateFolder, entry: Entry) -> Entry:
    store.delete(entry.name)
    return entry


def _in_groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Runs of one kind, notes one by one: a group is deleted before the next begins."""
    groups: list[list[Entry]] = []
    for entry in entries:
        if groups and entry.kind != "note" and groups[-1][-1].kind == entry.kind:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _is_of_a_root(name: str) -> bool:
    """True for the note that a root's store creates objects conditionally: it belongs to no state, and stays."""
    return _internal.object_type(name.rpartition("/")[2]) == CREATES


def _folders(listed: Sequence[tuple[str, int, float]]) -> tuple[set[str], set[str], tuple[Entry, ...]]:
    """The folders of queries' states under a root, those of embedded states, and the objects in none of them."""
    states = {name.split("/", 1)[0] for name, _, _ in listed if checkpoint_log.is_entry(name.partition("/")[2])}
    by_folder: dict[str, list[tuple[str, int, float]]] = {}
    outside = []
    for name, size, modified in listed:
        parts = name.split("/", 2)
        if parts[0] in states and len(parts) > 1:
            continue
        if len(parts) == 3:
            by_folder.setdefault("/".join(parts[:2]), []).append((parts[2], size, modified))
        else:
            outside.append(Entry(name, size, modified, None))
    folders = set()
    for folder, rows in by_folder.items():
        if any(_internal.object_type(name) for name, _, _ in rows):
            folders.add(folder)
        else:
            outside += [Entry(f"{folder}/{name}", size, modified, None) for name, size, modified in rows]
    return folders, states, tuple(outside)


def _parse_note(meta: bytes) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(_internal.folder_note_json(FOLDER_META, meta))
    return note


def _foreign_reason(meta: bytes | None) -> str | None:
    """Why this version cannot collect a folder; None if it can."""
    if meta is None:
        return f"it has no {FOLDER_META}: it was not written by this library, or not by a Spark query"
    try:
        _parse_note(meta)
    except FastChangelogError as error:
        return f"its note cannot be read: {error}"
    return None


def _index(name: str, data: bytes) -> Segments:
    return tuple((version, obj) for version, obj in json.loads(_internal.segment_index_json(name, data)))


def _manifest(name: str, data: bytes) -> Manifest:
    raw = json.loads(_internal.manifest_json(name, data))
    return Manifest(raw["version"], raw["replay_after"], tuple(raw["objects"]))
