"""Stored rows of aggregates, read without the query that wrote them.

Owns: what reads rows, made from their description in a handle, a savepoint or a catalog.
Does not own: the rows' bytes (the core), the specification's text (`spec`).

The description has the types of keys, and the functions with the types of their arguments. It has no names: keys are
`key`, or `key_1`, `key_2` …, and a result is named after its expression, such as `sum(price)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fastchangelog import _internal
from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.errors import SchemaMismatchError
from fastchangelog.schema import arrow_type
from fastchangelog.spark.aggregates.spec import AggregateSpec, calls_json, spec_json

__all__ = ["labelled_rows", "stored_accumulators", "stored_spec"]


def stored_spec(described: Mapping[str, Any]) -> tuple[str, pa.Schema]:
    """The part of the described aggregation that is needed to read its rows, and the columns of keys and results."""
    fields = [pa.field(f"key_{i + 1}", arrow_type("key", text)) for i, text in enumerate(described["keys"])]
    if len(fields) == 1:
        fields = [fields[0].with_name("key")]
    columns = list(fields)
    calls = []
    for part in described["aggregates"]:
        types = [arrow_type(part["identity"], text) for text in part["types"]]
        args = tuple(range(len(columns), len(columns) + len(types)))
        columns += [pa.field(f"arg_{len(columns) + i}", dtype) for i, dtype in enumerate(types)]
        ansi = part.get("ansi")
        calls.append(
            AggregateSpec(
                part["fn"],
                args,
                None,
                part.get("ignore_nulls", False),
                True if ansi is None else ansi,
                part["identity"],
            )
        )
    results = pa.schema([*fields, *_internal.aggregate_results(pa.schema(columns), calls_json(calls))])
    session_windows = described.get("session_windows", False)
    text = spec_json(
        len(fields),
        pa.schema(columns),
        results,
        calls,
        windows=described.get("windows"),
        session_windows=session_windows,
    )
    _check(_internal.spec_schema(text)[1], json.dumps(described, separators=(",", ":"), ensure_ascii=False))
    return text, results


def stored_accumulators(layout: AccumulatorLayout, names: Sequence[str]) -> _internal.Accumulators:
    """What reads the accumulators of a processor's state; its results have these names."""
    parts = {part["identity"]: part for part in json.loads(layout.schema)["aggregates"]}
    columns: list[pa.Field] = []
    calls = []
    for identity, name in zip(layout.identities, names, strict=True):
        part = parts[identity]
        types = [arrow_type(identity, text) for text in part["types"]]
        args = [f"arg_{len(columns) + i}" for i in range(len(types))]
        columns += map(pa.field, args, types)
        ignores_nulls = part.get("ignore_nulls", False)
        described = {"fn": part["fn"], "args": args, "where": None, "identity": identity}
        calls.append({**described, "ignore_nulls": ignores_nulls, "name": name})
    ansi = all(part.get("ansi", True) for part in parts.values())
    accumulators = _internal.Accumulators(pa.schema(columns), json.dumps(calls), ansi)
    _check(accumulators.schema, layout.schema)
    return accumulators


def _check(found: str, stored: str) -> None:
    if found != stored:
        raise SchemaMismatchError(
            "this version of fastchangelog cannot read these rows back; use the one that wrote them"
        )


def labelled_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as `schema`: strings come as binaries, since Spark's need not be UTF-8."""
    return pa.RecordBatch.from_arrays(
        [c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)], schema=schema
    )
