"""What must hold of a query's files, objects and logs while nothing of it runs.

Owns: data folders, sockets and temporary files that nothing removes any more; objects that no handle reaches, or that a
handle names and that are not there; crashes and internal errors in logs. Does not own: answers and processes
(`run`), reading Spark's checkpoint (`store`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastchangelog import _internal
from fastchangelog.layout import OWN_PREFIX

#: Names of our own temporary files and folders.
_OURS = ("fastchangelog", "fcl-", ".spill", ".fcl")


def left_folders(folder: Path, excused: Iterable[Path]) -> list[str]:
    """Data folders of servers that are left, and that no kill excuses."""
    return [f"the data folder {path}" for path in data_folders(folder) if path not in set(excused)]


def data_folders(folder: Path) -> list[Path]:
    """The state servers' folders on the local disk."""
    return [path for path in (folder / "local").rglob("fastchangelog-*") if path.is_dir()]


def left_by_ended_servers(folder: Path) -> list[str]:
    """Data folders and sockets of servers that ended by themselves: they remove both."""
    found = []
    ended = {name for name, log in _server_logs(folder) if _ended(log)}
    for path in data_folders(folder):
        if path.name.removeprefix("fastchangelog-") in ended:
            found.append(f"the data folder {path} of a server that ended by itself")
    for name, log in _server_logs(folder):
        if name in ended and (log.parent / "s").exists():
            found.append(f"the socket {log.parent / 's'} of a server that ended by itself")
    return found


def left_temporary(folder: Path) -> list[str]:
    """Our own files in the job's folder for temporary ones."""
    found = [path for path in (folder / "tmp").rglob("*") if any(part in path.name for part in _OURS)]
    return [f"the temporary file {path}" for path in found]


def crashes(folder: Path, killed: set[int]) -> list[str]:
    """State servers that are gone, said nothing of their end, and were not killed."""
    found = []
    for _, log in _server_logs(folder):
        running: int | None = None
        for line in [*_lines(log), {"event": "started", "pid": None}]:
            if line.get("event") == "ending":
                running = None
            elif line.get("event") == "started":
                if running is not None and running not in killed:
                    found.append(f"the state server {running} ended without a word; its log is {log}")
                running = line.get("pid")
    return found


def started(folder: Path) -> set[int]:
    """The processes of all servers so far."""
    lines = (line for _, log in _server_logs(folder) for line in _lines(log))
    return {line["pid"] for line in lines if line.get("event") == "started"}


def internal_errors(folder: Path) -> list[str]:
    """Panics, and errors that ask for a report."""
    found = []
    for log in [folder / "log", *(log for _, log in _server_logs(folder))]:
        for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
            if "panicked at" in line or "please report" in line:
                found.append(f"{log}: {line[:300]}")
    return found


def audit(states: Iterable[Path], handles: Iterable[str], kept: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Of the folders of a query's states: what handles name and is not there, and what is there and no handle reaches.

    `kept` are objects that may be there all the same.
    """
    there = {
        str(path.relative_to(state)): path
        for state in states
        for path in state.rglob("*")
        if path.is_file() and not path.relative_to(state).parts[0].startswith(OWN_PREFIX)
    }
    named: set[str] = set()
    for text in handles:
        handle = json.loads(_internal.handle_json(text))
        named |= {segment["object"]["name"] for segment in handle["segments"]}
        if handle["indexed"]:
            named.add(handle["indexed"]["name"])
        if handle["base"]:
            named.add(handle["base"]["manifest"]["name"])
    for name in sorted(named):
        named |= _named_by(name, there.get(name))
    return sorted(named - there.keys()), sorted(there.keys() - named - set(kept))


def _named_by(name: str, path: Path | None) -> set[str]:
    kind = _internal.object_type(name)
    if path is None:
        return set()
    if kind == "index":
        return {found for _, found in json.loads(_internal.segment_index_json(name, path.read_bytes()))}
    if kind == "base":
        return set(json.loads(_internal.manifest_json(name, path.read_bytes()))["objects"])
    return set()


def _server_logs(folder: Path) -> list[tuple[str, Path]]:
    """The name of each server's place, and its log."""
    return [(log.parent.name, log) for log in sorted((folder / "run").rglob("server.log"))]


def _ended(log: Path) -> bool:
    """True when the last server of this log ended by itself."""
    told = [line["event"] for line in _lines(log) if line.get("event") in ("started", "ending")]
    return bool(told) and told[-1] == "ending"


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue  # of Python or the system, not of the server
        if isinstance(found, dict):
            yield found
