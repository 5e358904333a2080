"""The handles that Spark may still pass to a query's tasks, batch by batch.

Owns: which handles of a checkpoint Spark may still use, when a checkpoint counts as unreadable, and who reads it.
Does not own: reading files (`core`, `spark.checkpoint.files`), what handles name, what is deleted (`gc.plan`).

A batch whose state cannot be read is an error, unless the checkpoint itself shows that Spark has removed that state:
its commit is gone too, or only later versions of one partition are left, and they begin with a snapshot. No checkpoint
records how many batches the query retains, and the settings of the reading machine are not the query's.

Order, and why: commits, then states, then offsets. A batch that commits meanwhile is either among the commits, or later
than them and then among the offsets, which tell since when its objects may have been written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fastchangelog.checkpoints.core import CoreFiles
from fastchangelog.checkpoints.files import (
    CheckpointFiles,
    StatefulOperator,
    UnreadableStateError,
    Variable,
    plain_location,
)
from fastchangelog.checkpoints.locations import core_uri, is_same_kind
from fastchangelog.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    StateNotFoundError,
    StoreError,
)
from fastchangelog.gc.collector import Roots
from fastchangelog.hidden import Hidden
from fastchangelog.options import gather_storage_options

__all__ = ["QueryCheckpoints"]

#: The operator's state variable, see `aggregates.operator` and `processor.operator`; its first field has the
#: variable's name.
_VARIABLE = "handle"

_OpenFiles = Callable[[str], CheckpointFiles]


class QueryCheckpoints:
    """A `gc.collector.CheckpointReader`: the core reads a checkpoint, and where it cannot, Spark."""

    def __init__(
        self,
        by_spark: _OpenFiles,
        *,
        default_fs: str | None,
        local: bool = True,
        root: str = "",
        storage_options: Hidden[Mapping[str, str]] | None = None,
        conf: Hidden[Mapping[str, str]] | None = None,
        scratch: str | None = None,
    ) -> None:
        """`by_spark` opens a location's files through Spark; it raises `InvalidArgumentError` without PySpark.
        `default_fs` and `local` as for `locations.core_uri`. `storage_options` are those of the state's `root`; they
        serve checkpoints in a store of the same kind, too. `scratch` as for `CoreFiles`."""
        self._by_spark = by_spark
        self._default_fs = default_fs
        self._local = local
        self._root = root
        self._storage_options = storage_options or Hidden({})
        self._conf = conf or Hidden({})
        self._scratch = scratch
        #: Locations that the core may not read, by its credentials or by the form of the state, and why.
        self._spark_only: dict[str, str] = {}
        #: One connection for each location.
        self._connected: dict[str, CoreFiles] = {}

    def query_id(self, location: str) -> str | None:
        """The query of the checkpoint at `location`; None if it is gone while other files are in its parent folder.

        A parent that is missing or empty may be the place of a disk that is not mounted: that is an error.
        """
        location = plain_location(location)
        lines = self._metadata(location)
        if lines is None:
            self._check_removed(location)
            return None
        try:
            found = json.loads("".join(lines))["id"]
        except (ValueError, TypeError, KeyError):
            raise StoreError(
                f"Spark did not write {location}/metadata; give the checkpointLocation of a query"
            ) from None
        return str(found)

    def files(self, location: str) -> CheckpointFiles:
        """The files of a location, by a reader that may read them."""
        location = plain_location(location)
        self._metadata(location)
        return self._files(location)

    def _metadata(self, location: str) -> list[str] | None:
        """What Spark wrote of the query, by a reader that may read the location."""
        try:
            return self._files(location).lines("metadata")
        except PermissionDeniedError as error:
            if not self._hand_over(location, str(error)):
                raise
            return self._files(location).lines("metadata")

    def why_spark(self, location: str) -> str:
        """Why Spark reads a location, and not the core."""
        return self._spark_only.get(plain_location(location), "it is in a file system that only Spark reads")

    def _files(self, location: str) -> CheckpointFiles:
        uri = self._core_uri(location)
        if uri is None:
            return self._by_spark(location)
        if uri not in self._connected:
            given = self._storage_options if is_same_kind(uri, self._root) else Hidden[Mapping[str, str]]({})
            options = Hidden(gather_storage_options(uri, given.show(), self._conf.show()))
            self._connected[uri] = CoreFiles(uri, options, self._scratch)
        return self._connected[uri]

    def _core_uri(self, location: str) -> str | None:
        if location in self._spark_only:
            return None
        return core_uri(location, self._default_fs, local=self._local)

    def _hand_over(self, location: str, why: str) -> bool:
        """Leaves a location to Spark; False if Spark has it already, or is not installed."""
        if self._core_uri(location) is None:
            return False
        try:
            self._by_spark(location)
        except InvalidArgumentError:
            return False
        self._spark_only[location] = why
        return True

    def _check_removed(self, location: str) -> None:
        if self._files(location).exists():
            raise StoreError(
                f"{location} exists, but has no metadata of a query; give the checkpointLocation of a query"
            )
        parent = location.rsplit("/", 1)[0] + "/"
        if not self._files(parent).exists():
            raise StateNotFoundError(
                f"neither {location} nor the folder {parent} exists; check that this machine can see it"
            )
        if not self._files(parent).has_files():
            raise StateNotFoundError(
                f"{location} does not exist, and {parent} is empty; check that its disk is mounted"
            )

    def roots(self, location: str) -> Roots:
        """See `gc.collector.CheckpointReader`."""
        location = plain_location(location)
        query = self.query_id(location)
        if query is None:
            raise StateNotFoundError(f"the checkpoint {location} vanished while it was read")
        batches = sorted(self._files(location).log("commits"))
        newest = batches[-1] if batches else -1
        files = self.files_after(location, newest) if batches else self._files(location)
        handles: dict[str, str] = {}
        numbers: dict[str, int] = {}
        notes: list[str] = []
        skipped: list[int] = []
        operators = self._operators(files, newest) if batches else []
        with _variables(files, operators, newest) as variables:
            # The newest first: it must be readable. Then in ascending order, so that each file is read once.
            for batch in [*batches[-1:], *batches[:-1]]:
                try:
                    for operator, variable in variables.items():
                        for partition, handle in variable.after(batch):
                            handles.setdefault(handle, f"batch {batch}, operator {operator}, partition {partition}")
                            numbers.setdefault(handle, operator)
                except UnreadableStateError as error:
                    if batch not in files.log("commits"):
                        skipped.append(batch)  # Spark removed it meanwhile, with the ones before it
                        continue
                    evidence = (variable.removed(batch) for variable in variables.values())
                    removed = next(filter(None, evidence), None) if batch < newest else None
                    if removed is None:
                        raise StoreError(f"{location}, batch {batch}: {error}") from None
                    skipped.append(batch)
                    notes.append(f"batch {batch} has a commit, but Spark has removed its state: {removed}; not counted")
        planned = files.log("offsets")
        if not batches and any(batch > 0 for batch in planned):
            raise StoreError(f"{location} has planned batches up to {max(planned)}, but no commits: they were removed")
        if not batches and not planned:
            raise StoreError(f"{location} has neither offsets nor commits: it was removed or copied in part, or is new")
        return Roots(
            query,
            tuple(batch for batch in batches if batch not in skipped),
            handles,
            min((time for batch, time in planned.items() if batch > newest), default=None),
            tuple(notes),
            numbers,
            len(operators) if batches else None,
        )

    def handles(self, location: str, batch: int | None = None) -> tuple[str, int, dict[int, dict[int, str]]]:
        """The source of a savepoint: the query, the batch (by default the newest committed one), and for each of its
        operators the handles by partition. The query may run meanwhile."""
        location = plain_location(location)
        query = self.query_id(location)
        if query is None:
            raise StateNotFoundError(f"there is no checkpoint {location}; give the query's checkpointLocation")
        batches = sorted(self._files(location).log("commits"))
        if not batches:
            raise StateNotFoundError(f"{location} has no committed batch yet; wait for the query's first one")
        chosen = batches[-1] if batch is None else batch
        if chosen not in batches:
            raise InvalidArgumentError(
                f"{location} has no committed batch {chosen}; Spark keeps the batches {batches[0]} to {batches[-1]}"
            )
        files = self.files_after(location, chosen)
        operators = self._operators(files, chosen)
        try:
            with _variables(files, operators, chosen) as variables:
                found = {number: dict(variable.after(chosen)) for number, variable in variables.items()}
        except UnreadableStateError as error:
            raise StoreError(f"{location}, batch {chosen}: {error}") from None
        if not found:
            raise _foreign(location, files.operators(chosen))
        return query, chosen, found

    def time_of(self, location: str, batch: int) -> int:
        """When a batch was planned, in milliseconds since the epoch: what its processors were told."""
        location = plain_location(location)
        for line in self._files(location).lines(f"offsets/{batch}") or ():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return int(json.loads(line)["batchTimestampMs"])
        raise StoreError(
            f"{location}/offsets/{batch} does not say when the batch was planned; give the checkpointLocation of a "
            "query"
        )

    def files_after(self, location: str, batch: int) -> CheckpointFiles:
        """The files of a location, by a reader that knows the form of the state after `batch`."""
        location = plain_location(location)
        files = self._files(location)
        if isinstance(files, CoreFiles):
            form = files.unreadable_form(batch)
            if form is not None:
                if not self._hand_over(location, form):
                    raise StoreError(
                        f"{location} can be read by Spark only, since {form}; install fastchangelog[spark]"
                    )
                return self._files(location)
        return files

    def _operators(self, files: CheckpointFiles, batch: int) -> list[int]:
        """The stateful operators that hold handles."""
        found = set()
        for operator in files.operators(batch):
            if not operator.name.startswith("transformWithState"):
                continue
            variables = json.loads(operator.properties or "{}").get("stateVariables", [])
            if any(variable.get("stateName") == _VARIABLE for variable in variables):
                found.add(operator.number)
        return sorted(found)


@contextmanager
def _variables(files: CheckpointFiles, operators: list[int], batch: int) -> Iterator[dict[int, Variable]]:
    """The operators' variables with handles, by operator."""
    with contextlib.ExitStack() as opened:
        yield {number: opened.enter_context(files.variable(number, _VARIABLE, batch)) for number in operators}


def _foreign(location: str, operators: list[StatefulOperator]) -> InvalidArgumentError:
    """The error for a checkpoint without any operator of ours."""
    named = sorted({operator.name for operator in operators})
    if not named:
        return InvalidArgumentError(f"the query of {location} has no stateful operator, so it keeps no state")
    return InvalidArgumentError(
        f"the state of {location} is Spark's own, of {', '.join(named)}, and not fastchangelog's: read it with "
        f'spark.read.format("statestore").load({location!r})'
    )
