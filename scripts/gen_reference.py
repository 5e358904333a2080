"""Writes files from the tables that the sources hold: docs/options.md, docs/metrics.md, docs/aggregates.md, and the
builders of aggregates in python/fastchangelog/functions.

    gen_reference.py            write
    gen_reference.py --check    end with 1 if the files are not what would be written

Owns: the layout of the pages. Does not own: names, defaults, meanings: config.rs of rust/format, metrics.rs of
rust/store and aggregate/functions/mod.rs of rust/columns; the builders (aggregate_functions.py).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from aggregate_functions import Function, builder_modules, functions, joined

ROOT = Path(__file__).resolve().parent.parent
RUST = ROOT / "rust"

_OPTIONS_HEAD = """# Options

Each option can be given three ways; the first that names it wins:

1. `grouped(df, "key", state=…, options={"memory_budget": "256MiB"})`, also of `open_state` and
   `ChangelogStorage`
2. the Spark conf `spark.fastchangelog.<option>`, for all queries of a session
3. the default

Sizes are numbers of bytes, or texts such as `"5MiB"`. Durations are `timedelta`, `"10s"`, `"5m"`, or Spark's
`"10 minutes"`; never bare numbers. An unknown name is an error that gives the nearest known one. An option has an
effect on what is named in the column *Of*; given to an embedded state or a plain changelog that is not named there, it
is an error. Options of a *server* hold for the whole state server: those of the query that started it. A later query
that asks for other values gets a warning in its log. Settings that this page does not name exist for tests, and may
change at any time.

| Option | Default | Kind | Of | Meaning |
|---|---|---|---|---|
"""

#: Scopes of an option in the sources, and on the page.
_SCOPES = {"process": "server", "query": "query", "embedded": "embedded state", "changelog": "changelog"}

_METRICS_HEAD = """# Metrics

## In Spark's progress

Each batch reports the sum over its shards in
`StreamingQueryProgress.observedMetrics["fastchangelog.<name>"]`, where `<name>` is the `name=` of `grouped`. Spark may
count an attempt that it later throws away: they are for people, nothing depends on them. Times are microseconds, added
up over shards that worked at the same time.

| Metric | Batches of | Meaning |
|---|---|---|
"""

_ENGINE_HEAD = """
## In a state server, and in a process

`fastchangelog.metrics()` gives their sum over the embedded states and changelog storages of the process and its
executor's state server; `metrics()` of a state or a storage gives its own. A histogram appears there as `<name>_count`,
`_min`, `_p50`, `_p99` and `_max` of its newest 1,000 values. The
[text endpoint](monitoring.md#prometheus-and-grafana) has counters as `fastchangelog_<name>_total`, gauges as
`fastchangelog_<name>`, and histograms as summaries.

| Metric | Kind | Meaning |
|---|---|---|
"""

_SHARD_HEAD = """
## By shard

Only the text endpoint has them: `fastchangelog_<name>`, with the labels `query` (Spark's id of the query; empty for an
embedded state), `operator` (the `name=` of `grouped` or `open_state`) and `shard`. It gives the first 1,000 shards of a
state server.

| Metric | Meaning |
|---|---|
"""

_AGGREGATES_HEAD = """# Aggregates

The functions of `grouped(…).agg(…)`, of `aggregating_state`, and of `Batch.aggregate` in a vectorised processor, with
Spark's names, types, null rules, overflow and rounding. In a query they are PySpark's own expressions,
`F.max("price")`, or builders, `fc.max("price")`; elsewhere they are builders. An alias is the same function: a state
that was made with one is read with the other.

- Sums, means and moments of floating numbers are equal to Spark's up to the order of additions.
- `collect_list` and `listagg` have the values of earlier batches first. `collect_set` has the order of Spark 4.3,
  except for arrays and structs, which are in the order of their first arrival. The values of a key are one row of the
  state, which each batch with the key writes anew: keep them few, at most some thousands.
- There are no distinct aggregates: `F.size(F.collect_set("name"))` counts exactly, and `approx_count_distinct` counts
  in some hundred bytes of state, with Spark's own estimate. Its builder has no `rsd`; `F.approx_count_distinct("name",
  0.01)` has one, from 0.0022 to 0.39.
- The builder of `listagg` has no delimiter; `F.listagg("name", ", ")` has one.
- `percentile`, `median` and `mode` keep each value once, with how often it came: their rows grow with the values of a
  key. Of values that came equally often, Spark's `mode` takes any one and this one the first;
  `F.mode("name", deterministic=True)` takes the smallest in both.
- `percentile_approx` keeps some of the values: all of them while a key has fewer than half of `accuracy`, and then its
  results are Spark's. Of more values Spark's own result depends on how its tasks split the rows; both stay within the
  error. Decimals go through doubles, as in Spark: beyond 15 digits the last ones there depend on the version of Java.
  Its builder has no `accuracy`; `F.percentile_approx("price", 0.5, 100)` has one.
- `histogram_numeric` takes Spark's steps, with its generator of random numbers: the results are Spark's while its tasks
  split the rows equally, as those of one input partition a batch with at most 128 keys. Otherwise the bins may differ.
  Decimals go through doubles here, too. The builder takes the number of bins as a column:
  `fc.histogram_numeric("price", F.lit(20))`.
- With ANSI mode an overflow is an error. Without it, it wraps or gives null, as in Spark.
- *Number*: an integer, `float`, `double` or `decimal`. *Ordered*: any type but maps and calendar intervals.

| Function | Arguments | Result type | Meaning |
|---|---|---|---|
"""

_ARGUMENTS = {
    "Presence": "any",
    "Any": "any",
    "Hashed": "any",
    "Ordered": "ordered",
    "Quantity": "number or interval",
    "Double": "number",
    "Measured": "number, date, time or interval",
    "Integer": "integer",
    "Boolean": "boolean",
    "Text": "string or binary",
    "Percentages": "double or array of double",
    "Deviation": "a constant number",
}


#: Whose batches report a metric, for its row in the table.
_OPERATORS = {"": "all", "aggregation": "aggregations", "processor": "processors"}


def options_page() -> str:
    """docs/options.md: the public options."""
    text = (RUST / "format" / "src" / "config.rs").read_text()
    table = re.search(r"^options! \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    if table is None:
        raise SystemExit("config.rs: the table of options was not found")
    row = r'((?:\s*///[^\n]*\n)+)\s*(\w+): (\w+) = "([^"]*)" in \[([^\]]*)\]( tuning)?,'
    rows = re.findall(row, table.group(1))
    if len(rows) != len(re.findall(r"\]( tuning)?,$", table.group(1), re.MULTILINE)):
        raise SystemExit("config.rs: a row of the table of options was not understood")
    kinds = dict.fromkeys(("compression", "restoring", "sweeping"), "name")
    kinds |= {"count": "number", "ratio": "number", "flag": "true or false"}
    lines = [
        f"| `{name}` | `{value}` | {kinds.get(kind, kind)} | {_scopes(scopes)} | {_doc(doc)} |"
        for doc, name, kind, value, scopes, tuning in rows
        if not tuning
    ]
    return _OPTIONS_HEAD + "\n".join(lines) + "\n"


def _scopes(text: str) -> str:
    """The scopes of a row, with their own defaults.

    >>> _scopes('query, changelog = "10ms"')
    'query, changelog (`10ms`)'
    """
    found = re.findall(r'(\w+)(?: = "([^"]*)")?', text)
    return ", ".join(_SCOPES[scope] + (f" (`{own}`)" if own else "") for scope, own in found)


def metrics_page() -> str:
    """docs/metrics.md."""
    text = (RUST / "store" / "src" / "metrics.rs").read_text()
    engine, batch, shard = (_section(text, name) for name in ("process", "batch", "shard"))
    reported = [*batch, *(row for row in engine if row.in_batch)]
    return (
        _METRICS_HEAD
        + "".join(f"| `{row.name}` | {_OPERATORS[row.operators]} | {row.meaning} |\n" for row in reported)
        + _ENGINE_HEAD
        + "".join(f"| `{row.name}` | {row.kind} | {row.meaning} |\n" for row in engine)
        + _SHARD_HEAD
        + "".join(f"| `{row.name}` | {row.meaning} |\n" for row in shard)
    )


def aggregates_page(table: list[Function]) -> str:
    """docs/aggregates.md."""
    lines = []
    for row in table:
        name, *aliases = (f"`{name}`" for name in row.names)
        kinds = ", ".join(_ARGUMENTS[kind] for kind in row.arguments)
        if row.takes_more:
            kinds = ", optionally ".join(kinds.rsplit(", ", 1))
        shown = "`*`, or any number of any type" if row.arguments == ["Presence"] else kinds
        meaning = row.doc.replace("|", "\\|") + (" Nulls count unless `ignorenulls`." if row.ignores_nulls else "")
        also = f" (also {', '.join(aliases)})" if aliases else ""
        lines.append(f"| {name}{also} | {shown} | {row.result} | {meaning} |\n")
    return _AGGREGATES_HEAD + "".join(lines)


class _Metric(NamedTuple):
    """A row of the table of metrics."""

    name: str
    kind: str
    in_batch: str
    operators: str
    meaning: str


def _section(text: str, name: str) -> list[_Metric]:
    """The rows of one section of the table of metrics."""
    section = re.search(rf"^{name} \{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise SystemExit(f"metrics.rs: the section {name} of the table was not found")
    row = r"((?:\s*///[^\n]*\n)+)\s*(\w+)(?:: (\w+)(?: (batch|growth))?)?(?: (\w+))?,"
    rows = re.findall(row, section.group(1))
    return [_Metric(name, kind, in_batch, operators, _doc(doc)) for doc, name, kind, in_batch, operators in rows]


def _doc(comment: str) -> str:
    return joined(comment).replace("|", "\\|")


def generated() -> dict[Path, str]:
    """Each file, from the root of the tree, and its text."""
    table = functions(ROOT)
    docs, builders = Path("docs"), Path("python") / "fastchangelog" / "functions"
    pages = {"options": options_page(), "metrics": metrics_page(), "aggregates": aggregates_page(table)}
    return {docs / f"{name}.md": text for name, text in pages.items()} | {
        builders / f"{name}.py": text for name, text in builder_modules(table).items()
    }


def main(argv: list[str]) -> int:
    """Writes or checks."""
    stale = []
    for name, text in generated().items():
        path = ROOT / name
        if argv != ["--check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(name))
    if stale:
        print(f"out of date: {', '.join(stale)}; run: python scripts/gen_reference.py")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
