"""A sweep of a state root: what was read is planned, what is planned is done.

Owns: the order of reading and writing, folders and whose they are, the report.
Does not own: the decision (`sweep`), Spark's checkpoints (anything with `Checkpoints`' shape), output (cli).

Order, and why:
1. list the root, to know its folders and their queries; read their notes, which also say how long a grace period their
   servers count on;
2. read each query's checkpoints: a doubt about one keeps all folders of its query; of a state in process, its heads;
3. with `delete`, write the folder's mark again, with the checkpoints that were asked, and a probe under a new name;
4. list the folder anew: everything that a handle of step 2 names was there before it, so it is in the listing, or the
   listing is a doubt. The probe's time in it is the store's own clock. A mark would not do: a store that lists late may
   show its former time, and what waits would seem to have waited since then;
5. read index objects, then manifests; plan;
6. with `delete`, write the new mark, so that what waits starts waiting, then delete what is ripe, those that name
   others first. If another sweep has written a checkpoint into the mark that this one did not ask, nothing is deleted.

A sweep may end after any step, and any number may run at once: deleting twice is fine, and a lost mark costs a wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from fastchangelog import _internal, config, heads
from fastchangelog.errors import FastChangelogError, InvalidArgument, StateNotFoundError, StoreError
from fastchangelog.sweep import (
    FOLDER_META,
    SWEEP_MARK,
    Entry,
    Handle,
    Manifest,
    Mark,
    Plan,
    Scene,
    Segments,
    indexes_to_read,
    manifests_to_read,
    plan,
    plan_orphan,
)

__all__ = ["Checkpoints", "FolderReport", "Folders", "Roots", "Sweeper"]

#: Requests at once: reads of manifests and deletions have nothing to do but wait for the store.
_PARALLEL = 16
#: Requests that are begun before all former ones have succeeded.
_ASKED = 8 * _PARALLEL

#: What states in process count on, in seconds, which have no note: the option's default.
_LEAST_GRACE = config.duration(
    "sweep_grace", next(default for name, default, _ in _internal.options_table() if name == "sweep_grace")
).total_seconds()

S = TypeVar("S")
T = TypeVar("T")


class Folders(Protocol):
    """A folder of objects: `_internal.ObjectFolder`."""

    def child(self, folder: str) -> Folders:
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
    """What Spark may still hand back, as one checkpoint says."""

    query_id: str
    batches: tuple[int, ...]
    """The retained ones."""
    handles: Mapping[str, str]
    """Every handle that a retained batch holds, in its text form, and where it was first found."""
    running_since: float | None = None
    """When the oldest batch began that is planned and not committed, in seconds since the epoch."""
    notes: tuple[str, ...] = ()
    """What a reader of the report should know."""


class Checkpoints(Protocol):
    """Reads Spark's checkpoints."""

    def query_id(self, location: str) -> str | None:
        """The query that the checkpoint at `location` belongs to; None if there is surely no checkpoint.

        Whatever else prevents an answer is an error.
        """

    def roots(self, location: str) -> Roots:
        """What the checkpoint retains. A doubt is an error."""


@dataclasses.dataclass
class FolderReport:
    """What a sweep found in one folder, and did."""

    folder: str
    """Query and name; of a state in process, its name."""
    checkpoints: tuple[str, ...]
    orphan: bool
    """True when none of its checkpoints is there."""
    kept_because: str | None
    """Why nothing may be deleted here; None when the folder was judged."""
    deleted: tuple[Entry, ...] = ()
    """Deleted, or ripe when nothing was to be deleted."""
    waiting: tuple[Entry, ...] = ()
    reachable: tuple[Entry, ...] = ()
    takeable: tuple[Entry, ...] = ()
    young: tuple[Entry, ...] = ()
    unknown: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    grace: float | None = None
    """The grace period in force, in seconds; None when the folder was not judged."""


@dataclasses.dataclass
class _Query:
    """What is known of a query before its folders are looked at."""

    checkpoints: tuple[str, ...] = ()
    roots: tuple[Roots, ...] = ()
    handles: tuple[Handle, ...] = ()
    orphan: bool = False
    doubt: str | None = None
    in_process: bool = False
    """True for the folder of a state in process, which has heads and no checkpoint."""
    began: float = 0.0
    """When its handles began to be read, by the clock of the sweeping machine."""


class _Folder:
    """A folder on its way through a sweep."""

    def __init__(self, name: str, store: Folders, query: _Query) -> None:
        self.name, self.store, self.query = name, store, query
        self.mark, self.now, self.grace = Mark(), 0.0, float("inf")
        #: By the same clock as `now`: what was written since may be named by a handle that was not read.
        self.began = 0.0
        self.listing: tuple[Entry, ...] = ()
        self.report = FolderReport(
            name,
            query.checkpoints,
            query.orphan,
            query.doubt,
            notes=tuple(note for roots in query.roots for note in roots.notes),
            batches=tuple(sorted({batch for roots in query.roots for batch in roots.batches})),
        )


class Sweeper:
    """Sweeps everything under one root."""

    def __init__(
        self,
        root: Folders,
        checkpoints: Checkpoints,
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
            raise InvalidArgument("the grace period is negative")
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
        """One sweep: a report for each folder."""
        given = self._given()
        folders, states, self.unknown = _folders(self._root.list(""))
        by_query: dict[str, list[str]] = {}
        for folder in sorted(folders):
            by_query.setdefault(folder.split("/", 1)[0], []).append(folder)
        reports = []
        for name in sorted(states):
            store, began = self._root.child(name), self._clock()
            query = dataclasses.replace(self._state(store), began=began)
            reports += self._sweep(query, [_Folder(name, store, query)])
        for name, own in by_query.items():
            locations = [*given.get(name, ()), *(at for folder in own for at in self._recorded(folder))]
            began = self._clock()
            query = dataclasses.replace(self._query(name, tuple(dict.fromkeys(locations))), began=began)
            reports += self._sweep(query, [_Folder(folder, self._root.child(folder), query) for folder in own])
        return reports

    def _given(self) -> dict[str, list[str]]:
        """The locations that the caller named, by query."""
        given: dict[str, list[str]] = {}
        for location in self._locations:
            query = self._checkpoints.query_id(location)
            if query is None:
                raise StateNotFoundError(f"there is no checkpoint of a Spark query at {location}; check --checkpoint")
            given.setdefault(query, []).append(location)
        return given

    def _recorded(self, folder: str) -> list[str]:
        """The locations in a folder's notes."""
        meta, mark = self._root.read(f"{folder}/{FOLDER_META}"), self._mark(folder)[0]
        location = None
        if meta is not None:
            with contextlib.suppress(FastChangelogError):  # said when the folder is judged
                location = _note(meta)["checkpoint"]
        return [*([location] if location else []), *mark.checkpoints]

    def _mark(self, folder: str) -> tuple[Mark, str | None]:
        """What the last sweep left, and a remark if that cannot be read."""
        data = self._root.read(f"{folder}/{SWEEP_MARK}")
        try:
            return (Mark() if data is None else Mark.from_bytes(data)), None
        except ValueError as error:
            return Mark(), f"the mark of the last sweep cannot be read ({error}): waiting starts anew"

    def _state(self, store: Folders) -> _Query:
        """A state in process: what its heads name."""
        try:
            found = heads.retained(store)
        except FastChangelogError as error:
            return _Query(doubt=f"its heads cannot be read: {error}", in_process=True)
        if found is None:
            return _Query(doubt="its heads were listed, and are not any more: sweep again", in_process=True)
        return _Query(handles=tuple(found), in_process=True)

    def _query(self, query: str, locations: tuple[str, ...]) -> _Query:
        if not locations:
            return _Query(
                doubt="nobody said where this query's checkpoint is: name it with --checkpoint, once with --delete"
            )
        found: list[Roots] = []
        handles: dict[object, Handle] = {}
        try:
            for location in locations:
                if self._checkpoints.query_id(location) == query:
                    roots = self._checkpoints.roots(location)
                    if roots.query_id != query:
                        return _Query(locations, doubt=f"the checkpoint at {location} changed while it was read")
                    found.append(roots)
                    for text, source in roots.handles.items():
                        handle = Handle.from_json(_internal.handle_json(text), source)
                        handles.setdefault((handle.base, handle.index, handle.segments), handle)
        except FastChangelogError as error:
            return _Query(locations, doubt=f"its checkpoint cannot be read: {error}")
        return _Query(locations, tuple(found), tuple(handles.values()), orphan=not found)

    def _sweep(self, query: _Query, folders: list[_Folder]) -> list[FolderReport]:
        """Steps 3 to 6 for all folders of a query: a handle does not say in which of them its objects are."""
        acts = self._delete and (self._orphans or not query.orphan)
        if query.doubt is None:
            for folder in folders:
                self._guarded(folder, lambda folder: self._look(folder, acts))
            homeless = _homeless(query, folders)
            for folder in folders:
                folder.report.kept_because = folder.report.kept_because or homeless
                self._guarded(folder, lambda folder: self._judge(folder, acts))
        return [folder.report for folder in folders]

    def _guarded(self, folder: _Folder, step: Callable[[_Folder], None]) -> None:
        if folder.report.kept_because is None:
            try:
                step(folder)
            except FastChangelogError as error:
                folder.report.kept_because = f"not to the end: {error}"

    def _look(self, folder: _Folder, acts: bool) -> None:
        noted = _LEAST_GRACE
        if not folder.query.in_process:
            meta = folder.store.read(FOLDER_META)
            folder.report.kept_because = _foreign(meta)
            if meta is None or folder.report.kept_because is not None:
                return
            noted = _note(meta)["sweep_grace_seconds"]
        folder.grace = folder.report.grace = max(self._grace, noted)
        if folder.grace > self._grace:
            folder.report.notes += (
                f"its servers count on objects of the last {folder.grace:g} seconds (option `sweep_grace`): this is "
                f"the grace period here, not {self._grace:g} seconds",
            )
        mark, remark = self._mark(folder.name)
        if remark is not None:
            folder.report.notes += (remark,)
        folder.mark = dataclasses.replace(mark, checkpoints=folder.query.checkpoints)
        folder.now = self._clock()
        took = max(0.0, folder.now - folder.query.began)
        probe = f"probe/{secrets.token_hex(16)}"
        if acts:
            # 3. the clock that dates the objects is the one that says how old they are
            folder.store.write(SWEEP_MARK, folder.mark.to_bytes())
            folder.store.write(probe, b"fastchangelog")
        listed = folder.store.list("")
        folder.listing = tuple(Entry(n, size, t, _internal.object_type(n)) for n, size, t in listed if n != probe)
        if acts:
            folder.store.delete(probe)
            stamped = [modified for name, _, modified in listed if name == probe]
            if not stamped:
                raise StoreError(f"{probe} was written, but the store does not list it: a listing cannot be trusted")
            folder.now = stamped[0]
        # Only the length of what was read is the sweeping machine's: a clock that is wrong shows it all the same.
        folder.began = folder.now - took

    def _judge(self, folder: _Folder, acts: bool) -> None:
        decided = self._plan(folder)
        report = folder.report
        report.kept_because, report.deleted, report.waiting = decided.doubt, decided.delete, decided.waiting
        report.reachable, report.takeable, report.young = decided.reachable, decided.takeable, decided.young
        report.unknown = decided.unknown
        if acts and decided.doubt is None:
            report.deleted = ()
            self._act(folder, decided)

    def _plan(self, folder: _Folder) -> Plan:
        query, mark, now = folder.query, folder.mark, folder.now
        if query.orphan:
            return plan_orphan(folder.listing, mark.seen, now, folder.grace)
        names = {e.name for e in folder.listing}
        handles = tuple(h for h in query.handles if not names.isdisjoint(h.names()))
        started = [roots.running_since for roots in query.roots if roots.running_since is not None]
        silent = any(roots.batches and not roots.handles for roots in query.roots)
        scene = Scene(handles, silent, min([*started, folder.began]), folder.listing)

        def read(wanted: Sequence[str], decode: Callable[[str, bytes], T]) -> dict[str, T]:
            def one(name: str) -> T:
                data = folder.store.read(name)
                if data is None:
                    raise StateNotFoundError(f"{name} was listed, and is not there: does another sweep run?")
                return decode(name, data)

            return dict(zip(wanted, _in_parallel(one, wanted), strict=True))

        scene = dataclasses.replace(scene, indexes=read(indexes_to_read(scene, now, folder.grace), _index))
        scene = dataclasses.replace(scene, manifests=read(manifests_to_read(scene, now, folder.grace), _manifest))
        return plan(scene, mark.seen, now, folder.grace)

    def _act(self, folder: _Folder, decided: Plan) -> None:
        # 6. the mark first: a sweep that ends in between has lost no time of what waits
        store, mark = folder.store, folder.mark
        others = tuple(at for at in self._mark(folder.name)[0].checkpoints if at not in mark.checkpoints)
        if others:
            store.write(SWEEP_MARK, dataclasses.replace(mark, checkpoints=(*mark.checkpoints, *others)).to_bytes())
            raise StoreError(f"another sweep was told meanwhile of a checkpoint at {others[0]}: sweep again")
        store.write(SWEEP_MARK, dataclasses.replace(mark, seen=decided.seen).to_bytes())
        done: list[Entry] = []
        try:
            for group in _in_groups(decided.delete):
                done.extend(_in_parallel(lambda entry: _deleted(store, entry), group))
        finally:
            folder.report.deleted = tuple(done)
        gone = {entry.name for entry in done}
        if gone and SWEEP_MARK not in gone:
            seen = {name: since for name, since in decided.seen.items() if name not in gone}
            store.write(SWEEP_MARK, dataclasses.replace(mark, seen=seen).to_bytes())


def _homeless(query: _Query, folders: list[_Folder]) -> str | None:
    """A doubt about all folders of a query: a handle none of whose objects is in any of them."""
    names = {entry.name for folder in folders for entry in folder.listing}
    for handle in query.handles:
        named = set(handle.names())
        if named and names.isdisjoint(named):
            return f"{handle.source} names {next(iter(handle.names()))}, which is not there"
    return None


def _in_parallel(do: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """The results in order, of a few at a time. After an error no further one begins: a store that fails for an
    hour is not asked a hundred thousand times."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for start in range(0, len(items), _ASKED):
            yield from pool.map(do, items[start : start + _ASKED])


def _deleted(store: Folders, entry: Entry) -> Entry:
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


def _folders(listed: Sequence[tuple[str, int, float]]) -> tuple[set[str], set[str], tuple[Entry, ...]]:
    """The folders of queries' states under a root, those of states in process, and what is in none of them."""
    states = {name.split("/", 1)[0] for name, _, _ in listed if heads.is_head(name.partition("/")[2])}
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


def _note(meta: bytes) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(_internal.folder_note_json(FOLDER_META, meta))
    return note


def _foreign(meta: bytes | None) -> str | None:
    """Why a folder is not to be judged by this version; None if it is."""
    if meta is None:
        return f"it has no {FOLDER_META}: it was not written by this library, or not by a Spark query"
    try:
        _note(meta)
    except FastChangelogError as error:
        return f"its note cannot be read: {error}"
    return None


def _index(name: str, data: bytes) -> Segments:
    return tuple((version, obj) for version, obj in json.loads(_internal.segment_index_json(name, data)))


def _manifest(name: str, data: bytes) -> Manifest:
    raw = json.loads(_internal.manifest_json(name, data))
    return Manifest(raw["version"], raw["replay_after"], tuple(raw["objects"]))
