"""The locations of a query's checkpoint, as sweeps were told of them and as the query's starts registered them.

Owns: the two notes that keep the former, reading the notes of starts, the rules by which locations are known,
forgotten and lost.
Does not own: what is at a location (`checkpoints.handles`), what is deleted (`gc.plan`), when notes are written
(`gc.collector`).

Invariants:
1. a location that a sweep with `delete` was told of counts until a person says that it is gone;
2. the sweep's own note is written before its copy. So a copy without the note shows that the note was lost;
3. after a loss nothing is known in full: everything of the query waits until a person has named all locations;
4. a location counts if any note says so: two sweeps at once, or one that ended in between, forget none;
5. a start that names no checkpoint stops sweeps without a person, until a person has named all locations.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from fastchangelog import _internal
from fastchangelog.errors import CorruptDataError, FastChangelogError, InvalidArgumentError
from fastchangelog.gc.plan import GcState
from fastchangelog.layout import GC_CHECKPOINTS, GC_STATE, STARTS

__all__ = ["Known", "NoteFolder", "Noted", "QueryNotes", "forget", "read", "write"]


class NoteFolder(Protocol):
    """The part of `collector.StateFolder` that is needed here."""

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Writes an object as a whole, also over another one."""


@dataclasses.dataclass(frozen=True)
class Known:
    """What the notes of one folder, or of all folders of a query, say together."""

    checkpoints: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    """Locations that a person declared gone for good."""
    lost: str | None = None
    """The note that was lost, and how that shows; None when all notes are as they were written."""
    unnamed: bool = False
    """True if the query has started from a checkpoint that its tasks did not know."""

    def __or__(self, other: Known) -> Known:
        checkpoints = _distinct((*self.checkpoints, *other.checkpoints))
        gone = _distinct((*self.gone, *other.gone))
        there = set(map(same_place, checkpoints))
        still_gone = tuple(at for at in gone if same_place(at) not in there)
        return Known(checkpoints, still_gone, self.lost or other.lost, self.unnamed or other.unnamed)

    def with_given(self, given: Iterable[str]) -> Known:
        """With more locations, which are not gone: it was told otherwise."""
        return self | Known(tuple(given))

    def without(self, gone: Iterable[str]) -> Known:
        """Without locations that a person says are gone. Others are not remembered as gone."""
        named = {same_place(at) for at in gone}
        left = tuple(at for at in self.checkpoints if same_place(at) not in named)
        taken = tuple(at for at in self.checkpoints if at not in left)
        return dataclasses.replace(self, checkpoints=left, gone=_distinct((*self.gone, *taken)))

    def missing_in(self, checkpoints: Iterable[str]) -> tuple[str, ...]:
        """The known locations that are not among `checkpoints`."""
        places = set(map(same_place, checkpoints))
        return tuple(at for at in self.checkpoints if same_place(at) not in places)

    def says(self, other: Known) -> bool:
        """True if `other` tells nothing new: equal locations, and no doubt of this one is settled there."""
        same = all(
            set(map(same_place, ours)) == set(map(same_place, theirs))
            for ours, theirs in ((self.checkpoints, other.checkpoints), (self.gone, other.gone))
        )
        return same and (self.lost is None or other.lost is not None) and (other.unnamed or not self.unnamed)

    def loss(self) -> str:
        """The loss and its remedy."""
        told = f" (at least {', '.join(self.checkpoints)})" if self.checkpoints else ""
        return (
            f"{self.lost}, so this query may have checkpoints that only earlier sweeps were told of{told}: name all of "
            "them, each with --checkpoint, and add --all-given"
        )

    def all_named(self) -> Known:
        """After a person has named all locations: no note is missed any more."""
        return dataclasses.replace(self, lost=None, unnamed=False)

    def state(self, state: GcState) -> GcState:
        """The note `state` with these locations."""
        return dataclasses.replace(state, checkpoints=self.checkpoints, gone=self.gone)


def same_place(location: str) -> str:
    """The common form of equal locations. A path without a scheme stays apart: only Spark's settings say where it is.

    >>> same_place("s3a://bucket/ckpt/") == same_place("s3a://bucket/ckpt")
    True
    >>> same_place("file:///ckpt"), same_place("file:/ckpt"), same_place("/ckpt")
    ('file:/ckpt', 'file:/ckpt', '/ckpt')
    """
    if location.startswith("file:///"):
        location = "file:/" + location.removeprefix("file:").lstrip("/")
    return location.rstrip("/") or location


@dataclasses.dataclass(frozen=True)
class Noted:
    """The content of one folder's notes."""

    state: GcState
    known: Known
    is_complete: bool
    """True if the copy of the locations is there."""
    starts: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """The notes of starts that count, and the location in each; None for one that is unknown or damaged."""


def read(folder: NoteFolder) -> Noted:
    """The sweep's note in a folder, and the locations that it, its copy and the notes of starts hold."""
    found: dict[str, GcState] = {}
    lost = None
    for name in (GC_CHECKPOINTS, GC_STATE):
        data = folder.read(name)
        try:
            if data is not None:
                found[name] = GcState.from_bytes(data)
            elif name == GC_STATE and GC_CHECKPOINTS in found:
                lost = f"{GC_STATE} is gone"
        except ValueError as error:
            lost = f"{name} cannot be read ({error})"
    starts, registered = _starts(folder)
    known = dataclasses.replace(registered, lost=lost or registered.lost)
    for state in found.values():
        known |= Known(state.checkpoints, state.gone)
    return Noted(found.get(GC_STATE, GcState()), known, GC_CHECKPOINTS in found, starts)


def _starts(folder: NoteFolder) -> tuple[dict[str, str | None], Known]:
    """The notes of starts, and what they say together."""
    starts: dict[str, str | None] = {}
    lost, unnamed = None, False
    for number in itertools.count():
        name = f"{STARTS}/{number:020d}"
        data = folder.read(name)
        if data is None:
            break
        try:
            start = json.loads(_internal.start_note_json(name, data))
        except CorruptDataError as error:
            starts[name], lost = None, f"{name} cannot be read ({error})"
            continue
        if not start["gone"]:
            starts[name] = start["checkpoint"]
            unnamed = unnamed or start["checkpoint"] is None
    return starts, Known(_distinct(at for at in starts.values() if at is not None), (), lost, unnamed)


def write(folder: NoteFolder, state: GcState) -> None:
    """Writes the note, then its copy where locations have changed."""
    folder.write(GC_STATE, state.to_bytes())
    copy = GcState(checkpoints=state.checkpoints, gone=state.gone).to_bytes()
    if (state.checkpoints or state.gone) and folder.read(GC_CHECKPOINTS) != copy:
        folder.write(GC_CHECKPOINTS, copy)


class QueryNotes:
    """The notes of all folders of a query, and the checkpoints known from them."""

    def __init__(self, folders: Iterable[NoteFolder]) -> None:
        self._read: list[tuple[NoteFolder, Noted]] = []
        self.known = Known()
        self.error: FastChangelogError | None = None
        """Why a note could not be read."""
        try:
            for folder in folders:
                noted = read(folder)
                self._read.append((folder, noted))
                self.known |= noted.known
        except FastChangelogError as error:
            self.error = error

    def remember(self, is_ours: Callable[[NoteFolder], bool]) -> None:
        """Writes what is known into the folders that are ours and say less."""
        for folder, noted in self._read if self.known.lost is None else ():
            is_copied = noted.is_complete or not (self.known.checkpoints or self.known.gone)
            if not (is_copied and noted.known.says(self.known)) and is_ours(folder):
                write(folder, self.known.state(noted.state))
                self._take_back(folder, noted.starts)

    def _take_back(self, folder: NoteFolder, starts: Mapping[str, str | None]) -> None:
        """Makes the notes of starts say what a person has said: that a location is gone, or that all are named."""
        gone = set(map(same_place, self.known.gone))
        for name, at in starts.items():
            if same_place(at) in gone if at is not None else not self.known.unnamed:
                folder.write(name, _internal.start_note(at, True))


def forget(found: Mapping[str, QueryNotes], location: str, there: str | None) -> None:
    """Takes a location that is gone from the queries in `found` that know it.

    Raises `InvalidArgumentError` if none does, or if the only one is `there`, the query whose checkpoint is there now.
    """
    place = same_place(location)
    knowing = [query for query, notes in found.items() if place in map(same_place, notes.known.checkpoints)]
    if not knowing and not any(place in map(same_place, notes.known.gone) for notes in found.values()):
        all_known = sorted({at for notes in found.values() for at in notes.known.checkpoints})
        raise InvalidArgumentError(
            f"no sweep under this root was told of a checkpoint at {location}; give --gone one of: "
            f"{', '.join(all_known) or 'none is known'}"
        )
    if knowing == [there]:
        raise InvalidArgumentError(f"the checkpoint of the query {there} is at {location}, so it is not gone")
    for query in knowing:
        if query != there:
            found[query].known = found[query].known.without([location])


def _distinct(locations: Iterable[str]) -> tuple[str, ...]:
    places: dict[str, str] = {}
    for at in locations:
        places.setdefault(same_place(at), at)
    return tuple(places.values())
