"""Fails where Rust modules import each other in a circle.

    rust_circles.py             check every crate below rust/
    rust_circles.py CRATE…      check the crates in these folders

cargo refuses circles of crates, and import-linter circles of Python modules. rustc accepts those inside a crate.

The rule is that of import-linter's contract `acyclic_siblings`. The check takes each child of a module together with
all modules below it, and refuses children that import each other, directly or through other children. Imports between a
module and the modules below it do not count: a parent assembles and re-exports its children, and they extend its types.

A module imports another one where a `use`, or a path such as `hints::StateHints` in its code, names an item that the
other one defines. The check follows a re-export to the definition, and skips `#[cfg(test)]` items. It sees neither
calls of methods, which name no module, nor macros. A glob import imports the module that it names.

Owns: reading modules and paths of Rust, and the rule. Does not own: the order of crates (their manifests) and of
Python packages (pyproject.toml).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Lines shown for one child that imports another.
SHOWN = 3

#: Names of nested modules, or the parts of a path; `()` is the root of the crate.
Names = tuple[str, ...]

_NO_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/
    | \bb?r(?P<hashes>\#*)".*?"(?P=hashes) | b?"(?:\\.|[^"\\])*" | b?'(?:\\(?:u\{\w+\}|x..|.)|[^'\\\n])'""",
    re.DOTALL | re.VERBOSE,
)
_TEST = re.compile(r"#\[cfg\((?:test\)|all\(test\b)[^\]]*\]")
#: An item, which no comma ends; a field, an arm or an argument ends at its comma.
_ITEM = re.compile(
    r"""\s* (?:\#\[[^\]]*\]\s*)* (?:pub(?:\([^)]*\))?\s+)? (?:(?:async|const|unsafe|extern)\s+)*
    (?:const|enum|fn|impl|macro_rules|mod|static|struct|trait|type|use)\b""",
    re.VERBOSE,
)
_MOD = re.compile(r"\bmod\s+(\w+)\s*([;{])")
_PATH_ATTRIBUTE = re.compile(r'#\[path\s*=\s*"([^"]+)"\]\s*(?:pub(?:\([^)]*\))?\s+)?$')
_USE = re.compile(r"\buse\s+([^;]+);")
_PATH = re.compile(r"(?<![\w:.])\w+(?:\s*::\s*\w+)+")


@dataclass
class Module:
    """A module: a file, or a `mod name { … }` inside one."""

    path: Names
    file: Path
    #: Its source with comments, strings, tests and inner modules blanked; positions are those of the file.
    code: str
    #: What names in its scope stand for.
    used: dict[str, Names] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Import:
    """A place at which a module imports another one."""

    file: Path
    line: int
    text: str
    importer: Names
    imported: Names


def blank(text: str, start: int, end: int) -> str:
    """The text with spaces from `start` to `end`, line breaks left.

    >>> blank("ab;\\ncd;", 0, 5)
    '   \\n d;'
    """
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def code_of(source: str) -> str:
    """The source with comments, strings and test items blanked.

    >>> code_of('use a::B; // c::D')
    'use a::B;        '
    """
    code = _NO_CODE.sub(lambda found: blank(found.group(), 0, len(found.group())), source)
    while test := _TEST.search(code):
        code = blank(code, test.start(), end_of_item(code, test.end()))
    return code


def end_of_item(code: str, start: int) -> int:
    """The position behind the item, statement, field or arm that begins at `start`.

    >>> end_of_item("fn a<B, C>() { b(); } fn c() {}", 0)
    21
    """
    depth, ends = 0, ";" if _ITEM.match(code, start) else ";,"
    for at in range(start, len(code)):
        if code[at] in "([{":
            depth += 1
        elif code[at] in ")]}":
            depth -= 1
            if depth < 0:
                return at
            if depth == 0 and code[at] == "}":
                return at + 1
        elif code[at] in ends and depth == 0:
            return at + 1
    return len(code)


def leaves(tree: str, prefix: Names = ()) -> Iterator[tuple[str, Names]]:
    """Each name that a `use` declares, and its path.

    >>> list(leaves("a::{self, b::C, D as E}"))
    [('a', ('a',)), ('C', ('a', 'b', 'C')), ('E', ('a', 'D'))]
    """
    head, brace, rest = tree.partition("{")
    *outer, last = (part.strip() for part in head.split("::"))
    if brace:
        depth, item = 0, ""
        for char in rest.rstrip()[:-1] + ",":
            depth += (char == "{") - (char == "}")
            if char == "," and depth == 0:
                yield from leaves(item, (*prefix, *outer)) if item.strip() else ()
                item = ""
            else:
                item += char
        return
    original, _, name = (part.strip() for part in last.partition(" as "))
    path = (*prefix, *outer) if original == "self" and prefix else (*prefix, *outer, original)
    yield name or path[-1], path


def modules_of(crate: Path) -> dict[Names, Module]:
    """All modules of the library in the folder `crate`, by path."""
    found: dict[Names, Module] = {}

    def add(path: Names, file: Path, folder: Path, source: str, code: str) -> None:
        found[path] = module = Module(path, file, code)
        while mod := _MOD.search(module.code):
            name, opening = mod.groups()
            end = end_of_item(module.code, mod.start())
            if opening == "{":
                inner = blank(blank(module.code, 0, mod.end()), end - 1, len(code))
                add((*path, name), file, folder / name, source, inner)
            else:
                attribute = _PATH_ATTRIBUTE.search(source[: mod.start()])
                choices = [folder / f"{name}.rs", folder / name / "mod.rs"]
                if attribute:
                    choices = [(file.parent / attribute[1]).resolve()]
                read((*path, name), next((choice for choice in choices if choice.exists()), choices[0]))
            module.code = blank(module.code, mod.start(), end)
        for use in _USE.finditer(module.code):
            module.used.update(leaves(use[1]))

    def read(path: Names, file: Path) -> None:
        source = file.read_text()
        folder = file.parent if file.name in ("lib.rs", "mod.rs") else file.parent / file.stem
        add(path, file, folder, source, code_of(source))

    read((), crate / "src" / "lib.rs")
    return found


def defined_in(path: Names, scope: Names, modules: Mapping[Names, Module]) -> Names | None:
    """The module that defines the item that `path` names in the module `scope`.

    None for an item of another crate, and for a path that names a module.
    """
    seen = set()
    first = True
    while path and (scope, path) not in seen:
        seen.add((scope, path))
        head, rest = path[0], path[1:]
        used = modules[scope].used
        if head == "crate" and first:
            scope, path = (), rest
        elif head == "self" and first:
            path = rest
        elif head == "super" and scope:
            scope, path = scope[:-1], rest
            continue  # another `super` may follow
        elif (*scope, head) in modules:
            scope, path = (*scope, head), rest
        elif head in used and used[head] != path:
            path = (*used[head], *rest)
            first = True
            continue
        else:
            return None if first else scope
        first = False
    return None


def imports_of(modules: Mapping[Names, Module]) -> Iterator[Import]:
    """Each place at which a module imports an item of another module of its crate."""
    for module in modules.values():
        for use in _USE.finditer(module.code):
            for _, path in leaves(use[1]):
                yield from _import(module, use.start(), path, modules)
        body = _USE.sub(lambda use: blank(use.group(), 0, len(use.group())), module.code)
        for found in _PATH.finditer(body):
            yield from _import(module, found.start(), tuple(re.split(r"\s*::\s*", found.group())), modules)


def _import(module: Module, start: int, path: Names, modules: Mapping[Names, Module]) -> Iterator[Import]:
    imported = defined_in(path, module.path, modules)
    if imported is not None and imported != module.path:
        line = module.code.count("\n", 0, start) + 1
        yield Import(module.file, line, "::".join(path), module.path, imported)


def circles(modules: Mapping[Names, Module]) -> list[list[list[Import]]]:
    """The circles among the children of each module.

    A circle has an item for each child that imports another child of the circle: the places that do so.
    """
    arrows: dict[Names, dict[tuple[str, str], set[Import]]] = {}
    for one in imports_of(modules):
        depth = next((i for i, (a, b) in enumerate(zip(one.importer, one.imported)) if a != b), None)
        if depth is not None:
            siblings = arrows.setdefault(one.importer[:depth], {})
            siblings.setdefault((one.importer[depth], one.imported[depth]), set()).add(one)
    out = []
    for _, siblings in sorted(arrows.items()):
        for circle in components(siblings):
            out.append([sorted(siblings[pair]) for pair in sorted(siblings) if circle.issuperset(pair)])
    return out


def components(arrows: Iterable[tuple[str, str]]) -> list[set[str]]:
    """The strongly connected components of more than one node.

    >>> [sorted(one) for one in components([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])]
    [['a', 'b', 'c']]
    """
    after: dict[str, set[str]] = {}
    for start, end in arrows:
        after.setdefault(start, set()).add(end)

    def reach(node: str) -> set[str]:
        found: set[str] = set()
        ahead = [node]
        while ahead:
            new = after.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return found

    reached = {node: reach(node) for node in after}
    out: list[set[str]] = []
    for node in sorted(after):
        if node in reached[node] and not any(node in one for one in out):
            out.append({other for other in reached[node] if node in reached.get(other, ())})
    return out


def report(circle: list[list[Import]]) -> str:
    """The files of a circle and the lines that close it."""
    lines = ["modules that import each other:"]
    for places in circle:
        lines += [f"  {_shown(one.file)}:{one.line}: {one.text}" for one in places[:SHOWN]]
        if len(places) > SHOWN:
            lines.append(f"    and {len(places) - SHOWN} more between these two")
    return "\n".join(lines)


def _shown(file: Path) -> Path:
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


def main(argv: list[str]) -> int:
    """Checks the crates and prints their circles; returns 1 if there is one."""
    crates = [Path(name) for name in argv] or [path.parent.parent for path in sorted(ROOT.glob("rust/*/src/lib.rs"))]
    found = [circle for crate in crates for circle in circles(modules_of(crate))]
    for circle in found:
        print(report(circle))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
