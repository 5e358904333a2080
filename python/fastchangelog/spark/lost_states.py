"""Opening a session for a state that may not be where its checkpoint says.

Owns: the error of a task whose handle names objects that are not there, with where they are if that is seen.
Does not own: opening sessions (`server`), which objects a handle names (the core).

A state lies in the folder of its query's id, which is in the checkpoint's file `metadata`. A copy of a checkpoint that
got another id, or another root, leaves the state behind.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastchangelog.checkpoints.state_handles import objects_of
from fastchangelog.errors import StateNotFoundError
from fastchangelog.spark.renewal import request_text

__all__ = ["open_or_explain"]

_Session = TypeVar("_Session")
_Open = Callable[[str, Mapping[str, str], Mapping[str, str]], _Session]
#: Folders of a root that are looked at.
_MOST_FOLDERS = 10_000


def open_or_explain(
    open_session: _Open[_Session], request: Mapping[str, Any], options: Mapping[str, str], confs: Mapping[str, str]
) -> _Session:
    """The session of an open request."""
    try:
        return open_session(request_text(request).show(), options, confs)
    except StateNotFoundError as error:
        handle = request.get("handle")
        if handle is None:
            raise
        root, query, name = request["root"], request["query_id"], request["name"]
        raise _explained(error, root, query, name, handle) from error.__cause__


def _explained(error: StateNotFoundError, root: str, query: str, name: str, handle: str) -> StateNotFoundError:
    text = str(error).rstrip(".")
    others = _others(root, query, name, objects_of(handle))
    if others:
        explained = StateNotFoundError(
            f"{text}. The ids differ: the checkpoint's file `metadata` names the query {query}, but the query "
            f"{others[0]} wrote this state, in {root}/{others[0]}/{name}. Write that id back into `metadata`, or "
            "begin a query of its own with a new checkpoint and a savepoint of the old one, grouped(…, start_from=…)"
        )
    else:
        explained = StateNotFoundError(
            f"{text}. The query's id in the checkpoint's file `metadata` places the state in {root}/{query}/{name}. "
            "If the checkpoint was moved or copied, move its state, too, and give its root as state=; if the "
            "checkpoint got another id, write the old one back into `metadata`"
        )
    explained.remedy, explained.subject = error.remedy, error.subject
    return explained


def _others(root: str, query: str, name: str, objects: set[str]) -> list[str]:
    """Other queries of a local root whose state of this name has one of the objects."""
    url = urllib.parse.urlsplit(root)
    if url.scheme not in ("", "file"):
        return []
    folder = urllib.parse.unquote(url.path) if url.scheme else root
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(_MOST_FOLDERS)):
            if entry.name != query and any(os.path.exists(os.path.join(entry.path, name, o)) for o in objects):
                found.append(entry.name)
    return found
