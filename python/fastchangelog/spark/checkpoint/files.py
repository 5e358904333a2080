"""A checkpoint's files and tables, as Spark's public sources read them.

Owns: each read of a checkpoint (`binaryFile`, `text`, `state-metadata`, `statestore`), the error for what Spark cannot
read, and a reader for locations that the core does not read.
Does not own: what the files mean (`checkpoints.handles`, `spark_states`), paths that Spark's sources misread (`paths`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from fastchangelog.checkpoints.files import CheckpointFiles, StatefulOperator, UnreadableStateError, plain_location
from fastchangelog.checkpoints.handles import QueryCheckpoints
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, SchemaMismatchError, StoreError
from fastchangelog.hidden import Hidden
from fastchangelog.spark import internals, settings, versions
from fastchangelog.spark.checkpoint.paths import readable_path, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkFiles", "files_by_spark", "query_checkpoints", "unreadable"]

#: Spark's names of files of RocksDB's state: a version, an id under format 2, and a kind.
_STATE_FILE = re.compile(r"([0-9]+)(?:_[^/]*)?\.(zip|changelog)")

_Read = TypeVar("_Read")


def files_by_spark(session: Callable[[], SparkSession]) -> Callable[[str], CheckpointFiles]:
    """Opens locations through a session that is created when the first one is opened."""
    ready: list[SparkSession] = []

    def open_files(location: str) -> CheckpointFiles:
        if not ready:
            spark = session()
            settings.prepare_session(spark)  # the source reads state by the session's settings
            ready.append(spark)
        return SparkFiles(ready[0], plain_location(location))

    return open_files


def query_checkpoints(
    spark: SparkSession,
    root: str = "",
    storage_options: Hidden[Mapping[str, str]] | None = None,
    *,
    by_spark: Callable[[str], CheckpointFiles] | None = None,
) -> QueryCheckpoints:
    """The checkpoints that a session sees, read by the core where it can. `storage_options` are those of the state's
    `root`; `by_spark` opens the others, by default under the settings of our own queries."""
    return QueryCheckpoints(
        by_spark or files_by_spark(lambda: spark),
        default_fs=internals.default_file_system(spark),
        local=not internals.is_connect(spark),
        root=root,
        storage_options=storage_options,
        conf=Hidden(dict(spark.conf.getAll)),
    )


class SparkFiles:
    """A `checkpoints.files.CheckpointFiles` over a session."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location
        self._path = readable_path(spark, location)
        # The manager of streams registers an endpoint that `statestore` needs. Spark 4.2 registers it nowhere else and
        # fails with "Cannot find endpoint" in a session that has run no stream.
        _ = spark.streams.active

    def exists(self) -> bool:
        """True if the folder is there."""
        return self._read("", lambda: self._files("").select("path").limit(1).collect()) is not None

    def has_files(self) -> bool:
        """True if a file is anywhere below, other than those that Spark's readers treat as hidden."""
        return bool(self._read("", lambda: self._files("", deep=True).select("path").limit(1).collect()))

    def below(self, name: str) -> list[str]:
        """The files anywhere below a folder, without those that Spark's readers treat as hidden."""
        rows = self._read(name, lambda: self._files(name, deep=True).select("path").collect())
        return [shown(row[0]) for row in rows or ()]

    def log(self, name: str) -> dict[int, float]:
        """The batches of one of Spark's logs, and when each entry was written."""
        columns = "path", F.col("modificationTime").cast("double")
        rows = self._read(name, lambda: self._files(name).select(*columns).collect())
        named = ((row[0].rsplit("/", 1)[-1], row[1]) for row in rows or ())
        return {int(name): float(time) for name, time in named if name.isdigit()}

    def lines(self, name: str) -> list[str] | None:
        """The lines of a text file; None if it is not there."""
        read = self._spark.read
        rows = self._read(name, lambda: read.text(f"{self._path}/{name}", wholetext=True).collect())
        return None if rows is None else "".join(row[0] for row in rows).splitlines()

    def operators(self, batch: int) -> list[StatefulOperator]:
        """See `CheckpointFiles`."""
        found = self.all_operators()
        if found and not versions.READS_OWN_CHECKPOINTS(self._spark.version):
            raise InvalidArgumentError(
                f"Spark {self._spark.version} cannot read the state of its own checkpoints, {self._location} among "
                f"them; use Spark {versions.READS_OWN_CHECKPOINTS} or newer, and a checkpoint that it has started"
            )
        return found

    def all_operators(self) -> list[StatefulOperator]:
        """What Spark says of the stateful operators, a row for each store."""
        try:
            rows = self._spark.read.format("state-metadata").load(self._path).collect()
        except Exception as error:
            raise unreadable(self._location, error) from None
        return [
            StatefulOperator(
                int(row["operatorId"]),
                str(row["operatorName"]),
                row["operatorProperties"] or "",
                int(row["numPartitions"]),
            )
            for row in rows
        ]

    @contextmanager
    def variable(self, operator: int, name: str, batch: int) -> Iterator[_Variable]:
        """See `CheckpointFiles`."""
        yield _Variable(self, self._location, operator, name)

    def state(self, operator: int, batch: int, **options: str) -> DataFrame:
        """The state of an operator after a batch."""
        source = self._spark.read.format("statestore").option("path", self._path).options(**options)
        return source.option("operatorId", operator).option("batchId", batch).load()

    def _files(self, name: str, *, deep: bool = False) -> DataFrame:
        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", str(deep).lower())
        return reader.load(f"{self._path}/{name}" if name else self._path)

    def _read(self, name: str, get: Callable[[], _Read]) -> _Read | None:
        """What is read of a file or folder; None if it is not there."""
        try:
            return get()
        except Exception as error:
            if isinstance(error, AnalysisException) and error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise unreadable(f"{self._location}/{name}" if name else self._location, error) from None


class _Variable:
    def __init__(self, files: SparkFiles, location: str, operator: int, name: str) -> None:
        self._files = files
        self._location = location
        self._operator = operator
        self._name = name

    def after(self, batch: int) -> list[tuple[int, str]]:
        name = self._name
        try:
            frame = self._files.state(self._operator, batch, stateVarName=name)
            fields: Any = frame.schema["value"].dataType
            if fields.names[:1] != [name] or fields[0].dataType.typeName() != "string":
                raise SchemaMismatchError(
                    f"{self._location}: operator {self._operator} keeps {fields.simpleString()} as `{name}`, which "
                    "fastchangelog did not write"
                )
            rows = frame.select("partition_id", f"value.{name}").collect()
        except FastChangelogError:
            raise
        except Exception as error:  # of PySpark, or of Py4J for what a task failed with
            raise UnreadableStateError(_last_cause(error)) from None
        return [(row[0], row[1]) for row in rows if row[1] is not None]  # a shard may have no rows yet

    def removed(self, batch: int) -> str | None:
        """See `checkpoints.files.Variable`. Spark removes all files of a partition before a snapshot. Where one file
        was lost, older ones are still there."""
        stores: dict[str, list[tuple[int, str]]] = {}
        for path in self._files.below(f"state/{self._operator}"):
            folder, _, name = path.rpartition("/")
            found = _STATE_FILE.fullmatch(name)
            if found is not None:
                stores.setdefault(folder, []).append((int(found[1]), found[2]))
        for folder, files in sorted(stores.items()):
            oldest = min(version for version, _ in files)
            if oldest > batch + 1 and (oldest, "zip") in files:  # the version after batch N is N + 1
                return f"the oldest version in {folder} is {oldest}, the one after batch {oldest - 1}"
        return None


def unreadable(what: str, error: Exception) -> StoreError:
    """The error for what Spark cannot read, in one line."""
    return StoreError(f"{what}: {_last_cause(error)}")


def _last_cause(error: Exception) -> str:
    """The last cause of a Java stack, else PySpark's own text."""
    lines = [line.strip() for line in shown(str(error)).strip().splitlines()] or [type(error).__name__]
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    return (causes or lines)[-1 if causes else 0].removeprefix("Caused by: ").lstrip(": ")[:400]
