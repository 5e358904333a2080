"""New bases of a state in process: its materializer, and what its failures mean.

Owns: when the materializer is polled, what the close of a state waits for.
Does not own: the policy (`materialize`), what a materialization does (the core), threads (the core's).

Only a checkpoint can carry a new base, and only checkpoints make the log longer. So there is no thread that waits for a
time: the core tells of each checkpoint that has ended, and of each change that it refused, and then the materializer is
polled, on the thread that ends futures. What is due by time alone begins with the first checkpoint after that time.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from fastchangelog.errors import StoreError
from fastchangelog.materialize import MaterializationPolicy, PeriodicMaterializer, Progress, replay_speed

if TYPE_CHECKING:
    from fastchangelog import _internal

__all__ = ["Bases"]


class Bases:
    """The materializer of one open state, which any thread may poll.

    The state's core keeps no reference to this: a state that nobody holds any more is closed.
    """

    def __init__(self, native: _internal.LocalState, policy: MaterializationPolicy) -> None:
        self.changed = threading.Condition()
        """Told after each poll."""
        self._native = native
        self._refused = False
        self._pid = os.getpid()
        self._target = _Target(native, weakref.ref(self))
        self.materializer = PeriodicMaterializer(self._target, policy, owner=native.uri)
        native.on_event(partial(_poll, weakref.ref(self)))
        self.poll()

    def poll(self) -> None:
        """Ends a materialization that is done, and begins one that is due."""
        with self.changed:
            self._poll()
            self.changed.notify_all()

    def finish(self) -> bool:
        """Waits for a new base, if the log is so long that the policy asks for one; true if the next checkpoint has one
        to carry. So the log of programs that run for a moment only does not grow for ever."""
        with self.changed:
            self._poll()
            materializer = self.materializer
            if not materializer.running or not materializer.policy.wants(self._target.progress()):
                return False
            completed = materializer.completed
            self.changed.wait_for(lambda: not materializer.running)
            return materializer.completed > completed

    def close(self) -> None:
        """Gives up what is under way."""
        if os.getpid() == self._pid:  # in a forked child, who held the lock may not exist
            with self.changed:
                self.materializer.close()
                self.changed.notify_all()

    def _poll(self) -> None:
        completed = self.materializer.completed
        try:
            self.materializer.poll()
        except StoreError as error:
            self._refused = True
            self._native.refuse_changes(f"{error}; nothing can be changed until one succeeds, while checkpoints go on")
            return
        if self._refused and self.materializer.completed > completed:
            self._refused = False
            self._native.refuse_changes(None)


class _Target:
    """A state as `PeriodicMaterializer` wants it."""

    def __init__(self, native: _internal.LocalState, bases: weakref.ref[Bases]) -> None:
        self._native = native
        self._bases = bases
        self._speed = replay_speed(native.metrics())

    def progress(self) -> Progress:
        """What has gathered since the newest base."""
        log_bytes, segments, state_bytes = self._native.progress()
        return Progress(log_bytes, state_bytes, segments, log_bytes / self._speed)

    def begin(self) -> _Run | None:
        """See `materialize.Target`."""
        run = self._native.begin_materialize()
        return None if run is None else _Run(run, self._bases)


class _Run:
    """A materialization under way."""

    def __init__(self, native: _internal.StateMaterialization, bases: weakref.ref[Bases]) -> None:
        self._native = native
        self._bases = bases

    def run(self) -> Future[None]:
        """See `materialize.Run`."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        self._native.start(partial(_settle, future, self._bases))
        return future

    def complete(self, handle: None) -> None:
        """See `materialize.Run`."""
        self._native.complete()

    def abort(self, error: BaseException) -> None:
        """See `materialize.Run`."""
        self._native.abort(str(error))


def _poll(bases: weakref.ref[Bases]) -> None:
    found = bases()
    if found is not None:
        found.poll()


def _settle(future: Future[None], bases: weakref.ref[Bases], _: None, error: BaseException | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    _poll(bases)
