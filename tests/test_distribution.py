"""The build by pip and the checks of a wheel: what is missing is said in a line, and no license is lost.

Owns: build_backend.py, notice.py and distribution.py as far as nothing is compiled. Does not own: the wheel itself,
which `make dist` builds and tests.
"""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports one of the scripts, with a cache of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("FASTCHANGELOG_CACHE", str(tmp_path / "cache"))

    def load(name: str) -> ModuleType:
        for known in (ROOT / "scripts").glob("*.py"):
            monkeypatch.delitem(sys.modules, known.stem, raising=False)
        return importlib.import_module(name)

    return load


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without cargo and compiler; the folder is on its PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CXX", "LIBCLANG_PATH", "BINDGEN_EXTRA_CLANG_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "bin"


def test_the_build_names_what_is_missing(script: Any, bare: Path) -> None:
    backend = script("build_backend")
    rust, compiler = backend.missing(compiles=True)
    assert rust.startswith("missing: Rust 1.")
    assert "rustup.rs" in rust
    assert compiler.startswith("missing: a compiler that knows C++20")
    assert backend.missing(compiles=False) == [rust]
    with pytest.raises(SystemExit, match="missing: Rust"):
        backend.get_requires_for_build_wheel()


def test_the_build_names_what_is_too_old(script: Any, bare: Path) -> None:
    program(bare / "cargo", "echo 'cargo 1.80.1 (376290515 2024-07-16)'")
    old = program(bare / "c++", "exit 1")
    rust, compiler = script("build_backend").missing(compiles=True)
    assert "cargo is of Rust 1.80; run: rustup update stable" in rust
    assert f"{old} does not know it" in compiler


def test_the_build_names_another_platform(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = script("build_backend")
    monkeypatch.setattr(backend.sys, "platform", "win32")
    monkeypatch.setattr(backend.platform, "system", lambda: "Windows")
    assert backend.missing(compiles=True) == ["fastchangelog runs on Linux, and in part on macOS; this is Windows"]


def test_the_build_leaves_what_the_user_has_set(script: Any, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = script("build_backend")
    monkeypatch.setattr(backend.platform, "machine", lambda: "x86_64")
    assert len(backend.libclang()) == 1
    monkeypatch.setenv("LIBCLANG_PATH", "/elsewhere")
    monkeypatch.setenv("CXX", "clang++")
    assert backend.libclang() == []
    assert backend.compilers() == {}


def test_the_grouping_compiler_calls_the_compiler_behind_it(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouping = script("build_backend").grouping(tmp_path / "a folder")
    monkeypatch.setenv("FASTCHANGELOG_CXX", str(program(tmp_path / "real", 'echo "real: $*"')))
    done = subprocess.run([grouping, "-v", "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == "real: -v a b\n"


def test_the_sdist_contains_the_backend_and_its_files() -> None:
    tree = ast.parse((ROOT / "scripts" / "build_backend.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    used = {"build_backend.py", "unity_cxx.py", *(f"{name}.py" for name in imported)}
    text = (ROOT / "pyproject.toml").read_text()
    for path in sorted((ROOT / "scripts").glob("*.py")):
        listed = f'{{ path = "scripts/{path.name}", format = "sdist" }}' in text
        assert listed == (path.name in used), path.name


@pytest.mark.parametrize(
    ("found", "library", "refused"),
    [
        ("manylinux_2_28", "libgcc_s.so.1", None),
        ("manylinux_2_17", "libgcc_s.so.1", None),
        ("manylinux_2_35", "libgcc_s.so.1", "auditwheel finds manylinux_2_35"),
        ("linux", "libgcc_s.so.1", "auditwheel finds linux"),
        ("manylinux_2_28", "libm.so.6", "does not use libgcc_s.so.1"),
    ],
)
def test_a_wheel_for_a_newer_glibc_or_unwinder_is_refused(
    script: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], found: str, library: str, refused: str | None
) -> None:
    distribution = script("distribution")
    tag = f"{found}_{distribution.MACHINE}"
    shown = {"overall_tag": tag, "versioned_symbols": {library: []}}
    tools = program(tmp_path / "python", f"echo '{json.dumps(shown)}'")
    program(tmp_path / "abi3audit", "")
    wheel = tmp_path / f"fastchangelog-0.1.0-cp310-abi3-{distribution.TAG}.whl"
    if refused is None:
        assert distribution.audit(tools, wheel) == tag
    else:
        with pytest.raises(SystemExit):
            distribution.audit(tools, wheel)
        assert refused in capfd.readouterr().err


def test_tests_that_are_left_out_exist(script: Any) -> None:
    distribution = script("distribution")
    for name in distribution.NEED_SOURCES:
        file, _, function = name.partition("::")
        assert function in (ROOT / file).read_text(), name
    assert f"tests/{Path(__file__).name}" in distribution.NEED_SOURCES
    assert all((ROOT / name).exists() for name in distribution.BESIDE_TESTS)


def crate(folder: Path, name: str, source: str | None = "registry") -> dict[str, Any]:
    (folder / name).mkdir()
    return {"name": name, "version": "1.0", "source": source, "manifest_path": str(folder / name / "Cargo.toml")}


def test_each_text_of_a_license_is_in_the_notice_once(script: Any, tmp_path: Path) -> None:
    notice = script("notice")
    ours, one, two = crate(tmp_path, "ours", None), crate(tmp_path, "one"), crate(tmp_path, "two")
    (tmp_path / "one" / "NOTICE.txt").write_text("Thanks to one.\n")
    for file in notice.RUNTIME.values():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("the text of the runtime")
    found = {
        "crates": [{"package": package} for package in (ours, one, two)],
        "licenses": [
            {"id": "MIT", "text": "may be used\n", "used_by": [{"crate": one}, {"crate": ours}]},
            {"id": "ISC", "text": "  may be used  \n\n", "used_by": [{"crate": two}]},
            {"id": "Apache-2.0", "text": "ours alone", "used_by": [{"crate": ours}]},
        ],
    }
    text = notice.rendered([*notice.texts(found, tmp_path), *notice.notices(found)])
    assert text.count("may be used") == 1
    assert "ISC, MIT:\none 1.0, two 1.0\n" in text
    assert "ours" not in text
    assert text.count("the text of the runtime") == 1
    assert "Thanks to one." in text


def test_versions_of_libraries_are_those_of_their_crates(script: Any) -> None:
    notice = script("notice")
    versions = {"librocksdb-sys": "0.19.0+11.8.1", "lz4-sys": "1.11.1+lz4-1.10.0", "zstd-sys": "2.1.2+zstd.1.5.7"}
    packages = [{"package": {"name": n, "version": v, "source": "registry"}} for n, v in versions.items()]
    components = notice.libraries({"crates": packages}, "22.1.8")["components"]
    found = {component["name"]: component["purl"] for component in components}
    assert found["RocksDB"] == "pkg:github/facebook/rocksdb@v11.8.1"
    assert found["LZ4"] == "pkg:github/lz4/lz4@v1.10.0"
    assert found["Zstandard"] == "pkg:github/facebook/zstd@v1.5.7"
    assert found["libc++abi"] == "pkg:github/llvm/llvm-project@llvmorg-22.1.8"
