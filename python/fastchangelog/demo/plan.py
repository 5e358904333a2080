"""The queries of the demo, as plain data that is passed to the job as JSON.

Owns: the text form of aggregates (`sum(price)`), the description of a query. Does not own: running anything.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from fastchangelog.errors import InvalidArgumentError

#: Functions that Spark, fastchangelog and the independent computation agree on, whatever the order of rows.
FUNCTIONS = ("count", "sum", "min", "max", "avg")
_AGG = re.compile(r"\s*(?P<fn>[A-Za-z_]+)\s*\(\s*(?P<col>[^()]*?)\s*\)\s*")


@dataclasses.dataclass(frozen=True)
class Agg:
    """One aggregate: `Agg("sum", "price")`; `Agg("count", "*")` counts rows."""

    fn: str
    col: str

    @property
    def name(self) -> str:
        """Column of the result."""
        return "rows" if self.col == "*" else f"{self.fn}_{self.col}"


def parse_agg(text: str) -> Agg:
    """The aggregate of a text.

    >>> parse_agg("sum(price)")
    Agg(fn='sum', col='price')
    >>> parse_agg("count(*)").name
    'rows'
    >>> parse_agg("median(price)")
    Traceback (most recent call last):
    fastchangelog.errors.InvalidArgumentError: --agg median(price): the demo knows count, sum, min, max and avg
    """
    found = _AGG.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"--agg {text}: write it as function(column), for example 'sum(price)' or 'count(*)'"
        )
    fn, col = found["fn"].lower(), found["col"]
    if fn not in FUNCTIONS:
        raise InvalidArgumentError(f"--agg {text}: the demo knows {', '.join(FUNCTIONS[:-1])} and {FUNCTIONS[-1]}")
    if not col or (col == "*" and fn != "count"):
        raise InvalidArgumentError(f"--agg {text}: name a column; only count takes *")
    return Agg(fn, col)


@dataclasses.dataclass(frozen=True)
class Query:
    """One streaming query: an input folder of parquet files, two per batch, grouped and aggregated."""

    name: str
    #: "ours" or "native".
    kind: str
    input: str
    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    batches: int
    checkpoint: str
    output: str
    state: str

    @property
    def id(self) -> str:
        """Name and kind."""
        return f"{self.name}-{self.kind}"


@dataclasses.dataclass(frozen=True)
class Prepare:
    """A folder of the user that the job cuts into the files of a stream; the result is computed from it as well."""

    source: str
    format: str
    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    input: str
    expected: str
    batches: int


@dataclasses.dataclass(frozen=True)
class Job:
    """The work of one start of the job: prepare (if given), then the queries one after the other."""

    queries: tuple[Query, ...]
    events: str
    partitions: int
    prepare: Prepare | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Job:
        """The inverse of `to_dict`."""

        def shaped(item: dict[str, Any]) -> dict[str, Any]:
            return {**item, "keys": tuple(item["keys"]), "aggs": tuple(Agg(**a) for a in item["aggs"])}

        queries = tuple(Query(**shaped(q)) for q in value["queries"])
        prepare = Prepare(**shaped(value["prepare"])) if value["prepare"] else None
        return Job(queries, value["events"], value["partitions"], prepare)
