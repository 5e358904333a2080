"""The content of one batch of a query's checkpoint: its states and their sizes.

Owns: the description. Does not own: the handles (`savepoints.source`), reading a shard (`spark.reading.scan`).
"""

from __future__ import annotations

import json
from typing import Any

from fastchangelog.catalog import is_processor, states_of
from fastchangelog.options import gather_options
from fastchangelog.savepoints.source import FoundHandles, StateSource, find_handles, storage_options_of

__all__ = ["describe_batch"]


def describe_batch(source: StateSource, *, count: bool) -> dict[str, Any]:
    """The state of a batch, ready for JSON. With `count` each shard is read: `counts` has the number of values,
    elements, map entries or timers of each state of a processor, `keys` the number of keys of an aggregation."""
    found = find_handles(source)
    from fastchangelog.checkpoints.state_handles import newest_schema

    schema = newest_schema(dict(enumerate(found.handles)))
    said = {
        "uri": found.uri,
        "query": found.query,
        "name": found.name,
        "batch": found.batch,
        "partitions_with_state": len(found.handles),
        "schema": schema,
    }
    if not count:
        return said
    given: Any = (gather_options(conf=source.conf), storage_options_of(found.uri, source))
    if is_processor(schema):
        return {**said, "counts": _entries(found, schema, given)}
    return {**said, "keys": _keys(found, schema, given)}


def _entries(found: FoundHandles, schema: str, given: Any) -> dict[str, int]:
    from fastchangelog.spark.reading.columns import StateColumns
    from fastchangelog.spark.reading.scan import processor_rows

    counts: dict[str, int] = {}
    for state in states_of(schema):
        columns = StateColumns.of(state)
        counts[state.name] = sum(
            rows.num_rows
            for handle in found.handles
            for rows in processor_rows(_folder(found), handle, state.name, columns, found.planned_millis, *given)
        )
    return counts


def _keys(found: FoundHandles, schema: str, given: Any) -> int:
    from fastchangelog.spark.aggregates.stored import stored_spec
    from fastchangelog.spark.reading.scan import aggregate_rows

    spec, _ = stored_spec(json.loads(schema))
    return sum(
        rows.num_rows for handle in found.handles for rows in aggregate_rows(_folder(found), handle, spec, *given)
    )


def _folder(found: FoundHandles) -> tuple[str, str, str]:
    root = found.uri.removesuffix(f"/{found.query}/{found.name}")
    return root, found.query, found.name
