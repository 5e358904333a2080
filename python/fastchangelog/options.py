"""Options: from keyword arguments and Spark's configuration to the texts that the core reads.

Owns: the sources of options, their precedence, the translation of ``spark.hadoop.fs.s3a.*`` to store options, and
the result of a credential provider.
Does not own: names, defaults, meanings and mutual exclusions of options: the core has the tables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError, StateNotFoundError
from fastchangelog.hidden import Hidden, show, unseen

if TYPE_CHECKING:
    from fastchangelog.types import CredentialProvider, Duration, Options, OptionValue, Size, StorageOptions

__all__ = [
    "default_option",
    "parse_duration",
    "existing_folder",
    "gather_options",
    "gather_storage_options",
    "local_path",
    "refuse_secrets",
    "request_credentials",
    "parse_size",
    "seconds_option",
    "split_provider",
    "option_texts",
]

PROVIDER_OPTION = "credential_provider"
"""The storage option whose value is a function."""

PREFIX = "spark.fastchangelog."
"""Each option is also a Spark setting with this prefix."""

STORAGE_PREFIX = PREFIX + "storage."
"""Each store option is also a Spark setting with this prefix."""

_NOT_OPTIONS = frozenset({"state"})
"""Settings under the prefix that are arguments of their own."""

_S3A = "spark.hadoop.fs.s3a."

#: A number and its unit, and Spark's intervals of one or more of them.
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_INTERVAL = re.compile(r"\s*(?:interval\s+)?((?:\d+(?:\.\d+)?\s*[A-Za-z]+\s*)+)", re.IGNORECASE)

_ANONYMOUS = "AnonymousAWSCredentialsProvider"


def default_option(name: str) -> str:
    """The default of an option, as a text.

    >>> default_option("worker_memory")
    '256MiB'
    """
    return next(default for known, default, *_ in _internal.options_table() if known == name)


def seconds_option(options: Mapping[str, str], name: str) -> float:
    """The seconds of an option that is a duration.

    >>> seconds_option({}, "sweep_interval"), seconds_option({"sweep_interval": "10m"}, "sweep_interval")
    (3600.0, 600.0)
    """
    return parse_duration(name, options.get(name, default_option(name))).total_seconds()


@unseen
def gather_options(explicit: Options | None = None, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """All options as texts, checked. ``explicit`` wins over ``spark.fastchangelog.<option>`` in ``conf``.

    >>> gather_options({"memory_budget": 1 << 20}, {"spark.fastchangelog.compression": "lz4"})
    {'compression': 'lz4', 'memory_budget': '1048576'}
    >>> gather_options({"memory_bugdet": "1GiB"})
    Traceback (most recent call last):
    fastchangelog.errors.InvalidArgumentError: unknown option `memory_bugdet`; did you mean `memory_budget`?
    """
    options = {
        name.removeprefix(PREFIX): value
        for name, value in (conf or {}).items()
        if name.startswith(PREFIX)
        and not name.startswith(STORAGE_PREFIX)
        and name.removeprefix(PREFIX) not in _NOT_OPTIONS
    }
    options.update(option_texts(explicit))
    _internal.parse_options(options)
    return options


@unseen
def option_texts(options: Options | None) -> dict[str, str]:
    """Options as texts for the core.

    >>> option_texts({"persist_delay": timedelta(milliseconds=5), "file_sync": False})
    {'persist_delay': '5ms', 'file_sync': 'false'}
    """
    return {name: _text(name, value) for name, value in (options or {}).items()}


def _text(name: str, value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds() * 1000)}ms"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidArgumentError(
        f"option `{name}` is a {type(value).__name__}; give a text, a number, a bool or a timedelta"
    )


def existing_folder(uri: str) -> str:
    """The absolute URI of a folder that must exist: connecting to a mistyped local path would create it.

    >>> existing_folder("s3://bucket/savepoint")
    's3://bucket/savepoint'
    >>> existing_folder("/no/such/folder")
    Traceback (most recent call last):
    fastchangelog.errors.StateNotFoundError: there is no folder /no/such/folder; check the address
    """
    path = local_path(uri)
    if path is None:
        return uri
    if not os.path.isdir(path):
        raise StateNotFoundError(f"there is no folder {path}; check the address")
    return "file://" + quote(path)


def local_path(uri: str) -> str | None:
    """The absolute path of a folder of this machine; None for the address of a store.

    >>> local_path("file:///data/a%20b"), local_path("s3://bucket/state")
    ('/data/a b', None)
    """
    url = _split(uri)
    if url.scheme not in ("", "file"):
        return None
    if not url.scheme:
        return os.path.abspath(uri)
    if "?" in uri or "#" in uri:
        raise InvalidArgumentError(
            f"{_internal.clean_uri(uri)} has a query or a fragment, which a folder cannot have; "
            "write `?` and `#` in names as %3F and %23"
        )
    if url.netloc not in ("", "localhost"):
        raise InvalidArgumentError(
            f"{_internal.clean_uri(uri)} names a host; write a local folder with three slashes: file:///path"
        )
    return os.path.abspath(unquote(url.path))


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise InvalidArgumentError(f"{_internal.clean_uri(uri)} is not a URI: {error}; correct it") from None


def refuse_secrets(what: str, uri: str) -> None:
    """Refuses an address that holds a secret, because addresses are stored and displayed."""
    shown = _internal.clean_uri(uri)
    if "***" in shown and "***" not in uri:
        raise InvalidArgumentError(
            f"{what} {shown} holds a user's name, a password or a query; pass credentials as `storage_options`"
        )


def parse_duration(name: str, value: Duration) -> timedelta:
    """A duration from ``timedelta``, ``"10s"``, ``"5m"`` or Spark's ``"1 hour 30 minutes"``; ``name`` is for messages.

    >>> parse_duration("interval", "5m")
    datetime.timedelta(seconds=300)
    """
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise InvalidArgumentError(f'`{name}` = {value!r} is not a duration; write a timedelta, "10s" or "5 minutes"')
    parts = _INTERVAL.fullmatch(value)
    if parts is None:
        return timedelta(seconds=_internal.parse_duration(name, value))
    seconds = 0.0
    for number, unit in _PART.findall(parts[1]):
        is_week = unit.lower() in ("week", "weeks")
        seconds += _internal.parse_duration(name, f"{number} {'days' if is_week else unit}") * (7 if is_week else 1)
    return timedelta(seconds=seconds)


def parse_size(name: str, value: Size) -> int:
    """A number of bytes from an int or a text such as ``"5MiB"``; ``name`` is for messages.

    >>> parse_size("log_bytes", "5MiB")
    5242880
    """
    return value if isinstance(value, int) else _internal.parse_size(name, value)


@unseen
def gather_storage_options(
    uri: str, explicit: Options | None = None, conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Options of the object store of ``uri``: explicit, else ``spark.fastchangelog.storage.*``, else what
    ``spark.hadoop.fs.s3a.*`` says (for ``s3://`` and ``s3a://``; settings of the bucket win over general ones).
    Credentials come whole from one of them.

    >>> gather_storage_options("s3a://b/state", conf={"spark.hadoop.fs.s3a.endpoint.region": "eu-west-1"})
    {'aws_region': 'eu-west-1'}
    """
    conf = conf or {}
    parts = _split(uri)
    options = _from_s3a(parts.netloc, conf) if parts.scheme in ("s3", "s3a") else {}
    ours = {name.removeprefix(STORAGE_PREFIX): value for name, value in conf.items() if name.startswith(STORAGE_PREFIX)}
    options = _internal.overlay_storage_options(options, ours)
    return _internal.overlay_storage_options(options, option_texts(explicit))


@unseen
def split_provider(
    storage_options: StorageOptions | Hidden[StorageOptions | None] | None,
) -> tuple[Hidden[CredentialProvider] | None, Hidden[dict[str, str | int | bool]]]:
    """The credential provider in storage options, if there is one, and the other options."""
    given = dict((storage_options.show() if isinstance(storage_options, Hidden) else storage_options) or {})
    provider = given.pop(PROVIDER_OPTION, None)
    if provider is not None and not callable(provider):
        raise InvalidArgumentError(
            f"storage_options: `{PROVIDER_OPTION}` is a {type(provider).__name__}; give a function without arguments "
            "that returns a dict of credentials"
        )
    rest = Hidden(cast("dict[str, str | int | bool]", given))
    return None if provider is None else Hidden(provider), rest


def request_credentials(
    provider: CredentialProvider | Hidden[CredentialProvider],
) -> tuple[dict[str, str], float | None]:
    """Calls a provider: its credentials, and when they expire in seconds since the epoch.

    >>> request_credentials(lambda: {"access_key_id": "a", "secret_access_key": "s", "token": None, "expires_at": None})
    ({'access_key_id': 'a', 'secret_access_key': 's'}, None)
    """
    answer = Hidden(show(provider)())
    return _credentials_of(answer.show())


@unseen
def _credentials_of(answer: Mapping[str, object]) -> tuple[dict[str, str], float | None]:
    if not isinstance(answer, Mapping):
        raise InvalidArgumentError(f"the credential provider returned a {type(answer).__name__}; return a dict")
    given = dict(answer)
    end = given.pop("expires_at", None)
    if end is not None and (not isinstance(end, datetime) or end.tzinfo is None):
        raise InvalidArgumentError(
            "the credential provider's `expires_at` is not a datetime with a time zone, nor None"
        )
    wrong = [name for name, value in given.items() if not isinstance(name, str) or not isinstance(value, str | None)]
    if wrong:
        raise InvalidArgumentError(f"the credential provider's {wrong[0]!r} is not a text")
    credentials = {name: value for name, value in given.items() if isinstance(value, str)}
    return credentials, None if end is None else end.timestamp()


def _from_s3a(bucket: str, conf: Mapping[str, str]) -> dict[str, str]:
    def setting(name: str) -> str | None:
        given = (conf.get(f"{_S3A}bucket.{bucket}.{name}"), conf.get(_S3A + name))
        return next((value.strip() for value in given if value and value.strip()), None)

    options: dict[str, str] = {}
    for name, ours in (
        ("access.key", "aws_access_key_id"),
        ("secret.key", "aws_secret_access_key"),
        ("session.token", "aws_session_token"),
        ("endpoint.region", "aws_region"),
    ):
        value = setting(name)
        if value:
            options[ours] = value
    plain_http = (setting("connection.ssl.enabled") or "true").lower() == "false"
    endpoint = setting("endpoint")
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"{'http' if plain_http else 'https'}://{endpoint}"
        options["aws_endpoint"] = endpoint
        plain_http = endpoint.startswith("http://")
    if plain_http:
        options["aws_allow_http"] = "true"
    path_style = setting("path.style.access")
    if path_style:
        options["aws_virtual_hosted_style_request"] = "false" if path_style.lower() == "true" else "true"
    if (setting("aws.credentials.provider") or "").endswith(_ANONYMOUS):
        options["aws_skip_signature"] = "true"
    return options
