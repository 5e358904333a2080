"""The public errors: one class for each remedy.

Owns: the tree of classes, the name of each kind in the protocol, and the one-line form that leaves a Spark task.
Does not own: the messages: the raising code knows what happened, to which object, and what to do.
"""

from __future__ import annotations

__all__ = [
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
]


class FastChangelogError(Exception):
    """Any error of fastchangelog. Catch it where one handler is enough; its subclasses say what to do."""


class RetryableError(FastChangelogError):
    """Something that may pass: a busy store, a lost connection, a bound that was reached.

    What to do: try again. Spark does so by itself for a failed task; in a loop of your own, wait a moment first.
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
    """The call can never work as it was made.

    What to do: change what the message names.
    """


class CorruptDataError(FastChangelogError):
    """Stored bytes are not what was written; the message names the object and the byte.

    What to do: restore that object from a backup, or start from an older checkpoint.
    """


class StateNotFoundError(FastChangelogError, FileNotFoundError):
    """A named object or state does not exist.

    What to do: check the address; if it was deleted, start from another checkpoint or a new one.
    """


class SchemaMismatchError(FastChangelogError, TypeError):
    """The stored schema and the one asked for differ.

    What to do: go back to the old query, or start a new checkpoint for the new one.
    """


class InternalError(FastChangelogError):
    """A bug in fastchangelog.

    What to do: report it, with the state server's log.
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


def error_of_kind(kind: str, message: str) -> FastChangelogError:
    """The error whose kind has this name in the protocol; an unknown kind is an `InternalError`.

    >>> error_of_kind("closed", "the session is closed; open a new one")
    ClosedError('the session is closed; open a new one')
    """
    return _KINDS.get(kind, InternalError)(message)


def kind_of(error: BaseException) -> str:
    """The name in the protocol of an error's kind: the inverse of `error_of_kind`.

    >>> kind_of(ClosedError("the session is closed; open a new one"))
    'closed'
    """
    return next((kind for kind, cls in _KINDS.items() if isinstance(error, cls)), "internal")


def one_line(error: BaseException) -> FastChangelogError:
    """`error` as one of ours, with a message of one line: what a user reads at the end of a Spark traceback.

    >>> one_line(StoreError("put failed:\\n  no space"))
    StoreError('put failed: no space')
    >>> one_line(KeyError("x"))
    InternalError("KeyError: 'x'; please report it with the state server's log")
    """
    text = " ".join(str(error).split())
    if isinstance(error, FastChangelogError):
        return type(error)(text)
    return InternalError(f"{type(error).__name__}: {text}; please report it with the state server's log")
