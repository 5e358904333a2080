"""The place of an embedded state, and the sweeps of its folder while the state is open for writing.

Owns: the connections to the state's store and to a savepoint's, the sweeper of a state, its log lines and counters.
Does not own: the schedule (`gc.background`), the sweep (`gc.collector`), the state (`embedded.state`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.gc.background import BackgroundSweeper, Outcome, Sweepable, pause_of, sweep_interval
from fastchangelog.hidden import Hidden
from fastchangelog.options import (
    gather_storage_options,
    request_credentials,
    split_provider,
)

if TYPE_CHECKING:
    from fastchangelog.embedded.state import State
    from fastchangelog.gc.pace import Pace
    from fastchangelog.gc.report import FolderReport
    from fastchangelog.types import PathLike, StorageOptions

__all__ = ["StatePlace", "savepoint_folder", "start_sweeper"]

_log = logging.getLogger("fastchangelog.embedded")


@dataclasses.dataclass(frozen=True)
class StatePlace:
    """Where a state is, and how to connect to it."""

    folder: str
    name: str
    options: Mapping[str, str]
    storage_options: Hidden[Mapping[str, str]]
    provider: Callable[[], tuple[dict[str, str], float | None]] | None = dataclasses.field(repr=False)

    def connect(self) -> _internal.ObjectFolder:
        """The folder that holds the state's own, with credentials of now."""
        storage = self.storage_options
        if self.provider is not None:
            storage = Hidden(_internal.overlay_storage_options(storage.show(), self.provider()[0]))
        return _internal.ObjectFolder(self.folder, self.options, storage.show())


def savepoint_folder(uri: PathLike, given: Hidden[StorageOptions | None]) -> _internal.SavepointFolder:
    """The folder of a savepoint, connected with the caller's storage options."""
    provider, explicit = split_provider(given)
    asked = None if provider is None else partial(request_credentials, provider)
    folder = os.fspath(uri)
    return _internal.SavepointFolder(folder, {}, gather_storage_options(folder, explicit.show()), asked)


def start_sweeper(state: State, place: StatePlace) -> BackgroundSweeper | None:
    """Starts the sweeps of a state, which keep no reference to it; None if its options say that there are none."""
    interval = sweep_interval(place.options)
    if interval is None:
        return None
    swept = Sweepable(state.uri, interval, partial(_sweep, place, interval))
    owner: list[weakref.ref[State]] = []
    sweeper = BackgroundSweeper(lambda: [swept], partial(_done, owner))
    owner.append(weakref.ref(state, lambda _: sweeper.stopped.set()))
    if not sweeper.start():
        _log.warning("no sweeps of %s: the system refuses a thread (ulimit -u, the container's pids.max)", state.uri)
    return sweeper


def _sweep(place: StatePlace, interval: float, pace: Pace) -> Sequence[FolderReport]:
    # Only here: most programs end before their first sweep.
    from fastchangelog.gc.collector import Background, Collector
    from fastchangelog.gc.pace import PacedFolder

    background = Background(place.name.strip("/"), pause_of(interval))
    folder = PacedFolder(place.connect(), pace)
    checkpoints: Any = _NoCheckpoints()
    return Collector(folder, checkpoints, grace=0.0, clock=time.time, delete=True, background=background).run()


class _NoCheckpoints:
    """An embedded state has a checkpoint log, and nothing of Spark's."""

    def query_id(self, location: str) -> NoReturn:
        raise InvalidArgumentError(f"an embedded state has no checkpoint at {location}")

    roots = query_id


def _done(owner: Sequence[weakref.ref[State]], outcome: Outcome) -> None:
    state = owner[0]()
    if state is None:
        return
    state._native.count_sweep(*outcome.counts())
    if outcome.doubt is None or outcome.is_news:
        line = " ".join(f"{name}={value}" for name, value in outcome.fields().items())
        _log.log(logging.INFO if outcome.doubt is None else logging.WARNING, "sweep %s", line)
