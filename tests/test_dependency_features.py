"""The wheel and the tests compile third-party crates with the same features and flags, so that each is compiled once.

Owns: the comparison of what cargo resolves for both. Does not own: the features (`rust/workspace-hack/Cargo.toml`).
"""

from __future__ import annotations

import itertools
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
#: What each command compiles, and the kinds of its dependencies beside those of build scripts.
WHEEL = (["-p", "fastchangelog-pyext"], "normal")
TESTS = (["--workspace", "--exclude", "fastchangelog-pyext"], "normal,dev")
SET_UP = (["-p", "fastchangelog-server"], "normal")


def features(packages: list[str], kinds: str) -> dict[str, set[str]]:
    """The sets of features with which each crate and version is compiled for a selection of packages."""
    command = ["cargo", "tree", "--locked", "--offline", "--prefix", "none", "-f", "{p}|{f}", "-e", kinds, *packages]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[str, set[str]] = defaultdict(set)
    for line in printed.splitlines():
        crate, separator, enabled = line.removesuffix(" (*)").partition("|")
        if separator:
            found[crate].add(enabled.removesuffix(" (*)"))
    return found


def pairs(found: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Each crate with each of its sets of features."""
    return {(crate, enabled) for crate, sets in found.items() for enabled in sets}


def test_wheel_and_tests_compile_crates_with_equal_features() -> None:
    wheel, tests = (features(packages, f"{kinds},build") for packages, kinds in (WHEEL, TESTS))
    common = wheel.keys() & tests.keys()
    assert len(common) > 100, "cargo lists the dependencies"
    # A build script's dependency is compiled for itself, so the tests may have another set beside the wheel's.
    differing = {crate: (wheel[crate], tests[crate]) for crate in sorted(common) if not wheel[crate] <= tests[crate]}
    assert not differing, f"add the union to rust/workspace-hack/Cargo.toml: {differing}"


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations((WHEEL, TESTS, SET_UP), 2)))
def test_no_crate_is_for_build_scripts_in_one_command_only(one: Any, other: Any) -> None:
    # Its flags differ, so that all above it is compiled twice. With other features it is compiled apart anyway.
    (packages, kinds), (others, of_others) = one, other
    linked = pairs(features(packages, f"{kinds},no-proc-macro"))
    of_build_scripts = pairs(features(packages, f"{kinds},build")) - linked
    assert of_build_scripts, "cargo lists the dependencies"
    differing = sorted(of_build_scripts & pairs(features(others, f"{of_others},no-proc-macro")))
    assert not differing, f"add to [dependencies] of rust/workspace-hack/Cargo.toml: {differing}"
