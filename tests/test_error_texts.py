"""No code decides by the text of an error: kinds, types and numbers do.

Owns: the patterns of such decisions in Rust and Python, and the one file in which they may stand.
Does not own: what the tests of texts say (they read texts on purpose), other rules of the sources (test_conventions).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Where a library gives nothing but a text.
ALLOWED = "rust/store/src/diagnose.rs"

_LOOKS = (
    r"\.\s*(?:contains|starts_with|ends_with|find|rfind|matches|strip_prefix|strip_suffix|trim_start_matches|split_once"
    r"|split)\("
)
#: Names that errors have here.
_ERROR = r"\b(?:e|err|error|\w*_error|cause|failed|failure|refused)"
_RUST = (
    # error.message().contains(…), e.to_string().starts_with(…)
    re.compile(rf"\.(?:message|what)\(\)\s*{_LOOKS}"),
    re.compile(rf"{_ERROR}\s*\.to_string\(\)\s*{_LOOKS}"),
    # format!("{e:?}"): an error as a text of its own is only made to look into it
    re.compile(r"""format!\(\s*"\{(?:e|err|error|\w*_error|cause)(?::[^}]*)?\}"\s*\)"""),
    re.compile(rf"""format!\(\s*"\{{(?::[^}}]*)?\}}",\s*&?{_ERROR}\s*\)"""),
    # let text = error.to_string();
    re.compile(rf"let (?:mut )?\w+(?:: \w+)? = &?{_ERROR}\.to_string\(\);"),
    re.compile(rf"let (?:mut )?\w+(?:: &?\w+)? = {_ERROR}\.message\(\);"),
)


def _rust(source: str) -> list[str]:
    """Decisions by text in a Rust source; tests at its end do not count, comments neither."""
    code = re.split(r"#\[cfg\(test\)\]\nmod \w+ \{", source)[0]
    code = re.sub(r"//[^\n]*", "", code)
    return [found.group(0) for pattern in _RUST for found in pattern.finditer(code)]


class _Texts(ast.NodeVisitor):
    """Finds `"…" in str(error)` and its like for the errors that `except … as error` names."""

    _METHODS = frozenset({"startswith", "endswith", "find", "index", "removeprefix"})

    def __init__(self) -> None:
        self.found: list[int] = []
        self._errors: list[set[str]] = [set()]
        self._texts: set[str] = set()

    def _is_text(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._texts
        if isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute) and node.attr == "args":
            return self._is_error(node.value)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):  # str(error).lower()
            return self._is_text(node.func.value)
        made = isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")
        return made and len(node.args) == 1 and self._is_error(node.args[0])

    def _is_error(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in set().union(*self._errors)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._errors.append({node.name} if node.name else set())
        self.generic_visit(node)
        self._errors.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_text(node.value):
            self._texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if any(self._is_text(side) for side in (node.left, *node.comparators)):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            looks = node.func.attr in self._METHODS and self._is_text(node.func.value)
            module = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if looks or (module and any(self._is_text(argument) for argument in node.args)):
                self.found.append(node.lineno)
        self.generic_visit(node)


def _python(source: str) -> list[int]:
    visitor = _Texts()
    visitor.visit(ast.parse(source))
    return visitor.found


def test_no_rust_code_decides_by_the_text_of_an_error() -> None:
    found = {}
    for path in sorted((ROOT / "rust").glob("*/src/**/*.rs")):
        name = path.relative_to(ROOT).as_posix()
        tests = path.name.endswith("tests.rs") or "rust/oracles" in name or name == ALLOWED
        if not tests and (texts := _rust(path.read_text())):
            found[name] = texts
    assert not found, f"use the kind, the subject or `source_as`; a text may only decide in {ALLOWED}: {found}"


def test_no_python_code_decides_by_the_text_of_an_error() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted((ROOT / "python").rglob("*.py"))
        if (lines := _python(path.read_text()))
    }
    assert not found, f"use the class of the error, its number or its attributes: {found}"


@pytest.mark.parametrize(
    "line",
    [
        'if error.message().contains("416") {}',
        "if error\n    .message()\n    .starts_with(uri) {}",
        'if e.to_string().contains("No such file") {}',
        'let text = format!("{error:?}");',
        'let text = format!("{:?}", e);',
        "let text = error.to_string();",
        "let text = open_error.message();",
    ],
)
def test_a_decision_by_text_in_rust_is_seen(line: str) -> None:
    assert _rust(f"fn f() {{ {line} }}")
    assert not _rust(f"// {line.splitlines()[0]}"), "a comment decides nothing"


def test_a_message_that_is_built_or_logged_is_no_decision() -> None:
    assert not _rust('fn f() { log(error.message()); Error::store(format!("cannot write: {error}")) }')
    assert not _python("try:\n    f()\nexcept OSError as e:\n    raise StoreError(f'no: {e}') from e\n")


@pytest.mark.parametrize(
    "line",
    [
        "if 'full' in str(e): g()",
        "if str(e).startswith('no'): g()",
        "if re.search('no', str(e)): g()",
        "text = str(e).lower()\n    if 'no' in text: g()",
        "if e.args[0] == 'no': g()",
    ],
)
def test_a_decision_by_text_in_python_is_seen(line: str) -> None:
    assert _python(f"try:\n    f()\nexcept OSError as e:\n    {line}\n")
