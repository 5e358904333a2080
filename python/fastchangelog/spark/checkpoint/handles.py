"""Spark's checkpoints: the handles that Spark may still pass to a query's tasks, batch by batch.

Owns: reading a checkpoint through Spark's public sources (`statestore`, `state-metadata`, text and binary files), and
when a checkpoint counts as unreadable.
Does not own: what handles name, what is deleted (`gc.plan`), the session (a parameter), paths that Spark's sources
misread (`paths`).

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

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from fastchangelog.errors import (
    FastChangelogError,
    InvalidArgumentError,
    SchemaMismatchError,
    StateNotFoundError,
    StoreError,
)
from fastchangelog.gc.collector import Roots
from fastchangelog.spark import settings, versions
from fastchangelog.spark.checkpoint.paths import readable_path, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkCheckpoints", "is_not_found", "plain_location", "unreadable"]

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
            # The manager of streams registers an endpoint that the source needs. Spark 4.2 registers it nowhere else
            # and fails with "Cannot find endpoint" in a session that has run no stream.
            _ = spark.streams.active
            self._ready = spark
        return self._ready

    def query_id(self, location: str) -> str | None:
        """The query of the checkpoint at `location`; None if it is gone while other files are in its parent folder.

        A parent that is missing or empty may be the place of a disk that is not mounted: that is an error.
        """
        location = plain_location(location)
        try:
            lines = [row[0] for row in self._spark.read.text(self._path(location, "metadata")).collect()]
        except Exception as error:
            if not is_not_found(error):
                raise unreadable(location, error) from None
            self._check_removed(location)
            return None
        try:
            found = json.loads("".join(lines))["id"]
        except (ValueError, TypeError, KeyError):
            raise StoreError(f"{location}/metadata is not what Spark writes; is this a checkpoint?") from None
        return str(found)

    def _path(self, location: str, name: str = "") -> str:
        """A path that Spark's sources read, of a checkpoint or of what is in it."""
        path = readable_path(self._spark, location)
        return f"{path}/{name}" if name else path

    def _check_removed(self, location: str) -> None:
        if self._exists(location):
            raise StoreError(f"{location} is there, but has no metadata of a query; is this a checkpoint?")
        parent = location.rsplit("/", 1)[0] + "/"
        if not self._exists(parent):
            raise StateNotFoundError(
                f"neither {location} nor the folder {parent} is there: this machine may not see it"
            )
        if not self._has_files(parent):
            raise StateNotFoundError(
                f"{location} is not there, and {parent} is empty, as a mount point is whose disk is missing"
            )

    def _exists(self, path: str) -> bool:
        try:
            self._spark.read.format("binaryFile").load(self._path(path)).select("path").limit(1).collect()
        except Exception as error:
            if is_not_found(error):
                return False
            raise unreadable(path, error) from None
        return True

    def _has_files(self, folder: str) -> bool:
        """True if there is a file below a folder, other than those that Spark's readers treat as hidden."""
        try:
            reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
            files = reader.load(self._path(folder))
            return bool(files.select("path").limit(1).collect())
        except Exception as error:
            raise unreadable(folder, error) from None

    def roots(self, location: str) -> Roots:
        """See `gc.collector.CheckpointReader`."""
        location = plain_location(location)
        query = self.query_id(location)
        if query is None:
            raise StateNotFoundError(f"the checkpoint {location} vanished while it was read")
        batches = sorted(self._log(location, "commits"))
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
                if batch not in self._log(location, "commits"):
                    skipped.append(batch)  # Spark removed it meanwhile, with the ones before it
                    continue
                removed = self._removed(location, operators, batch) if batch < batches[-1] else None
                if removed is None:
                    raise unreadable(f"{location}, batch {batch}", error) from None
                skipped.append(batch)
                notes.append(f"batch {batch} has a commit, but Spark has removed its state: {removed}; not counted")
        planned = self._log(location, "offsets")
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
        batches = sorted(self._log(location, "commits"))
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
        path = f"{plain_location(location)}/offsets/{batch}"
        try:
            read = self._spark.read.text(self._path(plain_location(location), f"offsets/{batch}"))
            lines = [row[0] for row in read.collect()]
        except Exception as error:
            raise unreadable(path, error) from None
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return int(json.loads(line)["batchTimestampMs"])
        raise StoreError(f"{path} does not say when the batch was planned; is this a checkpoint of Spark?")

    def _foreign(self, location: str) -> InvalidArgumentError:
        """The error for a checkpoint without any operator of ours."""
        try:
            rows = self._spark.read.format("state-metadata").load(self._path(location)).collect()
        except Exception as error:
            raise unreadable(location, error) from None
        named = sorted({row["operatorName"] for row in rows})
        if not named:
            return InvalidArgumentError(f"the query of {location} has no stateful operator, so it keeps no state")
        return InvalidArgumentError(
            f"the state of {location} is Spark's own, of {', '.join(named)}, and not fastchangelog's: read it with "
            f'spark.read.format("statestore").load({location!r})'
        )

    def _log(self, location: str, name: str) -> dict[int, float]:
        """The batches of one of Spark's logs, and when each entry was written."""
        try:
            files = self._spark.read.format("binaryFile").load(self._path(location, name))
            rows = files.select("path", F.col("modificationTime").cast("double")).collect()
        except Exception as error:
            if is_not_found(error):
                return {}
            raise unreadable(f"{location}/{name}", error) from None
        named = ((row[0].rsplit("/", 1)[-1], row[1]) for row in rows)
        return {int(name): float(time) for name, time in named if name.isdigit()}

    def _removed(self, location: str, operators: list[int], batch: int) -> str | None:
        """Evidence that Spark has removed the state after `batch`; None without any.

        Spark removes all files of a partition before a snapshot. Where one file was lost, older ones are still there.
        """
        for operator in operators:
            stores: dict[str, list[tuple[int, str]]] = {}
            for path in self._files(location, f"state/{operator}"):
                folder, _, name = path.rpartition("/")
                found = _STATE_FILE.fullmatch(name)
                if found is not None:
                    stores.setdefault(folder, []).append((int(found[1]), found[2]))
            for folder, files in sorted(stores.items()):
                oldest = min(version for version, _ in files)
                if oldest > batch + 1 and (oldest, "zip") in files:  # the version after batch N is N + 1
                    return f"the oldest version in {folder} is {oldest}, the one after batch {oldest - 1}"
        return None

    def _files(self, location: str, name: str) -> list[str]:
        """All files below a folder of a checkpoint, without those that Spark's readers treat as hidden."""
        try:
            files = (
                self._spark.read.format("binaryFile")
                .option("recursiveFileLookup", "true")
                .load(self._path(location, name))
            )
            return [shown(row[0]) for row in files.select("path").collect()]
        except Exception as error:
            if is_not_found(error):
                return []
            raise unreadable(f"{location}/{name}", error) from None

    def _operators(self, location: str) -> list[int]:
        """The stateful operators that hold handles."""
        try:
            rows = self._spark.read.format("state-metadata").load(self._path(location)).collect()
        except Exception as error:
            raise unreadable(location, error) from None
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
        source = (
            self._spark.read.format("statestore").option("path", self._path(location)).option("operatorId", operator)
        )
        frame = source.option("batchId", batch).option("stateVarName", _VARIABLE).load()
        fields: Any = frame.schema["value"].dataType
        if fields.names[:1] != [_VARIABLE] or fields[0].dataType.typeName() != "string":
            raise SchemaMismatchError(
                f"{location}: operator {operator} keeps {fields.simpleString()} as `{_VARIABLE}`, which is not ours"
            )
        rows = frame.select(f"value.{_VARIABLE}", "partition_id").collect()
        return [(row[0], row[1]) for row in rows if row[0] is not None]  # a shard of a processor may have no rows yet


def plain_location(location: str) -> str:
    """The location without a slash at its end."""
    return location.rstrip("/") or location


def is_not_found(error: Exception) -> bool:
    """True if Spark says that there is no such path."""
    return isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND"


def unreadable(what: str, error: Exception) -> StoreError:
    """The error for what Spark cannot read, in one line: the last cause of a Java stack, else PySpark's own text."""
    lines = [line.strip() for line in shown(str(error)).strip().splitlines()] or [type(error).__name__]
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    return StoreError(
        f"{what}: {(causes or lines)[-1 if causes else 0].removeprefix('Caused by: ').lstrip(': ')[:400]}"
    )
