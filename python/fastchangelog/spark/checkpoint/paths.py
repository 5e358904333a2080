"""Paths of checkpoints under which Spark's sources find them.

Owns: which locations Spark's readers mistake for another path, and the link that replaces such a location.
Does not own: reading a checkpoint (`files`).

The source `statestore` escapes a path and then takes the escaped text for a path, so it does not find a folder whose
name has a blank, `%` or `#`. Readers of files take brackets, `*` and `?` for a pattern. Therefore a local folder with
such a character is read through a link with a plain name, which the process removes when it exits. The link must be on
the folder's own file system, by which the checkpoint names its schema files.
"""

from __future__ import annotations

import os
import re
import tempfile
import unicodedata
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import internals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["readable_path", "shown"]

#: Characters that a URI has as they are, and that no pattern has.
_PLAIN = re.compile(r"[\w/.~!$&'()+,;=:@-]*", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://[^/]*)?(/.*)", re.DOTALL)

#: By location, the paths of links, and the folder that has them; it is removed with the process.
_links: dict[str, str] = {}
_folder: list[tempfile.TemporaryDirectory[str]] = []


def readable_path(spark: SparkSession, location: str) -> str:
    """A path of the folder `location` that all of Spark's sources read; the location itself if that is one.

    The location is what a query has as its `checkpointLocation`: a path as it is, not escaped. The link stays until the
    process ends, since frames are read later than they are made.
    """
    if _is_plain(location):
        return location
    found = _SCHEME.fullmatch(location)
    scheme = found[1] if found is not None else internals.default_file_system(spark).partition(":")[0]
    if scheme != "file":
        raise InvalidArgumentError(
            f"Spark's own source for states cannot read {location!r}: it escapes blanks, `%` and `#` twice, and takes "
            "brackets for a pattern. Copy the checkpoint to a folder of letters, digits, `-` and `_`"
        )
    return _link(os.path.abspath(location if found is None else found[2]))


def _link(path: str) -> str:
    if path not in _links:
        if not _folder:
            _folder.append(tempfile.TemporaryDirectory(prefix="fastchangelog-checkpoints-"))
        link = os.path.join(os.path.realpath(_folder[0].name), str(len(_links)))
        os.symlink(path, link)
        _links[path] = link
    return _links[path]


def shown(text: str) -> str:
    """A text of Spark's with locations in the place of their links."""
    for path, link in reversed(_links.items()):  # so that the link 1 is not taken for a part of 12
        text = text.replace(link, path)
    return text


def _is_plain(location: str) -> bool:
    """True if the path stays what it is when it is escaped, and is no pattern.

    >>> [_is_plain(path) for path in ("/data/a-b_c@1", "s3a://bucket/état", "/data/a b", "/data/100%", "/data/[x]")]
    [True, True, False, False, False]
    """
    rest = "".join(c for c in location if ord(c) < 128 or unicodedata.category(c)[0] in "CZ")
    return _PLAIN.fullmatch(rest) is not None
