"""Puts faults back into the changelog, one by one, and sees whether the tests that claim to see them do.

    mutations.py                   every fault of mutations.txt
    mutations.py --only X-03       those of a case, or the one of a name; may be given several times
    mutations.py --list            what there is
    mutations.py --cargo PROGRAM   builds with this in place of `setup.py cargo`, with options or a target folder of
                                   its own

Prints `killed` for a fault that each of its tests sees (by failing, or by not ending), `SURVIVED` with the tests that
passed in spite of it, `could not apply` when the text that it changes is not in the sources exactly once. Ends with 1
unless all are killed. Takes some minutes for the build, and some for the tests that end by their patience only.

Works on a copy of the newest commit in `$FASTCHANGELOG_CACHE/mutations`, so the tree itself is never changed; a tree
with changes that are not committed is refused, because they would not be tested. All faults are built at once: each is
a branch that is taken when the environment names it, so there is one build, not one for each. A feature that only the
copy has keeps what is built apart from what the tree's own commands build. First all tests run without any fault, to
show that their failing means something.

Owns: the copy, the build, the runs and the verdicts. Does not own: the faults (`mutations.txt`), cargo's set-up
(`setup.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import cache
import environment
import rocksdb

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "FASTCHANGELOG_MUTANT"
#: The crate that all others import: it says which fault was chosen.
LOWEST = "rust/format"
FEATURE = "mutants"
#: Where the Rust tests of the table are.
CRATES = ("format", "columns", "store", "log", "changelog", "state", "core")
TARGETS = ("--lib", "--test", "promises")
#: Seconds after which a test that does not end counts as failed. Tests that wait for something give up after 60.
PATIENCE = 100

_SWITCH = f"""
/// True when the environment chose the fault `key`.
#[doc(hidden)]
pub fn mutant(key: &str) -> bool {{
    static CHOSEN: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("{VARIABLE}").unwrap_or_default());
    *CHOSEN == key
}}
"""


@dataclass
class Edit:
    """A place in the sources."""

    file: str
    old: str = ""
    new: str = ""


@dataclass
class Mutation:
    """A fault."""

    key: str
    cases: list[str]
    fault: str = ""
    edits: list[Edit] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)


def parse(text: str) -> list[Mutation]:
    """The faults of a text as `mutations.txt` explains it."""
    found: list[Mutation] = []
    for line in text.splitlines():
        mark, rest = line[:2], line[2:]
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            key, _, cases = line[1:].partition("]")
            found.append(Mutation(key, cases.split()))
        elif mark == "@ ":
            found[-1].edits.append(Edit(rest))
        elif mark == "- ":
            edit = found[-1].edits[-1]
            edit.old += "\n" * bool(edit.old) + rest
        elif mark == "+ ":
            edit = found[-1].edits[-1]
            edit.new += "\n" * bool(edit.new) + rest
        elif mark == "? ":
            found[-1].tests.append(rest)
        else:
            found[-1].fault += " " * bool(found[-1].fault) + line
    return found


MUTATIONS = parse((Path(__file__).parent / "mutations.txt").read_text())


def chosen(names: Sequence[str]) -> list[Mutation]:
    """The faults with one of these names or cases; all if none is given."""
    wanted = {name.lower() for name in names}
    found = [m for m in MUTATIONS if not wanted or wanted & {m.key, *map(str.lower, m.cases)}]
    known = {word for m in found for word in (m.key, *map(str.lower, m.cases))}
    if unknown := sorted(wanted - known):
        cache.fail(f"no fault is called {', '.join(unknown)}; `mutations.py --list` shows all")
    return found


def condition(mutation: Mutation, file: str) -> str:
    """What MUTANT stands for in a file."""
    if file.endswith(".py"):
        return f'(__import__("os").environ.get("{VARIABLE}") == "{mutation.key}")'
    crate = "crate" if file.startswith(f"{LOWEST}/") else "fastchangelog_format"
    return f'{crate}::mutant("{mutation.key}")'


def place(edit: Edit, text: str) -> int:
    """Where an edit goes in a file's text; -1 if that is not exactly one place."""
    return text.find(edit.old) if text.count(edit.old) == 1 else -1


def apply(tree: Path, mutations: Sequence[Mutation]) -> list[str]:
    """Puts faults into a tree, each behind its condition; gives back the keys of those that do not apply."""
    failed = {m.key for m in mutations for e in m.edits if place(e, (tree / e.file).read_text()) < 0}
    applied = [(m, e) for m in mutations if m.key not in failed for e in m.edits]
    for file in sorted({edit.file for _, edit in applied}):
        path = tree / file
        before, after, end = path.read_text(), "", 0
        for at, mutation, edit in sorted(((place(e, before), m, e) for m, e in applied if e.file == file), key=_first):
            after += before[end:at] + re.sub(r"\bMUTANT\b", condition(mutation, file), edit.new)
            end = at + len(edit.old)
        path.write_text(after + before[end:])
    for file, more in (("src/lib.rs", _SWITCH), ("Cargo.toml", f"\n[features]\n{FEATURE} = []\n")):
        with (tree / LOWEST / file).open("a") as out:
            out.write(more)
    return sorted(failed)


def _first(place: tuple[int, Mutation, Edit]) -> int:
    return place[0]


def is_dirty(root: Path) -> bool:
    """True when the tree differs from its newest commit."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    return bool(done.stdout.strip())


@contextlib.contextmanager
def copy_of(root: Path, tree: Path) -> Iterator[Path]:
    """The newest commit's files in the folder `tree`, which is always the same: so cargo replaces what it built."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    try:
        packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(tree)
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)


class Made(NamedTuple):
    """Something that cargo made."""

    kind: list[str]
    executable: str | None
    filenames: list[Path]


def build(tree: Path, cargo: str | None, *arguments: str) -> list[Made]:
    """Runs cargo, or what is given in place of it, in the copy; gives back what it made."""
    command = [cargo] if cargo else [sys.executable, str(tree / "scripts" / "setup.py"), "cargo"]
    command += [*arguments, "--locked", "--features", f"fastchangelog-format/{FEATURE}"]
    command += ["--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        cache.fail(
            "the sources with the faults in them cannot be built: see above which text of mutations.txt is wrong"
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    made = [line for line in lines if line.get("reason") == "compiler-artifact"]
    return [Made(m["target"]["kind"], m["executable"], [Path(file) for file in m["filenames"]]) for m in made]


def is_python(test: str) -> bool:
    """True for `tests/file.py::name`."""
    return test.split("::")[0].endswith(".py")


class Runner:
    """Runs tests of a copy by their names."""

    def __init__(self, tree: Path, names: set[str], cargo: str | None = None) -> None:
        self._tree = tree
        self._cargo = cargo
        #: Path and program of each Rust test. Crates may have tests of the same path.
        self._rust: list[tuple[str, str]] = []
        if not all(map(is_python, names)):
            self._build_rust()
        if any(map(is_python, names)):
            self._build_python()

    def _build_rust(self) -> None:
        packages = [word for crate in CRATES for word in ("-p", f"fastchangelog-{crate}")]
        for made in build(self._tree, self._cargo, "test", *packages, *TARGETS, "--no-run"):
            if program := made.executable:
                listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
                tests = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
                self._rust += [(test, program) for test in tests]

    def _build_python(self) -> None:
        for made in build(self._tree, self._cargo, "build", "-p", "fastchangelog-format", "-p", "fastchangelog-pyext"):
            for file in made.filenames:
                if made.kind == ["cdylib"] and file.suffix == ".so":
                    shutil.copy(file, self._tree / "python" / "fastchangelog" / "_internal.abi3.so")
                    # Its name has no hash of the features: the tree's own builds would take it for theirs.
                    for place in (file, file.parent / "deps" / file.name):
                        place.unlink(missing_ok=True)

    def passes(self, name: str, fault: str) -> bool:
        """True when the test passes with the fault of that key; with an empty one, without any."""
        env = {**os.environ, **rocksdb.variables(), VARIABLE: fault, "PYTHONPATH": str(self._tree / "python")}
        if is_python(name):
            command = [str(environment.PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
        else:
            found = [(path, program) for path, program in self._rust if path == name or path.endswith(f"::{name}")]
            if len(found) != 1:
                cache.fail(f"{len(found)} tests are called {name}, one was looked for")
            [(path, program)] = found
            command = [program, "--exact", path]
        try:
            done = subprocess.run(command, cwd=self._tree, env=env, capture_output=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def main(argv: Sequence[str]) -> int:
    """See the text at the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="CASE", action="append", default=[], help="a case (X-03) or a name (x03-direct)"
    )
    parser.add_argument("--list", action="store_true", help="show the faults")
    parser.add_argument("--cargo", metavar="PROGRAM", help="what to build with in place of `setup.py cargo`")
    arguments = parser.parse_args(argv)
    mutations = chosen(arguments.only)
    if arguments.list:
        for mutation in mutations:
            print(f"{mutation.key:<20}{' '.join(mutation.cases):<22}{mutation.fault}")
        return 0
    if is_dirty(ROOT):
        cache.fail(
            "the tree has changes that are not committed: commit them first, the newest commit is what is tested"
        )
    with copy_of(ROOT, cache.CACHE / "mutations") as tree:
        return judge(tree, mutations, arguments.cargo)


def judge(tree: Path, mutations: Sequence[Mutation], cargo: str | None = None) -> int:
    """Applies, builds, runs, and prints a line for each fault; 1 unless all are killed."""
    failed = apply(tree, mutations)
    applied = [m for m in mutations if m.key not in failed]
    tests = {test for m in applied for test in m.tests}
    runner = Runner(tree, tests, cargo)
    if broken := [test for test in sorted(tests) if not runner.passes(test, "")]:
        cache.fail("these tests fail without any fault:", *broken)
    alive = 0
    for mutation in mutations:
        start = time.monotonic()
        if mutation.key in failed:
            verdict = "could not apply"
        else:
            survived = [test for test in mutation.tests if runner.passes(test, mutation.key)]
            alive += bool(survived)
            verdict = f"SURVIVED {', '.join(survived)}" if survived else "killed"
        print(
            f"{mutation.key:<20}{' '.join(mutation.cases):<22}{time.monotonic() - start:5.0f} s  {verdict}", flush=True
        )
    print(f"{len(applied) - alive} of {len(mutations)} faults are killed")
    return 1 if alive or failed else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        cache.fail("interrupted")
