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
from support.kills.aggregates import AGGREGATES
from support.kills.ledger import STATES


def entries_of_aggregates(savepoint: str, source: StateSource) -> Iterator[tuple[Any, Any]]:
    """Of each key all results."""
    columns = _exported(savepoint, source)
    names = ["key", *(call.replace("ignore nulls", "IGNORE NULLS") for _, call in AGGREGATES)]
    for row in zip(*(columns[name] for name in names), strict=True):
        yield row[0], tuple(_plain(value) for value in row[1:])


def entries_of_ledger(savepoint: str, source: StateSource) -> Iterator[tuple[Any, Any]]:
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


def _exported(savepoint: str, source: StateSource) -> dict[str, list[Any]]:
    """The columns of a savepoint, or of one of its states."""
    file = f"{savepoint}{source.name or ''}.parquet"
    export_savepoint(savepoint, file, source)
    return pq.read_table(file).to_pydict()  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """As the model has it."""
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


#: By kind of query. An entry that comes twice is there twice.
ENTRIES: dict[str, Callable[[str, StateSource], Iterator[tuple[Any, Any]]]] = {
    "aggregates": entries_of_aggregates,
    "processor": entries_of_ledger,
}
