"""Writes docs/options.md and docs/metrics.md from the one table of each that the sources hold.

    gen_reference.py            write
    gen_reference.py --check    end with 1 if the pages are not what would be written

Owns: the layout of the two pages. Does not own: names, defaults, meanings: rust/core/src/config.rs and metrics.rs, and
python/fastchangelog/spark/metrics.py.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "rust" / "core" / "src"

_OPTIONS_HEAD = """# Options

Each option can be given three ways; the first that names it wins:

1. `grouped(df, "key", state=…, options={"memory_budget": "256MiB"})`, also of `open_state` and
   `ChangelogStorage`
2. the Spark conf `spark.fastchangelog.<option>`, for all queries of a session
3. the default

Sizes are numbers of bytes, or texts such as `"5MiB"`. Durations are `timedelta`, `"10s"`, `"5m"`, or Spark's
`"10 minutes"`; never bare numbers. An unknown name is an error that gives the nearest known one. Options of the state
server itself (`memory_budget`, `cache_size`, `cache_idle_timeout`, `max_message_size`, `max_sessions`,
`background_bandwidth`, `background_transfers`) hold for the
whole server: those of the query that started it. A later query that asks for other values gets a warning in its log.

| Option | Default | Kind | Meaning |
|---|---|---|---|
"""

_METRICS_HEAD = """# Metrics

## In Spark's progress

Each batch reports the sum over its shards in
`StreamingQueryProgress.observedMetrics["fastchangelog.<name>"]`, where `<name>` is the `name=` of `grouped`. Spark may
count an attempt that it later throws away: they are for people, nothing depends on them. Times are microseconds, added
up over shards that worked at the same time.

| Metric | Meaning |
|---|---|
"""

_COUNTERS_HEAD = """
## Of a process

`fastchangelog.metrics()` returns them by name: the sum over the open embedded states and changelog storages of the
process, and the state server of the executor. `metrics()` of a state or of a storage is its part. Counted from the
start of each; a gauge is the value of now.

| Counter | Meaning |
|---|---|
"""


def options_page() -> str:
    """docs/options.md."""
    text = (CORE / "config.rs").read_text()
    table = re.search(r"^options! \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    if table is None:
        raise SystemExit("config.rs: the table of options was not found")
    rows = re.findall(r'((?:\s*///[^\n]*\n)+)\s*(\w+): (\w+) = "([^"]*)"', table.group(1))
    kinds = {"count": "number", "ratio": "number", "flag": "true or false", "compression": "name", "restoring": "name"}
    lines = [f"| `{name}` | `{value}` | {kinds.get(kind, kind)} | {_doc(doc)} |" for doc, name, kind, value in rows]
    return _OPTIONS_HEAD + "\n".join(lines) + "\n"


def metrics_page() -> str:
    """docs/metrics.md."""
    text = (CORE / "metrics.rs").read_text()
    table = re.search(r"^counters! \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    if table is None:
        raise SystemExit("metrics.rs: the table of counters was not found")
    counters = {name: _doc(doc) for doc, name in re.findall(r"((?:\s*///[^\n]*\n)+)\s*(\w+)[,;]", table.group(1))}
    observed = _observed(counters)
    return (
        _METRICS_HEAD
        + "\n".join(f"| `{name}` | {meaning} |" for name, meaning in observed.items())
        + "\n"
        + _COUNTERS_HEAD
        + "\n".join(f"| `{name}` | {meaning} |" for name, meaning in counters.items())
        + "\n"
    )


def _observed(counters: dict[str, str]) -> dict[str, str]:
    """Names in their order, explained by their comment or by the counter of the same name."""
    source = (ROOT / "python" / "fastchangelog" / "spark" / "metrics.py").read_text()
    names = next(
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "NAMES"
    )
    comments = {m[0]: m[1].strip() for m in re.findall(r'^\s+"(\w+)",\s*# (.*)$', source, re.MULTILINE)}
    own = {"shards": "Shards that had input in this batch."}
    return {name: own.get(name) or _sentence(comments.get(name) or counters.get(name, "")) for name in names}


def _doc(comment: str) -> str:
    lines = (line.strip().removeprefix("///").strip() for line in comment.strip().splitlines())
    return " ".join(lines).replace("|", "\\|")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") or not text else ".")


def main(argv: list[str]) -> int:
    """Writes or checks."""
    stale = []
    for name, page in (("options.md", options_page()), ("metrics.md", metrics_page())):
        path = ROOT / "docs" / name
        if argv == ["--check"]:
            if not path.exists() or path.read_text() != page:
                stale.append(f"docs/{name}")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(page)
    if stale:
        print(f"out of date: {', '.join(stale)}; run: python scripts/gen_reference.py")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
