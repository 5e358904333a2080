"""Checkpoints that were moved to another folder.

Owns: rewriting the absolute paths in Spark's metadata.
Does not own: when a query starts (`starts`), where our state is (the argument `state`).

Spark's metadata of a stateful operator names its schema files by absolute path. After a move no query can start from
the checkpoint, not even one of Spark's own, although the files have moved along. In a local checkpoint the metadata is
rewritten with the new paths if the old files are gone and the new ones exist. In a bucket it is left alone, and Spark
raises its error (`failures` says what to do).
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["repair"]

_log = logging.getLogger("fastchangelog.spark")

_SCHEMAS = re.compile(r"(?P<root>.*)(?P<rest>/state/[0-9]+/_stateSchema/[^/]+/[^/]+)", re.DOTALL)
_LOCAL = re.compile(r"file:(?://)?(?P<path>/.*)", re.DOTALL)


def repair(root: str) -> list[str]:
    """Makes a moved checkpoint name its own files; returns the metadata files that were rewritten.

    `root` is the checkpoint's folder as Spark has it, such as `file:/data/checkpoint`.
    """
    folder = _local(root)
    changed = []
    for path in [] if folder is None else sorted(folder.glob("state/*/_metadata/v2/[0-9]*")):
        if not path.name.isdigit() or path.with_name(f"{path.name}.crc").exists():
            continue  # a checksum of Spark's own is of the old text
        version, _, text = path.read_text(encoding="utf-8").partition("\n")
        moved: list[str] = []
        described = _renamed(json.loads(text), lambda name: _new_place(root, name), moved)
        if moved:
            _write(path, f"{version}\n{json.dumps(described, separators=(',', ':'))}")
            changed.append(str(path))
    if changed:
        _log.warning("the checkpoint %s was moved: Spark's metadata in it names its files by their new paths now", root)
    return changed


def _renamed(described: Any, new_place: Callable[[str], str | None], moved: list[str]) -> Any:
    """The description with new paths, which are added to `moved`."""
    if isinstance(described, dict):
        return {key: _renamed(value, new_place, moved) for key, value in described.items()}
    if isinstance(described, list):
        return [_renamed(value, new_place, moved) for value in described]
    place = new_place(described) if isinstance(described, str) else None
    if place is None:
        return described
    moved.append(place)
    return place


def _new_place(root: str, name: str) -> str | None:
    """Where a file of schemas is now, if it is not where it was and was moved with the checkpoint."""
    found = _SCHEMAS.fullmatch(name)
    if found is None or found["root"] == root:
        return None
    old, new = _local(name), _local(root + found["rest"])
    is_gone = old is None or not old.exists()
    return root + found["rest"] if is_gone and new is not None and new.exists() else None


def _local(path: str) -> Path | None:
    found = _LOCAL.fullmatch(path)
    return None if found is None else Path(found["path"])


def _write(path: Path, text: str) -> None:
    """Replaces a file as a whole, without the checksum that Hadoop keeps beside it."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as file:
        file.write(text)
    os.chmod(file.name, path.stat().st_mode)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    os.replace(file.name, path)
