"""The aggregates that are killed, as data: columns, calls, random rows, and what must come out of them.

Owns: the rows and a model in plain Python that computes every aggregate. Does not own: what Spark runs
(`kinds`), files and batches (`answers`).
"""

from __future__ import annotations

import dataclasses
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("d", pa.decimal128(12, 2)),
        ("t", pa.string()),
        ("o", pa.int64()),
    ]
)

#: Result and call, in the order of the answer's columns.
AGGREGATES = [
    ("n", "count(*)"),
    ("texts", "count(t)"),
    ("total", "sum(v)"),
    ("mean", "avg(v)"),
    ("least", "min(v)"),
    ("most", "max(v)"),
    ("amount", "sum(d)"),
    ("smallest", "min(d)"),
    ("greatest", "max(d)"),
    ("low", "min(t)"),
    ("high", "max(t)"),
    ("first", "first(t)"),
    ("last", "last(t)"),
    ("first_known", "first(t) ignore nulls"),
    ("last_known", "last(t) ignore nulls"),
    ("newest", "max_by(t, o)"),
    ("oldest", "min_by(t, o)"),
]

Row = tuple[Any, ...]
"""Key, v, d, t, o."""

_TEXTS = [None, None, "", "a", "ä", "日本語", "a\0b", "😀 long enough to not be inline", "Z" * 300]
_CENT = Decimal("0.01")


@dataclasses.dataclass
class Group:
    """All that the aggregates of one key need."""

    n: int = 0
    texts: int = 0
    values: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0, 0])  # count, sum, least, most
    amount: Decimal | None = None
    smallest: Decimal | None = None
    greatest: Decimal | None = None
    low: str | None = None
    high: str | None = None
    first: str | None = None
    last: str | None = None
    first_known: str | None = None
    last_known: str | None = None
    newest: tuple[int, str | None] | None = None
    oldest: tuple[int, str | None] | None = None

    def add(self, row: Row) -> None:
        """One more row, after those before it."""
        _, v, d, t, o = row
        if self.n == 0:
            self.first = t
        self.n += 1
        self.last = t
        if v is not None:
            count, total, least, most = self.values
            self.values = [count + 1, total + v, min(least, v) if count else v, max(most, v) if count else v]
        if d is not None:
            self.amount = d if self.amount is None else self.amount + d
            self.smallest = d if self.smallest is None else min(self.smallest, d)
            self.greatest = d if self.greatest is None else max(self.greatest, d)
        if t is not None:
            self.texts += 1
            self.low = t if self.low is None else min(self.low, t)
            self.high = t if self.high is None else max(self.high, t)
            self.first_known = t if self.texts == 1 else self.first_known
            self.last_known = t
        if self.newest is None or o > self.newest[0]:
            self.newest = (o, t)
        if self.oldest is None or o < self.oldest[0]:
            self.oldest = (o, t)

    def answer(self) -> Row:
        """The results, in the order of `AGGREGATES`; decimals as texts."""
        count, total, least, most = self.values
        numbers = (total, total / count, least, most) if count else (None, None, None, None)
        decimals = (self.amount, self.smallest, self.greatest)
        return (
            self.n,
            self.texts,
            *numbers,
            *(None if d is None else str(d.quantize(_CENT)) for d in decimals),
            self.low,
            self.high,
            self.first,
            self.last,
            self.first_known,
            self.last_known,
            self.newest[1] if self.newest else None,
            self.oldest[1] if self.oldest else None,
        )


class Model:
    """The state that the query must have, and random rows for it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._groups: dict[str | None, Group] = {}
        self._order = 0

    def batch(self, keys: int, count: int) -> list[Row]:
        """So many random rows of so many keys and null."""
        return [self._row(self._key(keys)) for _ in range(count)]

    def touches(self) -> list[list[Row]]:
        """A batch with one row for every key that there is."""
        return [[self._row(key) for key in sorted(self._groups, key=repr)]]

    def _key(self, keys: int) -> str | None:
        number = self._random.randrange(-1, keys)
        return None if number < 0 else f"key-{number}"

    def _row(self, key: str | None) -> Row:
        rng = self._random
        # In no order, and each once.
        self._order += 1
        order = (self._order * 2_654_435_761) % (1 << 32)
        v = None if rng.random() < 0.1 else rng.randint(-(10**6), 10**6)
        d = None if rng.random() < 0.1 else Decimal(rng.randint(-(10**9), 10**9)).scaleb(-2)
        return (key, v, d, rng.choice(_TEXTS), order)

    def apply(self, rows: list[Row]) -> list[list[Any]]:
        """Adds a batch; what every changed key has after it."""
        for row in rows:
            self._groups.setdefault(row[0], Group()).add(row)
        return [[key, *self._groups[key].answer()] for key in {row[0] for row in rows}]

    def moved(self) -> None:
        """A new query goes on from here: nothing changes."""

    def snapshot(self) -> dict[str | None, Row]:
        """What every key has now."""
        return {key: group.answer() for key, group in self._groups.items()}
