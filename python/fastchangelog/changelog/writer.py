"""Writers of a changelog.

Owns: Python's view of a writer, its futures. Does not own: the log (the core), the conversion of data (`arrow`).
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastchangelog import _internal
from fastchangelog.changelog.arrow import groups_of, values_of
from fastchangelog.changelog.handle import ChangelogHandle
from fastchangelog.errors import InvalidArgument
from fastchangelog.futures import resolve_future, running_future

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ChangelogWriter"]


class ChangelogWriter(_internal.ChangelogWriter):
    """One writer of a storage; made by `ChangelogStorage.create_writer`.

    Any thread may use it, calls take effect one after the other. Sequence numbers count change sets: many appends share
    one, and it grows when a set ends: at `persist`, at `rollover`, or when the active set reaches the option
    ``preemptive_persist_threshold`` and is uploaded ahead of any checkpoint. Ranges are half open, ``[from, to)``.

    Appends only wait when ``max_in_flight`` bytes are on their way to the store; Ctrl-C ends the wait.
    """

    @property
    def key_groups(self) -> range:
        """The key groups that it takes."""
        return range(*self._key_groups)

    def append_batch(self, groups: Any, values: Any) -> None:
        """Appends many changes at once, in order.

        ``groups``: key groups, as a numpy or Arrow array of integers or a sequence. ``values``: as many byte strings,
        as an Arrow array of binary type (or a chunked one), a sequence of ``bytes``, or a pair ``(offsets, buffer)``
        of ``n + 1`` int32 or int64 offsets into a buffer. All key groups are checked before the first change is
        appended.

        Raises `InvalidArgument` for a key group of another writer, nulls, or lengths that differ.
        """
        key_groups = groups_of(groups)
        arrays = values_of(values)
        if len(key_groups) != sum(map(len, arrays)):
            raise InvalidArgument(
                f"{len(key_groups)} key groups and {sum(map(len, arrays))} values: a batch needs one of each"
            )
        start = 0
        for array in arrays:
            self._append_arrow(key_groups.slice(start, len(array)), array)
            start += len(array)

    def persist(self, from_sqn: int, checkpoint_id: int) -> Future[ChangelogHandle]:
        """Makes every change from sequence number ``from_sqn`` on durable, for the checkpoint ``checkpoint_id``.

        Only what is not durable yet is uploaded; sets whose upload failed before are sent once more. The future ends
        with the handle of ``[from_sqn, next_sequence_number)``, or with `RetryableError` or `StoreError` when the store
        failed after all attempts (persist again: nothing was lost), or with `ClosedError` at close.

        Raises `InvalidArgument` if ``from_sqn`` was truncated or not appended yet.
        """
        future: Future[ChangelogHandle] = running_future()
        self._persist(from_sqn, checkpoint_id, partial(resolve_future, future, ChangelogHandle))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
