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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

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
        "handle names, as it is kept in Spark's state.",
    )
    inspect.add_argument("uri", help="a state folder, such as /data/state or file:///data/state, or a handle's text")
    inspect.add_argument("--json", action="store_true", help="for machines")
    inspect.set_defaults(run=_inspect)
    _add_sweep(commands)
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
        "--grace", default="1d", help="longer than any batch, retry and upload of a base; default %(default)s"
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
    root = _local_folder(args.uri)
    rows: list[dict[str, Any]] = []
    for query in sorted(p for p in root.iterdir() if p.is_dir()):
        for name in sorted(p for p in query.iterdir() if p.is_dir()):
            row: dict[str, Any] = {"query": query.name, "name": name.name}
            for kind in ("log", "sst", "base", "index"):
                sizes = [f.stat().st_size for f in (name / kind).rglob("*") if f.is_file()]
                row[f"{kind}_objects"], row[f"{kind}_bytes"] = len(sizes), sum(sizes)
            rows.append(row)
    if args.json:
        print(json.dumps(rows, indent=1))
        return OK
    if not rows:
        print(f"{root} holds no state")
        return FOUND
    head = ["query", "name", "log", "sst", "base", "index"]
    body = [
        [r["query"], r["name"], *(f"{r[f'{k}_objects']} ({_bytes(r[f'{k}_bytes'])})" for k in head[2:])] for r in rows
    ]
    for line in _table([head, *body]):
        print(line)
    return OK


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


def _local_folder(uri: str) -> Path:
    url = urlsplit(uri)
    if url.scheme not in ("", "file"):
        raise InvalidArgument(f"inspect reads local folders only for now, not {url.scheme}://")
    path = Path(unquote(url.path) if url.scheme else uri)
    if not path.is_dir():
        raise InvalidArgument(f"{path} is not a folder; give the state= of grouped()")
    return path


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
