"""The plot of the ratios of `make bench`, as SVG for light and for dark pages.

    ratio_plot.py docs/images/ratios.json             draw docs/images/ratios-light.svg and ratios-dark.svg
    ratio_plot.py FILE --check                        end with 1 if the two pictures are not what would be drawn
    ratio_plot.py RESULT.json                         the same for the JSON file that spark_compare.py wrote

A file has the form of docs/images/ratios.json, or is a result of spark_compare.py.

Owns: the choice of ratios and the layout of the picture. Does not own: the measurements (spark_compare).
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_NAMES = {"native": "RocksDB store", "native-hdfs": "HDFS-backed store", "tws-row": "transformWithState"}
_TITLE = "Time of Spark's own operators divided by the time of fastchangelog"
_TIMES = "\N{MULTIPLICATION SIGN}"
_LEGEND = f"Above 1 {_TIMES} fastchangelog is faster, below 1 {_TIMES} Spark is. Logarithmic axis."
_LEFT, _RIGHT, _TOP, _ROW, _WIDTH = 250, 200, 78, 34, 820


@dataclass(frozen=True)
class Bar:
    """One comparison: two times, and what the other one is."""

    label: str
    ours_ms: float
    other_ms: float
    against: str

    @property
    def ratio(self) -> float:
        """Above 1: fastchangelog is faster."""
        return self.other_ms / self.ours_ms


@dataclass(frozen=True)
class Theme:
    """Colours of one picture."""

    name: str
    text: str
    faint: str
    faster: str
    slower: str


THEMES = (
    Theme("light", "#1f2328", "#d1d9e0", "#1a7f64", "#c4561d"),
    Theme("dark", "#e6edf3", "#3d444d", "#3fb99a", "#f0883e"),
)


def bars_of(raw: dict[str, Any]) -> list[Bar]:
    """The bars of a file of either form.

    >>> bars_of({"bars": [{"label": "a", "ours_ms": 2, "other_ms": 3, "against": "b"}]})[0].ratio
    1.5
    """
    if "bars" in raw:
        return [Bar(**bar) for bar in raw["bars"]]
    parts = raw["parts"]
    found = [_fastest(_label(part["title"]), _triggers(part["data"])) for part in parts.get("compare", [])]
    found += [_fastest(_label(part["title"]), _triggers(part["data"])) for part in parts.get("rows", [])]
    for part in parts.get("restart", []):
        times = {v: 1000 * statistics.median(o["first_batch_s"] for o in runs) for v, runs in part["data"].items()}
        found.append(_fastest(part["title"].split(", nothing")[0], times))
    return [bar for bar in found if bar is not None]


def _triggers(data: dict[str, Any]) -> dict[str, float]:
    return {variant: one["median_trigger_ms"] for variant, one in data.items()}


def _label(title: str) -> str:
    """A part's title without the rows of a batch."""
    return ", ".join(piece for piece in title.split(", ") if "rows a batch" not in piece)


def _fastest(label: str, times: dict[str, float]) -> Bar | None:
    """Ours against the fastest of Spark's own; None where one side was not measured."""
    others = {v: ms for v, ms in times.items() if v in _NAMES and ms > 0}
    if not others or times.get("ours", 0.0) <= 0:
        return None
    best = min(others, key=lambda v: others[v])
    return Bar(label, times["ours"], others[best], _NAMES[best])


def svg(bars: list[Bar], theme: Theme, title: str = _TITLE) -> str:
    """One picture. The axis is logarithmic, so that twice as fast and twice as slow are equally long."""
    low = min(0.5, *(bar.ratio for bar in bars))
    high = max(2.0, *(bar.ratio for bar in bars))
    scale = (_WIDTH - _LEFT - _RIGHT) / math.log2(high / low)

    def at(ratio: float) -> float:
        return _LEFT + math.log2(ratio / low) * scale

    height = _TOP + _ROW * len(bars) + 34
    bottom = height - 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{theme.text}">',
        f"<title>{escape(title)}</title>",
        f'<text x="16" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="16" y="44">{escape(_LEGEND)}</text>',
    ]
    for tick in (2.0**n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)):
        x, colour = at(tick), theme.text if tick == 1 else theme.faint
        out.append(f'<line x1="{x:.1f}" y1="{_TOP - 12}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g} {_TIMES}</text>')
    for number, bar in enumerate(bars):
        y, (start, end) = _TOP + _ROW * number, sorted((at(1), at(bar.ratio)))
        colour = theme.faster if bar.ratio >= 1 else theme.slower
        out.append(f'<text x="{_LEFT - 12}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>')
        out.append(f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" height="20" fill="{colour}"/>')
        word = f"{bar.ratio:.1f} {_TIMES}, {bar.against}"
        out.append(f'<text x="{max(end, at(1)) + 8:.1f}" y="{y + 14}">{escape(word)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def pictures(source: Path) -> dict[Path, str]:
    """The two pictures beside a file: path and content."""
    raw = json.loads(source.read_text())
    bars, title = bars_of(raw), raw.get("title", _TITLE)
    if not bars:
        return {}
    return {source.with_name(f"{source.stem}-{theme.name}.svg"): svg(bars, theme, title) for theme in THEMES}


def draw(source: Path) -> list[Path]:
    """Writes them; none when nothing of the file can be compared."""
    found = pictures(source)
    for path, content in found.items():
        path.write_text(content)
    return list(found)


def main(argv: list[str]) -> int:
    """Draws or checks."""
    files = [Path(arg) for arg in argv if arg != "--check"]
    if len(files) != 1:
        print(__doc__)
        return 2
    if "--check" not in argv:
        print(*draw(files[0]), sep="\n")
        return 0
    stale = [str(path) for path, text in pictures(files[0]).items() if not path.exists() or path.read_text() != text]
    print(*(f"out of date: {path}; run: python benches/ratio_plot.py {files[0]}" for path in stale), sep="\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
