"""Redaction of storage options among Spark's settings.

Owns: making Spark redact them, and the warning where that is no longer possible.
Does not own: which options are secrets (the Rust core), what the library itself shows.

Spark shows settings in two places. The SQL page and the events of executions show those of the session, redacted by
`spark.sql.redaction.options.regex`, which a session may change. The environment page and its event show those that the
application was started with, redacted by `spark.redaction.regex`, which is fixed when the application starts. Its
default knows `secret`, `token`, `password` and `access.key`, but neither `account_key` nor `sas_key` nor
`service_account_key`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastchangelog import _internal
from fastchangelog.options import STORAGE_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["STORAGE_PATTERN", "OF_APPLICATION", "OF_SESSION", "redact_storage_options", "unredacted"]

_log = logging.getLogger("fastchangelog.spark")

OF_SESSION = "spark.sql.redaction.options.regex"
OF_APPLICATION = "spark.redaction.regex"

STORAGE_PATTERN = re.escape(STORAGE_PREFIX)
"""All storage options: the store knows which ones are secrets. The pattern means the same to Java and to Python."""

_SESSION_DEFAULT = "(?i)url"
_APPLICATION_DEFAULT = "(?i)secret|password|token|access[.]?key"

_warned: set[str] = set()


def redact_storage_options(spark: SparkSession) -> None:
    """Makes the session redact storage options among its settings; warns, once for each, about
    those that the pages of the application would show."""
    # Names alone: the values may be secrets, and frames show local variables.
    names = [name for name in spark.conf.getAll if name.startswith(STORAGE_PREFIX)]
    if not names:
        return
    of_session = spark.conf.getAll.get(OF_SESSION, _SESSION_DEFAULT)
    if STORAGE_PATTERN not in of_session:
        spark.conf.set(OF_SESSION, f"{of_session}|{STORAGE_PATTERN}" if of_session else STORAGE_PATTERN)
        _log.info("set %s for this session: storage options among its settings are not shown", OF_SESSION)
    shown = [name for name in unredacted(names, spark.conf.getAll.get(OF_APPLICATION)) if name not in _warned]
    if shown:
        _warned.update(shown)
        _log.warning(
            "Spark's environment page and event log show %s if the application was started with it: the setting %s "
            "does not cover it. Start the application with %s=%s|%s, or pass it as storage_options",
            ", ".join(shown),
            OF_APPLICATION,
            OF_APPLICATION,
            _APPLICATION_DEFAULT,
            STORAGE_PATTERN,
        )


def unredacted(names: Iterable[str], pattern: str | None) -> list[str]:
    """Of settings with these names, those that hold secret storage options and that `pattern` (of
    `spark.redaction.regex`; None = its default) does not redact.

    >>> unredacted(["spark.fastchangelog.storage.account_key", "spark.fastchangelog.storage.secret_access_key"], None)
    ['spark.fastchangelog.storage.account_key']
    """
    try:
        redacted = re.compile(_APPLICATION_DEFAULT if pattern is None else pattern)
    except re.error:  # a pattern of Java that Python cannot read: no warning then
        return []
    ours = sorted(name for name in names if name.startswith(STORAGE_PREFIX))
    secret = [name for name in ours if _internal.is_secret_option(name.removeprefix(STORAGE_PREFIX))]
    return [name for name in secret if not redacted.search(name)]
