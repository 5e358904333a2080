"""The stub of the compiled part says what the binary has: names, signatures, defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fastchangelog import _internal, functions

ROOT = Path(__file__).resolve().parent.parent


def test_the_stub_is_proven_against_the_binary(tmp_path: Path) -> None:
    # In a package of its own: what else is wrong with types elsewhere is mypy's to say, not this test's.
    binary = Path(_internal.__file__ or "").resolve()
    package = tmp_path / "fastchangelog"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / binary.name).symlink_to(binary)
    (package / "_internal.pyi").symlink_to(ROOT / "python" / "fastchangelog" / "_internal.pyi")
    command = [sys.executable, "-m", "mypy.stubtest", "fastchangelog._internal", "--concise"]
    command += ["--mypy-config-file", str(ROOT / "pyproject.toml")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_type_checker_knows_every_function(tmp_path: Path) -> None:
    """As an attribute of the package, where `__all__` leaves it out."""
    program = tmp_path / "program.py"
    names = [name for name in functions.__all__ if name != "Aggregate"]
    lines = [f"{name}_: Callable[..., fc.Aggregate] = fc.{name}\n" for name in names]
    program.write_text("from collections.abc import Callable\nimport fastchangelog as fc\n" + "".join(lines))
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--follow-imports", "silent"]
    command += ["--ignore-missing-imports", str(program)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_binary_tells_its_version() -> None:
    assert _internal.build_info()["version"] == _internal.__version__
