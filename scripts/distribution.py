"""What is uploaded, built and checked: `make dist` leaves sdist, wheel and parts lists in $FASTCHANGELOG_CACHE/dist.

    distribution.py                   test the wheel with all tests that start no Spark
    distribution.py PYTEST-ARGUMENT…  test it with these: `tests` are all, `tests/spark/test_build.py` is one file

Owns: the wheel is built from the sdist, so nothing that a build needs is missing there; auditwheel confirms that it
runs with the glibc of `GLIBC`, and abi3audit that it runs with every Python from 3.10; it carries its licenses and the
lists of its parts; it works in new virtual environments of all Pythons that are found; tests pass with it where there
are no sources.
Does not own: the texts of the licenses (notice.py), the build of the sdist by pip (build_backend.py), uploading.

zig compiles C and C++ and links: it knows the symbols of every glibc, and links its own C++ library into the wheel. Its
unwinder is left out: glibc ends threads with that of libgcc, and two in one process crash it.
The folder $FASTCHANGELOG_CACHE/dist-build belongs to this file alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import build_backend
import cache
import environment
import notice
import prerequisites
import setup

DIST = cache.CACHE / "dist"
BUILD = cache.CACHE / "dist-build"
#: The oldest glibc that the wheel runs with: that of RHEL 8 and Debian 10.
GLIBC = (2, 28)
MACHINE = platform.machine()
TAG = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{MACHINE}"
TARGET = f"{MACHINE}-unknown-linux-gnu"
TOOLS = ("abi3audit", "auditwheel", "libclang", "maturin", "ziglang")
UNWINDER = "libgcc_s.so.1"
#: zig compiles with -O2 where -O3 is asked for, keeps frame pointers, and its wrapper asks for debug information.
FLAGS = "-g0 -fomit-frame-pointer -Xclang -O3"
MINORS = range(10, 15)
#: Tests that are about the sources, not about the wheel, and what they need.
NEED_SOURCES = {
    "tests/test_campaign.py::test_every_failpoint_is_in_the_plan_or_has_a_reason": "sources",
    "tests/test_conventions.py": "all sources",
    "tests/test_dependency_features.py": "the Rust workspace",
    "tests/test_distribution.py": "scripts",
    "tests/test_documentation.py": "all pages and sources",
    "tests/test_error_texts.py": "the Rust and Python sources",
    "tests/test_metrics.py::test_the_case_of_a_metric_that_is_elsewhere": "the Rust tests",
    "tests/test_mutations.py": "the Rust and Python sources",
    "tests/test_setup_scripts.py": "scripts",
    "tests/test_unity_cxx.py": "scripts",
}
#: What the other tests read beside themselves.
BESIDE_TESTS = ("tests", "docs", "examples", "pyproject.toml", "python/fastchangelog/_internal.pyi")
PYTEST = "-m pytest -p no:cacheprovider @tests/parallel.txt"


# The build.


def virtual_environment(name: str, *requirements: str | Path) -> Path:
    """The interpreter of an environment with packages as constraints.txt has them, made when they change."""
    folder = BUILD / name
    python = folder / "bin" / "python"
    key = cache.fingerprint(environment.CONSTRAINTS, *requirements, sys.version, sys.base_prefix)
    if not python.exists() or not cache.is_fresh(f"dist-{name}", key):
        with cache.step(f"virtual environment {folder}"):
            environment.make_folder(folder)
            cache.run(*environment.install(*requirements, python=python), env=environment.UV)
            shutil.rmtree(environment.UV["UV_CACHE_DIR"], ignore_errors=True)
        cache.set_stamp(f"dist-{name}", key)
    return python


def package(python: Path, name: str) -> Path:
    """The folder of an installed package."""
    (folder,) = python.parent.parent.glob(f"lib/python*/site-packages/{name}")
    return folder


def build_env(tools: Path) -> dict[str, str]:
    """What cargo needs. Values must not change from run to run: RocksDB is compiled again when they do."""
    cxx = BUILD / "cxx" / "zig-c++"
    cxx.parent.mkdir(parents=True, exist_ok=True)
    call = f"{tools.parent}/maturin zig c++ -- -fno-sanitize=all -target {MACHINE}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    cxx.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    cxx.chmod(0o755)
    name, zig = TARGET.replace("-", "_"), str(BUILD / "zig")
    path = [str(tools.parent), str(Path(str(prerequisites.cargo())).parent), os.environ.get("PATH", "")]
    return {
        "CARGO_TARGET_DIR": str(BUILD / "target"),
        "CARGO_ZIGBUILD_CACHE_DIR": zig,
        f"CFLAGS_{name}": FLAGS,
        f"CXXFLAGS_{name}": FLAGS,
        f"CXX_{name}": str(build_backend.grouping(cxx.parent)),
        "FASTCHANGELOG_CXX": str(cxx),
        "LIBCLANG_PATH": str(package(tools, "clang") / "native"),
        "MATURIN_NO_MISSING_BUILD_BACKEND_WARNING": "1",
        "PATH": os.pathsep.join(path),
        "ZIG_GLOBAL_CACHE_DIR": zig,
        "ZIG_LOCAL_CACHE_DIR": zig,
    }


def unwinder() -> Path:
    """libgcc's shared library. glibc needs it to end threads, so each machine with glibc has it."""
    command = [str(prerequisites.cxx()), f"-print-file-name={UNWINDER}"]
    found = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    if not found.is_absolute():
        cache.fail(f"missing: {UNWINDER}, which {command[0]} does not find; on Debian: apt install g++")
    return found.resolve()


def build(tools: Path, parts: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    env = build_env(tools)
    maturin: list[str | Path] = [tools, "-m", "maturin"]
    cache.say("sdist")
    cache.run(*maturin, "sdist", "--out", DIST, env=env)
    (sdist,) = DIST.glob("*.tar.gz")
    unpacked = BUILD / "sources"  # always the same: cargo keeps what it has compiled by the path of the sources
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(sdist, unpacked)
    for path in unpacked.rglob("*"):  # cargo would take old files for those that it has compiled already
        path.touch()
    (sources,) = unpacked.iterdir()
    cache.say("wheel from the sdist (the first time compiles RocksDB: about 20 minutes on two cores)")
    # Without --locked: the sdist leaves out packages of the workspace, and cargo drops those from its Cargo.lock.
    flags: list[str | Path] = ["--release", "--zig", "--compatibility", TAG.removesuffix(f"_{MACHINE}")]
    flags += ["--auditwheel", "check", "--interpreter", tools, "--sbom-include", parts, "--out", DIST]
    # By its path: zig takes its own library where the name of this one is given.
    cache.run("env", "-C", sources, *maturin, "build", *flags, "--", "-C", f"link-arg={unwinder()}", env=env)
    (wheel,) = DIST.glob("*.whl")
    return sdist, wheel


# The checks.


def audit(tools: Path, wheel: Path) -> str:
    """The platform tag that auditwheel finds; ends with a line if the wheel needs more than `GLIBC`, or unwinds stacks
    with another library than glibc."""
    command = [str(tools), "-m", "auditwheel", "show", "--json", str(wheel)]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = str(shown["overall_tag"])
    version = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{MACHINE}", found)
    if f"-{TAG}" not in wheel.stem or version is None or (int(version[1]), int(version[2])) > GLIBC:
        cache.fail(f"{wheel.name} is to run with {TAG}, and auditwheel finds {found}")
    if UNWINDER not in shown["versioned_symbols"]:
        cache.fail(f"{wheel.name} does not use {UNWINDER}: threads that end would crash")
    cache.run(tools.parent / "abi3audit", "--strict", wheel)
    return found


def contents(wheel: Path) -> None:
    """Ends with a line if the wheel carries no licenses or no parts lists; copies these beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for ending in ("licenses/LICENSE", f"licenses/{notice.FILE.name}", "sboms/libraries.cdx.json"):
            if not any(name.endswith(f".dist-info/{ending}") for name in names):
                cache.fail(f"{wheel.name} has no {ending}")
        lists = [name for name in names if re.search(r"\.dist-info/sboms/[^/]+\.json$", name)]
        if len(lists) != 2:
            cache.fail(f"{wheel.name} has {len(lists)} parts lists, and should have those of crates and of libraries")
        for name in lists:
            (DIST / f"{wheel.stem}.{Path(name).name}").write_bytes(archive.read(name))


def interpreters() -> dict[str, str]:
    """The Pythons on the PATH and in pyenv's folder that the wheel is for, by version."""
    found = {environment.VERSION: sys.executable}
    folder = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in MINORS:
        known = [str(path) for path in sorted(folder.glob(f"3.{minor}.*/bin/python"))]
        for candidate in filter(None, [*known, shutil.which(f"python3.{minor}")]):
            # pyenv puts programs on the PATH that end with an error.
            show = [candidate, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"]
            done = subprocess.run(show, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.stdout.strip() == f"3.{minor}":
                found.setdefault(f"3.{minor}", candidate)
    return found


def try_out(sdist: Path, wheel: Path, python: str) -> None:
    """Installs the wheel into a new environment and runs smoke.py there."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "venv")
        cache.run(python, "-m", "venv", folder)
        inside = folder / "bin" / "python"
        # By pip, as users install it.
        pip: list[str | Path] = [inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        constrained = {"PIP_CONSTRAINT": str(environment.CONSTRAINTS)}
        cache.run(*pip, wheel, env=constrained)
        cache.run(inside, "-I", cache.ROOT / "scripts" / "smoke.py")
        if python == sys.executable:  # the backend of the sdist: up to the metadata, without compiling
            cache.run(*pip, "--dry-run", "--no-deps", "--ignore-installed", sdist, env=constrained)


def environment_of_tests(wheel: Path) -> Path:
    """The interpreter with the wheel and the packages that tests need."""
    python = virtual_environment(f"tests-{environment.VERSION}", *environment.ALL)
    stamp, key = f"dist-tests-{environment.VERSION}-wheel", hashlib.sha256(wheel.read_bytes()).hexdigest()
    installed = any(python.parent.parent.glob("lib/python*/site-packages/fastchangelog"))
    if not installed or not cache.is_fresh(stamp, key):
        cache.run(*environment.install("--no-deps", "--reinstall", wheel, python=python), env=environment.UV)
        cache.set_stamp(stamp, key)
    return python


def test(python: Path, arguments: list[str]) -> None:
    """Runs tests where there are no sources; ends with a line if one fails."""
    for name, needs in NEED_SOURCES.items():
        cache.say(f"skipped: {name}, which needs {needs}")
    skipped = [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in NEED_SOURCES]
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    env.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as scratch:
        for name in BESIDE_TESTS:
            source, copy = cache.ROOT / name, Path(scratch, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, copy)
        command = [str(python), *PYTEST.split(), *skipped, *(arguments or ["tests", "-m", "not spark"])]
        done = subprocess.run(command, cwd=scratch, env=env, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        cache.fail("tests fail with the wheel")


def main(argv: list[str]) -> int:
    """See the text at the top of this file."""
    setup.prepare(need_java=bool(argv))
    with cache.locked():
        tools = virtual_environment(f"tools-{environment.VERSION}", *TOOLS)
        zig = package(tools, "ziglang")
        shown = subprocess.run([zig / "zig", "c++", "--version"], check=True, capture_output=True, text=True).stdout
        found = notice.about()
        notice.check(found, zig)
        parts = BUILD / "libraries.cdx.json"
        parts.write_text(json.dumps(notice.libraries(found, shown.split()[2]), indent=2))
        sdist, wheel = build(tools, parts)
        needs = audit(tools, wheel)
        contents(wheel)
        with_tests = environment_of_tests(wheel)
    pythons = interpreters()
    for version, python in pythons.items():
        cache.say(f"wheel in a new environment of Python {version}")
        try_out(sdist, wheel, python)
    test(with_tests, argv)
    for file in sorted(DIST.iterdir()):
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    print(f"{wheel.name}: auditwheel finds {needs}")
    for minor in MINORS:
        print(f"Python 3.{minor}: {'works' if f'3.{minor}' in pythons else 'not found on this machine, not tried'}")
    return 0


if __name__ == "__main__":
    cache.guarded(main)
