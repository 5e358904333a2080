"""The conformance cases and the list of faults (`scripts/mutations.txt`): they must not rot between the runs of
`scripts/mutations.py`.

Owns: that every case has a row and a test, every fault still its place and its tests, and how faults are put in. Does
not own: whether the tests see them; that takes a build, and is what the script is for.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FAULTS_THAT_LOSE_DATA = {"X-01", "X-02", "X-03", "X-06"}


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, loaded)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("mutations", monkeypatch)


@pytest.fixture
def conformance(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("conformance", monkeypatch)


def test_every_case_has_a_row_and_a_test(conformance: ModuleType) -> None:
    assert conformance.unjudged((ROOT / "docs" / "conformance.md").read_text()) == []
    assert sorted(set(conformance.cases()) - conformance.tested()) == []
    page = "| W | 2 | writer |\n| W-01 | a |\n| W-01 | b |\n| Q-01 | c |\n"
    assert [line.split(":")[0] for line in conformance.unjudged(page)] == ["Q-01", "W-01", "W-02"]


def test_every_fault_has_one_place_and_a_switch(mutations: ModuleType) -> None:
    keys = [mutation.key for mutation in mutations.MUTATIONS]
    assert len(set(keys)) == len(keys)
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for mutation in mutations.MUTATIONS:
        for edit in mutation.edits:
            at = mutations.place(edit, (ROOT / edit.file).read_text())
            assert at >= 0, f"{mutation.key}: `{edit.old}` is not in {edit.file} exactly once"
            assert re.search(r"\bMUTANT\b", edit.new), f"{mutation.key} is always on"
            spans.setdefault(edit.file, []).append((at, at + len(edit.old), mutation.key))
    for file, places in spans.items():
        places.sort()
        for (_, end, one), (start, _, other) in itertools.pairwise(places):
            assert end <= start, f"{one} and {other} change the same text of {file}"


def test_every_fault_has_tests_that_exist(mutations: ModuleType) -> None:
    rust = {name for path in (ROOT / "rust").rglob("*.rs") for name in re.findall(r"fn (\w+)", path.read_text())}
    for mutation in mutations.MUTATIONS:
        assert mutation.tests, f"{mutation.key} has no test"
        for test in mutation.tests:
            file, _, name = test.rpartition("::")
            if mutations.is_python(test):
                assert f"def {name}(" in (ROOT / file).read_text(), f"{mutation.key}: no test {test}"
            else:
                assert name in rust, f"{mutation.key}: no test {test}"


def test_every_case_that_flink_is_not_tested_by_has_a_fault(mutations: ModuleType, conformance: ModuleType) -> None:
    wanted = {f"A-{case[1:]}" for case in conformance.cases() if case.startswith("a")}
    covered = {case for mutation in mutations.MUTATIONS for case in mutation.cases}
    assert sorted((wanted | FAULTS_THAT_LOSE_DATA) - covered) == []


def test_the_list_is_read_as_it_explains_itself(mutations: ModuleType) -> None:
    lines = ["# a note", "[k] A-01 X-02", "what is", "wrong", "@ f", "- old", "-   more", "+ new", "@ g", "- x", "+ y"]
    first, second = mutations.parse("\n".join([*lines, "? one", "? two", "", "[l] B", "z"]))
    assert (first.key, first.cases, first.fault, first.tests) == (
        "k",
        ["A-01", "X-02"],
        "what is wrong",
        ["one", "two"],
    )
    assert [(edit.file, edit.old, edit.new) for edit in first.edits] == [("f", "old\n  more", "new"), ("g", "x", "y")]
    assert (second.key, second.fault, second.edits) == ("l", "z", [])


def test_faults_are_chosen_by_case_or_name(mutations: ModuleType) -> None:
    assert mutations.chosen([]) == list(mutations.MUTATIONS)
    assert [m.key for m in mutations.chosen(["x03-direct"])] == ["x03-direct"]
    assert {m.key for m in mutations.chosen(["X-03", "a-14"])} >= {"x03-direct", "x17-32-bit"}
    with pytest.raises(SystemExit):
        mutations.chosen(["X-99"])


def test_a_fault_is_off_unless_it_is_named(
    mutations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in {"rust/format/src/lib.rs": "a\n", "rust/format/Cargo.toml": "b\n", "m.py": "x = 1\n"}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    good = mutations.Mutation("good", [], edits=[mutations.Edit("m.py", "x = 1", "x = 2 if MUTANT else 1")])
    bad = mutations.Mutation("bad", [], edits=[mutations.Edit("m.py", "y", "MUTANT")])
    failed = mutations.apply(tmp_path, [good, bad])
    assert failed == ["bad"]
    for fault, value in (("", 1), ("other", 1), ("good", 2)):
        monkeypatch.setenv(mutations.VARIABLE, fault)
        found: dict[str, Any] = {}
        exec((tmp_path / "m.py").read_text(), found)
        assert found["x"] == value
    assert mutations.condition(good, "rust/format/src/lib.rs") == 'crate::mutant("good")'
    assert mutations.condition(good, "rust/log/src/lib.rs") == 'fastchangelog_format::mutant("good")'
    assert mutations.VARIABLE in (tmp_path / "rust/format/src/lib.rs").read_text()


def test_a_tree_with_changes_is_refused_and_a_copy_goes_away(mutations: ModuleType, tmp_path: Path) -> None:
    root, tree = tmp_path / "root", tmp_path / "tree"
    root.mkdir()

    def git(*arguments: str) -> None:
        names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *names, *arguments], cwd=root, check=True, capture_output=True)

    git("init")
    (root / "file").write_text("committed")
    git("add", ".")
    git("commit", "-m", "one")
    assert not mutations.is_dirty(root)
    with pytest.raises(KeyError), mutations.copy_of(root, tree):
        assert (tree / "file").read_text() == "committed"
        raise KeyError
    assert not tree.exists()
    (root / "other").write_text("new")
    assert mutations.is_dirty(root)
