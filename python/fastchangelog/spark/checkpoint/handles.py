"""The handles that Spark may still pass to a query's tasks, batch by batch.

Owns: which handles of a checkpoint Spark may still use, and when a checkpoint counts as unreadable.
Does not own: reading files (`files`), what handles name, what is deleted (`gc.plan`), the session (a parameter).

A batch whose state cannot be read is an error, unless the checkpoint itself shows that Spark has removed that state:
its commit is gone too, or only later versions of one partition are left, and they begin with a snapshot. No checkpoint
records how many batches the query retains, and the settings of the reading session are not the query's.

Order, and why: commits, then states, then offsets. A batch that commits meanwhile is either among the commits, or later
than them and then among the offsets, which tell since when its objects may have been written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastchangelog.errors import (
    FastChangelogError,
    InvalidArgumentError,
    SchemaMismatchError,
    StateNotFoundError,
    StoreError,
)
from fastchangelog.gc.collector import Roots
from fastchangelog.spark import settings, versions
from fastchangelog.spark.checkpoint.files import CheckpointFiles, plain_location, unreadable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkCheckpoints"]

#: The operator's state variable, see `aggregates.operator` and `processor.operator`; its first field has the
#: variable's name.
_VARIABLE = "handle"
#: Spark's names of files of RocksDB's state: a version, an id under format 2, and a kind.
_STATE_FILE = re.compile(r"([0-9]+)(?:_[^/]*)?\.(zip|changelog)")


class SparkCheckpoints:
    """A `gc.collector.CheckpointReader` over a Spark session that is created when it is first needed."""

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._session = session
        self._ready: SparkSession | None = None

    @property
    def _spark(self) -> SparkSession:
        if self._ready is None:
            spark = self._session()
            settings.prepare_session(spark)  # the source reads state by the session's settings
            self._ready = spark
        return self._ready

    def query_id(self, location: str) -> str | None:
        """The query of the checkpoint at `location`; None if it is gone while other files are in its parent folder.

        A parent that is missing or empty may be the place of a disk that is not mounted: that is an error.
        """
        location = plain_location(location)
        lines = self._files(location).lines("metadata")
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

    def _files(self, location: str) -> CheckpointFiles:
        return CheckpointFiles(self._spark, location)

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
        files = self._files(location)
        batches = sorted(files.log("commits"))
        handles: dict[str, str] = {}
        numbers: dict[str, int] = {}
        notes: list[str] = []
        skipped: list[int] = []
        operators = self._operators(location) if batches else []
        for batch in reversed(batches):  # the newest first: it must be readable
            try:
                for operator in operators:
                    for handle, partition in self._state(location, operator, batch):
                        handles.setdefault(handle, f"batch {batch}, operator {operator}, partition {partition}")
                        numbers.setdefault(handle, operator)
            except FastChangelogError:
                raise
            except Exception as error:  # of PySpark, or of Py4J for what a task failed with
                if batch not in files.log("commits"):
                    skipped.append(batch)  # Spark removed it meanwhile, with the ones before it
                    continue
                removed = self._removed(location, operators, batch) if batch < batches[-1] else None
                if removed is None:
                    raise unreadable(f"{location}, batch {batch}", error) from None
                skipped.append(batch)
                notes.append(f"batch {batch} has a commit, but Spark has removed its state: {removed}; not counted")
        planned = files.log("offsets")
        if not batches and any(batch > 0 for batch in planned):
            raise StoreError(f"{location} has planned batches up to {max(planned)}, but no commits: they were removed")
        if not batches and not planned:
            raise StoreError(f"{location} has neither offsets nor commits: it was removed or copied in part, or is new")
        newest = batches[-1] if batches else -1
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
        try:
            operators = self._operators(location)
            found = {n: {part: h for h, part in self._state(location, n, chosen)} for n in operators}
        except FastChangelogError:
            raise
        except Exception as error:  # of PySpark, or of Py4J for what a task failed with
            raise unreadable(f"{location}, batch {chosen}", error) from None
        if not found:
            raise self._foreign(location)
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

    def _foreign(self, location: str) -> InvalidArgumentError:
        """The error for a checkpoint without any operator of ours."""
        named = sorted({row["operatorName"] for row in self._files(location).operators()})
        if not named:
            return InvalidArgumentError(f"the query of {location} has no stateful operator, so it keeps no state")
        return InvalidArgumentError(
            f"the state of {location} is Spark's own, of {', '.join(named)}, and not fastchangelog's: read it with "
            f'spark.read.format("statestore").load({location!r})'
        )

    def _removed(self, location: str, operators: list[int], batch: int) -> str | None:
        """Evidence that Spark has removed the state after `batch`; None without any.

        Spark removes all files of a partition before a snapshot. Where one file was lost, older ones are still there.
        """
        for operator in operators:
            stores: dict[str, list[tuple[int, str]]] = {}
            for path in self._files(location).below(f"state/{operator}"):
                folder, _, name = path.rpartition("/")
                found = _STATE_FILE.fullmatch(name)
                if found is not None:
                    stores.setdefault(folder, []).append((int(found[1]), found[2]))
            for folder, files in sorted(stores.items()):
                oldest = min(version for version, _ in files)
                if oldest > batch + 1 and (oldest, "zip") in files:  # the version after batch N is N + 1
                    return f"the oldest version in {folder} is {oldest}, the one after batch {oldest - 1}"
        return None

    def _operators(self, location: str) -> list[int]:
        """The stateful operators that hold handles."""
        rows = self._files(location).operators()
        if rows and not versions.READS_OWN_CHECKPOINTS(self._spark.version):
            raise InvalidArgumentError(
                f"Spark {self._spark.version} cannot read the state of its own checkpoints, {location} among them; "
                f"savepoints, sweeps and verify need Spark {versions.READS_OWN_CHECKPOINTS} or newer, and a checkpoint "
                "that it has started"
            )
        found = set()
        for row in rows:
            if not row["operatorName"].startswith("transformWithState"):
                continue
            variables = json.loads(row["operatorProperties"] or "{}").get("stateVariables", [])
            if any(variable.get("stateName") == _VARIABLE for variable in variables):
                found.add(int(row["operatorId"]))
        return sorted(found)

    def _state(self, location: str, operator: int, batch: int) -> list[tuple[str, int]]:
        """Handles and partitions of an operator after a batch."""
        frame = self._files(location).state(operator, batch, stateVarName=_VARIABLE)
        fields: Any = frame.schema["value"].dataType
        if fields.names[:1] != [_VARIABLE] or fields[0].dataType.typeName() != "string":
            raise SchemaMismatchError(
                f"{location}: operator {operator} keeps {fields.simpleString()} as `{_VARIABLE}`, which "
                "fastchangelog did not write"
            )
        rows = frame.select(f"value.{_VARIABLE}", "partition_id").collect()
        return [(row[0], row[1]) for row in rows if row[0] is not None]  # a shard of a processor may have no rows yet
