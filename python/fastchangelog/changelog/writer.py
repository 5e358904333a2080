"""Writers of a changelog.

Owns: Python's view of a writer, its futures. Does not own: the log (the core), the conversion of data (`arrow`).
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from fastchangelog import _internal
from fastchangelog.changelog.arrow import groups_of, values_of
from fastchangelog.changelog.handle import ChangelogHandle
from fastchangelog.closing import Closing
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.futures import CallbackThread, CoreFuture, resolve_future

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, BinaryArrayLike

__all__ = ["ChangelogWriter"]


class ChangelogWriter(_internal.ChangelogWriter, Closing):
    """One writer of a storage; made by `ChangelogStorage.writer`.

    Any thread may use it, calls take effect one after the other. Sequence numbers count change sets: many appends share
    one, and it grows when a set ends: at `persist`, at `rollover`, or when the active set reaches the option
    ``preemptive_persist_threshold`` and is uploaded ahead of any checkpoint. Ranges are half open, ``[from, to)``.

    Appends only wait when ``max_in_flight`` bytes are on their way to the store; Ctrl-C ends the wait.

    Example:
        >>> import fastchangelog as fc
        >>> storage = fc.ChangelogStorage("memory://docs/writer")
        >>> writer = storage.writer("operator-1", key_groups=range(0, 128))
        >>> writer.append_meta(b"a header")
        >>> writer.append(7, b"seven")
        >>> writer.append_batch([7, 9], [b"again", b"nine"])
        >>> writer.append_batch([9], ([0, 3], b"ten"))
        >>> writer.next_sequence_number, writer.rollover()
        (1, 1)
        >>> handle = writer.persist(0, checkpoint_id=1).result()
        >>> writer.confirm(0, handle.to_sequence_number, checkpoint_id=1)
        >>> len(handle)
        5
        >>> storage.close()
    """

    def __init__(self, *_: object) -> None:
        self._callbacks = CallbackThread()

    @property
    def key_groups(self) -> range:
        """The key groups that it takes."""
        return range(*self._key_groups)

    def append_batch(self, groups: ArrowArrayLike, values: BinaryArrayLike) -> None:
        """Appends many changes at once, in order. All key groups are checked before the first change is appended.

        Values are copied, with one exception. An uncompressed log refers to values in ``bytes`` and in Arrow buffers
        that pyarrow reports as not mutable, until their changes are durable, if 4 KiB or more of one key group are in a
        row. Do not change the memory behind such a buffer.

        Args:
            groups: Key groups: a numpy or Arrow array of integers, or a sequence.
            values: As many byte strings: an Arrow array of binary type (or a chunked one), a sequence of ``bytes``, or
                a pair ``(offsets, buffer)`` of ``n + 1`` int32 or int64 offsets into a buffer.

        Raises:
            InvalidArgumentError: A key group is of another writer, there are nulls, or the lengths differ.
            ClosedError: The writer is closed.

        Example: see the class.
        """
        key_groups = groups_of(groups)
        arrays = values_of(values)
        count = sum(len(array) for array, _ in arrays)
        if len(key_groups) != count:
            raise InvalidArgumentError(
                f"the batch has {len(key_groups)} key groups and {count} values; give one key group for each value"
            )
        start = 0
        for array, held in arrays:
            self._append_arrow(key_groups.slice(start, len(array)), array, held)
            start += len(array)

    def persist(self, from_sequence_number: int, checkpoint_id: int) -> Future[ChangelogHandle]:
        """Makes every change from a sequence number on durable, for a checkpoint.

        Uploads only changes that are not durable yet; sets whose upload failed are sent once more.

        Args:
            from_sequence_number: The first sequence number of the range.
            checkpoint_id: The checkpoint.

        Returns:
            A future of the handle of ``[from_sequence_number, next_sequence_number)``. It ends with `RetryableError` or
            `StoreError` when the store failed after all attempts (persist again: nothing was lost), and with
            `ClosedError` at close.

        Raises:
            InvalidArgumentError: ``from_sequence_number`` was truncated or not appended yet.

        Example: see the class.
        """
        future: CoreFuture[ChangelogHandle] = CoreFuture(self._callbacks)
        self._persist(from_sequence_number, checkpoint_id, partial(resolve_future, future, ChangelogHandle))
        return future

    def confirm(self, from_sequence_number: int, to_sequence_number: int, checkpoint_id: int) -> None:
        """Says that a checkpoint with this range completed. Confirmations may come in any order; the range's objects
        stay until `subsume`.

        Args:
            from_sequence_number: The first sequence number of the range.
            to_sequence_number: One past the last one.
            checkpoint_id: The checkpoint.

        Raises:
            ClosedError: The writer is closed.

        Example:
            >>> import fastchangelog as fc
            >>> with fc.ChangelogStorage("memory://docs/writer/confirm") as storage:
            ...     writer = storage.writer("operator-1", key_groups=range(0, 128))
            ...     writer.append(7, b"seven")
            ...     first = writer.persist(0, checkpoint_id=1).result()
            ...     writer.confirm(0, first.to_sequence_number, checkpoint_id=1)
            ...     writer.append(7, b"again")
            ...     second = writer.persist(0, checkpoint_id=2).result()
            ...     writer.reset(0, second.to_sequence_number, checkpoint_id=2)
            ...     writer.truncate(first.to_sequence_number)
            ...     writer.subsume(1)
            ...     writer.truncate_and_close(second.from_sequence_number)
        """
        super().confirm(from_sequence_number, to_sequence_number, checkpoint_id)

    def reset(self, from_sequence_number: int, to_sequence_number: int, checkpoint_id: int) -> None:
        """Says that a checkpoint was aborted: its change sets stay for the next one.

        Args:
            from_sequence_number: The first sequence number of the range.
            to_sequence_number: One past the last one.
            checkpoint_id: The checkpoint.

        Raises:
            ClosedError: The writer is closed.

        Example: see `confirm`.
        """
        super().reset(from_sequence_number, to_sequence_number, checkpoint_id)

    def subsume(self, checkpoint_id: int) -> None:
        """Says that no checkpoint up to and with this one is retained: truncated change sets that only they named are
        deleted.

        Args:
            checkpoint_id: The newest checkpoint that is not retained.

        Raises:
            ClosedError: The writer is closed.

        Example: see `confirm`.
        """
        super().subsume(checkpoint_id)

    def truncate(self, to_sequence_number: int) -> None:
        """Says that change sets below a sequence number are not needed any more. Those that an open or confirmed
        checkpoint names stay until it is reset or subsumed. Never moves back.

        Args:
            to_sequence_number: The first one that is needed.

        Raises:
            ClosedError: The writer is closed.

        Example: see `confirm`.
        """
        super().truncate(to_sequence_number)

    def truncate_and_close(self, from_sequence_number: int) -> None:
        """Closes, and gives up the change sets from a sequence number on that no checkpoint names.

        Args:
            from_sequence_number: The first one that is given up.

        Raises:
            ClosedError: The writer is closed.

        Example: see `confirm`.
        """
        super().truncate_and_close(from_sequence_number)
