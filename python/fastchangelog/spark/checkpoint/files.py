"""A checkpoint's files and tables, as Spark's public sources read them.

Owns: each read of a checkpoint (`binaryFile`, `text`, `state-metadata`, `statestore`), and the error for what Spark
cannot read.
Does not own: what the files mean (`handles`, `spark_states`), paths that Spark's sources misread (`paths`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from fastchangelog.errors import StoreError
from fastchangelog.spark.checkpoint.paths import readable_path, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["CheckpointFiles", "plain_location", "unreadable"]

_Read = TypeVar("_Read")


class CheckpointFiles:
    """What is in a checkpoint, or in another folder."""

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

    def operators(self) -> list[Row]:
        """What Spark says of the stateful operators."""
        try:
            return self._spark.read.format("state-metadata").load(self._path).collect()
        except Exception as error:
            raise unreadable(self._location, error) from None

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


def plain_location(location: str) -> str:
    """The location without a slash at its end."""
    return location.rstrip("/") or location


def unreadable(what: str, error: Exception) -> StoreError:
    """The error for what Spark cannot read, in one line: the last cause of a Java stack, else PySpark's own text."""
    lines = [line.strip() for line in shown(str(error)).strip().splitlines()] or [type(error).__name__]
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    return StoreError(
        f"{what}: {(causes or lines)[-1 if causes else 0].removeprefix('Caused by: ').lstrip(': ')[:400]}"
    )
