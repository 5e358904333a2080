"""`fastchangelog demo`: wires the parts of the demo together.

Owns: the two streams of the demo, the user's own folder, the temporary folder and its end, the exit code.
Does not own: the parsing of the command line (cli).
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq

from fastchangelog.demo import data, processes, report
from fastchangelog.demo.compare import compare, expected, final_state
from fastchangelog.demo.conduct import Conductor, plan_kills
from fastchangelog.demo.plan import Job, Prepare, Query, parse_agg
from fastchangelog.server import platform

_FLIGHT_AGGS = ("count(*)", "sum(distance)", "max(arr_delay)", "min(dep_delay)", "avg(air_time)")
_AUCTION_AGGS = ("count(*)", "sum(price)", "max(price)", "max(bidder)")
_HOWTO = "Your own data: fastchangelog demo --input DIR --key COLUMN --agg 'sum(COLUMN)'   (parquet, CSV or JSON)"


@dataclasses.dataclass(frozen=True)
class DemoRequest:
    """The arguments of the command."""

    seed: int | None = None
    input: Path | None = None
    keys: tuple[str, ...] = ()
    aggs: tuple[str, ...] = ()
    #: Of the generated auction.
    auctions: int = 1_000_000
    rows_per_batch: int = 200_000
    batches: int = 8
    keep: bool = False


@dataclasses.dataclass(frozen=True)
class Stream:
    """One input, the queries over it, and the source of the expected result."""

    title: str
    queries: tuple[Query, ...]
    want: Callable[[], pa.Table]
    against: str


def run(request: DemoRequest) -> int:
    """0 when every result is exact, 1 when one differs."""
    platform.check()
    seed = request.seed if request.seed is not None else random.SystemRandom().randrange(10_000)
    log = Path(tempfile.gettempdir()) / f"fastchangelog-demo-{seed}.log"
    log.unlink(missing_ok=True)
    work = Path(tempfile.mkdtemp(prefix="fastchangelog-demo-"))
    progress = report.ProgressLine()
    name = work.name
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        print(f"fastchangelog demo, seed {seed}; what Spark and its workers say goes to {log}", flush=True)
        return _run(request, seed, work, log, progress)
    finally:
        # A second Ctrl-C must not stop the cleanup.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        progress.clear()
        left = processes.end_all(name)
        if left:
            print(f"warning: {left} processes did not end")
        if request.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(request: DemoRequest, seed: int, work: Path, log: Path, progress: report.ProgressLine) -> int:
    rng = random.Random(seed)
    prepare = None
    if request.input is not None:
        streams, prepare = _own_data(request, work)
    else:
        streams = _flights(work, progress), _auction(request, seed, work, progress)
    queries = tuple(q for s in streams for q in s.queries)
    conductor = Conductor(work, work.name, log, plan_kills(queries, rng), rng)
    conductor.conduct(Job(queries, "", 2, prepare), progress.show)
    exact = True
    for stream in streams:
        progress.show(f"comparing {stream.title.split(',')[0]}")
        want = stream.want()
        title = stream.title.format(rows=conductor.prepared_rows or 0, keys=want.num_rows)
        lines = [title]
        verdicts = []
        for query in stream.queries:
            lines += report.kill_lines(conductor.kills, query)
            got, twice = final_state(Path(query.output), query.keys)
            verdict = compare(got, want, query.keys, twice)
            exact = exact and verdict.exact
            verdicts += report.verdict_lines(verdict, query, stream.against)
        ours = stream.queries[0]
        native = stream.queries[1] if len(stream.queries) > 1 else None
        lines.append(report.batch_line(conductor.batches, ours, native))
        lines.append(report.checkpoint_line(conductor.batches, ours))
        progress.clear()
        print(*lines, *verdicts, sep="\n", flush=True)
    print(f"{'EXACT' if exact else 'NOT EXACT'} after {progress.seconds:.0f} s. {_HOWTO}", flush=True)
    return 0 if exact else 1


def _query(work: Path, name: str, kind: str, keys: tuple[str, ...], aggs: tuple[str, ...], batches: int) -> Query:
    def folder(what: str) -> str:
        return str(work / f"{name}-{kind}" / what)

    parsed = tuple(parse_agg(a) for a in aggs)
    source = str(work / f"{name}-input")
    return Query(name, kind, source, keys, parsed, batches, folder("checkpoint"), folder("output"), folder("state"))


def _flights(work: Path, progress: report.ProgressLine) -> Stream:
    progress.show("getting the flights of 2013")
    batches = 10
    table, batches = data.write_stream(data.in_slices(data.flights(), batches), work / "flights-input")
    query = _query(work, "flights", "ours", ("tailnum",), _FLIGHT_AGGS, batches)
    without = table["tailnum"].null_count
    rows = f"{table.num_rows:,} real rows in {batches} batches"
    title = f"flights, {rows} by tailnum ({{keys:,}} keys; {without:,} rows have none)"
    return Stream(title, (query,), lambda: expected(table, query.keys, query.aggs), "pyarrow computes them at once")


def _auction(request: DemoRequest, seed: int, work: Path, progress: report.ProgressLine) -> Stream:
    progress.show("generating the auction")
    bids = data.auction(seed, keys=request.auctions, batches=request.batches, rows=request.rows_per_batch)
    table, batches = data.write_stream(bids, work / "auction-input")
    queries = tuple(_query(work, "auction", kind, ("auction",), _AUCTION_AGGS, batches) for kind in ("ours", "native"))
    title = f"auction, {table.num_rows:,} generated bids in {batches} batches by auction ({{keys:,}} keys)"
    aggs = queries[0].aggs
    return Stream(title, queries, lambda: expected(table, ("auction",), aggs), "pyarrow computes them at once")


def _own_data(request: DemoRequest, work: Path) -> tuple[tuple[Stream, ...], Prepare]:
    assert request.input is not None
    folder = request.input.expanduser().resolve()
    kind, files = data.format_of(folder)
    aggs = request.aggs or ("count(*)",)
    batches = request.batches
    queries = tuple(_query(work, "own", variant, request.keys, aggs, batches) for variant in ("ours", "native"))
    target = work / "own-expected"
    prepare = Prepare(str(folder), kind, str(target))
    by = ", ".join(request.keys)
    title = f"{folder.name}, {{rows:,}} rows of {files} {kind} files in {batches} batches by {by} ({{keys:,}} keys)"

    def want() -> pa.Table:
        return pa.concat_tables([pq.ParquetFile(f).read() for f in sorted(target.glob("*.parquet"))])

    return (Stream(title, queries, want, "plain Spark computes them at once"),), prepare
