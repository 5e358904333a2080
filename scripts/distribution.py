"""What is uploaded to PyPI, built and checked: `make dist` leaves the sdist and the wheel in $FASTCHANGELOG_CACHE/dist.

Owns: the wheel is built from the sdist, so nothing that a build needs is missing there; auditwheel agrees with its
manylinux tag; in a new virtual environment with nothing but its dependencies it passes `SMOKE`.
Does not own: the compiler and the packages (setup.py), uploading.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import setup

DIST = setup.CACHE / "dist"
SMOKE = """
import sys, fastchangelog as fc
root = sys.argv[1]
with fc.open_state(root) as st:
    visits = st.value_state("visits", key="string", value="long")
    visits["ann"] = 3
    st.checkpoint()
with fc.open_state(root) as st:
    assert st.value_state("visits", key="string", value="long")["ann"] == 3
"""


def build(scratch: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    maturin: list[str | Path] = [setup.VENV_PYTHON, "-m", "maturin"]
    setup.run(*maturin, "sdist", "--out", DIST, **setup.build_env())
    (sdist,) = DIST.glob("*.tar.gz")
    shutil.unpack_archive(sdist, scratch)
    for path in scratch.rglob("*"):  # cargo would take old files for those that it has compiled already
        path.touch()
    (sources,) = scratch.iterdir()
    # Without --locked: the sdist leaves out packages of the workspace, and cargo drops those from its Cargo.lock.
    flags: list[str | Path] = ["--release", "--compatibility", "pypi", "--auditwheel", "check"]
    flags += ["--interpreter", setup.VENV_PYTHON]
    setup.run("env", "-C", sources, *maturin, "build", *flags, "--out", DIST, **setup.build_env())
    (wheel,) = DIST.glob("*.whl")
    return sdist, wheel


def audit(wheel: Path) -> str:
    """The platform tag of the wheel's name; ends with a line if auditwheel finds another one."""
    command = [str(setup.VENV_PYTHON), "-m", "auditwheel", "show", "--json", str(wheel)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    tags = wheel.stem.split("-")[-1].split(".")
    if found["overall_tag"] not in tags:
        setup.fail(f"{wheel.name} is tagged {tags}, and auditwheel finds {found['overall_tag']}")
    return str(found["overall_tag"])


def try_out(wheel: Path) -> None:
    """Installs the wheel into a new environment and runs `SMOKE` and the command there."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "venv")
        setup.run(sys.executable, "-m", "venv", folder)
        python = folder / "bin" / "python"
        setup.pip("install", "--quiet", wheel, python=python)
        setup.run(python, "-I", "-c", SMOKE, f"file://{scratch}/state")
        setup.run(folder / "bin" / "fastchangelog", "--version")


def main() -> int:
    """See the text at the top of this file."""
    setup.check(need_java=False)
    with setup.locked():
        setup.make(build=True, wheel=False)
        setup.say("sdist, and the wheel from it")
        with tempfile.TemporaryDirectory() as scratch:
            sdist, wheel = build(Path(scratch))
    tag = audit(wheel)
    try_out(wheel)
    for file in (sdist, wheel):
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    print(f"{tag}: checked by auditwheel; installs and runs in a new environment of Python {platform.python_version()}")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        setup.fail("interrupted")
