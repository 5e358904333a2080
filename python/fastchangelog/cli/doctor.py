"""`fastchangelog doctor`: checks what a query needs on this machine, and names a remedy for what is missing.

Owns: the command, the checks and their remedies. Does not own: the requirements of the Spark side
(`spark.requirements`), the check of a store (the core: what it needs of a store, and the words for what is missing).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastchangelog.cli.arguments import add_conf, add_store, pairs
from fastchangelog.cli.output import FOUND, OK, print_json, print_table
from fastchangelog.errors import FastChangelogError

__all__ = ["Finding", "add_parser", "check", "check_checkpoint", "packages_and_java", "run"]

_PACKAGES = ("pyspark", "pandas", "pyarrow", "protobuf")
_JARS = ("spark.jars.packages", "spark.jars")
_MIN_JAVA = 17
_MIN_DISK = 2 << 30
_SETTING = re.compile(r"\s*([^\s=:#]+)\s*[\s=:]\s*(.*?)\s*")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check: its subject, the result, and the remedy."""

    what: str
    ok: bool
    found: str
    fix: str = ""


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "doctor",
        help="check Java, Spark, packages, disk and store access, and say what to fix",
        description="Checks everything that a query needs on this machine. Exit code 1 if something must be fixed.",
    )
    parser.add_argument(
        "--state",
        metavar="URI",
        help="also check that this state folder can be written, and that its store creates an object only once",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="URI",
        help="also check the settings that decide how fast Spark writes this checkpointLocation",
    )
    add_conf(parser)
    add_store(parser, "the store of --state")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    findings = check(args.state, pairs("--storage-option", args.storage_option))
    if args.checkpoint is not None:
        findings += check_checkpoint(args)
    if args.json:
        print_json([dataclasses.asdict(f) for f in findings])
    else:
        print_table([_row(f) for f in findings])
    return OK if all(f.ok for f in findings) else FOUND


def _row(finding: Finding) -> list[str]:
    return ["ok" if finding.ok else "FIX", finding.what, finding.found + (f"; {finding.fix}" if finding.fix else "")]


def check(state: str | None = None, storage_options: Mapping[str, str] = {}) -> list[Finding]:
    """All checks; `state` is a state folder to write to, if there is one."""
    findings = [_python(), _extension(), *_state_server(), *packages_and_java(), _disk(), _memory()]
    if state is not None:
        findings.append(_store(state, storage_options))
    return findings


def packages_and_java() -> list[Finding]:
    """The checks of the packages and of Java that PySpark needs."""
    return [*map(_package, _PACKAGES), _java()]


def _python() -> Finding:
    version = platform.python_version()
    return Finding("python", sys.version_info >= (3, 10), f"{version} at {sys.executable}")


def _extension() -> Finding:
    try:
        from fastchangelog import _internal
    except ImportError as error:
        return Finding("extension", False, str(error), "install the wheel: pip install fastchangelog")
    return Finding("extension", True, str(_internal.__file__))


def _state_server() -> list[Finding]:
    try:
        from fastchangelog.server.platform import WORKS_ELSEWHERE, refusal
    except ImportError:  # the check of the extension says so
        return []
    reason = refusal()
    if reason is None:
        return [Finding("state server", True, f"runs on {platform.system()}")]
    return [Finding("state server", False, reason, WORKS_ELSEWHERE)]


def _package(name: str) -> Finding:
    fix = 'run: pip install "fastchangelog[spark]"'
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "missing", fix)
    major = int(version.split(".")[0])
    if name == "pyspark" and major < 4:
        return Finding(name, False, f"{version} is too old, 4.0 is the first with transformWithState", fix)
    if name == "pandas" and major >= 3:
        return Finding(name, False, f"{version} is too new for PySpark", fix)
    return Finding(name, True, version)


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    fix = f"install Java {_MIN_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    if path is None:
        return Finding("java", False, f"none in JAVA_HOME={home}" if home else "none on the PATH", fix)
    try:
        done = subprocess.run(
            [path, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", False, f"{path} cannot run: {error}", fix)
    found = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', done.stderr + done.stdout)
    version = int(found.group(1)) if found else 0
    shown = f"{found.group(1)}{found.group(2)} at {path}" if found else f"{path} says nothing about its version"
    return Finding("java", version >= _MIN_JAVA, shown, "" if version >= _MIN_JAVA else fix)


def _disk() -> Finding:
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("local disk", False, f"{folder}: {error}", "point SPARK_LOCAL_DIRS at a folder that exists")
    fix = "" if free >= _MIN_DISK else "free some, or point SPARK_LOCAL_DIRS at a larger disk"
    return Finding("local disk", free >= _MIN_DISK, f"{free / 1e9:.1f} GB free in {folder}", fix)


def _memory() -> Finding:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return Finding("memory", True, "unknown on this system")
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    available = int(found.group(1)) * 1024 if found else 0
    try:
        from fastchangelog.server import memory
    except ImportError:
        return Finding("memory", True, f"{available / 1e9:.1f} GB available")
    limits = memory.Limits.here()
    if limits.cgroup is not None:
        available = min(available, limits.cgroup)
    budget = memory.default_budget({}, limits)
    # The JVM and Python workers need some, too.
    ok = available >= budget.bytes + (1 << 30)
    fix = "" if ok else "set the option memory_budget below what is free, or give the container more memory"
    shown = (
        f"{available / 1e9:.1f} GB available; in local mode a state server takes {budget.bytes >> 20} MiB by default"
    )
    return Finding("memory", ok, f"{shown} ({budget.why})", fix)


def check_checkpoint(args: argparse.Namespace) -> list[Finding]:
    """What the settings of the arguments and Spark's defaults lack for the checkpoint."""
    location, conf = args.checkpoint, {**_defaults(), **pairs("--conf", args.conf)}
    try:
        from fastchangelog.checkpoints.s3_settings import PACKAGE, is_in_s3, missing_settings
    except ImportError:
        return [Finding("checkpoint", False, "not checked", "install the wheel: pip install fastchangelog")]
    if not is_in_s3(location):
        return [Finding("checkpoint", True, f"{location} is not in S3: nothing to set")]
    found = [Finding("checkpoint", False, m.without, f"set {m}") for m in missing_settings(conf.get)]
    if not any(PACKAGE in conf.get(name, "") for name in _JARS) and not _has_jar(PACKAGE):
        fix = f"add org.apache.spark:{PACKAGE}_2.13 in the version of your Spark to spark.jars.packages"
        found.append(Finding("checkpoint", False, f"Spark has no {PACKAGE}", fix))
    return found or [Finding("checkpoint", True, f"the settings are those with which Spark writes {location} fast")]


def _has_jar(name: str) -> bool:
    homes = [os.environ.get("SPARK_HOME", "")]
    package = importlib.util.find_spec("pyspark")
    homes += (package.submodule_search_locations or []) if package is not None else []
    return any(any(Path(home, "jars").glob(f"{name}*.jar")) for home in homes if home)


def _defaults() -> dict[str, str]:
    """What `spark-defaults.conf` has, for applications that are started on this machine."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines() if folder else []
    except OSError:
        return {}
    found = (_SETTING.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


def _store(uri: str, storage_options: Mapping[str, str]) -> Finding:
    """A small object is created, refused a second time, read and removed."""
    try:
        from fastchangelog import _internal
        from fastchangelog.options import gather_storage_options
    except ImportError:
        return Finding("state", False, "not checked", "install the wheel: pip install fastchangelog")
    try:
        folder = _internal.ObjectFolder(uri, {}, gather_storage_options(uri, storage_options))
        folder.check()
    except FastChangelogError as error:
        remedy = error.remedy or ""
        return Finding("state", False, str(error).removesuffix(remedy).rstrip(" ;:"), remedy)
    return Finding("state", True, f"{folder.uri} can be written, and creates an object only if its name is free")
