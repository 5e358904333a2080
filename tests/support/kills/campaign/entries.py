"""The entries of a savepoint, named as in the snapshots of the models.

Owns: the kinds of queries that a campaign runs, and how their savepoints are read. Does not own: savepoints
(`store`), the models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq

from fastchangelog.savepoints.export import export_savepoint
from fastchangelog.savepoints.source import StateSource
from fastchangelog.spark.checkpoint.spark_states import Checkpoint
from support.kills.aggregates import AGGREGATES
from support.kills.ledger import STATES
from support.kills.windows import DISTINCT

Entries = Iterator[tuple[Any, Any]]
"""Names and values."""


def entries_of_aggregates(_: str, savepoint: str, source: StateSource) -> Entries:
    """Of each key all results."""
    columns = _exported(savepoint, source)
    names = ["key", *(call.replace("ignore nulls", "IGNORE NULLS") for _, call in AGGREGATES)]
    for row in zip(*(columns[name] for name in names), strict=True):
        yield row[0], tuple(_plain(value) for value in row[1:])


def entries_of_ledger(_: str, savepoint: str, source: StateSource) -> Entries:
    """Values, lists, entries of maps, and timers."""
    total, recent, slots, timers = (_exported(savepoint, dataclasses.replace(source, name=name)) for name in STATES)
    for key, value in zip(total["key"], total["value"], strict=True):
        yield (STATES[0], key["k"]), (value["n"], value["s"])
    lists: dict[Any, list[int]] = {}
    for key, element in zip(recent["key"], recent["list_element"], strict=True):
        lists.setdefault(key["k"], []).append(element["v"])
    for key, values in lists.items():
        yield (STATES[1], key), values
    for key, slot, value in zip(slots["key"], slots["user_map_key"], slots["user_map_value"], strict=True):
        yield (STATES[2], key["k"], slot["slot"]), value["s"]
    for key, time in zip(timers["key"], timers["expiration_timestamp_ms"], strict=True):
        yield (STATES[3], key["k"], time), None


def entries_of_windows(state: str, savepoint: str, source: StateSource) -> Entries:
    """Of each window its results, of each distinct row its expiry; some expired ones still wait for their removal."""
    columns = _exported(savepoint, source)
    if state == DISTINCT:
        with source.session() as session:
            watermark = Checkpoint(session(), source.checkpoint, source.batch).watermark_millis()
        for key, value, expiry in zip(columns["key_1"], columns["key_2"], columns["first(expiry)"], strict=True):
            if expiry > watermark * 1_000:
                yield (state, key, value), expiry / 1e6
        return
    for end, key, *results in zip(*(columns[name] for name in ("key_1", "key_2", "count(*)", "sum(v)")), strict=True):
        yield (state, int(end.timestamp()), key), tuple(results)


def _exported(savepoint: str, source: StateSource) -> dict[str, list[Any]]:
    """The columns of a savepoint, or of one of its states."""
    file = f"{savepoint}{source.name or ''}.parquet"
    export_savepoint(savepoint, file, source)
    return pq.read_table(file).to_pydict()  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """As the model has it."""
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


#: By kind of query: the entries of the state of a name, in its savepoint. An entry that comes twice is there twice.
ENTRIES: dict[str, Callable[[str, str, StateSource], Entries]] = {
    "aggregates": entries_of_aggregates,
    "processor": entries_of_ledger,
    "windows": entries_of_windows,
}
