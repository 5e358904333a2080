"""`fastchangelog sweep`: one garbage collection of a state root, with a Spark session, and its report.

Owns: the command, the connection to the state's store, the report for people and for machines.
Does not own: the collection (`gc`), Spark's checkpoints (`checkpoints.handles`).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastchangelog.cli.arguments import add_conf, add_store, pairs
from fastchangelog.cli.output import FOUND, OK, print_json, say, status_line, table
from fastchangelog.cli.spark_session import on_demand
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.hidden import Hidden

if TYPE_CHECKING:
    from fastchangelog.gc.plan import Entry
    from fastchangelog.gc.report import FolderReport

__all__ = ["SweepRequest", "SweepResult", "add_parser", "run", "sweep"]

#: Names that a table shows of one kind; --json has all.
_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class SweepRequest:
    """The arguments of a sweep."""

    root: str
    delete: bool = False
    orphans: bool = False
    grace: str = "1d"
    checkpoints: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    all_given: bool = False
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    status: Callable[[str], object] | None = dataclasses.field(default=None, repr=False, compare=False)
    """Called with the name of a long step, and with "" when it has ended."""


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The reports of a sweep."""

    request: SweepRequest
    folders: tuple[FolderReport, ...]
    unknown: tuple[Entry, ...]
    """Outside of all folders of states."""

    @property
    def found(self) -> bool:
        """True if there is something to look at."""
        return bool(self.unknown) or any(map(self._found, self.folders))

    def _found(self, report: FolderReport) -> bool:
        if report.kept_because or report.unknown:
            return True
        if self.request.delete:
            return report.orphan and not self.request.orphans
        return report.orphan or bool(report.deleted or report.waiting)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "root": self.request.root,
            "deleting": self.request.delete,
            "grace": self.request.grace,
            "folders": [self._folder(report) for report in self.folders],
            "unknown": [entry.name for entry in self.unknown],
        }

    def _folder(self, report: FolderReport) -> dict[str, Any]:
        query, _, name = ("", "", report.folder) if report.embedded else report.folder.rpartition("/")
        kept = {"reachable": _sum(report.reachable), "takeable": _sum(report.adoptable), "young": _sum(report.young)}
        return {
            "query": query or None,
            "name": name,
            "checkpoints": list(report.checkpoints),
            "batches": [min(report.batches), max(report.batches)] if report.batches else None,
            "orphan": report.orphan,
            "grace_seconds": report.grace,
            "kept_because": report.kept_because,
            **kept,
            "waiting": [entry.name for entry in report.waiting],
            "deleted" if self._acted(report) else "to_delete": [entry.name for entry in report.deleted],
            "unknown": [entry.name for entry in report.unknown],
            "notes": list(report.notes),
        }

    def _acted(self, report: FolderReport) -> bool:
        return self.request.delete and (self.request.orphans or not report.orphan)

    def blocks(self) -> Iterable[str | list[list[str]]]:
        """Lines and tables, for people."""
        for report in self.folders:
            checkpoints = ", ".join(report.checkpoints) or "no checkpoint known"
            yield f"{report.folder}  ({'an embedded state' if report.embedded else checkpoints})"
            if report.orphan:
                asked = "" if self.request.orphans or report.kept_because else "; --orphans removes it"
                yield f"  orphan: its checkpoint is gone{asked}"
            if report.kept_because:
                yield f"  kept, nothing deleted: {report.kept_because}"
            if report.batches:
                yield f"  read batches {min(report.batches)} to {max(report.batches)} of its checkpoint"
            rows = [["  ", what, *_shown(entries), why] for what, entries, why in self._rows(report) if entries]
            if rows:
                yield rows
            yield from (f"  note: {note}" for note in report.notes)
            yield from _names("  not ours, left alone", report.unknown)
        yield from _names("not in a folder of a state, left alone", self.unknown)
        if not self.folders:
            yield f"{self.request.root} holds no state"
        elif not self.request.delete:
            yield "a dry run: nothing was deleted or marked; --delete does"

    def _rows(self, report: FolderReport) -> list[tuple[str, tuple[Entry, ...], str]]:
        from fastchangelog.options import parse_duration

        asked = parse_duration("--grace", self.request.grace).total_seconds()
        grace = self.request.grace if report.grace in (None, asked) else f"{report.grace:g}s"
        last = "deleted" if self._acted(report) else "to delete"
        return [
            ("reachable", report.reachable, "a retained batch or checkpoint needs them"),
            ("snapshots", report.adoptable, "the next version of an idle shard may start from them"),
            ("young", report.young, f"written within {grace}, or since the batch under way began"),
            ("waiting", report.waiting, f"unreachable, but no sweep has said so for {grace}"),
            (last, report.deleted, f"unreachable for at least {grace}"),
        ]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "sweep",
        help="find objects that no checkpoint needs, and with --delete remove them",
        description="Reads the checkpoints of all queries under a state root and lists what none of their retained "
        "batches needs. With --delete, objects are removed that a sweep at least one grace period ago listed too: run "
        "it regularly. A checkpoint that cannot be read keeps everything of its query. Exit code 1 if there is "
        "something to look at: objects to delete (without --delete), doubts, orphans, names that are not ours.",
    )
    parser.add_argument("root", help="the state= of grouped(), such as /data/state or s3://bucket/state")
    parser.add_argument("--delete", action="store_true", help="not only list")
    parser.add_argument("--orphans", action="store_true", help="also folders whose checkpoint is gone")
    parser.add_argument(
        "--grace", default="1d", help="a longer `sweep_grace` of a state counts there; default %(default)s"
    )
    parser.add_argument(
        "--checkpoint", action="append", default=[], metavar="URI", help="a query's checkpoint location (repeatable)"
    )
    parser.add_argument(
        "--gone",
        action="append",
        default=[],
        metavar="URI",
        help="a known checkpoint location that was removed for good (repeatable)",
    )
    parser.add_argument(
        "--all-given",
        action="store_true",
        help="where a query's notes of its checkpoints were lost: those of --checkpoint are all",
    )
    add_conf(parser)
    add_store(parser, "the state's store")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    result = sweep(
        SweepRequest(
            root=args.root,
            delete=args.delete,
            orphans=args.orphans,
            grace=args.grace,
            checkpoints=tuple(args.checkpoint),
            gone=tuple(args.gone),
            all_given=args.all_given,
            storage_options=pairs("--storage-option", args.storage_option),
            conf=pairs("--conf", args.conf),
            status=status_line(args),
        )
    )
    if args.json:
        print_json(result.to_dict())
    else:
        for block in result.blocks():
            for line in table(block) if isinstance(block, list) else [block]:
                say(line)
    return FOUND if result.found else OK


def sweep(request: SweepRequest) -> SweepResult:
    """Runs one sweep; Spark is started when the first checkpoint is read, and ended."""
    from fastchangelog import _internal
    from fastchangelog.gc.collector import Collector
    from fastchangelog.options import gather_options, gather_storage_options, parse_duration, refuse_secrets
    from fastchangelog.savepoints.source import command_checkpoints

    grace = parse_duration("--grace", request.grace).total_seconds()
    _check_root(request.root)
    root = _internal.ObjectFolder(
        request.root,
        gather_options(conf=request.conf),
        gather_storage_options(request.root, request.storage_options, request.conf),
    )
    for location in request.checkpoints:
        refuse_secrets("the checkpoint", location)
    with on_demand(Hidden(request.conf), "sweep", request.status) as session:
        collector = Collector(
            root,
            command_checkpoints(session, request.root, request.storage_options, request.conf),
            grace=grace,
            clock=time.time,
            locations=request.checkpoints,
            gone=request.gone,
            all_given=request.all_given,
            delete=request.delete,
            orphans=request.orphans,
        )
        reports = collector.run()
    return SweepResult(request, tuple(reports), collector.unknown)


def _check_root(root: str) -> None:
    """Connecting would make a local folder: a mistyped root is found here."""
    from fastchangelog.options import local_path

    path = local_path(root)
    if path is not None and not os.path.isdir(path):
        raise InvalidArgumentError(f"{path} is not a folder; give the state= of grouped()")


def _sum(entries: tuple[Entry, ...]) -> dict[str, int]:
    return {"objects": len(entries), "bytes": sum(entry.size for entry in entries)}


def _shown(entries: tuple[Entry, ...]) -> tuple[str, str]:
    total = _sum(entries)
    return f"{total['objects']} objects", f"{total['bytes'] / 1e6:.3f} MB"


def _names(head: str, entries: tuple[Entry, ...]) -> Iterable[str]:
    if entries:
        names = [f"{entry.name} ({entry.why})" if entry.why else entry.name for entry in entries[:_SHOWN]]
        more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
        yield f"{head}: {', '.join(names)}{more}"
