"""Materialization of an embedded state: its materializer, and what its failures mean.

Owns: when the materializer is polled, what the close of a state waits for.
Does not own: the policy (`policy`), the loop (`periodic`), what a materialization does and its threads (the core).

Only a checkpoint installs a new snapshot, and only checkpoints make the log longer. So there is no timer thread: the
core reports each checkpoint that has ended and each change that it refused, and then the materializer is polled, on a
thread of its own. A run that is due by time alone begins with the first checkpoint after that time.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from fastchangelog.errors import StoreError
from fastchangelog.futures import CallbackThread
from fastchangelog.materialization.periodic import PeriodicMaterializer
from fastchangelog.materialization.policy import MaterializationPolicy, Progress, replay_speed

if TYPE_CHECKING:
    from fastchangelog import _internal

__all__ = ["EmbeddedMaterializer"]


class EmbeddedMaterializer:
    """The materializer of one open state, which any thread may poll.

    The state's core keeps no reference to this object: an unreferenced state is closed.
    """

    def __init__(self, native: _internal.LocalState, policy: MaterializationPolicy) -> None:
        self.changed = threading.Condition()
        """Notified after each poll."""
        self._native = native
        self._refused = False
        self._polling = False
        self._pid = os.getpid()
        self._thread = CallbackThread()
        self._target = _Target(native, weakref.ref(self))
        self.materializer = PeriodicMaterializer(self._target, policy, owner=native.uri)
        native.on_event(partial(_poll_later, weakref.ref(self)))
        self.poll()

    def poll(self) -> None:
        """Ends a run that is done, and begins one that is due."""
        with self.changed:
            self._poll()
            self.changed.notify_all()

    def finish(self) -> bool:
        """Waits for a new snapshot, if the length of the log requires one; true if the next checkpoint will install it.
        Without this wait the log of short programs would grow without bound."""
        with self.changed:
            self._poll()
            materializer = self.materializer
            if self._polling or not materializer.running or not materializer.policy.wants(self._target.progress()):
                return False
            completed = materializer.completed
            self.changed.wait_for(lambda: not materializer.running)
            return materializer.completed > completed

    def close(self) -> None:
        """Aborts the current run."""
        if os.getpid() == self._pid:  # in a forked child the thread that held the lock does not exist
            with self.changed:
                self.materializer.close()
                self.changed.notify_all()

    def poll_later(self) -> None:
        """Polls, and does not hold up the caller."""
        self._thread.call(partial(_poll, weakref.ref(self)))

    def _poll(self) -> None:
        if self._polling:  # the handler of a signal, which came while this thread polls
            return
        completed = self.materializer.completed
        try:
            self._polling = True
            self.materializer.poll()
        except StoreError as error:
            self._refused = True
            self._native.refuse_changes(
                f"{error}; the state refuses changes until a materialization succeeds, and checkpoints continue"
            )
            return
        finally:
            self._polling = False
        if self._refused and self.materializer.completed > completed:
            self._refused = False
            self._native.refuse_changes(None)


class _Target:
    """Adapts an embedded state to `periodic.Target`."""

    def __init__(self, native: _internal.LocalState, owner: weakref.ref[EmbeddedMaterializer]) -> None:
        self._native = native
        self._owner = owner
        self._speed = replay_speed(native.metrics())

    def progress(self) -> Progress:
        """The log since the newest snapshot."""
        log_bytes, segments, state_bytes = self._native.progress()
        return Progress(log_bytes, state_bytes, segments, log_bytes / self._speed)

    def begin(self) -> _Run | None:
        """See `periodic.Target`."""
        run = self._native.begin_materialize()
        return None if run is None else _Run(run, self._owner)


class _Run:
    """A materialization that has begun."""

    def __init__(self, native: _internal.StateMaterialization, owner: weakref.ref[EmbeddedMaterializer]) -> None:
        self._native = native
        self._owner = owner

    def run(self) -> Future[None]:
        """See `periodic.Run`."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self._native.start(partial(_resolve, future, self._owner))
        return future

    def complete(self, handle: None) -> None:
        """See `periodic.Run`."""
        self._native.complete()

    def abort(self, error: BaseException) -> None:
        """See `periodic.Run`."""
        self._native.abort(str(error))


def _poll(owner: weakref.ref[EmbeddedMaterializer]) -> None:
    found = owner()
    if found is not None:
        found.poll()


def _poll_later(owner: weakref.ref[EmbeddedMaterializer]) -> None:
    found = owner()
    if found is not None:
        found.poll_later()


def _resolve(
    future: Future[None], owner: weakref.ref[EmbeddedMaterializer], _: None, error: BaseException | None
) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    _poll_later(owner)
