"""Draws the packages of ARCHITECTURE.md from the sources: a Mermaid picture between two marks.

    package_picture.py            write
    package_picture.py --check    end with 1 if the picture is not what would be written

An arrow is an import. Arrows that follow from others are left out: where a imports b and b imports c, none from a to c.

Owns: reading imports and manifests, and the layout of the picture. Does not own: which imports are allowed
(pyproject.toml; of crates the manifests, which this reads).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "python" / "fastchangelog"
_BEGIN = "<!-- packages: python scripts/package_picture.py -->\n"
_END = "<!-- end of packages -->\n"
Graph = dict[str, set[str]]


def python_packages() -> Graph:
    """The packages and modules directly below `fastchangelog`, and what each imports of the others."""
    graph: Graph = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inner = path.relative_to(PACKAGE).with_suffix("").parts
        if inner[0] not in ("__init__", "__main__"):
            used = set(_imports(ast.parse(path.read_text()), inner))
            graph.setdefault(inner[0], set()).update(used - {inner[0]})
    return {name: {one for one in used if one in graph or one == "_internal"} for name, used in graph.items()}


def _imports(tree: ast.AST, inner: tuple[str, ...]) -> Iterator[str]:
    """Names directly below `fastchangelog` that a module imports, lazily too, but not for type checking only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fastchangelog."))
        elif isinstance(node, ast.ImportFrom):
            start = ["fastchangelog", *inner][: -node.level] if node.level else []
            names = [*start, *(node.module.split(".") if node.module else [])]
            if names[:1] == ["fastchangelog"]:
                yield from names[1:2] if len(names) > 1 else (alias.name for alias in node.names)
        yield from _imports(node, inner)


def rust_crates() -> Graph:
    """The crates of the workspace, and which of the others each depends on."""
    texts = {f"rust/{path.parent.name}": path.read_text() for path in sorted(ROOT.glob("rust/*/Cargo.toml"))}
    names = {name: folder for folder, text in texts.items() for name in re.findall(r'^name = "(.*)"', text, re.M)[:1]}
    graph: Graph = {}
    for folder, text in texts.items():
        parts = re.findall(r"^\[dependencies\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        used = {name for part in parts for name in re.findall(r"^([\w-]+)\b", part, re.MULTILINE)}
        graph[folder] = {names[name] for name in used if name in names}
    return graph


def reduced(graph: Graph) -> Graph:
    """The graph without the arrows that follow from others.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    True
    """

    def reach(name: str, seen: frozenset[str]) -> set[str]:
        found: set[str] = set()
        for one in graph.get(name, set()) - seen:
            found |= {one} | reach(one, seen | {one})
        return found

    out: Graph = {}
    for name, used in graph.items():
        longer = {far for near in used for far in reach(near, frozenset({name, near}))}
        out[name] = used - longer
    return out


def picture() -> str:
    """The Mermaid text. The extension module joins the two halves."""
    python, rust = python_packages(), rust_crates()
    lines = ["```mermaid", "flowchart TD", '  subgraph python["python/fastchangelog"]']
    lines += [f"    {name}" for name in [*sorted(python), "_internal"]]
    lines += ["  end", '  subgraph crates["Rust crates"]']
    lines += [f'    {_node(name)}["{name}"]' for name in sorted(rust)]
    lines += ["  end"]
    for graph in (reduced(python), reduced(rust)):
        lines += [f"  {_node(name)} --> {_node(one)}" for name in sorted(graph) for one in sorted(graph[name])]
    if "rust/pyext" in rust:
        lines.append("  _internal --- rust_pyext")
    return "\n".join([*lines, "```"]) + "\n"


def _node(name: str) -> str:
    return re.sub(r"\W", "_", name)


def main(argv: list[str]) -> int:
    """Writes or checks."""
    text = PAGE.read_text()
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        print(f"{PAGE.name}: the marks of the picture are missing: {_BEGIN.strip()} … {_END.strip()}")
        return 1
    before, _, rest = text.partition(_BEGIN)
    wanted = before + _BEGIN + picture() + _END + rest.partition(_END)[2]
    if argv != ["--check"]:
        PAGE.write_text(wanted)
    elif text != wanted:
        print(f"out of date: the packages in {PAGE.name}; run: python scripts/package_picture.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
