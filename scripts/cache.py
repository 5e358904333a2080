"""The cache folder: where the set-up puts its parts, and from which contents each part was made.

Owns: the folder $FASTCHANGELOG_CACHE (default ~/.cache/fastchangelog), its lock, fingerprints and stamps; lines of
progress; how a command of the set-up runs and fails. Does not own: the parts (environment.py, rocksdb.py, setup.py).

A part is made again when the contents of its sources changed, never because of a time stamp. A stamp is written after
its part is complete, so a run that was interrupted makes the part again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("FASTCHANGELOG_CACHE") or Path.home() / ".cache" / "fastchangelog").expanduser().absolute()


def say(text: str) -> None:
    """One line of progress, on standard error: answers go to standard output."""
    print(f"[set-up] {text}", file=sys.stderr, flush=True)


def fail(*lines: str) -> NoReturn:
    """Ends with clear lines and no traceback."""
    print(*lines, sep="\n", file=sys.stderr)
    raise SystemExit(2)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Says that a step begins, and how long it took."""
    start = time.monotonic()
    say(f"{text} …")
    yield
    say(f"{text}: {time.monotonic() - start:.0f} s")


def start(*command: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a command whose output is progress."""
    text = [str(part) for part in command]
    merged = {**os.environ, **(env or {})}
    return subprocess.Popen(text, cwd=ROOT, env=merged, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Waits for a command. Ends when the command failed."""
    if code := process.wait():
        words = [str(word) for word in process.args] if isinstance(process.args, list) else [str(process.args)]
        fail(f"set-up failed: `{' '.join(words)}` ended with code {code}; its own message is above")


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a command whose output is progress. Ends when the command failed."""
    finish(start(*command, env=env))


@contextlib.contextmanager
def stopping(*processes: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """Ends background commands when the block fails: an interrupted set-up leaves no process behind."""
    try:
        yield
    except BaseException:
        for process in filter(None, processes):
            process.terminate()
            process.wait()
        raise


def fingerprint(*parts: object) -> str:
    """One hash of texts, and of the contents of files and folders given as paths."""
    digest = hashlib.sha256()
    for part in parts:
        for name, content in _contents(part) if isinstance(part, Path) else [(str(part), b"")]:
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_file():
        yield path.name, path.read_bytes()
        return
    for folder, names, files in os.walk(path):
        # Fuzzers and model checkers are no part of a build.
        names[:] = sorted(n for n in names if n not in ("__pycache__", "target", "fuzz", "shuttle-tests"))
        for name in sorted(files):
            if not name.endswith((".pyc", ".so")):
                file = Path(folder) / name
                yield str(file.relative_to(path)), file.read_bytes()


def is_fresh(name: str, key: str) -> bool:
    """True when the part `name` was made from `key`."""
    stamp = CACHE / "stamps" / name
    return stamp.is_file() and stamp.read_text() == key


def set_stamp(name: str, key: str) -> None:
    """Records from which `key` the part `name` was made."""
    stamp = CACHE / "stamps" / name
    stamp.parent.mkdir(parents=True, exist_ok=True)
    temporary = stamp.with_suffix(".new")
    temporary.write_text(key)
    temporary.replace(stamp)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One set-up at a time for each cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up that uses {CACHE}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def guarded(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs the main function of a script. Ctrl-C, a full disk and a folder without permission each end in one line."""
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        fail("interrupted: the next call goes on from here")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        if error.errno == errno.ENOSPC:
            fail(f"the disk is full{where}: free some space, or choose another folder with FASTCHANGELOG_CACHE")
        fail(f"set-up failed: {error.strerror or error}{where}; the cache is {CACHE}, see FASTCHANGELOG_CACHE")
