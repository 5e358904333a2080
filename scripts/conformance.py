"""Which conformance cases have a test: each case of `docs/conformance.md` must have one that carries its id.

Every number of a group that the page lists must have a row, and every row must belong to one.

Owns: the comparison of the page's ids with those of tests, in Rust and in Python.
Does not own: the cases; the page says what each is, and which are left out and why.

A Python test carries ids in a marker: `@pytest.mark.case("A-03", "X-S07")`. A Rust test carries them as the first words
of its name: `w04_…`, `a03_x03_…`, `xs07_…` for X-S07, or a run of them, `q01_to_q09_…`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_GROUP = re.compile(r"^\| ([A-Z]|X-S) \| (\d+) \|", re.MULTILINE)
_CASE = re.compile(r"^\| ((?:[A-Z]-|X-S)\d\d) \| (.*?) \|", re.MULTILINE)
_RUST = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
_PROPTEST = re.compile(r"#\[test\]\s*fn (\w+)")
_MARKER = re.compile(r"@pytest\.mark\.case\(([^)]*)\)")
_MARKED = re.compile(r'"((?:[A-Z]-|X-S)\d\d)"')
_ID = re.compile(r"([a-z]|xs)(\d\d)")


def _page() -> str:
    return (ROOT / "docs" / "conformance.md").read_text()


def rows(page: str) -> dict[str, str]:
    """Every row of the page: id and short description."""
    return {_key(case): text for case, text in _CASE.findall(page)}


def _key(case: str) -> str:
    """A case as tests are named by it: `W-04` is w04, `X-S07` is xs07."""
    return case.lower().replace("-", "")


def shown(case: str) -> str:
    """A case as the page writes it.

    >>> shown("w04"), shown("xs07")
    ('W-04', 'X-S07')
    """
    return f"X-S{case[2:]}" if case.startswith("xs") else f"{case[0].upper()}-{case[1:]}"


def cases() -> dict[str, str]:
    """Every case of the page that is to be tested: id and short description."""
    return {case: text for case, text in rows(_page()).items() if not text.startswith("left out")}


def unjudged(page: str) -> list[str]:
    """What is wrong with the page's rows: numbers of a group without one or with two, rows of no group."""
    wanted = {f"{_key(group)}{n:02}" for group, count in _GROUP.findall(page) for n in range(1, int(count) + 1)}
    found = [_key(case) for case, _ in _CASE.findall(page)]
    wrong = dict.fromkeys(wanted - set(found), "no row in docs/conformance.md")
    wrong |= dict.fromkeys(set(found) - wanted, "not in the groups of docs/conformance.md")
    wrong |= {case: "two rows in docs/conformance.md" for case in found if found.count(case) > 1}
    return [f"{shown(case)}: {what}" for case, what in sorted(wrong.items())]


def ids_of(name: str) -> set[str]:
    """The ids at the start of a test's name."""
    found: set[str] = set()
    words = name.split("_")
    for at, word in enumerate(words):
        match = _ID.fullmatch(word)
        if match:
            found.add(word)
        elif word == "to" and at and at + 1 < len(words):
            first, last = _ID.fullmatch(words[at - 1]), _ID.fullmatch(words[at + 1])
            if not first or not last:
                break
            found |= {f"{first[1]}{n:02}" for n in range(int(first[2]), int(last[2]) + 1)}
        else:
            break
    return found


def tested() -> set[str]:
    """The ids of all tests."""
    names = [name for path in (ROOT / "rust").rglob("*.rs") for name in _names(path.read_text(), _RUST, _PROPTEST)]
    found = {case for name in names for case in ids_of(name)}
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    markers = [marker for text in texts for marker in _MARKER.findall(text)]
    return found | {_key(case) for marker in markers for case in _MARKED.findall(marker)}


def _names(text: str, *patterns: re.Pattern[str]) -> list[str]:
    return [name for pattern in patterns for name in pattern.findall(text)]


def main() -> int:
    """Prints the cases without a row, and those without a test."""
    wrong = unjudged(_page())
    print(*wrong, sep="\n", end="\n" if wrong else "")
    wanted, found = cases(), tested()
    missing = sorted(set(wanted) - found)
    for case in missing:
        print(f"{shown(case)}: {wanted[case]}")
    print(f"{len(wanted) - len(missing)} of {len(wanted)} conformance cases have a test")
    return 1 if missing or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
