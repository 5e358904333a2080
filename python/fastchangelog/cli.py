"""The command `fastchangelog`.

Owns: the commands' arguments, exit codes (0 ok, 1 found something, 2 could not run), tables for people and `--json`.
Does not own: what the commands do (demo, doctor, and the modules below).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import FastChangelogError, InvalidArgument

if TYPE_CHECKING:
    from fastchangelog.doctor import Finding

OK, FOUND, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED = 130
#: A handle is longer than this in its text form.
_SHORTEST_HANDLE = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return COULD_NOT_RUN
    try:
        return int(args.run(args))
    except FastChangelogError as error:
        print(f"fastchangelog {args.command}: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        print("interrupted; nothing was left running", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has gone: nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fastchangelog", description="Durable keyed state for PySpark.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="replay streams, kill everything at random moments, compare the result row by row",
        description="Replays the New York flights of 2013 and a generated auction, kills workers, the state server and "
        "the JVM with kill -9, starts again from the checkpoint, and compares every row with an independent "
        "computation. With --input it does the same with your own files. Exit code 0 only if every row is exact.",
    )
    demo.add_argument("--input", type=Path, metavar="DIR", help="a folder of parquet, CSV or JSON files")
    demo.add_argument("--key", action="append", default=[], metavar="COLUMN", help="group by this column (repeatable)")
    demo.add_argument(
        "--agg", action="append", default=[], metavar="FN(COLUMN)", help="such as 'sum(price)'; default count(*)"
    )
    demo.add_argument("--seed", type=int, help="of the kills and of the auction; by default a new one, printed")
    demo.add_argument("--auctions", type=int, default=1_000_000, help="keys of the generated auction")
    demo.add_argument("--batches", type=int, default=8, help="of the auction, or of --input")
    demo.add_argument("--rows", type=int, default=200_000, help="bids in each batch of the auction")
    demo.add_argument("--keep", action="store_true", help="keep the working folder, and print where it is")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser(
        "doctor",
        help="check Java, Spark, packages, disk and store access, and say what to fix",
        description="Checks everything that a query needs on this machine. Exit code 1 if something must be fixed.",
    )
    doctor.add_argument("--state", metavar="URI", help="also check that this state folder can be written")
    doctor.add_argument("--json", action="store_true", help="for machines")
    doctor.set_defaults(run=_doctor)

    inspect = commands.add_parser(
        "inspect",
        help="show what a state folder or a handle holds",
        description="Lists queries and operators under a state folder, with objects and bytes by kind; or what a "
        "savepoint says; or what a handle names, as it is kept in Spark's state.",
    )
    inspect.add_argument(
        "uri", help="a state folder or a savepoint, such as /data/state or s3://bucket/state, or a handle"
    )
    _add_common(inspect)
    inspect.set_defaults(run=_inspect)
    _add_sweep(commands)
    _add_savepoints(commands)
    return parser


def _add_sweep(commands: Any) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="find objects that no checkpoint needs, and with --delete remove them",
        description="Reads the checkpoints of all queries under a state root and lists what none of their retained "
        "batches needs. With --delete, objects are removed that a sweep at least one grace period ago listed too: run "
        "it regularly. A checkpoint that cannot be read keeps everything of its query. Exit code 1 if there is "
        "something to look at: objects to delete (without --delete), doubts, orphans, names that are not ours.",
    )
    sweep.add_argument("root", help="the state= of grouped(), such as /data/state or s3://bucket/state")
    sweep.add_argument("--delete", action="store_true", help="not only list")
    sweep.add_argument("--orphans", action="store_true", help="also folders whose checkpoint is gone")
    sweep.add_argument(
        "--grace", default="1d", help="a longer `sweep_grace` of a state counts there; default %(default)s"
    )
    sweep.add_argument(
        "--checkpoint", action="append", default=[], metavar="URI", help="a query's checkpoint location (repeatable)"
    )
    sweep.add_argument(
        "--storage-option", action="append", default=[], metavar="NAME=VALUE", help="of the state's store (repeatable)"
    )
    sweep.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of the Spark session (repeatable)"
    )
    sweep.add_argument("--json", action="store_true", help="for machines")
    sweep.set_defaults(run=_sweep)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--storage-option", action="append", default=[], metavar="NAME=VALUE", help="of the store (repeatable)"
    )
    command.add_argument("--json", action="store_true", help="for machines")


def _add_checkpoint(command: argparse.ArgumentParser) -> None:
    command.add_argument("--name", help="the name= of grouped(), if the query has several")
    command.add_argument("--batch", type=int, help="by default the newest that committed")
    command.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of the Spark session (repeatable)"
    )
    _add_common(command)


def _add_savepoints(commands: Any) -> None:
    ls = commands.add_parser("ls", help="list states and savepoints under a folder, with their sizes")
    ls.add_argument("uri", help="such as /data or s3://bucket/state")
    _add_common(ls)
    ls.set_defaults(run=_ls)

    savepoint = commands.add_parser(
        "savepoint",
        help="put the state of a query's batch aside in a folder of its own",
        description="Reads the handles of one batch in a query's checkpoint and writes its state as a savepoint. The "
        "query may run meanwhile. A new query starts from it with options={'start_from': URI}.",
    )
    savepoint.add_argument("checkpoint", help="the query's checkpointLocation")
    savepoint.add_argument("--state", required=True, metavar="ROOT", help="the state= of grouped()")
    savepoint.add_argument("--to", required=True, metavar="URI", help="a new folder")
    savepoint.add_argument(
        "--format", choices=["canonical", "native"], default="canonical", help="sorted entries, or copied files"
    )
    _add_checkpoint(savepoint)
    savepoint.set_defaults(run=_savepoint)

    rescale = commands.add_parser(
        "rescale",
        help="put the state of a stopped query aside, and say how to start it with another number of partitions",
    )
    rescale.add_argument("checkpoint", help="the query's checkpointLocation")
    rescale.add_argument("--state", required=True, metavar="ROOT", help="the state= of grouped()")
    rescale.add_argument("--to", required=True, metavar="URI", help="a new folder for the savepoint")
    rescale.add_argument("--partitions", type=int, help="of the new query")
    _add_checkpoint(rescale)
    rescale.set_defaults(run=_rescale)

    verify = commands.add_parser(
        "verify",
        help="read and check every byte of a savepoint, or of what a query's batch needs",
        description="Exit code 1 if something is missing or not as it was written.",
    )
    verify.add_argument("state", metavar="URI", help="a savepoint, or with --checkpoint the state= of grouped()")
    verify.add_argument("--checkpoint", metavar="URI", help="a query's checkpointLocation")
    _add_checkpoint(verify)
    verify.set_defaults(run=_verify)

    export = commands.add_parser("export", help="write the entries of a savepoint as a table")
    export.add_argument("state", metavar="URI", help="a savepoint")
    export.add_argument("--format", choices=["parquet"], default="parquet")
    export.add_argument("--to", required=True, metavar="PATH", help="a new local file")
    export.add_argument("--name", help="the name of a state, if it holds several")
    _add_common(export)
    export.set_defaults(run=_export)


def _demo(args: argparse.Namespace) -> int:
    if args.input is not None and not args.key:
        raise InvalidArgument("--input needs at least one --key COLUMN")
    if args.input is None and (args.key or args.agg):
        raise InvalidArgument("--key and --agg go with --input DIR")
    if args.batches < 2 or args.rows < 1 or args.auctions < 1:
        raise InvalidArgument("--batches must be 2 or more, --rows and --auctions 1 or more")
    from fastchangelog import doctor

    broken = [f for f in doctor.packages_and_java() if not f.ok]
    if broken:
        for finding in broken:
            print(f"{finding.what}: {finding.found}; {finding.fix}", file=sys.stderr)
        return COULD_NOT_RUN
    from fastchangelog.demo import main as demo

    request = demo.Request(
        args.seed, args.input, tuple(args.key), tuple(args.agg), args.auctions, args.rows, args.batches, args.keep
    )
    return demo.run(request)


def _doctor(args: argparse.Namespace) -> int:
    from fastchangelog import doctor

    findings = doctor.check(args.state)
    if args.json:
        print(json.dumps([dataclasses.asdict(f) for f in findings], indent=1))
    else:
        for line in _table([_shown(f) for f in findings]):
            print(line)
    return OK if all(f.ok for f in findings) else FOUND


def _shown(finding: Finding) -> list[str]:
    return ["ok" if finding.ok else "FIX", finding.what, finding.found + (f"; {finding.fix}" if finding.fix else "")]


def _inspect(args: argparse.Namespace) -> int:
    if len(args.uri) > _SHORTEST_HANDLE and not os.path.exists(args.uri) and "://" not in args.uri:
        return _inspect_handle(args.uri, args.json)
    from fastchangelog import listing, savepoints

    if savepoints.is_savepoint(args.uri, _request(args)):
        said = savepoints.read(args.uri, _request(args))
        return _show(said, args.json, skip=("files",), more=[["file", f"{n} ({_bytes(s)})"] for n, s in said["files"]])
    rows: list[dict[str, Any]] = []
    for item in listing.items(_object_folder(args)):
        query, _, name = item.folder.rpartition("/")
        row: dict[str, Any] = {"query": query, "name": name}
        for kind in listing.KINDS:
            row[f"{kind}_objects"], row[f"{kind}_bytes"] = item.objects.get(kind, 0), item.sizes.get(kind, 0)
        rows.append(row)
    if args.json:
        print(json.dumps(rows, indent=1))
        return OK
    if not rows:
        print(f"{args.uri} holds no state")
        return FOUND
    head = ["query", "name", *listing.KINDS]
    body = [
        [r["query"], r["name"], *(f"{r[f'{k}_objects']} ({_bytes(r[f'{k}_bytes'])})" for k in head[2:])] for r in rows
    ]
    for line in _table([head, *body]):
        print(line)
    return OK


def _ls(args: argparse.Namespace) -> int:
    from fastchangelog import listing

    found = listing.items(_object_folder(args))
    if args.json:
        rows = [{"kind": i.kind, "folder": i.folder, "objects": i.count, "bytes": i.bytes} for i in found]
        print(json.dumps(rows, indent=1))
        return OK
    if not found:
        print(f"{args.uri} holds no state and no savepoint")
        return FOUND
    body = [[i.kind, i.folder or ".", f"{i.count} objects", _bytes(i.bytes)] for i in found]
    for line in _table([["kind", "folder", "objects", "bytes"], *body]):
        print(line)
    return OK


def _savepoint(args: argparse.Namespace) -> int:
    from fastchangelog import savepoints

    with _progress(args) as report:
        taken = savepoints.take(_request(args), args.to, args.format, report)
    return _show(taken, args.json, skip=("files", "schema", "schema_id"))


def _rescale(args: argparse.Namespace) -> int:
    from fastchangelog import savepoints

    if args.partitions is not None:
        savepoints.check_partitions(_request(args), args.partitions)
    with _progress(args) as report:
        taken = savepoints.take(_request(args), args.to, "native", report)
    lines = savepoints.rescale_lines(taken, args.state, args.partitions)
    if args.json:
        print(json.dumps({**taken, "start_with": lines}, indent=1))
        return OK
    print(f"{taken['uri']} holds {taken['keys']} keys of batch {taken['batch']}. Start the query again with")
    for line in lines:
        print(f"    {line}")
    return OK


def _verify(args: argparse.Namespace) -> int:
    from fastchangelog import savepoints

    with _progress(args) as report:
        if args.checkpoint is None:
            checked = savepoints.verify(args.state, _request(args), report)
        else:
            checked = savepoints.verify_checkpoint(_request(args), report)
    damaged = checked.pop("damaged")
    if args.json:
        print(json.dumps({**checked, "damaged": damaged}, indent=1))
    else:
        print(
            f"{checked['uri']}: read {checked['objects']} objects, {_bytes(checked['bytes'])}; {len(damaged)} damaged"
        )
        for line in _table([[d["object"], d["what"]] for d in damaged]) if damaged else []:
            print(line)
    return FOUND if damaged else OK


def _export(args: argparse.Namespace) -> int:
    from fastchangelog import savepoints

    written = savepoints.export(args.state, args.to, _request(args))
    if args.json:
        print(json.dumps(written, indent=1))
    else:
        print(f"{written['file']}: {written['rows']} rows of {', '.join(written['columns'])}")
    return OK


def _show(values: dict[str, Any], as_json: bool, skip: Sequence[str], more: Sequence[list[str]] = ()) -> int:
    if as_json:
        print(json.dumps(values, indent=1))
        return OK
    rows = [[name, str(value)] for name, value in values.items() if name not in skip]
    for line in _table([*rows, *more]):
        print(line)
    return OK


def _request(args: argparse.Namespace) -> Any:
    from fastchangelog import savepoints

    return savepoints.Request(
        checkpoint=getattr(args, "checkpoint", None) or "",
        root=getattr(args, "state", None) or args.uri,
        name=getattr(args, "name", None),
        batch=getattr(args, "batch", None),
        storage_options=_pairs("--storage-option", args.storage_option),
        conf=_pairs("--conf", getattr(args, "conf", [])),
        say=_line(args),
    )


def _object_folder(args: argparse.Namespace) -> Any:
    from fastchangelog import _internal
    from fastchangelog.options import existing_folder, gather_storage_options

    uri = existing_folder(args.uri)
    return _internal.ObjectFolder(uri, {}, gather_storage_options(uri, _pairs("--storage-option", args.storage_option)))


def _line(args: argparse.Namespace) -> Callable[[str], object] | None:
    """One line that the next one replaces, on a terminal."""
    if args.json or not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r{text:<60}\r{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Callable[[int, int], object] | None]:
    """A bar, if somebody looks at it."""
    if args.json or not sys.stderr.isatty():
        yield None
        return

    def draw(done: int, total: int) -> None:
        share = min(1.0, done / total) if total else 0.0
        bar = "#" * round(30 * share)
        print(f"\r[{bar:<30}] {100 * share:3.0f} % of {_bytes(total)}", end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


def _inspect_handle(text: str, as_json: bool) -> int:
    from fastchangelog import _internal

    handle = json.loads(_internal.handle_json(text))
    for part in (handle, *([handle["base"]] if handle["base"] else []), *handle["segments"]):
        for name in ("instance", "version", "parent", "replay_after"):
            if part.get(name) is not None:
                part[name] = f"{part[name]:032x}"
    if as_json:
        print(json.dumps(handle, indent=1))
        return OK
    rows = [[k, str(v)] for k, v in handle.items() if k not in ("base", "indexed", "segments")]
    base = handle["base"]
    rows.append(["base", f"{base['manifest']['name']} ({_bytes(base['total_bytes'])})" if base else "none"])
    rows += [["segment", f"{s['object']['name']} at {s['offset']} ({_bytes(s['length'])})"] for s in handle["segments"]]
    for line in _table(rows):
        print(line)
    return OK


def _sweep(args: argparse.Namespace) -> int:
    from fastchangelog import sweeping

    request = sweeping.Request(
        root=args.root,
        delete=args.delete,
        orphans=args.orphans,
        grace=args.grace,
        checkpoints=tuple(args.checkpoint),
        storage_options=_pairs("--storage-option", args.storage_option),
        conf=_pairs("--conf", args.conf),
        say=_line(args),
    )
    outcome = sweeping.sweep(request)
    if args.json:
        print(json.dumps(outcome.to_dict(), indent=1))
    else:
        for block in outcome.blocks():
            for line in _table(block) if isinstance(block, list) else [block]:
                print(line)
    return FOUND if outcome.found else OK


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    for text in given:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise InvalidArgument(f"{option} takes NAME=VALUE")
    return {name.strip(): value for name, _, value in (text.partition("=") for text in given)}


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
