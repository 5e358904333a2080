"""Settings without which Spark writes a checkpoint in S3 slowly.

Owns: which settings these are, and when one is missing.
Does not own: where a setting is read (`spark.starts`, `cli.doctor`), what each saves (docs/deploying.md).

Most requests of a batch are for Spark's own files: offsets, commits and state. By default Spark writes such a file
under another name and renames it, which S3 does by copy and delete, and Hadoop looks for folders each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

__all__ = ["PACKAGE", "MissingSetting", "is_in_s3", "missing_settings"]

#: The package with Spark's manager, and Hadoop's client of S3.
PACKAGE = "spark-hadoop-cloud"

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
_CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
_FLAGS = "spark.hadoop.fs.s3a.performance.flags"
_CREATE = "spark.hadoop.fs.s3a.create.performance"


@dataclasses.dataclass(frozen=True)
class MissingSetting:
    """A setting that would save requests, and what the query does without it."""

    name: str
    value: str
    without: str

    def __str__(self) -> str:
        """The setting, as Spark takes it."""
        return f"{self.name}={self.value}"


def is_in_s3(location: str) -> bool:
    """True if Hadoop's client of S3 serves this location.

    >>> is_in_s3("s3a://bucket/checkpoint"), is_in_s3("s3://bucket/x"), is_in_s3("/data/s3a:")
    (True, True, False)
    """
    return location.partition("://")[0].lower() in ("s3a", "s3", "s3n")


def missing_settings(setting: Callable[[str], str | None]) -> list[MissingSetting]:
    """The settings that a query with a checkpoint in S3 is slow without; `setting` gives the value of one.

    A manager of the user's own is left alone. The checksum files are missing no setting unless they were asked for:
    `grouped()` sets it.

    >>> [missing.name for missing in missing_settings({}.get)]
    ['spark.sql.streaming.checkpointFileManagerClass', 'spark.hadoop.fs.s3a.performance.flags']
    >>> missing_settings({_MANAGER: _ABORTABLE, _CREATE: "true"}.get)
    []
    """
    found = []
    if not _text(setting(_MANAGER)):
        found.append(MissingSetting(_MANAGER, _ABORTABLE, "Spark writes each file twice, by renaming it"))
    if _text(setting(_CHECKSUMS)) == "true":
        found.append(MissingSetting(_CHECKSUMS, "false", "Spark writes a checksum file beside each file of a state"))
    flags = {flag.strip() for flag in _text(setting(_FLAGS)).split(",")}
    if not flags & {"*", "create"} and _text(setting(_CREATE)) != "true":
        found.append(MissingSetting(_FLAGS, "create,mkdir", "Hadoop looks for folders before it writes a file"))
    return found


def _text(value: str | None) -> str:
    return (value or "").strip().lower()
