"""Markdown files: their links resolve, their examples are Python, and the front page stays short.

Owns: links and anchors between files of the project, examples with prompts (run) and without (compiled), the plot.
Does not own: words (scripts/words.py), generated pages (scripts/gen_reference.py), addresses on the network.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from fastchangelog import _internal

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = (ROOT / "docs", ROOT / "examples", ROOT / ".github")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in _FOLDERS for page in sorted(folder.rglob("*.md")))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """Links of a page that lead to no file or to no heading."""
    out = []
    for match in _LINK.finditer(_FENCE.sub("", page.read_text())):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            out.append(target)
    return out


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    assert broken(page) == []


def test_source_files_that_pages_name_exist() -> None:
    folders = [ROOT / name for name in ("rust", "python", "tests", "scripts", "benches", "examples", ".ci")]
    files = [name(p) for folder in folders for p in folder.rglob("*") if "target" not in p.parts]
    missing = []
    for page in PAGES:
        for found in re.findall(r"`([\w./-]+\.(?:rs|py|sh))`", _FENCE.sub("", page.read_text())):
            if "foo" not in found and not any(f"/{file}".endswith(f"/{found}") for file in files):
                missing.append(f"{name(page)}: {found}")
    assert missing == []


def test_every_page_of_the_docs_is_listed() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    records = (ROOT / "docs" / "decisions" / "README.md").read_text()
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {p for p in pages if f"]({p})" not in index} == set()
    listed = dict(re.findall(r"^- \[(.*?)\]\((\d{4}-.*?\.md)\)$", records, re.MULTILINE))
    titles = {p.read_text().split("\n")[0].removeprefix("# "): p.name for p in (ROOT / "docs/decisions").glob("0*.md")}
    assert listed == titles


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_are_python(page: Path) -> None:
    for language, code in _FENCE.findall(page.read_text()):
        if language == "python" and ">>>" not in code:
            ast.parse(code)


@pytest.mark.parametrize("page", ["changelog.md"])  # state.md: test_state_types
def test_examples_with_prompts_run(page: str) -> None:
    result = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("script", ["words.py", "rust_circles.py"])
def test_checks_of_lint_have_examples_that_run(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    result = doctest.testmod(importlib.import_module(script.removesuffix(".py")))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_the_page_of_growth_names_metrics_and_options() -> None:
    page = (ROOT / "docs" / "growth.md").read_text()
    known = {metric for metric, _, _, _ in _internal.metrics_table()} | {
        option for option, _, _, is_public in _internal.options_table() if is_public
    }
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page))
    assert len(words) > 20
    assert words <= known, sorted(words - known)
    for title in (
        "keys without expiry",
        "lists",
        "timers",
        "versions of a schema",
        "log since",
        "snapshots",
        "RocksDB on",
    ):
        assert f"| {title}" in page
    for page_that_leads_there in ("docs/index.md", "README.md"):
        assert "growth.md" in (ROOT / page_that_leads_there).read_text()


def test_no_page_tells_users_to_set_tuning() -> None:
    tuning = {name for name, _, _, is_public in _internal.options_table() if not is_public}
    assert tuning
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        named = tuning & set(re.findall(r"`([a-z_]+)(?:=\w*)?`", page.read_text()))
        assert not named, f"{name(page)}: {sorted(named)}"


def test_the_plot_shows_the_figures_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    monkeypatch.delitem(sys.modules, "ratio_plot", raising=False)
    import ratio_plot

    source = ROOT / "docs" / "images" / "ratios.json"
    for path, text in ratio_plot.pictures(source).items():
        assert path.read_text() == text, f"run: python benches/ratio_plot.py {name(source)}"
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for bar in ratio_plot.bars_of(json.loads(source.read_text())):
        for ms in (bar.ours_ms, bar.other_ms):
            assert f"{ms:,} ms" in page or f"{ms / 1000:.1f} s" in page, bar


def test_a_result_of_the_benchmark_has_a_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    import ratio_plot

    def part(title: str, **ms: float) -> dict[str, object]:
        return {"title": title, "data": {variant: {"median_trigger_ms": time} for variant, time in ms.items()}}

    compare = part("10,000 keys, 500,000 rows a batch", ours=500.0, native=327.0, floor=363.0)
    compare["data"]["native-hdfs"] = {"median_trigger_ms": 289.0}  # type: ignore[index]
    restart = {"title": "restart with 9 keys, nothing left on the local disk", "data": {
        "ours": [{"first_batch_s": 3.0}, {"first_batch_s": 3.4}], "native": [{"first_batch_s": 9.6}]}}  # fmt: skip
    alone = part("100 keys, 500,000 rows a batch", ours=1.0, floor=1.0)
    bars = ratio_plot.bars_of({"parts": {"compare": [compare, alone], "restart": [restart]}})
    assert [(bar.label, round(bar.ratio, 2), bar.against) for bar in bars] == [
        ("10,000 keys", 0.58, "HDFS-backed store"),
        ("restart with 9 keys", 3.0, "RocksDB store"),
    ]
    for theme in ratio_plot.THEMES:
        assert ratio_plot.svg(bars, theme).count("<rect") == 2
