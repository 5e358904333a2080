"""A checkpoint's files, as the core reads them: without Spark and Java.

Owns: the connection, and the errors that mean "not there".
Does not own: the formats (the core), which locations it reads (`locations`).
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastchangelog import _internal
from fastchangelog.checkpoints.files import StatefulOperator, UnreadableStateError
from fastchangelog.errors import ClosedError, StateNotFoundError, StoreError
from fastchangelog.hidden import Hidden
from fastchangelog.options import local_path

__all__ = ["ColumnFamily", "CoreFiles"]


@dataclasses.dataclass(frozen=True)
class ColumnFamily:
    """A column family of a state, as its schema file describes it: in Spark's JSON."""

    name: str
    key: str
    value: str
    key_encoder: str


class CoreFiles:
    """A `files.CheckpointFiles` over the core."""

    def __init__(self, uri: str, storage_options: Hidden[Mapping[str, str]], scratch: str | None = None) -> None:
        """`scratch` is the folder of temporary files; None is that of the system."""
        self._scratch_folder = scratch
        self._uri = uri
        self._options = storage_options
        self._connected: _internal.SparkCheckpoint | None = None

    def __reduce__(self) -> tuple[type[CoreFiles], tuple[str, Hidden[Mapping[str, str]]]]:
        return CoreFiles, (self._uri, self._options)

    @property
    def _checkpoint(self) -> _internal.SparkCheckpoint | None:
        """The connection; None if the folder is a local one that is not there, which connecting would make."""
        if self._connected is None:
            path = local_path(self._uri)
            if path is not None and not os.path.isdir(path):
                return None
            self._connected = _internal.SparkCheckpoint(self._uri, dict(self._options.show()))
        return self._connected

    def exists(self) -> bool:
        """See `files.CheckpointFiles`. A folder of an object store is there if it has files."""
        checkpoint = self._checkpoint
        return checkpoint is not None and (local_path(self._uri) is not None or checkpoint.has_files())

    def has_files(self) -> bool:
        """See `files.CheckpointFiles`."""
        return self._checkpoint is not None and self._checkpoint.has_files()

    def log(self, name: str) -> dict[int, float]:
        """See `files.CheckpointFiles`."""
        return {} if self._checkpoint is None else self._checkpoint.batches(name)

    def lines(self, name: str) -> list[str] | None:
        """See `files.CheckpointFiles`."""
        data = None if self._checkpoint is None else self._checkpoint.read(name)
        if data is None:
            return None
        try:
            return data.decode().splitlines()
        except UnicodeDecodeError:
            raise StoreError(f"{self._uri}/{name} is not a text; give the checkpointLocation of a query") from None

    def unreadable_form(self, batch: int) -> str | None:
        """The setting that gave the state after `batch` a form that only Spark reads; None if there is none."""
        return None if self._checkpoint is None else self._checkpoint.unreadable_form(batch)

    def operators(self, batch: int) -> list[StatefulOperator]:
        """See `files.CheckpointFiles`."""
        found = [] if self._checkpoint is None else self._checkpoint.operators(batch)
        return [StatefulOperator(*operator) for operator in found]

    def families(self, operator: int, batch: int) -> dict[str, ColumnFamily]:
        """The column families of an operator's state at a batch, by name."""
        found = self._present().families(operator, batch)
        return {family[0]: ColumnFamily(*family) for family in found}

    @contextmanager
    def state(self, operator: int, partition: int, batch: int) -> Iterator[_internal.StoredState]:
        """A partition of an operator's state after a batch, in a scratch folder."""
        with self._scratch() as scratch:
            yield self._present().state(operator, partition, batch, scratch)

    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(
            prefix="fastchangelog-", dir=self._scratch_folder, ignore_cleanup_errors=True
        )

    def _present(self) -> _internal.SparkCheckpoint:
        if self._checkpoint is None:
            raise StateNotFoundError(f"{self._uri} vanished while it was read")
        return self._checkpoint

    @contextmanager
    def variable(self, operator: int, name: str, batch: int) -> Iterator[_Variable]:
        """See `files.CheckpointFiles`."""
        with self._scratch() as scratch:
            variable = _Variable(self._present().variable(operator, name, batch, scratch))
            try:
                yield variable
            finally:
                variable.close()  # its databases, before their files go


class _Variable:
    def __init__(self, variable: _internal.TextVariable) -> None:
        self._open: _internal.TextVariable | None = variable

    @property
    def _variable(self) -> _internal.TextVariable:
        if self._open is None:
            raise ClosedError("the variable of this checkpoint was closed")
        return self._open

    def close(self) -> None:
        self._open = None

    def after(self, batch: int) -> list[tuple[int, str]]:
        try:
            return self._variable.after(batch)
        except StateNotFoundError as error:
            raise UnreadableStateError(str(error)) from None

    def removed(self, batch: int) -> str | None:
        return self._variable.removed(batch)
