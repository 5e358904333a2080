"""Everything from nothing: interpreter, libclang, wheel, and commands that run with them.

    setup.py wheel           build the wheel if its sources changed; prints its path
    setup.py python          … and install it with all extras; prints the interpreter
    setup.py cargo ARG…      run cargo with the right environment
    setup.py venv ARG…       run the interpreter of `setup.py python`
    setup.py tool ARG…       run the interpreter with the tools, without building the wheel
    setup.py cargo-tool NAME [ARG…]  run a tool of cargo from the table CARGO_TOOLS, compiled when it is first needed;
                             without arguments print where it is
    setup.py develop ARG…    maturin develop, into the virtual environment that is active

Owns: the folder $FASTCHANGELOG_CACHE (default ~/.cache/fastchangelog), whose parts are:

    libclang/       bindgen's parser. Its path must not move: RocksDB is compiled again when it does.
    cxx/            the compiler of RocksDB, unity_cxx.py. The same holds for its path.
    target/         cargo's folder
    cargo-tools/    cargo-deny and the like, each in a folder of its own
    matrix/         interpreters with older versions of PySpark, made by spark_matrix.py
    azurite/        the Azure server of tests/stores, installed by those tests when there is npm
    venv-X.Y/       the interpreter with all dependencies and the built wheel (never an editable install)
    wheels/         the newest wheel
    spark-X.Y.jsa   Spark's classes as a JVM of that virtual environment keeps them in memory
    stamps/         what each part was made from

Does not own: what to run when (Makefile). Progress goes to standard error, answers to standard output. A part is made
again when the contents of what it is made from changed, never because of a time stamp.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import prerequisites

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("FASTCHANGELOG_CACHE") or Path.home() / ".cache" / "fastchangelog").expanduser().absolute()
CONSTRAINTS = ROOT / "constraints.txt"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
VENV = CACHE / f"venv-{VERSION}"
VENV_PYTHON = VENV / "bin" / "python"
CLASSES = CACHE / f"spark-{VERSION}.jsa"
LIBCLANG = CACHE / "libclang"
CXX = CACHE / "cxx" / "c++"
VENV_PARTS = (CONSTRAINTS, ROOT / "pyproject.toml", sys.version, sys.base_prefix)
#: Tools of cargo that no compiler brings, and their versions.
CARGO_TOOLS = {"deny": "0.20.2", "fuzz": "0.13.2", "machete": "0.9.2", "mutants": "27.1.0"}
SOURCES = ("Cargo.toml", "Cargo.lock", "pyproject.toml", "README.md", "LICENSE", "rust", "python")


def say(text: str) -> None:
    """One line of progress."""
    print(f"[set-up] {text}", file=sys.stderr, flush=True)


def fail(*lines: str) -> None:
    """Ends with clear lines and no traceback."""
    print(*lines, sep="\n", file=sys.stderr)
    raise SystemExit(2)


def run(*command: str | Path, **env: str) -> None:
    """Runs a command whose output is progress; ends when it fails."""
    text = [str(part) for part in command]
    done = subprocess.run(text, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if done.returncode != 0:
        fail(f"set-up failed: `{' '.join(text)}` ended with code {done.returncode}")


# Stamps: a part is fresh when its stamp holds the fingerprint of what it is made from.


def fingerprint(*parts: object) -> str:
    """One hash of texts, and of the contents of files and folders given as paths."""
    digest = hashlib.sha256()
    for part in parts:
        for name, content in _contents(part) if isinstance(part, Path) else [(str(part), b"")]:
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_file():
        yield str(path.relative_to(ROOT)), path.read_bytes()
        return
    for folder, names, files in os.walk(path):
        # Nothing is made from the folders of fuzzers and model checkers.
        names[:] = sorted(n for n in names if n not in ("__pycache__", "target", "fuzz", "shuttle-tests"))
        for name in sorted(files):
            if not name.endswith((".pyc", ".so")):
                file = Path(folder) / name
                yield str(file.relative_to(ROOT)), file.read_bytes()


def is_fresh(name: str, key: str) -> bool:
    """True when the part `name` was made from `key`."""
    stamp = CACHE / "stamps" / name
    return stamp.is_file() and stamp.read_text() == key


def set_stamp(name: str, key: str) -> None:
    """Records what `name` was made from. Called after the part is complete, so an interrupted run starts over."""
    stamp = CACHE / "stamps" / name
    stamp.parent.mkdir(parents=True, exist_ok=True)
    temporary = stamp.with_suffix(".new")
    temporary.write_text(key)
    temporary.replace(stamp)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One set-up at a time per cache."""
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        lock = (CACHE / "lock").open("w")
    except OSError as error:
        fail(f"cannot write to {CACHE}: {error}; choose another folder with FASTCHANGELOG_CACHE")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up that uses {CACHE}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# The parts.


def check(*, need_java: bool) -> None:
    """Ends with one line per missing prerequisite."""
    if lines := prerequisites.missing(ROOT, need_java=need_java):
        fail(*lines)


def pip(*args: str | Path, python: Path = VENV_PYTHON, constraints: Path = CONSTRAINTS) -> None:
    """pip of a virtual environment, bound to constraints."""
    run(python, "-m", "pip", "--disable-pip-version-check", *args, PIP_CONSTRAINT=str(constraints))


def make_venv() -> subprocess.Popen[bytes] | None:
    """The virtual environment with the tools of pyproject's extras, without the wheel.

    PySpark takes minutes and a build needs maturin only: the other packages may still be on their way when this returns
    a process, which `finish_venv` waits for.
    """
    key = fingerprint(*VENV_PARTS)
    works = VENV_PYTHON.exists() and subprocess.run([VENV_PYTHON, "-c", ""], capture_output=True).returncode == 0
    if works and is_fresh(VENV.name, key):
        return None
    if not works:
        shutil.rmtree(VENV, ignore_errors=True)
        say(f"virtual environment {VENV}")
        run(sys.executable, "-m", "venv", VENV)
    say("Python packages (PySpark is 450 MB: the first time takes minutes)")
    wanted = requirements()
    pip("install", "--quiet", *(line for line in wanted if line.startswith("maturin")))
    command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *wanted]
    env = {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def finish_venv(packages: subprocess.Popen[bytes] | None) -> None:
    """Waits for the packages that `make_venv` began to install."""
    if packages is None:
        return
    if code := packages.wait():
        fail(f"set-up failed: pip ended with code {code} while it installed the packages of pyproject.toml")
    set_stamp(VENV.name, fingerprint(*VENV_PARTS))


def requirements() -> list[str]:
    """The extras `spark` and `dev` and the dependencies of pyproject.toml."""
    lines, wanted, inside = (ROOT / "pyproject.toml").read_text().splitlines(), [], False
    for line in lines:
        name = line.split("=", 1)[0].strip()
        inside = inside or (name in ("dependencies", "spark", "dev") and "[" in line and not line.startswith("["))
        if inside:
            text = line.split("#")[0]
            wanted += text.split('"')[1::2]
            inside = not text.rstrip().endswith("]")
    return wanted


def make_libclang() -> None:
    """libclang for bindgen, unless the user brings one in LIBCLANG_PATH."""
    if os.environ.get("LIBCLANG_PATH"):
        return
    pin = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("libclang=="))
    if is_fresh("libclang", pin):
        return
    say("libclang")
    shutil.rmtree(LIBCLANG, ignore_errors=True)
    pip("install", "--quiet", "--target", LIBCLANG, pin)
    set_stamp("libclang", pin)


def make_cxx() -> None:
    """The compiler that compiles RocksDB's sources in groups, unless the user names one in CXX."""
    source = (ROOT / "scripts" / "unity_cxx.py").read_bytes()
    if not os.environ.get("CXX") and not (CXX.is_file() and CXX.read_bytes() == source):
        CXX.parent.mkdir(parents=True, exist_ok=True)
        CXX.write_bytes(source)
        CXX.chmod(0o755)


def build_env() -> dict[str, str]:
    """What cargo needs. Values must not change from run to run: RocksDB is compiled again when they do."""
    env = {"CARGO_TARGET_DIR": str(CACHE / "target")}
    if not os.environ.get("LIBCLANG_PATH"):
        env["LIBCLANG_PATH"] = str(LIBCLANG / "clang" / "native")
        include = prerequisites.clang_include(prerequisites.cxx())
        if include and not os.environ.get("BINDGEN_EXTRA_CLANG_ARGS"):
            env["BINDGEN_EXTRA_CLANG_ARGS"] = f"-I{include}"
    if not os.environ.get("CXX"):
        env |= {"CXX": str(CXX), "FASTCHANGELOG_CXX": str(prerequisites.cxx())}
    cargo = prerequisites.cargo()
    path = [str(VENV / "bin"), *([str(Path(cargo).parent)] if cargo else []), os.environ.get("PATH", "")]
    env["PATH"] = os.pathsep.join(path)
    return env


def touch_changed() -> None:
    """Gives changed Rust sources a new time stamp.

    Cargo looks at times only. Copied files may carry old ones, and another clone that shares the cache may have been
    built from other contents in between.
    """
    files = [ROOT / "Cargo.toml", *sorted((ROOT / "rust").rglob("*.rs")), *sorted((ROOT / "rust").rglob("Cargo.toml"))]
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


def make_wheel() -> Path:
    """The wheel of the sources as they are."""
    rustc = subprocess.run(
        ["rustc", "-vV"], capture_output=True, text=True, env={**os.environ, **build_env()}, stdin=subprocess.DEVNULL
    ).stdout
    key = fingerprint(*(ROOT / name for name in SOURCES if (ROOT / name).exists()), rustc, CONSTRAINTS)
    folder = CACHE / "wheels"
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) == 1 and is_fresh("wheel", key):
        return wheels[0]
    say("wheel (the first time compiles RocksDB: about 15 minutes on two cores)")
    shutil.rmtree(folder, ignore_errors=True)
    touch_changed()
    maturin: list[str | Path] = [VENV_PYTHON, "-m", "maturin", "build", "--release", "--locked"]
    run(*maturin, "--interpreter", VENV_PYTHON, "--compatibility", "pypi", "--out", folder, **build_env())
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        fail(f"set-up failed: maturin left {len(wheels)} wheels in {folder}, expected one")
    set_stamp("wheel", key)
    return wheels[0]


def make(*, build: bool, wheel: bool) -> Path | None:
    """All parts: the packages, what cargo needs when something is to be built, and the wheel, which is returned."""
    packages, made = make_venv(), None
    try:
        if build:
            make_libclang()
            make_cxx()
        if wheel:
            made = make_wheel()
    except BaseException:
        if packages is not None:
            packages.terminate()
            packages.wait()
        raise
    finish_venv(packages)
    return made


def install(wheel: Path) -> None:
    """Puts the wheel into the virtual environment, with the extras."""
    name = f"installed-{VERSION}"
    key = fingerprint(hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.name, CONSTRAINTS)
    if is_fresh(name, key) and any(VENV.glob("lib/python*/site-packages/fastchangelog/__init__.py")):
        return
    say(f"installing {wheel.name}")
    pip("install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    pip("install", "--quiet", f"{wheel}[spark,dev]")
    set_stamp(name, key)


def make_classes() -> None:
    """An archive of Spark's classes: a JVM that maps it needs 4 s and not 10 until its first query has run.

    Written by the JVM that runs an example. A JVM that has other jars or is another Java goes without it.
    """
    jars = next(VENV.glob("lib/python*/site-packages/pyspark/jars"))
    java = Path(str(prerequisites.java())).resolve()
    key = fingerprint(*VENV_PARTS, *((str(part), part.stat().st_mtime_ns) for part in (jars, java)))
    if is_fresh(CLASSES.name, key):
        return
    say("archive of Spark's classes")
    CLASSES.unlink(missing_ok=True)
    example = [str(VENV_PYTHON), str(ROOT / "examples" / "sessionization.py")]
    env = {**os.environ, **spark_env(f"-XX:ArchiveClassesAtExit={CLASSES}")}
    # The JVM outlives Python, and keeps the pipes: this waits for both.
    done = subprocess.run(example, cwd=CACHE, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        CLASSES.unlink(missing_ok=True)
    if not CLASSES.exists():
        say(f"no archive of Spark's classes, all goes on without: {done.stderr[-500:]}")
    set_stamp(CLASSES.name, key)


def spark_env(classes: str) -> dict[str, str]:
    """What Spark needs to run the interpreter of the virtual environment, and its JVM with this option for classes."""
    path = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", "")])
    python = str(VENV_PYTHON)
    # Without logs: an archive that does not fit is no reason for lines in the output of a test.
    jvm = [os.environ.get("SPARK_SUBMIT_OPTS", ""), *([classes, "-Xlog:disable"] if classes else [])]
    env = {"PATH": path, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    return {**env, "SPARK_SUBMIT_OPTS": " ".join(jvm)}


def make_cargo_tool(name: str) -> str:
    """The program `cargo-NAME`, compiled from the version in CARGO_TOOLS."""
    folder = CACHE / "cargo-tools" / f"{name}-{CARGO_TOOLS[name]}"
    program = folder / "bin" / f"cargo-{name}"
    if not program.exists():
        say(f"cargo-{name} {CARGO_TOOLS[name]} (compiled once: some minutes)")
        # Not in cargo's folder of this project: nothing is shared with it.
        build = {"CARGO_TARGET_DIR": str(folder / "target")}
        package = f"cargo-{name}@{CARGO_TOOLS[name]}"
        run(str(prerequisites.cargo()), "install", "--quiet", "--locked", "--root", folder, package, **build)
        shutil.rmtree(folder / "target", ignore_errors=True)
    return str(program)


def develop(args: list[str]) -> None:
    """Builds the extension into the active virtual environment, for contributors: Python sources are used in place."""
    active = os.environ.get("VIRTUAL_ENV")
    if not active:
        fail(
            "make develop installs into a virtual environment, and none is active: "
            "python3 -m venv .venv && . .venv/bin/activate && make develop"
        )
    maturin = [str(VENV_PYTHON), "-m", "maturin", "develop", "--release", "--extras", "spark,dev"]
    run(*maturin, *args, **build_env(), VIRTUAL_ENV=str(active), PIP_CONSTRAINT=str(CONSTRAINTS))


def main(argv: list[str]) -> int:
    """See the text at the top of this file."""
    if not argv or argv[0] not in ("wheel", "python", "cargo", "venv", "tool", "cargo-tool", "develop"):
        fail(__doc__ or "")
    what, args = argv[0], argv[1:]
    if what == "cargo-tool" and (not args or args[0] not in CARGO_TOOLS):
        fail(f"setup.py cargo-tool takes one of {', '.join(CARGO_TOOLS)} and its arguments")
    check(need_java=what in ("python", "venv"))
    with locked():
        wheel = make(build=what not in ("tool", "cargo-tool"), wheel=what in ("wheel", "python", "venv"))
        if wheel is not None and what != "wheel":
            install(wheel)
        if what == "venv":
            make_classes()
        if what == "cargo":
            touch_changed()
        if what == "develop":
            develop(args)
        cargo_tool = make_cargo_tool(args[0]) if what == "cargo-tool" else ""
    if what == "wheel":
        print(wheel)
    elif what == "python":
        print(VENV_PYTHON)
    elif what == "cargo-tool" and len(args) == 1:
        print(cargo_tool)
    elif what == "cargo-tool":
        sys.stdout.flush()
        env = {**os.environ, **build_env()}
        env["PATH"] = os.pathsep.join([str(Path(cargo_tool).parent), env["PATH"]])
        cargo = str(prerequisites.cargo())
        os.execve(cargo, [cargo, *args], env)
    elif what != "develop":
        program = str(prerequisites.cargo()) if what == "cargo" else str(VENV_PYTHON)
        classes = f"-XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else ""
        extra = build_env() if what == "cargo" else spark_env(classes)
        sys.stdout.flush()
        os.execve(program, [program, *args], {**os.environ, **extra})
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        fail("interrupted")
