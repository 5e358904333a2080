"""The locations of checkpoints that the core reads.

Owns: the translation of a location, as Spark takes it, to a URI of the core, and the cases that stay with Spark.
Does not own: connecting (`core`), the schemes (the core has the table).

Spark takes a location as it is, without escapes. One without a scheme is in the default file system, which the settings
of Hadoop choose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import quote

from fastchangelog import _internal

__all__ = ["core_uri", "default_file_system", "is_same_kind"]

#: Schemes of the core that no file system of Spark's has.
_NOT_SPARKS = frozenset({"http", "https", "memory"})
_LOCAL = "file:///"
_DEFAULT_FS = "spark.hadoop.fs.defaultFS"
#: Folders whose settings Spark reads; one of these may name another default file system.
_SETTINGS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")


def core_uri(location: str, default_fs: str | None, *, local: bool = True) -> str | None:
    """The URI under which the core reads a location; None where only Spark can. `local` is False where Spark's folders
    are another machine's.

    >>> core_uri("s3a://bucket/a b%", None), core_uri("file:/data/a%20b", None), core_uri("hdfs://host/x", None)
    ('s3a://bucket/a b%25', 'file:///data/a%2520b', None)
    >>> core_uri("/data/x", "file:///"), core_uri("/data/x", "hdfs://host"), core_uri("/data/x", None)
    ('file:///data/x', None, None)
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        is_local = default_fs is not None and default_fs.partition(":")[0] == "file"
        return f"file://{quote(os.path.abspath(location))}" if is_local and local else None
    if scheme == "file":
        names_a_host = rest.startswith("//") and not rest.startswith("///")
        return f"file://{quote('/' + rest.lstrip('/'))}" if local and not names_a_host else None
    if scheme.lower() not in _internal.uri_schemes() or scheme.lower() in _NOT_SPARKS:
        return None
    return location.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def default_file_system(conf: Mapping[str, str]) -> str | None:
    """The default file system of a Spark session that `conf` would start here; None where Hadoop's files decide.

    >>> default_file_system({"spark.hadoop.fs.defaultFS": "hdfs://host"})
    'hdfs://host'
    """
    given = conf.get(_DEFAULT_FS)
    if given:
        return given
    return None if any(os.environ.get(name) for name in _SETTINGS) else _LOCAL


def is_same_kind(uri: str, other: str) -> bool:
    """True if both URIs are of one kind of store, so that the options of one fit the other.

    >>> is_same_kind("s3a://a/x", "s3://b/y"), is_same_kind("gs://a", "s3://a"), is_same_kind("/data", "file:///x")
    (True, False, True)
    """
    kinds = [uri.partition(":")[0] if "://" in uri else "file" for uri in (uri, other)]
    return kinds[0].removesuffix("a") == kinds[1].removesuffix("a")
