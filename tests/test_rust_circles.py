"""The check for circles of Rust modules (`scripts/rust_circles.py`), on small made-up crates.

Owns: which imports count, and the reported circles. Does not own: the crates of this repository, which `make lint`
checks.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def rust_circles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("rust_circles")


def crate(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / "src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def lines(rust_circles: ModuleType, folder: Path, files: dict[str, str]) -> list[list[str]]:
    """The circles of a crate with these files: `file:line: path` of each import."""
    found = rust_circles.circles(rust_circles.modules_of(crate(folder, files)))
    return [
        [f"{one.file.relative_to(folder / 'src')}:{one.line}: {one.text}" for places in circle for one in places]
        for circle in found
    ]


def test_two_files_that_use_each_other_are_a_circle(
    rust_circles: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a.rs": "use crate::b::B;\npub struct A(B);\n",
        "b.rs": "\nuse super::a::A;\npub struct B(Box<A>);\n",
    }
    assert lines(rust_circles, tmp_path, files) == [["a.rs:1: crate::b::B", "b.rs:2: super::a::A"]]
    assert rust_circles.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "modules that import each other:",
        f"  {tmp_path}/src/a.rs:1: crate::b::B",
        f"  {tmp_path}/src/b.rs:2: super::a::A",
    ]


def test_a_crate_without_a_circle_passes(
    rust_circles: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\nmod c;\n",
        "a.rs": "use crate::{b::B, c::C};\n",
        "b.rs": "use crate::c::C;\npub struct B;\n",
        "c.rs": "use std::fmt;\npub struct C;\n",
    }
    assert rust_circles.main([str(crate(tmp_path, files))]) == 0
    assert capsys.readouterr().out == ""


def test_a_circle_of_folders_counts_without_one_of_files(rust_circles: ModuleType, tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod shard;\n",
        "shard/mod.rs": "mod seal;\nmod session;\nmod sweep;\n",
        "shard/seal.rs": "use super::session::Hints;\npub fn seal() {}\n",
        "shard/sweep.rs": "use crate::shard::session;\npub fn sweep() -> session::Hints {}\n",
        "shard/session/mod.rs": "mod commit;\nmod hints;\npub use hints::Hints;\n",
        "shard/session/commit.rs": "use crate::shard::seal::seal;\n",
        "shard/session/hints.rs": "pub struct Hints;\n",
    }
    assert lines(rust_circles, tmp_path, files) == [
        ["shard/seal.rs:1: super::session::Hints", "shard/session/commit.rs:1: crate::shard::seal::seal"]
    ]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("use crate::{\n    c::C,\n    b::{self, B as Other},\n};", "crate::b::B"),
        ("pub(crate) use crate::b::B;", "crate::b::B"),
        ("use crate::b::*;", "crate::b::*"),
        ("fn f() { crate::b::f() }", "crate::b::f"),
        ("use crate::b;\nfn f() { b::f() }", "b::f"),
        ("use crate::c::B;", "crate::c::B"),
        ("use crate::c::renamed::f;", "crate::c::renamed::f"),
        ("mod inner { use super::super::b::B; }", "super::super::b::B"),
        ("fn f<'a>(c: char) -> &'a str { if c == '\"' { crate::b::f() } }", "crate::b::f"),
        ("#[cfg(test)]\nfn t<A, B>() {}\nuse crate::b::B;", "crate::b::B"),
    ],
)
def test_every_form_of_an_import_counts(rust_circles: ModuleType, tmp_path: Path, source: str, path: str) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\nmod c;\n",
        "a.rs": f"{source}\npub struct A;\n",
        "b.rs": "use crate::a::A;\npub struct B;\npub fn f() {}\n",
        "c.rs": "pub use crate::b::B;\npub use crate::b as renamed;\npub struct C;\n",
    }
    [found] = lines(rust_circles, tmp_path, files)
    assert path in [line.split(": ")[1] for line in found if line.startswith("a.rs")]


@pytest.mark.parametrize(
    "source",
    [
        "// crate::b::f()",
        "/// See [`crate::b::B`].",
        "/* use crate::b::B; */",
        'const TEXT: &str = "crate::b::f()";',
        'const TEXT: &str = r#"a " crate::b::f()"#;',
        "#[cfg(test)]\nuse crate::b::B;",
        "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}",
        '#[cfg(test)]\n#[path = "a_tests.rs"]\nmod tests;',
        "use crate::b;",
        "use b::B;",
        "use other::b::B;",
        "pub(in crate::b) struct C;",
    ],
)
def test_what_only_looks_like_an_import_does_not_count(rust_circles: ModuleType, tmp_path: Path, source: str) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a.rs": f"{source}\npub struct A;\n",
        "b.rs": "use crate::a::A;\npub struct B;\npub fn f() {}\n",
    }
    assert lines(rust_circles, tmp_path, files) == []


def test_a_parent_and_its_children_are_no_circle(rust_circles: ModuleType, tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod shard;\n",
        "shard.rs": "mod lineage;\nmod replay;\nuse lineage::Lineage;\npub struct Shard(Lineage, replay::Replay);\n",
        "shard/lineage.rs": "pub struct Lineage;\n",
        "shard/replay.rs": "use super::Shard;\nuse super::lineage::Lineage;\npub struct Replay;\n",
    }
    assert lines(rust_circles, tmp_path, files) == []


def test_a_module_may_lie_at_a_path_of_its_own(rust_circles: ModuleType, tmp_path: Path) -> None:
    files = {
        "lib.rs": '#[path = "elsewhere/a.rs"]\npub(crate) mod a;\nmod b;\n',
        "elsewhere/a.rs": "use crate::b::B;\npub struct A;\n",
        "b.rs": "use crate::a::A;\npub struct B;\n",
    }
    assert lines(rust_circles, tmp_path, files) == [["elsewhere/a.rs:1: crate::b::B", "b.rs:1: crate::a::A"]]


def test_many_imports_of_one_pair_are_cut_short(
    rust_circles: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a.rs": "".join(f"use crate::b::B{n};\n" for n in range(5)) + "pub struct A;\n",
        "b.rs": "use crate::a::A;\n",
    }
    assert rust_circles.main([str(crate(tmp_path, files))]) == 1
    out = capsys.readouterr().out
    assert out.count("a.rs:") == rust_circles.SHOWN
    assert "and 2 more between these two" in out
