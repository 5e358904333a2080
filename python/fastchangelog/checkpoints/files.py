"""The interface of a checkpoint's readers.

Owns: the calls of a reader, and the error for a state that cannot be put together.
Does not own: its implementations (`core`, `spark.checkpoint.files`), the meaning of handles (`handles`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fastchangelog.errors import StoreError

__all__ = ["CheckpointFiles", "StatefulOperator", "UnreadableStateError", "Variable", "plain_location"]


class UnreadableStateError(StoreError):
    """The state of a batch cannot be put together from the files of the checkpoint."""


@dataclasses.dataclass(frozen=True)
class StatefulOperator:
    """A stateful operator, as Spark describes it."""

    number: int
    name: str
    properties: str
    """What a processor says of itself, as JSON; empty for other operators."""
    partitions: int


class Variable(Protocol):
    """A state variable that holds one text for each key."""

    def after(self, batch: int) -> Sequence[tuple[int, str]]:
        """Partitions and texts after a batch. `UnreadableStateError` if its files are not all there."""

    def removed(self, batch: int) -> str | None:
        """Evidence that Spark has removed the state after `batch`; None without any."""


class CheckpointFiles(Protocol):
    """The files of a checkpoint, or of another folder."""

    def exists(self) -> bool:
        """True if the folder is there."""

    def has_files(self) -> bool:
        """True if a file is anywhere below, other than hidden ones."""

    def log(self, name: str) -> dict[int, float]:
        """The batches of one of Spark's logs, and when each entry was written, in seconds since the epoch."""

    def lines(self, name: str) -> list[str] | None:
        """The lines of a text file; None if it is not there."""

    def operators(self, batch: int) -> list[StatefulOperator]:
        """The stateful operators at a batch. An error if this reader cannot read their state."""

    def variable(self, operator: int, name: str, batch: int) -> AbstractContextManager[Variable]:
        """The variable `name`, for batches up to `batch`, best in ascending order."""


def plain_location(location: str) -> str:
    """The location without a slash at its end.

    >>> plain_location("s3a://bucket/checkpoint/")
    's3a://bucket/checkpoint'
    """
    return location.rstrip("/") or location
