"""The PEP 517 backend: maturin's, so that `pip install` of the sdist needs no more than Rust and a C++ compiler.

Owns: libclang as a requirement of the build, the environment in which RocksDB and its bindings are compiled, and one
line for each thing that the build needs and does not find.
Does not own: the build itself (maturin), finding compilers (prerequisites.py), the set-up of a clone (setup.py).

The sdist contains this file and those that it imports or runs: pyproject.toml lists them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import prerequisites

ROOT = Path(__file__).resolve().parent.parent
#: The machines for which libclang can be installed. On others bindgen looks for one that the system has.
LIBCLANG_MACHINES = ("x86_64", "aarch64")
#: RocksDB is C++20.
CXX20 = "#include <concepts>\n#include <span>\nint size(std::span<int> s) { return static_cast<int>(s.size()); }\n"


def missing(*, compiles: bool) -> list[str]:
    """One line for each thing that the build needs and does not find."""
    if sys.platform not in ("linux", "darwin"):
        system = platform.system() or sys.platform
        return [f"fastchangelog runs on Linux, and in part on macOS; this is {system}"]
    lines = []
    want = prerequisites.min_rust(ROOT)
    have = cargo_version()
    if have is None or have < want:
        update = f"cargo is of Rust {have[0]}.{have[1]}; run: rustup update stable" if have else ""
        found = update or "no cargo that works was found; see https://rustup.rs"
        lines.append(f"missing: Rust {want[0]}.{want[1]} or newer, to compile fastchangelog ({found})")
    compiler = prerequisites.cxx()
    if compiles and not knows_cxx20(compiler):
        found = f"{compiler} does not know it; GCC 11 does" if compiler else "none found; on Debian: apt install g++"
        lines.append(f"missing: a compiler that knows C++20, to compile RocksDB ({found})")
    return lines


def cargo_version() -> tuple[int, int] | None:
    """The release of Rust that cargo belongs to."""
    cargo = prerequisites.cargo()
    if cargo is None:
        return None
    done = subprocess.run([cargo, "--version"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = re.match(r"cargo (\d+)\.(\d+)", done.stdout)
    return (int(found.group(1)), int(found.group(2))) if found else None


def knows_cxx20(compiler: str | None) -> bool:
    """True when the compiler compiles a few lines of C++20."""
    if compiler is None:
        return False
    command = [compiler, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
    try:
        return subprocess.run(command, input=CXX20.encode(), capture_output=True).returncode == 0
    except OSError:
        return False


def libclang() -> list[str]:
    """The requirement of the build that brings bindgen's parser, unless the user names one in LIBCLANG_PATH."""
    if os.environ.get("LIBCLANG_PATH") or platform.machine() not in LIBCLANG_MACHINES:
        return []
    return ["libclang>=16"]


def prepare(*, compiles: bool) -> Any:
    """maturin's backend, in an environment that it can build in; ends with a line for each thing that is missing."""
    if lines := missing(compiles=compiles):
        raise SystemExit("\n".join(lines))
    # maturin warns of every other backend, this one too.
    os.environ["MATURIN_NO_MISSING_BUILD_BACKEND_WARNING"] = "1"
    os.environ["PATH"] = os.pathsep.join([str(Path(str(prerequisites.cargo())).parent), os.environ.get("PATH", "")])
    if compiles:
        os.environ.update(compilers())
    return importlib.import_module("maturin")


def compilers() -> dict[str, str]:
    """The variables that RocksDB and its bindings are compiled with; those that the user has set stay."""
    env = {}
    found = importlib.util.find_spec("clang")
    if not os.environ.get("LIBCLANG_PATH") and found is not None and found.submodule_search_locations:
        env["LIBCLANG_PATH"] = str(Path(found.submodule_search_locations[0], "native"))
        include = prerequisites.clang_include(prerequisites.cxx())
        if include and not os.environ.get("BINDGEN_EXTRA_CLANG_ARGS"):
            env["BINDGEN_EXTRA_CLANG_ARGS"] = shlex.join([f"-I{include}"])
    if not os.environ.get("CXX"):
        env |= {"CXX": str(grouping(ROOT / "target" / "cxx")), "FASTCHANGELOG_CXX": str(prerequisites.cxx())}
    return env


def grouping(folder: Path) -> Path:
    """A program in the folder that runs unity_cxx.py, which compiles RocksDB's sources in groups."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "c++"
    python, script = shlex.quote(sys.executable), shlex.quote(str(ROOT / "scripts" / "unity_cxx.py"))
    program.write_text(f'#!/bin/sh\nexec {python} {script} "$@"\n')
    program.chmod(0o755)
    return program


# The hooks.


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What maturin requires, and libclang."""
    backend = prepare(compiles=True)
    return [*backend.get_requires_for_build_wheel(config_settings), *libclang()]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """The same as for a wheel."""
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What maturin requires."""
    required: list[str] = prepare(compiles=False).get_requires_for_build_sdist(config_settings)
    return required


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """maturin's, which compiles nothing."""
    backend = prepare(compiles=False)
    return str(backend.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """The same as for a wheel."""
    return prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """maturin's wheel."""
    return str(prepare(compiles=True).build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """maturin's wheel that points to the sources."""
    return str(prepare(compiles=True).build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """maturin's sdist."""
    return str(prepare(compiles=False).build_sdist(sdist_directory, config_settings))
