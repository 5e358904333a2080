"""Errors of user code: what is raised there, without the frames of this package.

Owns: the traceback of such an error, and telling it from an error of this package.
Does not own: errors that leave a Spark task as ours (`errors.raise_one_line`).

Python prints the innermost frame last, so the user's lines stand at the end: the frames between Spark's and the
user's, and those of a state that refused a value, are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from types import TracebackType
from typing import NoReturn

from fastchangelog.errors import FastChangelogError, InvalidArgumentError

__all__ = ["is_from_user_code", "raise_from_user_code"]

_HERE = os.path.dirname(os.path.abspath(__file__))
#: The code of this package that calls user code, or that user code calls.
_PACKAGES = tuple(os.path.join(_HERE, *path, "") for path in ((), ("..", "types"), ("..", "..", "vectorised")))
#: What this package calls: frames of theirs before any other are no user's.
_LIBRARIES = ("numpy", "pandas", "pyarrow", "pyspark")
_MARK = "_fastchangelog_from_user_code"
#: What Python says when a method does not take the arguments that it is called with; it has no frame of its own then.
_NOT_CALLED = re.compile(r"\b(init|close|handle\w+|open|process|on_timer|initial_state)\(\) (got|missing|takes) ")


def _users(traceback: TracebackType | None) -> TracebackType | None:
    """The frames from the first one of user code on, without this package's."""
    frames: list[TracebackType] = []
    while traceback is not None:
        frame = traceback.tb_frame
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES
        if not frame.f_code.co_filename.startswith(_PACKAGES) and (frames or not library):
            frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for entry in reversed(frames):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def is_from_user_code(error: BaseException) -> bool:
    """True for an error that user code raised or caused: its text and traceback are for the user as they are."""
    return getattr(error, _MARK, False) is True


def raise_from_user_code(error: BaseException) -> NoReturn:
    """Raises the same error, with the user's frames alone if there are any.

    An error of ours that no argument of the user caused, such as a lost connection, keeps its traceback.
    """
    ours = isinstance(error, FastChangelogError) and not isinstance(error, InvalidArgumentError)
    kept = None if ours else _users(error.__traceback__)
    cause = error.__cause__
    if kept is None and isinstance(error, RuntimeError) and isinstance(cause, StopIteration):
        # A call that let `next` raise: Python makes a RuntimeError of it where it leaves a generator, here one of ours.
        kept = _users(cause.__traceback__)
        cause.__traceback__ = kept
    if kept is None and not (isinstance(error, TypeError) and _NOT_CALLED.search(str(error))):
        raise error
    with contextlib.suppress(AttributeError):  # one with slots takes no mark: it is shown as one of this package
        setattr(error, _MARK, True)
    raise error.with_traceback(kept)
