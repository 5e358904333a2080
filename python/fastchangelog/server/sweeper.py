"""The sweeps of a state server: the states whose shard 0 it holds.

Owns: which states are swept together, the connection to their stores and checkpoints, the log line and the counters.
Does not own: the schedule (`gc.background`), the sweep (`gc.collector`), which shards are here (Rust), the life of the
process (`process`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.gc.background import BackgroundSweeper, Outcome, Sweepable, pause_of, sweep_interval
from fastchangelog.hidden import Hidden
from fastchangelog.options import seconds_option

if TYPE_CHECKING:
    from fastchangelog.gc.pace import Pace
    from fastchangelog.gc.report import FolderReport

__all__ = ["server_sweeper"]

#: Seconds between looks for new states.
_BEAT = 2.0


@dataclass(frozen=True)
class _Query:
    """All states of a query under one root."""

    root: str
    query: str
    interval: float
    grace: float
    options: Mapping[str, str]
    storage_options: Hidden[Mapping[str, str]]


def server_sweeper(
    server: _internal.Server, scratch: Path, clock: Callable[[], float] = time.monotonic
) -> BackgroundSweeper:
    """The sweeper of a server, to be started; `scratch` is a folder of local files that goes with the server."""
    return BackgroundSweeper(partial(_states, server, scratch), partial(_done, server), beat=_BEAT, clock=clock)


def _states(server: _internal.Server, scratch: Path) -> list[Sweepable]:
    """What the server sweeps. A query with several states is swept as a whole, unless one of them says otherwise."""
    queries: dict[str, _Query | None] = {}
    for root, query, _, options, storage in sorted(server.swept_states(), key=lambda state: state[:3]):
        key = f"{_internal.clean_uri(root)}/{query}"
        interval = sweep_interval(options)
        if interval is None or (key in queries and queries[key] is None):
            queries[key] = None
            continue
        grace = seconds_option(options, "sweep_grace")
        queries.setdefault(key, _Query(root, query, interval, grace, options, Hidden(storage)))
    return [
        Sweepable(key, found.interval, partial(_sweep, found, scratch))
        for key, found in queries.items()
        if found is not None
    ]


def _sweep(state: _Query, scratch: Path, pace: Pace) -> Sequence[FolderReport]:
    # Only here: a server that sweeps nothing does not load them.
    from fastchangelog.checkpoints.handles import QueryCheckpoints
    from fastchangelog.checkpoints.locations import default_file_system
    from fastchangelog.gc.collector import Background, Collector
    from fastchangelog.gc.pace import PacedFolder

    folder = _internal.ObjectFolder(state.root, state.options, state.storage_options.show())
    checkpoints = QueryCheckpoints(
        _only_spark,
        default_fs=default_file_system({}),
        root=state.root,
        storage_options=state.storage_options,
        scratch=str(scratch),
    )
    return Collector(
        PacedFolder(folder, pace),
        checkpoints,
        grace=state.grace,
        clock=time.time,
        delete=True,
        background=Background(state.query, pause_of(state.interval)),
    ).run()


def _only_spark(location: str) -> NoReturn:
    raise InvalidArgumentError(
        f"only Spark can read {location}, which a state server does not have: run `fastchangelog sweep --delete` "
        "regularly, and set the option `sweep` to `off`"
    )


def _done(server: _internal.Server, outcome: Outcome) -> None:
    server.count_sweep(*outcome.counts())
    if outcome.doubt is None or outcome.is_news:
        server.log("INFO" if outcome.doubt is None else "WARN", "sweep", outcome.fields())
