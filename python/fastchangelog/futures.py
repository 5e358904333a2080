"""Python futures for operations of the core, which end with a callback.

Owns: making such a future and resolving it. Does not own: the operations, the thread that calls back (the core's).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from fastchangelog.errors import InternalError

__all__ = ["resolve_future", "running_future"]

N = TypeVar("N")
R = TypeVar("R")


def running_future() -> Future[R]:
    """A future that cannot be cancelled."""
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()
    return future


def resolve_future(future: Future[R], convert: Callable[[N], R], result: N | None, error: BaseException | None) -> None:
    """Ends `future` with the converted result or with the error.

    >>> future = running_future()
    >>> resolve_future(future, str, 1, None)
    >>> future.result()
    '1'
    """
    if error is not None:
        future.set_exception(error)
    elif result is None:
        future.set_exception(InternalError("an operation ended without a result; please report it"))
    else:
        future.set_result(convert(result))
