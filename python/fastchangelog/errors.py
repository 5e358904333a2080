"""The public errors: one class for each remedy.

Owns: the tree of classes, the name of each kind in the protocol, the chain of causes, and the one-line form that leaves
a Spark task.
Does not own: the messages: the raising code knows what happened, to which object, and what to do.

The text of an error is complete: what happened, to which object, the cause, and what to do. `__cause__` is the chain
of causes that the core knows, one exception for each: an `OSError` for an error of the operating system, else a
`CauseError`. A traceback prints causes first, so its last line is our text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

__all__ = [
    "ArgumentTypeError",
    "ClosedError",
    "CorruptDataError",
    "FastChangelogError",
    "FencedError",
    "InternalError",
    "InvalidArgumentError",
    "PermissionDeniedError",
    "RetryableError",
    "SchemaMismatchError",
    "StateNotFoundError",
    "StoreError",
    "UnsupportedError",
]


class FastChangelogError(Exception):
    """Any error of fastchangelog. Catch it where one handler is enough; its subclasses say what to do.

    Attributes:
        remedy: The remedy, if the error has a separate one. The text of the error ends with it.
        subject: The subject of the error, if known: its type (`"object"` of a store, `"path"`, `"option"`,
            `"state"` or `"column"`) and its name.
    """

    remedy: str | None = None
    subject: tuple[str, str] | None = None


class RetryableError(FastChangelogError):
    """A failure that may pass: a busy store, a lost connection, a bound that was reached.

    What to do: try again. Spark retries a failed task itself; in your own loop, wait a moment first.
    """


class StoreError(FastChangelogError):
    """The object store refused or failed for good, after all attempts.

    What to do: look at the named object and the cause; check the address, the quota and the network.
    """


class PermissionDeniedError(FastChangelogError, PermissionError):
    """Credentials or rights are missing, for the store or for a local folder.

    What to do: check `storage_options`, the environment's credentials and the rights of the named object.
    """


class ClosedError(FastChangelogError):
    """The object was closed before the call.

    What to do: open a new one; don't keep the closed one.
    """


class FencedError(FastChangelogError):
    """A newer writer has taken over this state.

    What to do: stop this one; there must be one writer at a time.
    """


class InvalidArgumentError(FastChangelogError, ValueError):
    """The call can never work with these arguments.

    What to do: change the argument that the message names.
    """


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is of a type that the call never takes, where PySpark's own call raises a `TypeError`.

    What to do: as for `InvalidArgumentError`, which is the class to catch.
    """


class UnsupportedError(InvalidArgumentError):
    """The call is one that Spark's own operator takes, and ours does not.

    What to do: as for `InvalidArgumentError`, which is the class to catch. It is told apart by its type for
    `fastchangelog.spark.accelerate`, which leaves such a call to Spark.
    """


class CorruptDataError(FastChangelogError):
    """Stored bytes differ from the written ones; the message names the object and the byte.

    What to do: restore that object from a backup, or start from an older checkpoint.
    """


class StateNotFoundError(FastChangelogError, FileNotFoundError):
    """A named object or state does not exist.

    What to do: check the address; if it was deleted, start from another checkpoint or a new one.
    """


class SchemaMismatchError(FastChangelogError, TypeError):
    """The stored schema differs from the requested one.

    What to do: go back to the old query, or start a new checkpoint for the new one.
    """


class InternalError(FastChangelogError):
    """A bug in fastchangelog.

    What to do: report it, with the log that the message names, if it names one.
    """


_KINDS: dict[str, type[FastChangelogError]] = {
    "retryable": RetryableError,
    "store": StoreError,
    "permission_denied": PermissionDeniedError,
    "closed": ClosedError,
    "fenced": FencedError,
    "invalid_argument": InvalidArgumentError,
    "corrupt": CorruptDataError,
    "not_found": StateNotFoundError,
    "schema_mismatch": SchemaMismatchError,
    "internal": InternalError,
}


#: Causes of an error that are sent.
_MAX_CAUSES = 8


class CauseError(Exception):
    """The error of a library, as a cause of one of our errors. It is never raised itself."""


def error_of_kind(
    kind: str,
    message: str,
    remedy: str | None = None,
    subject: Sequence[str] | None = None,
    causes: Sequence[tuple[str, int | None]] = (),
) -> FastChangelogError:
    """The error of the kind with this name in the protocol; an unknown kind becomes an `InternalError`.

    `causes` are texts, the nearest first, each with the number of an error of the operating system if it is one.

    >>> error_of_kind("closed", "the session is closed; open a new one")
    ClosedError('the session is closed; open a new one')
    >>> error_of_kind("store", "the disk is full", causes=[("cannot write /x", None), ("full", 28)]).__cause__
    CauseError('cannot write /x')
    """
    error = _KINDS.get(kind, InternalError)(message)
    if remedy is not None:
        error.remedy = remedy
    if subject is not None:
        error.subject = (subject[0], subject[1])
    cause: Exception | None = None
    for text, os_error in reversed(causes):
        next_cause = CauseError(text) if os_error is None else OSError(os_error, os.strerror(os_error))
        next_cause.__cause__, cause = cause, next_cause
    error.__cause__ = cause
    return error


def kind_of(error: BaseException) -> str:
    """The name in the protocol of an error's kind: the inverse of `error_of_kind`.

    >>> kind_of(ClosedError("the session is closed; open a new one"))
    'closed'
    """
    return next((kind for kind, cls in _KINDS.items() if isinstance(error, cls)), "internal")


def parts_of(
    error: BaseException,
) -> tuple[str, str, str | None, tuple[str, str] | None, list[tuple[str, int | None]]]:
    """The arguments from which `error_of_kind` rebuilds the same error, even in another process.

    >>> parts_of(error_of_kind("store", "full; free space", "free space", ("path", "/x"), [("disk", None)]))
    ('store', 'full; free space', 'free space', ('path', '/x'), [('disk', None)])
    """
    ours = error if isinstance(error, FastChangelogError) else FastChangelogError()
    causes: list[tuple[str, int | None]] = []
    cause = error.__cause__
    while cause is not None and len(causes) < _MAX_CAUSES:
        causes.append((str(cause), cause.errno if isinstance(cause, OSError) else None))
        cause = cause.__cause__
    return kind_of(error), str(error), ours.remedy, ours.subject, causes


def one_line(error: BaseException) -> FastChangelogError:
    """`error` as one of ours, with a message of one line: what a user reads at the end of a Spark traceback.

    Its cause is the cause of an error of ours, and any other error itself.

    >>> one_line(StoreError("put failed:\\n  no space"))
    StoreError('put failed: no space')
    >>> one_line(KeyError("x"))
    InternalError("KeyError: 'x'; please report it")
    """
    text = " ".join(str(error).split())
    if isinstance(error, FastChangelogError):
        ours = type(error)(text)
        ours.__dict__.update(vars(error))
        ours.__cause__ = error.__cause__
        return ours
    internal = error_of_kind("internal", f"{type(error).__name__}: {text}; please report it", "please report it")
    internal.__cause__ = error
    return internal


def raise_one_line(error: BaseException) -> NoReturn:
    """Raises `one_line(error)`: the end of a task of Spark. The stack of an error of ours tells its reader nothing."""
    ours = one_line(error)
    raise ours from ours.__cause__
