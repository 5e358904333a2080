"""The wheel and the tests compile third-party crates with the same features, so that each is compiled once.

Owns: the comparison of what cargo resolves for both. Does not own: the features (`rust/workspace-hack/Cargo.toml`).
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEEL = ["-p", "fastchangelog-pyext", "-e", "normal,build"]
TESTS = ["--workspace", "--exclude", "fastchangelog-pyext", "-e", "normal,build,dev"]


def features(selection: list[str]) -> dict[str, set[str]]:
    """The sets of features with which each crate and version is compiled for a selection of packages."""
    command = ["cargo", "tree", "--locked", "--offline", "--prefix", "none", "-f", "{p}|{f}", *selection]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[str, set[str]] = defaultdict(set)
    for line in printed.splitlines():
        crate, separator, enabled = line.removesuffix(" (*)").partition("|")
        if separator:
            found[crate].add(enabled.removesuffix(" (*)"))
    return found


def test_the_wheel_and_the_tests_compile_crates_with_the_same_features() -> None:
    wheel, tests = features(WHEEL), features(TESTS)
    common = wheel.keys() & tests.keys()
    assert len(common) > 100, "cargo lists the dependencies"
    # A build script's dependency is compiled for itself, so the tests may have another set beside the wheel's.
    differing = {crate: (wheel[crate], tests[crate]) for crate in sorted(common) if not wheel[crate] <= tests[crate]}
    assert not differing, f"add the union to rust/workspace-hack/Cargo.toml: {differing}"
