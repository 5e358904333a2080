"""Garbage collection of a state root: reads it, plans, and executes the plan.

Owns: the order of reading and writing, folders and their owners.
Does not own: the decision (`gc.plan`), the known locations (`gc.known`), Spark's checkpoints (any `CheckpointReader`),
names in a listing (`gc.folders`), the report (`gc.report`), output (`cli.sweep`), when sweeps run (`gc.background`).

Order, and why:
1. list the root, for its folders and their queries; read their notes, which also hold the grace period that their
   servers rely on; with `delete`, write what this collection was told of checkpoints into them;
2. read each query's checkpoints, or an embedded state's checkpoint log. A known checkpoint that cannot be read, or that
   is not where it was, keeps all folders of its query;
3. with `delete`, write the folder's state again, with the checkpoints that were read, and a probe under a new name;
4. list the folder anew: everything that a handle of step 2 names was written before, so it is in the listing, or the
   plan deletes nothing. The probe's time in the listing is the store's own clock. The state's time would not do: a
   store with late listings may show its former time, and waiting objects would seem to have waited since then;
5. read index objects, then manifests; plan;
6. with `delete`, write the new state, so that waiting objects start to wait, then delete the expired ones, each before
   those that it names. If another collection, or a start of the query, has made a checkpoint known that this one did
   not read, nothing is deleted.

A collection may end after any step, and any number may run at once: deleting twice is fine. After the loss of a
folder's state nothing of its query is deleted until a person has named all its checkpoints.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, StateNotFoundError, StoreError
from fastchangelog.gc import checkpoint_log, known
from fastchangelog.gc.folders import foreign_entries, is_of_a_root, states_below
from fastchangelog.gc.known import Known, QueryNotes
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
    misfit,
    plan,
    plan_orphan,
)
from fastchangelog.gc.report import FolderReport
from fastchangelog.gc.requests import in_groups, in_parallel
from fastchangelog.layout import CHECKPOINT_LOG, FOLDER_META, GC_STATE, PROBE, STARTS, STATE_FOLDERS
from fastchangelog.options import seconds_option

__all__ = ["Background", "CheckpointReader", "Collector", "Roots", "StateFolder"]

#: The grace period of embedded states, which have no note, in seconds: the option's default.
_DEFAULT_GRACE = seconds_option({}, "sweep_grace")

#: The doubt of a background sweep that only a person can settle.
_UNNAMED = (
    "the query has started without telling its checkpoint, as over Spark Connect without the option "
    "`checkpoint_location`: run `fastchangelog sweep` with all its checkpoints, --all-given and --delete"
)

#: Folders of a state in which nothing may be hidden.
_OWN_FOLDERS = frozenset({*STATE_FOLDERS, CHECKPOINT_LOG, STARTS})

T = TypeVar("T")


class StateFolder(Protocol):
    """A folder of objects: `_internal.ObjectFolder`."""

    def child(self, folder: str) -> StateFolder:
        """A folder of it."""

    def list(self, prefix: str) -> Sequence[tuple[str, int, float]]:
        """Names below `prefix`, sizes and times of writing in seconds since the epoch."""

    def survey(self, prefix: str) -> tuple[Sequence[tuple[str, int, float]], Mapping[str, str]]:
        """The result of `list`, and each entry that can be neither read nor named: its escaped name and the reason."""

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
    operators: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Spark's operator number of each handle, where known."""
    operator_count: int | None = None
    """How many stateful operators of this library the query has; None if it is not known."""


@dataclasses.dataclass(frozen=True)
class Background:
    """The bounds of a sweep that no person started, and for which no person vouches."""

    only: str
    """The query, or the path of an embedded state: nothing else is looked at."""
    pause: float
    """Seconds since another sweep that make this one idle."""


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
    """The known facts about a query before its folders are read."""

    known: Known = dataclasses.field(default_factory=Known)
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

    def __init__(self, name: str, store: StateFolder, query: _Query, states: Sequence[str]) -> None:
        self.name, self.store, self.query = name, store, query
        inside = states[bisect.bisect(states, f"{name}/") : bisect.bisect(states, f"{name}0")]  # "0" follows "/"
        #: Embedded states inside this folder, relative to it: their objects are theirs.
        self.inner = tuple(f"{state.removeprefix(f'{name}/')}/" for state in inside)
        self.state, self.now, self.grace = GcState(), 0.0, float("inf")
        #: By the same clock as `now`: a handle that was not read may name what was written since.
        self.read_started = 0.0
        self.listing: tuple[Entry, ...] = ()
        self.report = FolderReport(
            name,
            query.known.checkpoints or query.known.gone,
            query.orphan,
            query.skip_reason,
            # A checkpoint may be known under two spellings of its location.
            notes=tuple(dict.fromkeys(note for roots in query.roots for note in roots.notes)),
            batches=tuple(sorted({batch for roots in query.roots for batch in roots.batches})),
            embedded=query.embedded,
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
        gone: Iterable[str] = (),
        all_given: bool = False,
        delete: bool = False,
        orphans: bool = False,
        background: Background | None = None,
    ) -> None:
        """`grace` in seconds; `clock` for dry runs, which write nothing that the store could date; `locations`:
        checkpoints that the folders don't know of; `gone`: known ones that were removed for good; `all_given`: where
        notes were lost, `locations` has all checkpoints; `delete` and `orphans`: what may be deleted; `background`: for
        a sweep that no person started."""
        if grace < 0:
            raise InvalidArgumentError("the grace period is negative; give zero or more")
        self._root = root
        self._checkpoints = checkpoints
        self._grace = grace
        self._clock = clock
        self._locations = tuple(locations)
        self._gone = tuple(gone)
        self._all_given = all_given
        self._delete = delete
        self._orphans = orphans
        self._background = background
        self.unknown: tuple[Entry, ...] = ()
        """Objects outside of all folders of states."""

    def run(self) -> list[FolderReport]:
        """One collection: a report for each folder."""
        given = self._given_locations()
        background = self._background
        listed, foreign = self._root.survey("" if background is None else background.only)
        if background is not None and _was_swept(listed, self._clock(), background.pause):
            return []
        folders, states, self.unknown = states_below([row for row in listed if not is_of_a_root(row[0])])  # both sorted
        self.unknown += foreign_entries(foreign)
        own = states
        if background is not None:  # what is inside its folder may be another state's
            folders = [folder for folder in folders if folder.startswith(f"{background.only}/")]
            own = [state for state in states if state == background.only]
        by_query: dict[str, list[str]] = {}
        for folder in folders:
            by_query.setdefault(folder.split("/", 1)[0], []).append(folder)
        notes = self._notes(by_query, given)
        reports = []
        for name in own:
            store, read_started = self._root.child(name), self._clock()
            query = dataclasses.replace(self._embedded_query(store), read_started=read_started)
            reports += self._collect(query, [_Folder(name, store, query, states)])
        for name, folders in by_query.items():
            read_started = self._clock()
            query = dataclasses.replace(self._remembered(name, notes[name]), read_started=read_started)
            reports += self._collect(
                query, [_Folder(folder, self._root.child(folder), query, states) for folder in folders]
            )
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

    def _notes(self, by_query: Mapping[str, list[str]], given: Mapping[str, list[str]]) -> dict[str, QueryNotes]:
        """The notes of each query, with what this collection was told."""
        found = {query: QueryNotes(map(self._root.child, folders)) for query, folders in by_query.items()}
        for query, locations in given.items():
            if query in found:
                noted = found[query].known.with_given(locations)
                found[query].known = noted.all_named() if self._all_given else noted
        for location in self._gone:
            try:
                there = self._checkpoints.query_id(location)
            except FastChangelogError:
                there = None  # it is not to be read any more
            known.forget(found, location, there)
        return found

    def _remembered(self, query: str, notes: QueryNotes) -> _Query:
        """The query, once this collection has written what it was told: a doubt must not let that be forgotten."""
        try:
            if notes.error is not None:
                raise notes.error
            if self._delete:
                notes.remember(lambda folder: _foreign_reason(folder.read(FOLDER_META)) is None)
        except FastChangelogError as error:
            return _Query(notes.known, skip_reason=f"not to the end: {error}")
        return self._query(query, notes.known)

    def _embedded_query(self, store: StateFolder) -> _Query:
        """An embedded state: the handles of its checkpoint log."""
        try:
            noted = store.read(FOLDER_META)
            found = checkpoint_log.retained(store)
        except FastChangelogError as error:
            return _Query(skip_reason=f"its checkpoint log cannot be read: {error}", embedded=True)
        if noted is not None:
            return _Query(skip_reason=f"it has a checkpoint log, and a query's {FOLDER_META} as well", embedded=True)
        if found is None:
            return _Query(skip_reason="its checkpoint log was listed, but has gone since: sweep again", embedded=True)
        return _Query(handles=tuple(found), embedded=True)

    def _query(self, query: str, noted: Known) -> _Query:
        if noted.lost is not None:
            return _Query(noted, skip_reason=noted.loss())
        if noted.unnamed and self._background is not None:
            return _Query(noted, skip_reason=_UNNAMED)
        if not noted.checkpoints and not noted.gone:
            return _Query(
                skip_reason="this query's checkpoint is unknown: name it with --checkpoint, once with --delete"
            )
        found: list[Roots] = []
        handles: dict[object, HandleRefs] = {}
        elsewhere: dict[str, str | None] = {}
        for location in noted.checkpoints:
            try:
                at = self._checkpoints.query_id(location)
                if at != query:
                    elsewhere[location] = at
                    continue
                roots = self._checkpoints.roots(location)
                if roots.query_id != query:
                    return _Query(noted, skip_reason=f"the checkpoint at {location} changed while it was read")
                found.append(roots)
                for text, source in roots.handles.items():
                    handle = HandleRefs.from_json(_internal.handle_json(text), source, roots.operators.get(text))
                    handles.setdefault((handle.operator, handle.snapshot, handle.index, handle.segments), handle)
            except FastChangelogError as error:
                return _Query(noted, skip_reason=f"its checkpoint cannot be read: {error}; {_if_gone(location)}")
        skip_reason = None
        for location, other in elsewhere.items():
            if other is not None:
                skip_reason = f"the checkpoint at {location} is of another query, {other}; {_if_gone(location)}"
            elif found or self._background is not None:
                skip_reason = f"a copy of its checkpoint is not at {location} any more; {_if_gone(location)}"
        return _Query(noted, tuple(found), tuple(handles.values()), orphan=not found, skip_reason=skip_reason)

    def _collect(self, query: _Query, folders: list[_Folder]) -> list[FolderReport]:
        """Steps 3 to 6 for all folders of a query: a handle does not tell which of them holds its objects."""
        deletes = self._delete and (self._orphans or not query.orphan)
        if query.skip_reason is None:
            for folder in folders:
                self._step(folder, lambda folder: self._list(folder, deletes))
            counts = [roots.operator_count for roots in query.roots if roots.operator_count is not None]
            listings = [{entry.name for entry in folder.listing} for folder in folders]
            doubt = misfit(query.handles, listings, max(counts, default=None))
            for folder in folders:
                folder.report.kept_because = folder.report.kept_because or doubt
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
        noted = known.read(folder.store)
        if noted.known.lost is not None:
            folder.report.notes += (f"{noted.known.lost}: waiting starts anew",)
        folder.state = folder.query.known.state(noted.state)
        folder.now = self._clock()
        took = max(0.0, folder.now - folder.query.read_started)
        probe = f"{PROBE}/{secrets.token_hex(16)}"
        if deletes:
            # 3. ages are measured by the clock that dates the objects
            known.write(folder.store, folder.state)
            folder.store.write(probe, b"fastchangelog")
            _internal.failpoint("sweep.probed")
        listed, foreign = folder.store.survey("")
        own = [row for row in listed if not (row[0].startswith(folder.inner) or is_of_a_root(row[0]))]
        folder.listing = tuple(Entry(n, size, t, _internal.object_type(n)) for n, size, t in own if n != probe)
        folder.listing += foreign_entries(foreign)
        if deletes:
            folder.store.delete(probe)
            stamped = [modified for name, _, modified in listed if name == probe]
            if not stamped:
                raise StoreError(
                    f"{probe} was written, but the store does not list it, so its listings cannot be trusted; sweep "
                    "again later"
                )
            folder.now = stamped[0]
        hidden = next((e for e in foreign_entries(foreign) if e.name.split("/", 1)[0] in _OWN_FOLDERS), None)
        if hidden is not None:
            raise StoreError(f"{hidden.name} belongs to the state, and {hidden.why}")
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
                    raise StateNotFoundError(
                        f"{name} was listed but is missing; wait until no other sweep runs, then sweep again"
                    )
                return decode(name, data)

            return dict(zip(wanted, in_parallel(one, wanted), strict=True))

        given = dataclasses.replace(given, indexes=read(indexes_to_read(given, now, folder.grace), _index))
        given = dataclasses.replace(given, manifests=read(manifests_to_read(given, now, folder.grace), _manifest))
        return plan(given, state.unreachable_since, now, folder.grace)

    def _execute(self, folder: _Folder, decided: Plan) -> None:
        # 6. the state first: if the collection ends in between, what waits has lost no time
        store, state = folder.store, folder.state
        now_known = known.read(store).known
        if now_known.lost is not None:
            raise StoreError(f"while this sweep ran, {now_known.lost}: sweep again")
        if now_known.unnamed and self._background is not None:
            raise StoreError(_UNNAMED)
        others = now_known.missing_in(state.checkpoints)
        if others:
            known.write(store, (folder.query.known | now_known).state(state))
            raise StoreError(f"another sweep has learned of a checkpoint at {others[0]} meanwhile; sweep again")
        _internal.failpoint("sweep.planned")
        store.write(GC_STATE, dataclasses.replace(state, unreachable_since=decided.unreachable_since).to_bytes())
        _internal.failpoint("sweep.noted")
        done: list[Entry] = []

        def delete(entry: Entry) -> Entry:
            store.delete(entry.name)
            return entry

        try:
            for group in in_groups(decided.delete):
                done.extend(in_parallel(delete, group))
        finally:
            folder.report.deleted = tuple(done)
        _internal.failpoint("sweep.deleted")
        gone = {entry.name for entry in done}
        if gone and GC_STATE not in gone:
            left = {name: since for name, since in decided.unreachable_since.items() if name not in gone}
            store.write(GC_STATE, dataclasses.replace(state, unreachable_since=left).to_bytes())


def _was_swept(listed: Sequence[tuple[str, int, float]], now: float, pause: float) -> bool:
    """True if a sweep noted its end within `pause`. A time that is still to come tells nothing: a sweep too many is
    better than none."""
    marks = [modified for name, _, modified in listed if name.rpartition("/")[2] == GC_STATE]
    return any(now - pause < modified <= now for modified in marks)


def _if_gone(location: str) -> str:
    return f"if this one was removed for good, sweep once with --gone {location} --delete"


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
