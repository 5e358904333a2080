"""The table of what a version of Spark cannot do: the docs show it as it is, and no test is skipped for another reason.

Owns: that check; that the package needs no name which the oldest PySpark lacks. Does not own: the table
(`support.spark.lacks`), the tests on older versions (`make test-matrix`).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark.lacks import LACKS, table

ROOT = Path(__file__).resolve().parent.parent
#: What a test asks for that is no version of Spark: packages of Spark Connect.
PACKAGES = {"grpc", "grpc_status", "zstandard"}
FILES = sorted([*(ROOT / "tests" / "spark").glob("*.py"), *(ROOT / "tests" / "support" / "spark").glob("*.py")])


def test_the_docs_have_the_table() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert "\n".join(table()) in page, "copy the lines of support.spark.lacks.table() into docs/deploying.md"


def skips(source: str) -> list[str]:
    """Calls that skip a test, and are not those of the table."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and re.search(r"\b(skip|skipif|importorskip)$", ast.unparse(node.func)):
            asked = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if asked not in PACKAGES:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_spark_test_is_skipped_for_a_row_of_the_table(path: Path) -> None:
    if path.name != "lacks.py":
        assert skips(path.read_text()) == []


def test_a_skip_is_found() -> None:
    for code in ("pytest.mark.skipif(not x, reason='y')", "pytest.skip('y')"):
        assert skips(code)
    for code in ("needs('rows')", "pytest.importorskip('grpc')"):
        assert not skips(code)


def test_each_row_has_a_reason_in_spark() -> None:
    for lack in LACKS.values():
        assert "Spark" in lack.why or "Spark" in lack.what or "Connect" in lack.why
        assert lack.instead


#: Imports all modules of the package with a PySpark from which is removed what came after 4.0.
ON_THE_OLDEST = """
import importlib, pkgutil, re
import pyspark, pyspark.sql.functions, pyspark.sql.types
pyspark.__version__ = "4.0.0"
for name in {types}:
    delattr(pyspark.sql.types, name)
for name, found in list(vars(pyspark.sql.functions).items()):
    if re.search(r"versionadded:: (4\\.[1-9]|[5-9])", getattr(found, "__doc__", None) or ""):
        delattr(pyspark.sql.functions, name)
import fastchangelog.spark
for module in pkgutil.walk_packages(fastchangelog.spark.__path__, "fastchangelog.spark."):
    importlib.import_module(module.name)
print("imported")
"""
#: The types that PySpark 4.0 lacks; their docstrings do not say since when they exist.
NEWER_TYPES = ("AnyTimeType", "DatetimeType", "TimeType", "SpatialType", "GeometryType", "GeographyType")


def test_the_package_is_imported_with_the_oldest_pyspark() -> None:
    program = ON_THE_OLDEST.format(types=NEWER_TYPES)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr
