"""Settings: those of Spark that the operator needs, and fastchangelog's own from arguments and conf.

Owns: which Spark settings are needed, set or refused, and whether a session's tasks can run here; the sources of the
state's root and of the options.
Does not own: the meaning of an option (the Rust core), the store's credentials format (the Rust core).
"""

from __future__ import annotations

import json
import logging
import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fastchangelog import _internal
from fastchangelog.errors import (
    FastChangelogError,
    InvalidArgumentError,
    StateNotFoundError,
    UnsupportedError,
    error_of_kind,
)
from fastchangelog.hidden import Hidden
from fastchangelog.options import (
    PREFIX,
    PROVIDER_OPTION,
    default_option,
    existing_folder,
    gather_options,
    gather_storage_options,
    local_path,
    parse_size,
    refuse_secrets,
    request_credentials,
    split_provider,
)
from fastchangelog.server import memory, platform
from fastchangelog.spark import internals, redaction, task, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fastchangelog.hidden import HiddenOptions
    from fastchangelog.types import Options, PathLike, StorageOptions

__all__ = [
    "FORMAT_VERSION",
    "PARTITIONS",
    "PROVIDER",
    "bytes_of",
    "check_platform",
    "check_root",
    "check_settings",
    "check_task",
    "chose_rocksdb",
    "given_root",
    "is_remote",
    "resolve_with_expiry",
    "memory_confs",
    "partitions_of_task",
    "prepare_session",
    "read_options",
    "resolve",
    "count_option",
    "size_option",
    "start_from",
    "state_root",
    "storage_options",
    "with_start_from",
]

_log = logging.getLogger("fastchangelog.spark")

STATE = PREFIX + "state"
STORE_PREFIX = "spark.sql.streaming.stateStore."
PROVIDER = STORE_PREFIX + "providerClass"
FORMAT_VERSION = STORE_PREFIX + "checkpointFormatVersion"
#: In a streaming task: the number of partitions that its own checkpoint fixed, whatever the conf is today.
PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: Set for the session where the user set nothing. The first two are needed, the others make it fast: a commit of the
#: state store, which holds one small value per shard, writes one file, not two and not a snapshot (the handle in it
#: has a checksum of its own).
REQUIRED = {PROVIDER: _ROCKSDB, FORMAT_VERSION: "2"}
HELPFUL = {
    STORE_PREFIX + "rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

#: Spark's bounds of an Arrow batch on its way to a Python worker, and its default of the first.
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ARROW_ROWS_DEFAULT = 10_000
#: What payload rows of one Arrow batch come to at most where Spark does not end a batch by its bytes: as much as its
#: own bound allows since 4.1. The JVM holds up to three times that (a vector doubles as it grows), a worker as well.
_ARROW_BATCH = 64 << 20
#: The ids of sessions where the state store was set here, not by the user.
_set_here: set[str] = set()
_FIX_PROVIDER = "find out why the `credential_provider` failed"
_SIZE = re.compile(r"(\d+)\s*(?:([kmgtp])i?b?|b)?", re.IGNORECASE)


def check_platform(spark: SparkSession) -> None:
    """Refuses a session whose tasks run on this machine, if no state server runs here.

    Tasks of a cluster and of Spark Connect may run on other machines: there the start of the state server checks.
    """
    if platform.refusal() is None or internals.is_connect(spark):
        return
    if (spark.conf.get("spark.master", None) or "local").startswith("local"):
        platform.check()


def prepare_session(spark: SparkSession) -> None:
    """Sets what the operator needs where it is unset; refuses what is set otherwise."""
    for key, wanted in REQUIRED.items():
        found = spark.conf.get(key, None)
        if found is None:
            if key == PROVIDER:
                _set_here.add(internals.session_id(spark))  # before others can see the setting
            spark.conf.set(key, wanted)
            _log.info("set %s=%s for this session: stateful operators of fastchangelog need it", key, wanted)
        elif not _fits(key, found):
            raise UnsupportedError(_unfit(key, found))
    for key, wanted in HELPFUL.items():
        if spark.conf.get(key, None) is None:
            spark.conf.set(key, wanted)
            _log.info("set %s=%s for this session: batches are faster with it", key, wanted)


def chose_rocksdb(spark: SparkSession) -> bool:
    """True if the user chose Spark's RocksDB state store for this session: it is set, and not by `prepare_session`."""
    found = spark.conf.get(PROVIDER, None)
    return found is not None and _fits(PROVIDER, found) and internals.session_id(spark) not in _set_here


def check_task(property_of: Callable[[str], str | None]) -> None:
    """Refuses to run in a task whose query has other settings: they can come from its checkpoint."""
    check_settings(property_of)
    for key in REQUIRED:
        found = property_of(key)
        if found is None or not _fits(key, found):
            raise InvalidArgumentError(_unfit(key, found) + "; a checkpoint keeps the settings it was started with")


def check_settings(property_of: Callable[[str], str | None]) -> None:
    """Refuses to run in a task of a query that was not told the settings of its session, the partitions among them."""
    if all(property_of(key) is None for key in REQUIRED):
        raise InvalidArgumentError(f"this task does not know its query, nor its settings: {task.OTHER_THREAD}")


def _fits(key: str, found: str) -> bool:
    # Only the exact class is accepted.
    return found.strip() == REQUIRED[key]


def _unfit(key: str, found: str | None) -> str:
    why = {
        PROVIDER: "Spark's stateful operator for Python needs the RocksDB state store",
        FORMAT_VERSION: "with the older format Spark can hand back the state of a failed attempt after a restart",
    }[key]
    shown = "not set" if found is None else f"set to {found}"
    remedy = "Unset it, or set it to that value before the query starts"
    return f"{key} is {shown}, but must be {REQUIRED[key]}: {why}. {remedy}"


def partitions_of_task(property_of: Callable[[str], str | None], fallback: int) -> int:
    """The number of shards of the running query: its checkpoint's if it streams, else the session's."""
    found = property_of(PARTITIONS) or property_of(SHUFFLE_PARTITIONS)
    return int(found) if found is not None else fallback


def payload_row_bytes(property_of: Callable[[str], str | None], spark_version: str) -> int | None:
    """The most bytes of a payload row in this task; None if Spark itself ends Arrow batches by their bytes.

    Spark 4.0 bounds what goes to a stateful operator by rows alone, and so does any Spark whose bound of bytes the user
    switched off: a shard's payload rows of one batch would meet in one Arrow vector, whatever they come to.
    """
    by_bytes = versions.ENDS_BATCHES_BY_BYTES(spark_version) and _number(property_of(ARROW_BYTES), 0) < 4 * _ARROW_BATCH
    rows = _number(property_of(ARROW_ROWS), _ARROW_ROWS_DEFAULT)
    # Without a limit of rows Spark 4.0 makes a batch of each row; later versions then have no limit at all.
    return None if by_bytes or rows <= 0 else max(1, _ARROW_BATCH // rows)


def bytes_of(text: str) -> int:
    """The bytes of Spark's bound of a batch; without a limit those of the largest one.

    >>> bytes_of("64m"), bytes_of("-1")
    (67108864, 2147483647)
    """
    return _number(text, 0) or 2**31 - 1


def _number(text: str | None, default: int) -> int:
    """A number of Spark's settings, perhaps with a unit."""
    found = None if text is None else _SIZE.fullmatch(text.strip())
    if found is None:
        return default
    return int(found[1]) << 10 * ("kmgtp".index(found[2].lower()) + 1 if found[2] else 0)


def state_root(spark: SparkSession, state: PathLike | None) -> str:
    """The root folder of the state, from the argument or the conf, checked as far as that is cheap."""
    return check_root(given_root(spark, state))


def given_root(spark: SparkSession, state: PathLike | None) -> str:
    """The root folder of the state as it was given, in the argument or the conf."""
    root = os.fspath(state) if state is not None else spark.conf.get(STATE, None)
    if root is None or not isinstance(root, str) or not root.strip():
        raise InvalidArgumentError(
            'no place for the state is given: pass it, as in grouped(df, "key", state="s3://bucket/state"), '
            f'or set it for all, as in spark.conf.set("{STATE}", "s3://bucket/state")'
        )
    return root.strip()


def check_root(root: str) -> str:
    """The root with a scheme; a local folder is made now, so that a wrong path fails here and not in a task."""
    refuse_secrets("the state's root", root)
    shown = _internal.clean_uri(root)
    path = local_path(root)
    url = urllib.parse.urlsplit(root)
    scheme = url.scheme.lower()
    if scheme and scheme not in _internal.uri_schemes():
        known = ", ".join(f"{known}://" for known in _internal.uri_schemes())
        raise InvalidArgumentError(
            f"the state's root {shown!r} has an unknown scheme; known are {known} and plain paths"
        )
    if path is None:
        if not url.netloc and scheme != "memory":
            raise InvalidArgumentError(
                f"the state's root {shown!r} names no bucket or host; write {scheme}://bucket/folder"
            )
        return root
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"the state's folder {path} cannot be made: {error.strerror}; choose another"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidArgumentError(f"the state's folder {path} cannot be written; change its rights or choose another")
    return "file://" + urllib.parse.quote(path)


def is_remote(root: str) -> bool:
    """True if the root is in a store that takes a round trip for each request.

    >>> is_remote("s3://bucket/state"), is_remote("file:///data"), is_remote("memory:///x")
    (True, False, False)
    """
    return local_path(root) is None and not root.startswith("memory:")


def read_options(spark: SparkSession, options: Options | None) -> dict[str, str]:
    """Options of the argument over those of the conf, checked: unknown names and bad values are errors."""
    return gather_options(options, spark.conf.getAll)


def memory_confs(spark: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings of an executor's memory; warns of a budget that the executors' overhead cannot hold."""
    found = {name: spark.conf.get(name, None) for name in memory.CONFS}
    confs = {name: value for name, value in found.items() if value is not None}
    budget = memory.asked_budget(options)
    # The executors run in other containers: each task checks its own.
    doubt = None if budget is None else memory.objection(budget, confs, memory.Limits())
    if doubt is not None:
        _log.warning("%s", doubt)
    return confs


def with_start_from(options: dict[str, str], start: PathLike | None) -> dict[str, str]:
    """The options with the argument `start_from=`, which must not differ from the option.

    >>> with_start_from({}, "s3://bucket/savepoint")
    {'start_from': 's3://bucket/savepoint'}
    """
    if start is None:
        return options
    uri = os.fspath(start)
    if options.get("start_from", uri) != uri:
        raise InvalidArgumentError(f"start_from={uri!r} and the option `start_from` differ; give one of them")
    return {**options, "start_from": uri}


def start_from(
    options: dict[str, str], storage_options: HiddenOptions, partitions: int
) -> tuple[dict[str, str], str | None]:
    """Checks the savepoint that the option `start_from` names, if it does: the options with its number of key groups,
    and the description of its rows."""
    uri = options.get("start_from")
    if not uri:
        return options, None
    folder = _internal.SavepointFolder(existing_folder(uri), options, resolve(storage_options).show())
    try:
        found = json.loads(folder.read())
    except StateNotFoundError as error:
        raise StateNotFoundError(
            f"option `start_from`: {error}. After its first batch the query does not need it: take the option out, "
            "and set `max_parallelism` if the next start asks for it"
        ) from None
    groups, asked = found["max_parallelism"], count_option(options, "max_parallelism")
    if asked not in (0, groups):
        raise InvalidArgumentError(
            f"the savepoint {uri} has {groups} key groups, which are fixed for ever, but the option `max_parallelism` "
            f"is {asked}; leave it out"
        )
    if partitions > groups:
        raise InvalidArgumentError(
            f"{SHUFFLE_PARTITIONS} is {partitions}, but the savepoint {uri} has {groups} key groups (max_parallelism), "
            f"fixed at its state's first start; set it to 1 to {groups}"
        )
    return {**options, "start_from": existing_folder(uri), "max_parallelism": str(groups)}, found["schema"]


def count_option(options: Mapping[str, str], name: str) -> int:
    """The number of an option that `read_options` has checked."""
    return int(options.get(name, default_option(name)))


def size_option(options: Mapping[str, str], name: str) -> int:
    """The bytes of a size option that `read_options` has checked."""
    return parse_size(name, options.get(name, default_option(name)))


def storage_options(spark: SparkSession, root: str, given: Hidden[StorageOptions | None]) -> HiddenOptions:
    """Options of the root's store, from the argument and the conf. Values are credentials: never shown."""
    provider, explicit = split_provider(given)
    wrong = [name for name in explicit.show() if not isinstance(explicit.show()[name], (str, bool, int))]
    if wrong:
        raise InvalidArgumentError(f"storage_options: {wrong[0]} is not a text, a number or a bool")
    redaction.redact_storage_options(spark)
    own: HiddenOptions = Hidden(gather_storage_options(root, explicit.show(), spark.conf.getAll))
    return own if provider is None else Hidden({**own.show(), PROVIDER_OPTION: provider.show()})


def resolve(options: StorageOptions | HiddenOptions) -> Hidden[dict[str, str]]:
    """The options for the store, with the current credentials of the provider, if there is one."""
    return resolve_with_expiry(options)[0]


def resolve_with_expiry(options: StorageOptions | HiddenOptions) -> tuple[Hidden[dict[str, str]], float | None]:
    """The same, and when the provider's credentials expire, in seconds since the epoch; None = never.

    An exception of the provider is a `PermissionDeniedError` if it is a `PermissionError`, else a `RetryableError`;
    it is the cause of that error.
    """
    hidden = options if isinstance(options, Hidden) else Hidden(options)
    del options
    provider, others = split_provider(hidden)
    given = Hidden({name: str(value) for name, value in others.show().items()})
    if provider is None:
        return given, None
    try:
        granted = Hidden(request_credentials(provider))
    except FastChangelogError:
        raise
    except Exception as error:
        kind = "permission_denied" if isinstance(error, PermissionError) else "retryable"
        text = f"credentials could not be fetched: {type(error).__name__}: {error}; {_FIX_PROVIDER}"
        raise error_of_kind(kind, text, _FIX_PROVIDER) from error
    return Hidden(_internal.overlay_storage_options(given.show(), granted.show()[0])), granted.show()[1]
