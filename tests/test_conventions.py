"""Rules about the source tree itself.

Owns: file lengths, file headers, names of tests, one place for Spark's private parts, pinned tools, no personal paths.
Does not own: the order of the layers (the crates of `rust`, and the import contracts in pyproject.toml), words
(scripts/words.py), links and examples (test_documentation).
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from fastchangelog.spark import versions

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
MAX_NAME = 60
FOLDERS = ("rust", "python", "tests", "benches", "examples", "scripts", "docs", ".ci", ".github")
TOP = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "Makefile",
    "pyproject.toml",
    "Cargo.toml",
)


def files(*suffixes: str) -> list[Path]:
    """All files of the project with one of the endings; build output left out."""
    out = [ROOT / name for name in TOP if (ROOT / name).exists()]
    for folder in FOLDERS:
        out += [p for p in (ROOT / folder).rglob("*") if p.is_file() and not {"target", "__pycache__"} & set(p.parts)]
    return sorted(p for p in out if p.suffix in suffixes)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_have_at_most_500_lines() -> None:
    counts = {name(p): len(p.read_text().splitlines()) for p in files(".rs", ".py", ".sh")}
    long = {path: lines for path, lines in counts.items() if lines > MAX_LINES}
    assert not long, f"files of more than {MAX_LINES} lines: {long}"


def test_every_source_says_what_it_owns() -> None:
    missing = []
    for path in files(".rs", ".py"):
        text = path.read_text()
        if path.name.endswith("_tests.rs"):
            continue  # tests of the sibling without the ending, which says it for both
        if path.suffix == ".py":
            ok = not text.strip() or ast.get_docstring(ast.parse(text)) is not None
        else:
            ok = text.startswith("//!")
        if not ok:
            missing.append(name(path))
    assert not missing, f"files without a header: {missing}"


def test_names_of_tests_are_short_and_without_ids() -> None:
    found = [
        f"{name(path)}: {node.name}"
        for path in files(".py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if len(node.name) > MAX_NAME or re.match(r"test_(?:xs\d\d|[a-z]\d\d|p\d|invariant_\d)_", node.name)
    ]
    assert not found, f"names of more than {MAX_NAME} characters, or with an id that belongs into a marker: {found}"


def test_names_of_rust_tests_are_short() -> None:
    test = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
    names = [f"{name(path)}: {found}" for path in files(".rs") for found in test.findall(path.read_text())]
    long = [one for one in names if len(one.split(": ")[1]) > MAX_NAME]
    assert not long, f"names of more than {MAX_NAME} characters: {long}"


def test_few_files_touch_sparks_private_parts() -> None:
    private = re.compile(r"\b(_jvm|_jc|_jdf|_jsc|_jsq|_jsqm|_jsparkSession|_gateway|sparkContext)\b")
    found = {
        name(path)
        for path in files(".py")
        if (ROOT / "python" / "fastchangelog" / "spark") in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and private.fullmatch(node.attr)
    }
    spark = "python/fastchangelog/spark/"
    parts = ("", "_connect", "_expressions", "_operators", "_plans", "_queries", "_writers")
    assert found <= {f"{spark}internals{part}.py" for part in parts}


def version_facts(source: str) -> list[str]:
    """What in code depends on a version of Spark; docstrings and comments do not count."""
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_fact = id(node) not in texts and re.search(r"(?<![\d.])[3-9]\.\d", node.value) is not None
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            is_fact = any(isinstance(side, ast.Tuple) for side in node.comparators)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
            is_fact = ast.unparse(node.args[0]) in ("T", "types", "F", "functions")
        else:
            is_fact = isinstance(node, ast.Attribute) and ast.unparse(node) == "pyspark.__version__"
        if is_fact:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_one_file_knows_versions_of_spark() -> None:
    spark = ROOT / "python" / "fastchangelog" / "spark"
    facts = {name(path): version_facts(path.read_text()) for path in spark.rglob("*.py") if path.name != "versions.py"}
    assert {path: found for path, found in facts.items() if found} == {}


@pytest.mark.parametrize(
    "code",
    ["v.startswith('4.0.')", "f'Spark 4.1, not {v}'", "v >= (4, 1)", "hasattr(T, 'TimeType')", "pyspark.__version__"],
)
def test_a_fact_about_a_version_is_found(code: str) -> None:
    assert version_facts(f"x = {code}")


def test_every_supported_minor_version_of_pyspark_is_tested() -> None:
    matrix = (ROOT / "scripts" / "spark_matrix.py").read_text() + (ROOT / "constraints.txt").read_text()
    tested = re.findall(r'(?:"|pyspark==)(\d\.\d+)\.\d+\b', matrix)
    assert tested[0] == str(versions.SUPPORTED)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"pyspark: {json.dumps(tested)}" in workflow


def test_no_path_of_one_machine() -> None:
    personal = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+|work)/")
    kinds = (".rs", ".py", ".md", ".toml", ".sh", ".pyi", ".yml")
    found = [name(p) for p in files(*kinds) if p != Path(__file__).resolve() and personal.search(p.read_text())]
    assert not found, f"files that name a path of one machine: {found}"


def test_constraints_pin_everything_exactly() -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    loose = [line for line in lines if line and not re.match(r"^[A-Za-z0-9_.-]+==[0-9][^*]*$", line)]
    assert not loose


CRATES = [path for path in sorted((ROOT / "rust").glob("*/Cargo.toml")) if path.parent.name != "fuzz"]


@pytest.mark.parametrize("crate", CRATES, ids=lambda path: path.parent.name)
def test_every_crate_of_the_workspace_uses_its_lints(crate: Path) -> None:
    assert "[lints]\nworkspace = true" in crate.read_text()
