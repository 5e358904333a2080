"""Words that the prose of this project does not use: `make lint` fails where one of them stands.

    words.py            print every place, end with 1 if there is one

Owns: the table of words, where they are looked for, and the exceptions. Does not own: style that needs a reader.

To check one more folder, add it to SCOPES. A file whose words depend on sources outside the scopes (generated pages,
quoted output, patch texts) is in PENDING. An entry there that is no longer needed is an error: the list only shrinks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Pattern, what to write instead, and the endings of the files it holds for (none: all).
WORDS: tuple[tuple[re.Pattern[str], str, tuple[str, ...]], ...] = (
    (
        re.compile(r"\b(?:(?:no|some)body|who(?:ever))\b", re.IGNORECASE),
        "name the component, or use the passive voice",
        (),
    ),
    (re.compile(r"\b[Ww]ho (?:open|close|wait|name|make|need|give|hold)s\b"), "name the component", ()),
    (re.compile(r"\b[Ff]loor(?:s)\b|\bupstair(?:s)\b"), "layers", (".md",)),
    (re.compile(r"\bback-(?:pressure)\b", re.IGNORECASE), "backpressure", (".md", ".py")),
)
SCOPES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "Makefile",
    ".ci",
    ".github",
    "docs",
    "tests",
    "scripts",
    "benches",
    "examples",
    "python",
    "rust",
    "pyproject.toml",
    "Cargo.toml",
    "deny.toml",
    "_typos.toml",
    ".cargo",
    ".pre-commit-config.yaml",
)
PENDING: tuple[str, ...] = ()
ENDINGS = (".md", ".py", ".pyi", ".rs", ".toml", ".txt", ".sh", ".yml", ".yaml", ".svg")
NAMES = ("Makefile", "run")


def files(scopes: tuple[str, ...] = SCOPES) -> Iterator[Path]:
    """Every text file of the scopes; build output left out."""
    for scope in scopes:
        path = ROOT / scope
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            text = file.suffix in ENDINGS or file.name in NAMES
            if file.is_file() and text and not {"target", "__pycache__"} & set(file.parts):
                yield file


def places(text: str, suffix: str) -> Iterator[tuple[int, str, str]]:
    """Line number, word, and what to write instead, of each place in a text.

    >>> list(places("One line.\\nA house with two floor" + "s.", ".md"))
    [(2, 'floors', 'layers')]
    """
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead, suffixes in WORDS:
            if not suffixes or suffix in suffixes:
                for match in pattern.finditer(line):
                    yield number, match.group(), instead


def main() -> int:
    """Prints the places, and exceptions that are no longer needed."""
    wrong, pending = [], set(PENDING)
    for file in files():
        name = str(file.relative_to(ROOT))
        found = list(places(file.read_text(), file.suffix))
        if name in PENDING:
            pending -= {name} if found else set()
        else:
            wrong += [f'{name}:{number}: "{word}": {instead}' for number, word, instead in found]
    wrong += [f"scripts/words.py: PENDING names {name}, which needs no exception any more" for name in sorted(pending)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
