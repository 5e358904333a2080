"""The kinds of queries that a campaign kills: a row for each.

Owns: what Spark runs of a kind, and how its savepoints are read. Does not own: rows and models (`query`,
`kills.ledger`), kinds of the kill tests (`kills.kinds`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fastchangelog.savepoints.export import export_savepoint
from fastchangelog.savepoints.source import StateSource
from support.kills.campaign.query import AGGREGATES, SCHEMA, Model
from support.kills.kinds import PROCESSOR, Kind
from support.kills.ledger import STATES, LedgerModel, Row
from support.kills.points import WORKER_POINTS


@dataclasses.dataclass(frozen=True)
class CampaignKind(Kind):
    """One kind of query; its model also knows the state after each batch."""

    #: The entries of a savepoint, named as in the model's snapshots. An entry that comes twice is there twice.
    entries: Callable[[str, StateSource], Iterator[tuple[Any, Any]]] = dataclasses.field(kw_only=True)


class LedgerRounds(LedgerModel):
    """Batches of few keys or many, and of few rows or many."""

    def rows(self) -> list[Row]:
        """A batch."""
        return self.batch(self._random.choice([2, 20, 60, 300]), self._random.choice([20, 150, 400]))


def column(name: str, call: str) -> Column:
    """One aggregate.

    >>> column("total", "sum(v)")
    Column<'sum(v) AS total'>
    """
    function, _, rest = call.partition("(")
    arguments, _, nulls = rest.partition(")")
    made = getattr(F, function)(*arguments.split(", "), **({"ignorenulls": True} if nulls else {}))
    return made.alias(name)  # type: ignore[no-any-return]


def aggregates(stream: DataFrame, group: Callable[[DataFrame], Any]) -> DataFrame:
    """All of them."""
    return group(stream).agg(*[column(name, call) for name, call in AGGREGATES])  # type: ignore[no-any-return]


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


KINDS = {
    kind.name: kind
    for kind in (
        CampaignKind("aggregates", SCHEMA, Model, aggregates, WORKER_POINTS, entries=entries_of_aggregates),
        CampaignKind(**{**vars(PROCESSOR), "model": LedgerRounds}, entries=entries_of_ledger),
    )
}
