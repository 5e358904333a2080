"""The final state that a sink holds, against an independent computation.

Owns: reading back what the batches wrote, the computation by pyarrow, and the comparison row by row.
Does not own: how the batches got there.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fastchangelog.demo.plan import Agg

#: Floating sums may differ by the order of addition, and by no more than this relative amount.
_FLOAT_TOLERANCE = 1e-9
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a comparison."""

    rows: int
    #: Keys that are missing, unexpected or different, and a few of them in words.
    wrong: int
    examples: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """True when nothing differs."""
        return self.wrong == 0


def expected(table: pa.Table, keys: tuple[str, ...], aggs: tuple[Agg, ...]) -> pa.Table:
    """All rows at once, by pyarrow: it shares no code with what is tested."""
    names = {"count": "count", "sum": "sum", "min": "min", "max": "max", "avg": "mean"}
    calls: list[Any] = [([], "count_all") if a.col == "*" else (a.col, names[a.fn]) for a in aggs]
    out = table.group_by(list(keys), use_threads=False).aggregate(calls)
    columns = {k: out[k] for k in keys}
    for agg, call in zip(aggs, calls, strict=True):
        columns[agg.name] = out["count_all" if agg.col == "*" else f"{agg.col}_{call[1]}"]
    return pa.table(columns)


def final_state(output: Path, keys: tuple[str, ...]) -> tuple[pa.Table, int]:
    """The last row of each key over all batches, and how many keys a single batch wrote twice (there must be none)."""
    tables, twice = [], 0
    for folder in sorted(output.glob("batch=*")):
        files = sorted(folder.glob("*.parquet"))
        if not files:
            continue
        table = pa.concat_tables([pq.ParquetFile(f).read() for f in files])
        distinct = table.group_by(list(keys), use_threads=False).aggregate([([], "count_all")]).num_rows
        twice += table.num_rows - distinct
        tables.append(table)
    if not tables:
        return pa.table({}), 0
    whole = pa.concat_tables(tables)
    keep = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)
    values = [name for name in whole.column_names if name not in keys]
    last = whole.group_by(list(keys), use_threads=False).aggregate([(name, "last", keep) for name in values])
    return pa.table({**{k: last[k] for k in keys}, **{name: last[f"{name}_last"] for name in values}}), twice


def compare(got: pa.Table, want: pa.Table, keys: tuple[str, ...], twice: int = 0) -> Verdict:
    """Row by row; null is a key and a value like any other."""
    examples = [f"{twice} keys stand twice in one batch"] if twice else []
    if got.num_columns == 0:
        return Verdict(0, max(want.num_rows, 1), ("nothing was written",))
    got = got.select(want.column_names)
    order = [(k, "ascending") for k in keys]
    got_sorted, want_sorted = got.sort_by(order), want.sort_by(order)
    if not twice and got_sorted.num_rows == want_sorted.num_rows:
        same = [_same(got_sorted[name], want_sorted[name]) for name in want.column_names]
        if all(same):
            return Verdict(got.num_rows, 0, ())
    ours, theirs = _rows(got, keys), _rows(want, keys)
    wrong = twice
    for key in ours.keys() | theirs.keys():
        left, right = ours.get(key), theirs.get(key)
        if left is None or right is None or not all(map(_alike, left, right)):
            wrong += 1
            if len(examples) < _SHOWN:
                examples.append(f"key {key}: {_shown(left)} instead of {_shown(right)}")
    return Verdict(got.num_rows, wrong, tuple(examples))


def _same(got: pa.ChunkedArray, want: pa.ChunkedArray) -> bool:
    got, want = got.combine_chunks(), want.combine_chunks()
    if got.type != want.type:
        got = got.cast(want.type)
    if not pa.types.is_floating(want.type):
        return bool(got.equals(want))
    return all(map(_alike, got.to_pylist(), want.to_pylist()))


def _alike(got: Any, want: Any) -> bool:
    if isinstance(got, float) and isinstance(want, float):
        return math.isclose(got, want, rel_tol=_FLOAT_TOLERANCE) or (math.isnan(got) and math.isnan(want))
    return bool(got == want)


def _rows(table: pa.Table, keys: tuple[str, ...]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    key_columns = [table[k].to_pylist() for k in keys]
    values = [table[name].to_pylist() for name in table.column_names if name not in keys]
    return dict(zip(zip(*key_columns, strict=True), zip(*values, strict=True), strict=True))


def _shown(row: tuple[Any, ...] | None) -> str:
    return "nothing" if row is None else str(row)
