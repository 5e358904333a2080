"""Python futures for operations of the core, which report completion by a callback.

Owns: such a future, resolving it, and the threads that run a program's callbacks.
Does not own: the operations, the thread that resolves (the core's: one for the process).

Rules, because the handler of a signal may run in the main thread between any two bytecodes, and wait for us:

1. a thread that waits for a future holds no lock that its resolution takes;
2. the thread that resolves runs no code of the program: each state has a thread for its callbacks, which may wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from fastchangelog.errors import ClosedError, InternalError

__all__ = ["CallbackThread", "CoreFuture", "resolve_future"]

N = TypeVar("N")
R = TypeVar("R")

#: How long a thread of callbacks waits for the next one before it ends, in seconds.
_LINGER = 1.0


class CallbackThread:
    """Calls functions one by one, on a thread that runs only while functions are queued.

    >>> from functools import partial
    >>> from queue import SimpleQueue
    >>> thread, called = CallbackThread(), SimpleQueue()
    >>> for number in range(3):
    ...     thread.call(partial(called.put, number))
    >>> [called.get() for _ in range(3)]
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[Callable[[], object]] = deque()
        self._running = False

    def call(self, function: Callable[[], object]) -> None:
        """Calls ``function`` after those before it. Only for the thread that resolves."""
        with self._changed:
            self._waiting.append(function)
            self._changed.notify()
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, args=(_LINGER,), name="fcl-callbacks", daemon=True).start()
        except RuntimeError:  # the limit of threads: rather here than never
            self._run(0.0)

    def _run(self, linger: float) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._changed.wait_for(lambda: self._waiting, linger)
                if not self._waiting:
                    self._running = False
                    return
                function = self._waiting.popleft()
            function()
            del function  # what it refers to may end while this thread waits


class CoreFuture(Future[R]):
    """A future of the core, which cannot be cancelled. Its callbacks run on ``thread``.

    >>> future = CoreFuture(CallbackThread())
    >>> future.done(), future.cancel()
    (False, False)
    """

    def __init__(self, thread: CallbackThread) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._pid = os.getpid()
        self._thread = thread
        self._calls: deque[Callable[[Future[R]], object]] = deque()
        self._ended = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def done(self) -> bool:
        """True once it has a result or an error."""
        return self._ended

    def result(self, timeout: float | None = None) -> R:
        """The result, or the error raised, when it is there."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, when it is there; None after a result."""
        self._wait(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Calls ``fn`` with this future once it has ended: then on a thread for the callbacks of one state or writer,
        in their order, or at once if it has ended.

        The callback may use the state, and wait for another of its checkpoints.
        """
        if not self.done():
            self._calls.append(fn)
            if not self.done():
                return
            try:
                self._calls.remove(fn)
            except ValueError:  # the resolving thread has taken it meanwhile
                return
        super().add_done_callback(fn)

    def end(self, result: R | None, error: BaseException | None) -> None:
        """Resolves it with the result or with the error. Only for the thread that resolves."""
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)  # type: ignore[arg-type]
        self._ended = True
        self._gate.release()
        if self._calls:
            self._thread.call(self._call)

    def _call(self) -> None:
        while self._calls:
            try:
                function = self._calls.popleft()
            except IndexError:
                return
            super().add_done_callback(function)  # it has ended: called at once, and an error is logged

    def _wait(self, timeout: float | None) -> None:
        if self._ended:
            return
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this future belongs to process {self._pid} and never ends in its forked child {os.getpid()}; begin "
                "the work in the child"
            )
        # Not with the condition of the base class, which the resolving thread takes.
        seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if self._gate.acquire(timeout=seconds):
            self._gate.release()


def resolve_future(future: CoreFuture[R], convert: Callable[[N], R], result: N | None, error: Any) -> None:
    """Resolves `future` with the converted result or with the error.

    >>> future = CoreFuture(CallbackThread())
    >>> resolve_future(future, str, 1, None)
    >>> future.result()
    '1'
    """
    converted: R | None = None
    if error is None and result is None:
        error = InternalError("an operation ended without a result; please report it")
    elif error is None and result is not None:
        try:
            converted = convert(result)
        except BaseException as failed:
            error = failed
    future.end(converted, error)
