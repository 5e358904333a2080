"""Everything from nothing: interpreter, packages, RocksDB, extension module, and commands that run with them.

    setup.py python [ARG…]   run an interpreter that imports the package of this tree; without arguments print it
    setup.py tool NAME ARG…  run a tool of the virtual environment, or the interpreter, without building the module
    setup.py cargo ARG…      run cargo with the environment that RocksDB's crate needs
    setup.py rust-tests ARG… run `cargo test`, unless its tests have passed with the same sources
    setup.py test ARG…       run Rust tests when the first argument is -p, Python tests otherwise
    setup.py wheel           build a wheel for this machine, as a release is built; prints its path
    setup.py develop ARG…    maturin develop, into the virtual environment that is active
    setup.py cargo-tool NAME [ARG…]  run a tool of cargo from the table CARGO_TOOLS, compiled when it is first needed;
                             without arguments print where it is

FASTCHANGELOG_PROFILE is `dev` (the default: quick to compile, with assertions) or `release`, the profile of a released
wheel with RocksDB compiled from its sources.

Owns: the order of the steps, the extension module, and these parts of the cache folder:

    libclang/       bindgen's parser. Its path must not move: RocksDB's crate is compiled again when it does.
    cxx/            the compiler of RocksDB, unity_cxx.py. The same holds for its path.
    target/         cargo's folder
    cargo-tools/    cargo-deny and the like, each in a folder of its own
    wheels/         the newest wheel
    azurite/        the Azure server of tests/stores, installed by those tests when there is npm

Does not own: the cache folder itself (cache.py), Python's side (environment.py), RocksDB's library (rocksdb.py), which
command runs when (Makefile).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import cache
import environment
import prerequisites
import rocksdb
from cache import CACHE, ROOT, fail, say, step

LIBCLANG = CACHE / "libclang"
CXX = CACHE / "cxx" / "c++"
PACKAGE = ROOT / "python" / "fastchangelog"
EXTENSION = PACKAGE / "_internal.abi3.so"
PROFILE = os.environ.get("FASTCHANGELOG_PROFILE") or "dev"
#: Cargo's sources. The package in Python is used in place.
SOURCES = (ROOT / "Cargo.toml", ROOT / "Cargo.lock", ROOT / "rust")
#: Tools of cargo that no compiler brings, and their versions.
CARGO_TOOLS = {"deny": "0.20.2", "fuzz": "0.13.2", "machete": "0.9.2", "mutants": "27.1.0"}


# What cargo needs.


def make_libclang() -> None:
    """libclang for bindgen, unless the user brings one in LIBCLANG_PATH."""
    pin = environment.pinned("libclang")
    if os.environ.get("LIBCLANG_PATH") or cache.is_fresh("libclang", pin):
        return
    shutil.rmtree(LIBCLANG, ignore_errors=True)
    cache.run(*environment.install("--target", LIBCLANG, pin), env=environment.UV)
    cache.set_stamp("libclang", pin)


def make_cxx() -> None:
    """The compiler that compiles RocksDB's sources in groups, unless the user names one in CXX."""
    source = (ROOT / "scripts" / "unity_cxx.py").read_bytes()
    if not os.environ.get("CXX") and not (CXX.is_file() and CXX.read_bytes() == source):
        CXX.parent.mkdir(parents=True, exist_ok=True)
        CXX.write_bytes(source)
        CXX.chmod(0o755)


def build_env(profile: str = PROFILE) -> dict[str, str]:
    """The variables of cargo. They must not change from run to run: RocksDB's crate is compiled again when they do."""
    env = {"CARGO_TARGET_DIR": str(CACHE / "target")}
    if not os.environ.get("LIBCLANG_PATH"):
        env["LIBCLANG_PATH"] = str(LIBCLANG / "clang" / "native")
        include = prerequisites.clang_include(prerequisites.cxx())
        if include and not os.environ.get("BINDGEN_EXTRA_CLANG_ARGS"):
            env["BINDGEN_EXTRA_CLANG_ARGS"] = f"-I{include}"
    if not os.environ.get("CXX"):
        env |= {"CXX": str(CXX), "FASTCHANGELOG_CXX": str(prerequisites.cxx())}
    if profile == "dev":
        env |= rocksdb.variables()
    cargo = prerequisites.cargo()
    path = [str(environment.VENV / "bin"), *([str(Path(cargo).parent)] if cargo else []), os.environ.get("PATH", "")]
    return {**env, "PATH": os.pathsep.join(path)}


def touch_changed() -> None:
    """Gives changed Rust sources a new time stamp.

    Cargo looks at times only. Copied files may carry old ones, and another clone that shares the cache may have been
    built from other contents in between.
    """
    sources = ("*.rs", "*.cc", "Cargo.toml")
    files = [ROOT / "Cargo.toml", *(file for kind in sources for file in sorted((ROOT / "rust").rglob(kind)))]
    now = {str(f.relative_to(ROOT)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    record = CACHE / "stamps" / "rust.json"
    try:
        before = json.loads(record.read_text())
        made = record.stat().st_mtime
    except (OSError, ValueError):
        before, made = {}, 0.0
    for name, value in now.items():
        if before and before.get(name) != value and (ROOT / name).stat().st_mtime <= made:
            (ROOT / name).touch()
    if now != before:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(now))


# The steps.


def make_packages() -> None:
    """The virtual environment with all packages, and what cargo needs. Compiles meanwhile what needs no package."""
    make_cxx()
    if environment.is_ready():
        make_libclang()
        rocksdb.make()
        return
    if not environment.PYTHON.exists():
        say("first run: downloads 700 MB and compiles the Rust crates, 7 minutes on two cores; later runs take seconds")
    with step("virtual environment"):
        environment.make_folder(environment.VENV)
        make_libclang()
    packages = environment.start_packages()
    crates = start_crates()
    with cache.stopping(packages, crates):
        with step("Python packages (PySpark alone is 450 MB), and the Rust crates beside them"):
            environment.finish_packages(packages)
        rocksdb.make()
        if crates is not None and rocksdb.is_wanted():
            with step("the other Rust crates"):
                cache.finish(crates)
        elif crates is not None:  # RocksDB is compiled after all: with other settings
            crates.terminate()
            crates.wait()


def start_crates() -> subprocess.Popen[bytes] | None:
    """Begins to compile the crates below the extension module, if they are linked against the library of RocksDB.

    Nothing is linked yet, so the library may still be on its way.
    """
    if PROFILE != "dev" or not rocksdb.is_wanted():
        return None
    touch_changed()
    return cache.start(*cargo("build", "--locked", "-p", "fastchangelog-server"), env=build_env())


def make_extension() -> None:
    """The extension module, inside the package of this tree, and the package in the virtual environment, in place."""
    key = extension_key(PROFILE)
    if PROFILE == "dev":
        rocksdb.put_beside(PACKAGE)
    if EXTENSION.exists() and is_installed() and cache.is_fresh("extension", key):
        return
    touch_changed()
    with step(f"extension module, profile {PROFILE}"):
        develop_with(environment.VENV, ["--profile", PROFILE, "--uv"])
    cache.set_stamp("extension", extension_key(PROFILE))


def extension_key(profile: str) -> str:
    """A fingerprint of all that the extension module is made from. It has its own contents, too: another profile, and
    another clone that shares the cache, are noticed."""
    module = EXTENSION.stat() if EXTENSION.exists() else None
    made = (module.st_size, module.st_mtime_ns) if module else ()
    return cache.fingerprint(*SOURCES, str(ROOT), profile, rustc(), str(made), str(rocksdb.variables()))


def is_installed() -> bool:
    """True when the virtual environment has the package of this tree, and not that of another clone."""
    links = environment.VENV.glob("lib/python*/site-packages/fastchangelog.pth")
    return any(Path(link.read_text().strip()) == PACKAGE.parent for link in links)


def develop_with(venv: Path, flags: list[str]) -> None:
    """maturin develop into a virtual environment. The extension module looks for RocksDB beside itself, then in the
    cache: a test copies the module alone."""
    maturin: list[str | Path] = [environment.PYTHON, "-m", "maturin", "develop", "--locked", *flags]
    search = f"-Clink-arg=-Wl,-rpath,$ORIGIN:{rocksdb.FOLDER}"
    env = {**build_env(), "MATURIN_NO_MISSING_BUILD_BACKEND_WARNING": "1", "VIRTUAL_ENV": str(venv)}
    cache.run(*maturin, "--", search, env=env)


def rustc() -> str:
    """The version of the compiler."""
    command = ["rustc", "-vV"]
    env = {**os.environ, **build_env()}
    return subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL).stdout


def make_wheel() -> Path:
    """A release wheel of the sources as they are."""
    parts = (*SOURCES, ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE", ROOT / "python")
    key = cache.fingerprint(*parts, rustc(), environment.CONSTRAINTS)
    folder = CACHE / "wheels"
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) == 1 and cache.is_fresh("wheel", key):
        return wheels[0]
    with step("wheel (the first time compiles RocksDB: about 15 minutes on two cores)"):
        shutil.rmtree(folder, ignore_errors=True)
        touch_changed()
        maturin: list[str | Path] = [environment.PYTHON, "-m", "maturin", "build", "--release", "--locked"]
        flags: list[str | Path] = ["--interpreter", environment.PYTHON, "--compatibility", "pypi", "--out", folder]
        cache.run(*maturin, *flags, env=build_env("release"))
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        fail(f"set-up failed: maturin left {len(wheels)} wheels in {folder}, expected one")
    cache.set_stamp("wheel", key)
    return wheels[0]


def make_cargo_tool(name: str) -> str:
    """The program `cargo-NAME`, compiled from the version in CARGO_TOOLS."""
    folder = CACHE / "cargo-tools" / f"{name}-{CARGO_TOOLS[name]}"
    program = folder / "bin" / f"cargo-{name}"
    if not program.exists():
        with step(f"cargo-{name} {CARGO_TOOLS[name]}, compiled once"):
            # Without optimization: it compiles in a third of the time, and runs for seconds.
            package = f"cargo-{name}@{CARGO_TOOLS[name]}"
            flags: list[str | Path] = ["--quiet", "--locked", "--debug", "--root", folder]
            # Not in cargo's folder of this project: nothing is shared with it.
            env = {"CARGO_TARGET_DIR": str(folder / "target"), "CARGO_PROFILE_DEV_DEBUG": "false"}
            cache.run(*cargo("install", *flags, package), env=env)
            shutil.rmtree(folder / "target", ignore_errors=True)
    return str(program)


# The commands.


def cargo(*args: str | Path) -> list[str]:
    """A command of cargo."""
    return [str(prerequisites.cargo()), *map(str, args)]


def become(command: list[str], *env: Mapping[str, str]) -> NoReturn:
    """Replaces this process by a command."""
    sys.stdout.flush()
    merged = dict(os.environ)
    for variables in env:
        merged |= variables
    os.execve(command[0], command, merged)


def run_python(args: list[str]) -> NoReturn:
    """Runs the interpreter with the package of this tree."""
    prepare(need_java=True)
    with cache.locked():
        make_packages()
        make_extension()
        if "pytest" in args:
            environment.make_classes()
    if not args:
        print(environment.PYTHON)
        raise SystemExit
    become([str(environment.PYTHON), *args], environment.variables())


def run_tool(args: list[str]) -> NoReturn:
    """Runs a tool, such as ruff, or a script. The extension module is not needed."""
    prepare(need_java=False)
    with cache.locked():
        make_packages()
    tool = environment.VENV / "bin" / args[0] if args else environment.PYTHON
    command = [str(tool), *args[1:]] if tool.exists() else [str(environment.PYTHON), *args]
    become(command, environment.variables())


def needs_rocksdb(args: list[str]) -> bool:
    """False when all packages that `-p` names do without RocksDB: their tests need neither Python nor C++."""
    named = [after for before, after in itertools.pairwise(args) if before in ("-p", "--package")]
    if not named:
        return True
    flags = [word for name in named for word in ("-p", name)]
    tree = cargo("tree", "--locked", "--prefix", "none", "--edges", "normal,build,dev", *flags)
    listed = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return listed.returncode != 0 or re.search(r"^librocksdb-sys ", listed.stdout, re.MULTILINE) is not None


def scratch(memory: Path = Path("/dev/shm")) -> dict[str, str]:
    """TMPDIR in memory for Rust tests, where there are 2 GiB and TMPDIR names no other folder: they make so many files
    that a third of their time is the file system's."""
    if os.environ.get("TMPDIR") or not memory.is_dir() or shutil.disk_usage(memory).free < 2 << 30:
        return {}
    folder = memory / f"fastchangelog-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return {}
    return {"TMPDIR": str(folder)} if folder.stat().st_uid == os.getuid() else {}


def cargo_call(args: list[str]) -> tuple[list[str], dict[str, str]]:
    """A command of cargo and its variables, once all that it needs is there."""
    if PROFILE == "release" and args[:1] in (["build"], ["test"]):
        args.insert(1, "--release")
    needed = needs_rocksdb(args)
    prepare(need_java=False)
    with cache.locked():
        if needed:
            make_packages()
        touch_changed()
    env = build_env() if needed else {"CARGO_TARGET_DIR": str(CACHE / "target")}
    return cargo(*args), env | (scratch() if args[:1] == ["test"] else {})


def run_cargo(args: list[str]) -> NoReturn:
    """Runs cargo."""
    command, env = cargo_call(args)
    become(command, env)


def run_rust_tests(args: list[str]) -> None:
    """Runs all tests of the crates, unless they have passed with these sources."""
    command, env = cargo_call(["test", *args])
    # Model checkers are tests, too. Variables choose what random tests draw.
    sources = (*SOURCES, ROOT / "rust" / "shuttle-tests")
    chosen = sorted(pair for pair in os.environ.items() if pair[0].startswith(("FASTCHANGELOG_", "PROPTEST_")))
    key = cache.fingerprint(*sources, rustc(), str(rocksdb.variables()), str(chosen), *command[1:])
    if cache.is_fresh("rust-tests", key):
        say("Rust tests: all have passed with these sources (ARGS=--no-fail-fast runs them again)")
        return
    if code := subprocess.run(command, cwd=ROOT, env={**os.environ, **env}).returncode:
        raise SystemExit(code)
    cache.set_stamp("rust-tests", key)


def run_test(args: list[str]) -> NoReturn:
    """Runs some tests."""
    if args and args[0] in ("-p", "--package"):
        run_cargo(["test", "--locked", *args])
    run_python(["-m", "pytest", "-p", "no:cacheprovider", *args])


def run_wheel(_: list[str]) -> None:
    """Prints the path of the wheel."""
    prepare(need_java=False)
    with cache.locked():
        make_packages()
        wheel = make_wheel()
    print(wheel)


def run_develop(args: list[str]) -> None:
    """Builds the extension into the active virtual environment, for contributors: Python sources are used in place."""
    active = os.environ.get("VIRTUAL_ENV")
    if not active:
        fail(
            "make develop installs into a virtual environment, and none is active: "
            "python3 -m venv .venv && . .venv/bin/activate && make develop"
        )
    prepare(need_java=False)
    with cache.locked():
        make_packages()
        if PROFILE == "dev":
            rocksdb.put_beside(PACKAGE)
        develop_with(Path(active), ["--profile", PROFILE, "--extras", "spark,dev", *args])


def run_cargo_tool(args: list[str]) -> None:
    """Runs a tool of cargo, or prints where it is."""
    if not args or args[0] not in CARGO_TOOLS:
        fail(f"setup.py cargo-tool takes one of {', '.join(CARGO_TOOLS)} and its arguments")
    prepare(need_java=False)
    with cache.locked():
        program = make_cargo_tool(args[0])
    if len(args) == 1:
        print(program)
        return
    path = os.pathsep.join([str(Path(program).parent), os.environ.get("PATH", "")])
    become(cargo(*args), build_env(), {"PATH": path})


COMMANDS = {
    "python": run_python,
    "tool": run_tool,
    "cargo": run_cargo,
    "rust-tests": run_rust_tests,
    "test": run_test,
    "wheel": run_wheel,
    "develop": run_develop,
    "cargo-tool": run_cargo_tool,
}


def prepare(*, need_java: bool) -> None:
    """Ends with one line for each prerequisite that is missing."""
    if lines := prerequisites.missing(ROOT, CACHE, need_java=need_java):
        fail(*lines)


def main(argv: list[str]) -> int:
    """See the text at the top of this file."""
    if PROFILE not in ("dev", "release"):
        fail(f"FASTCHANGELOG_PROFILE is '{PROFILE}'; it takes 'dev' or 'release'")
    if not argv or argv[0] not in COMMANDS:
        fail(__doc__ or "")
    COMMANDS[argv[0]](argv[1:])
    return 0


if __name__ == "__main__":
    cache.guarded(main)
