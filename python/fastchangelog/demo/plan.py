"""The queries of the demo, as plain data that is passed to the job in a file.

Owns: the text form of aggregates (`sum(price)`), the description of a query, the file. Does not own: running anything.
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path

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
    """A folder of the user. The job cuts it into the input of its queries, and computes their result at once."""

    source: str
    format: str
    expected: str


@dataclasses.dataclass(frozen=True)
class Job:
    """The work of one start of the job: prepare (if given), then the queries one after the other."""

    queries: tuple[Query, ...]
    events: str
    partitions: int
    prepare: Prepare | None = None

    def write(self, path: Path) -> None:
        """Writes the job to a file."""
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def read(path: Path) -> Job:
        """The job in a file."""
        job = pickle.loads(path.read_bytes())
        assert isinstance(job, Job)
        return job
