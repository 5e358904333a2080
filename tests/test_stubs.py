"""The stub of the compiled part says what the binary has: names, signatures, defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fastchangelog import _internal


def test_the_stub_is_proven_against_the_binary() -> None:
    package = Path(_internal.__file__ or "").parent.parent
    command = [sys.executable, "-m", "mypy.stubtest", "fastchangelog._internal", "--concise"]
    command += ["--mypy-config-file", str(Path(__file__).parent.parent / "pyproject.toml")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=package, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_binary_is_an_optimised_one() -> None:
    info = _internal.build_info()
    assert info["profile"] == "release"
    assert info["version"] == _internal.__version__
