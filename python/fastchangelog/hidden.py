"""Values that no traceback shows: storage options, and Spark settings that may hold them.

Owns: the object that hides a value, and calls that leave no frame behind.
Does not own: the list of secret values, messages (they name options, never values).

Spark, debuggers and error trackers print the local variables of the frames of a traceback. So a function has secrets in
a `Hidden` wherever an exception may pass it, and functions that work on the values themselves are `unseen`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastchangelog.types import StorageOption

__all__ = ["Hidden", "HiddenOptions", "show", "unseen"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class Hidden(Generic[T_co]):
    """A value whose `repr` is `***`. It has no attribute that holds the value.

    >>> options = Hidden({"aws_secret_access_key": "secret"})
    >>> options, f"{options}"
    (***, '***')
    >>> options.show()["aws_secret_access_key"]
    'secret'
    """

    __slots__ = ("show",)

    show: Callable[[], T_co]
    """Returns the value, for the arguments of a call and not for a local variable."""

    def __init__(self, value: T_co) -> None:
        self.show = lambda: value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hidden) and bool(self.show() == other.show())

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Hidden[T_co]], tuple[T_co]]:
        return Hidden, (self.show(),)


HiddenOptions: TypeAlias = "Hidden[Mapping[str, StorageOption]]"
"""Storage options."""


def show(value: T | Hidden[T]) -> T:
    """The value of a `Hidden`; any other value is itself.

    >>> show(Hidden(1)), show(1)
    (1, 1)
    """
    return cast("T", value.show()) if isinstance(value, Hidden) else value


def unseen(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose frames, and those below it, are in no traceback: its exceptions begin at its caller.

    >>> @unseen
    ... def fail(secret):
    ...     raise ValueError("no")
    >>> try:
    ...     fail("secret")
    ... except ValueError as error:
    ...     frame = error.__traceback__.tb_next.tb_frame
    >>> "secret" in frame.f_locals, sorted(frame.f_locals)
    (False, ['failed', 'function'])
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            failed = error.with_traceback(None)
        finally:
            del args, kwargs
        raise failed

    return cast("Callable[P, T]", call)
