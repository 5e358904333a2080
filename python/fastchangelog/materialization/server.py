"""Materialization in the state server: one materializer per live shard, with the policy of its query.

Owns: which shards have a materializer, and what a shard's failures mean for its job.
Does not own: the policy (`policy`), the loop (`periodic`), the threads and the process (`server.process`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import StoreError
from fastchangelog.materialization.periodic import PeriodicMaterializer
from fastchangelog.materialization.policy import (
    FAILED_PAUSE,
    REPLAY_BYTES_PER_SECOND,
    MaterializationPolicy,
    Progress,
    replay_speed,
)

if TYPE_CHECKING:
    from fastchangelog import _internal

__all__ = ["ShardMaterializers"]


class ShardTarget:
    """Adapts one live shard to `periodic.Target`."""

    def __init__(self, server: _internal.Server, shard_id: str, pool: ThreadPoolExecutor) -> None:
        self._server = server
        self._shard_id = shard_id
        self._pool = pool
        self._progress = Progress()

    def progress(self) -> Progress:
        """From the last list of shards."""
        return self._progress

    def update(self, status: Mapping[str, Any], speed: float = REPLAY_BYTES_PER_SECOND) -> None:
        """Stores a new status of the shard; `speed`: bytes per second of a replay."""
        log_bytes = int(status["log_bytes_since_snapshot"])
        self._progress = Progress(
            log_bytes=log_bytes,
            state_bytes=int(status["state_bytes"]),
            segments=int(status["segments_since_snapshot"]),
            replay_seconds=log_bytes / speed,
        )

    def begin(self) -> ShardRun | None:
        """See `periodic.Target`."""
        run = self._server.begin_materialize(self._shard_id)
        return None if run is None else ShardRun(run, self._pool)


class ShardRun:
    """A materialization of a shard that has begun."""

    def __init__(self, run: _internal.MaterializeRun, pool: ThreadPoolExecutor) -> None:
        self._run = run
        self._pool = pool

    def run(self) -> Future[None]:
        """See `periodic.Run`."""
        return self._pool.submit(self._run.run)

    def complete(self, handle: None) -> None:
        """See `periodic.Run`."""
        self._run.complete()

    def abort(self, error: BaseException) -> None:
        """See `periodic.Run`."""
        self._run.abort(str(error))


class ShardMaterializers:
    """One materializer per live shard. `poll` follows the server's list of shards; one thread calls it."""

    def __init__(
        self, server: _internal.Server, pool: ThreadPoolExecutor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._pool = pool
        self._clock = clock
        self._live: dict[str, tuple[ShardTarget, PeriodicMaterializer[None]]] = {}
        #: Shards whose sessions are refused, and when a session was first refused (None: not yet).
        self._failed: dict[str, float | None] = {}

    def poll(self) -> None:
        """Starts, polls and ends materializers; a shard with too many failures fails its job."""
        statuses = {status["id"]: status for status in json.loads(self._server.shards())}
        speed = replay_speed(self._server.metrics())
        for shard_id in self._live.keys() - statuses.keys():
            self._live.pop(shard_id)[1].close()
            self._failed.pop(shard_id, None)
        for shard_id, status in statuses.items():
            policy = MaterializationPolicy.from_options(status.get("policy") or {})
            if shard_id not in self._live:
                target = ShardTarget(self._server, shard_id, self._pool)
                materializer = PeriodicMaterializer(target, policy, clock=self._clock, owner=shard_id)
                self._live[shard_id] = (target, materializer)
            target, materializer = self._live[shard_id]
            # A restarted query may have another policy.
            materializer.follow(policy)
            target.update(status, speed)
            if shard_id in self._failed and self._failed[shard_id] is None and status.get("refused"):
                self._failed[shard_id] = self._clock()
            # While a shard makes a version live, every call to it would block: skip it until it is at rest.
            if status.get("at_rest", True):
                self._poll_one(shard_id, materializer)

    def _poll_one(self, shard_id: str, materializer: PeriodicMaterializer[None]) -> None:
        failed, completed, skipped = materializer.failed, materializer.completed, materializer.skipped
        message = None
        try:
            materializer.poll()
        except StoreError as error:
            message = str(error)
            self._server.set_shard_failure(shard_id, message)
            self._failed.setdefault(shard_id)
        if materializer.completed > completed:
            self._log("INFO", "materialized", shard_id, seconds=f"{materializer.last_duration:.3f}")
            self._clear_failure(shard_id)
        elif materializer.skipped > skipped and self._refusal_delivered(shard_id):
            # The failed local state was dropped, and only a session restores it. The next failure refuses again.
            self._clear_failure(shard_id)
        elif materializer.failed > failed:
            in_a_row = str(materializer.failures_in_a_row)
            self._log("WARN", "materialization failed", shard_id, in_a_row=in_a_row, error=message or "")

    def _clear_failure(self, shard_id: str) -> None:
        """Accepts sessions of this shard again."""
        if shard_id in self._failed:
            self._server.set_shard_failure(shard_id, None)
            del self._failed[shard_id]

    def _refusal_delivered(self, shard_id: str) -> bool:
        """True when every attempt of the refused task has met the refusal: its job has failed."""
        refused_at = self._failed.get(shard_id)
        return refused_at is not None and self._clock() - refused_at >= FAILED_PAUSE.total_seconds()

    def close(self) -> None:
        """Aborts all current runs."""
        for _, materializer in self._live.values():
            materializer.close()
        self._live.clear()

    def _log(self, level: str, event: str, shard_id: str, **fields: str) -> None:
        self._server.log(level, event, {"shard_id": shard_id, **fields})
