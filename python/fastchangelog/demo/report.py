"""What the demo prints: a few clean lines, and one moving line of progress on a terminal.

Owns: wording and layout. Does not own: any number (conduct, compare).
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence

from fastchangelog.demo.compare import Verdict
from fastchangelog.demo.conduct import Batch, Kill
from fastchangelog.demo.plan import Query

_WIDTH = 100


class ProgressLine:
    """One line that is written over, with the seconds so far; silent unless standard error is a terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._start = time.monotonic()

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._on:
            line = f"  {time.monotonic() - self._start:4.0f} s  {text}"
            print(f"\r{line[:_WIDTH]:<{_WIDTH}}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes the line away."""
        if self._on:
            print(f"\r{'':<{_WIDTH}}\r", end="", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start


def kill_lines(kills: Sequence[Kill], query: Query) -> list[str]:
    """One line per kill of a query."""
    lines = []
    for kill in kills:
        if kill.query != query.id:
            continue
        if not kill.pid:
            lines.append(f"  {query.kind:<6} kill -9 of a {kill.victim} was not reached: the stream ended before")
            continue
        after = "the stream ended" if kill.recovered is None else f"next batch done after {kill.recovered:.1f} s"
        again = "" if not kill.restarts or kill.victim == "JVM" else ", with a new start of the job"
        lines.append(f"  {query.kind:<6} kill -9 {kill.victim} {kill.pid} in batch {kill.batch + 1}: {after}{again}")
    return lines


def batch_line(batches: Sequence[Batch], ours: Query, native: Query | None) -> str:
    """Median batch times beside each other."""

    def shown(query: Query) -> str:
        calm = [b.millis for b in batches if b.query == query.id and not b.disturbed]
        return f"{statistics.median(calm):,.0f} ms of {len(calm)}" if calm else "none undisturbed"

    text = f"  batches   ours {shown(ours)}"
    if native is not None:
        text += f", native Spark {shown(native)}"
    return text + " (median of the undisturbed ones)"


def checkpoint_line(batches: Sequence[Batch], query: Query) -> str:
    """Times until commits were durable, bytes and requests."""
    mine = [b.metrics for b in batches if b.query == query.id and b.metrics.get("shards")]
    if not mine:
        return "  durable   no metrics"
    millis = sorted(m["commit_micros"] / m["shards"] / 1000 for m in mine)
    written, requests = sum(m["log_bytes"] for m in mine), sum(m["store_requests"] for m in mine)
    return (
        f"  durable   checkpoint p50 {percentile(millis, 50):.0f} ms, p99 {percentile(millis, 99):.0f} ms; "
        f"{written / 1e6:.1f} MB in {requests} requests over {len(mine)} batches"
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99)
    (2.0, 4.0)
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def verdict_lines(verdict: Verdict, query: Query, against: str) -> list[str]:
    """EXACT, or what differs."""
    if verdict.exact:
        return [f"  {query.kind:<6} EXACT: all {verdict.rows:,} rows as {against}"]
    return [
        f"  {query.kind:<6} DIFFERENT: {verdict.wrong:,} keys",
        *(f"         {e[:_WIDTH]}" for e in verdict.examples),
    ]
