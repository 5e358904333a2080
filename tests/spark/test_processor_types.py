"""Values of every Spark type through a processor: rows in, state in and out, rows out, keys; as on Spark's operator.

Owns: the comparison of values and of their Python types. Does not own: values that a state refuses, and what Spark gets
wrong (`test_processor_better`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pathlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from support.spark.lacks import needs
from support.spark.processor_harness import Job, by_value, compare
from support.spark.values import VALUES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
by_value(__name__)

#: Spark's operator fails with a map inside of a list in a state.
TYPES = [t for t in VALUES if t not in ("interval day to second", "map<int,array<map<string,double>>>")]
GROUPS = [TYPES[i : i + 6] for i in range(0, len(TYPES), 6)]
#: A timestamp out of a state is naive in the process's zone; written out again it is taken for UTC.
KEY_TYPES = ["boolean", "tinyint", "int", "bigint", "double", "decimal(20,5)", "string", "binary", "date", "timestamp"]


def shown(seen: Any) -> str:
    """As text. Spark's state adds two digits to a decimal, and has an order of its own for the entries of a map."""
    return repr(in_order(seen)).replace("Decimal('1.00E-10')", "Decimal('1E-10')")


def in_order(value: Any) -> Any:
    """The same, with the entries of each map in the order of their keys."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    if isinstance(value, Row):
        return Row(**{name: in_order(field) for name, field in zip(value.__fields__, value)})
    if isinstance(value, (list, tuple)):
        return type(value)(map(in_order, value))
    return value


class Keeper(StatefulProcessor):
    """Keeps the last row of a key in each kind of state. Answers with the row and how all that was there looks; then
    with the values that came out of one state.
    """

    def __init__(self, fields: str):
        self.fields = fields

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self.fields)
        self.list = handle.getListState("list", self.fields)
        self.map = handle.getMapState("map", "i int", self.fields)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.i):
            values = tuple(row)[2:]
            before = self.value.get()
            seen = (row, before, list(self.list.get()), self.map.getValue((row.i % 2,)))
            names = row.__fields__[2:]
            yield Row(k=key[0], i=row.i, seen=shown(seen), **dict(zip(names, values)))
            yield Row(k=key[0], i=row.i, seen=None, **dict(zip(names, before or [None] * len(names))))
            state = self.shaped(values)
            self.value.update(state)
            self.list.appendValue(state)
            self.map.updateValue((row.i % 2,), state)

    def shaped(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Maps arrive as lists of pairs and are kept as dicts."""
        maps = [field.startswith("map<") for field in re.findall(r"c[0-9]+ (\w+.)", self.fields)]
        return tuple(dict(v) if is_map and v is not None else v for v, is_map in zip(values, maps))

    def close(self) -> None:
        """Nothing to end."""


def columns(types: list[str]) -> str:
    return ", ".join(f"c{n} {t}" for n, t in enumerate(types))


def rows(types: list[str]) -> list[list[Any]]:
    """All values, in three batches; each column has a null too."""
    count = max(len(VALUES[t]) for t in types) + 1
    made = [(f"k{i % 2}", i, *([None, *VALUES[t]][i % (len(VALUES[t]) + 1)] for t in types)) for i in range(2 * count)]
    return [made[:3], made[3:count], made[count:]]


@needs("rows")
@pytest.mark.parametrize("types", GROUPS, ids="+".join)
def test_every_type(feed: Any, spark: Any, tmp_path: pathlib.Path, types: list[str]) -> None:
    fields = columns(types)
    job = Job(lambda: Keeper(fields), f"k string, i int, seen string, {fields}")
    compare(feed, spark, tmp_path, job, f"k string, i int, {fields}", rows(types), restart=True)


class FramesKeeper(Keeper):
    """The same with frames. Types of columns depend on which rows are in a frame, so only values are shown."""

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        frame = pd.concat(list(rows)).sort_values("i")
        before = self.value.get()
        yield frame.assign(k=key[0], seen=repr((before, len(list(self.list.get())))))
        self.value.update((int(frame["i"].sum()),))
        self.list.appendValue((1,))


def test_every_type_in_frames(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    types = [t for t in TYPES if t != "timestamp_ntz"]  # it has times that do not fit into a frame
    fields = columns(types)
    job = Job(lambda: FramesKeeper("n long"), f"k string, i int, {fields}, seen string", api="pandas")
    compare(feed, spark, tmp_path, job, f"k string, i int, {fields}", rows(types), restart=True)


class Counter(StatefulProcessor):
    """Counts a key's rows, and shows the key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.count.get()
        n = (before[0] if before else 0) + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(key=repr(key), n=n)

    def close(self) -> None:
        """Nothing to end."""


@needs("plain keys")
@pytest.mark.parametrize("dtype", KEY_TYPES)
def test_keys_of_every_type(feed: Any, spark: Any, tmp_path: pathlib.Path, dtype: str) -> None:
    values = [v for v in VALUES[dtype] if v == v]  # NaN: see test_processor_better
    if dtype == "timestamp":  # Spark takes two times for one that a clock shows twice, at the end of summer time
        values = [v for v in values if v != dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.timezone.utc)]
    batches = [[(v, 1) for v in (None, *values)], [(v, 2) for v in values[::2]], [(None, 3), (None, 4)]]
    compare(feed, spark, tmp_path, Job(Counter, "key string, n long"), f"k {dtype}, v int", batches)


def test_a_struct_as_key(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = [[((1, "x"), 1), ((1, None), 2), ((None, "x"), 3)], [((1, "x"), 4), ((0, ""), 5)]]
    job = Job(Counter, "key string, n long")
    compare(feed, spark, tmp_path, job, "k struct<a:int,b:string>, v int", batches, restart=True)


class FramesCounter(Counter):
    """The same with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in super().handleInputRows(key, (row for frame in rows for row in frame.itertuples()), timerValues):
            yield pd.DataFrame([row.asDict()])


@needs("plain keys")
def test_keys_of_every_type_with_frames(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """Without nulls and -0.0: see test_processor_better."""
    count_with_frames(feed, spark, tmp_path, KEY_TYPES)


@needs("struct keys")
def test_struct_keys_with_frames(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    count_with_frames(feed, spark, tmp_path, [*KEY_TYPES, "struct<a:int,b:string>"])


def count_with_frames(feed: Any, spark: Any, tmp_path: pathlib.Path, types: Sequence[str]) -> None:
    values = {t: [v for v in VALUES[t] if str(v) != "-0.0"] for t in types}
    made = [(*[v[i % len(v)] for v in values.values()], i) for i in range(12)]
    names = [f"k{n}" for n in range(len(values))]
    schema = ", ".join([*(f"{name} {t}" for name, t in zip(names, values)), "v int"])
    job = Job(FramesCounter, "key string, n long", keys=names, api="pandas")
    compare(feed, spark, tmp_path, job, schema, [made, made[::2]], restart=True)


class Shows(Counter):
    """Shows its rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(key=repr(sorted(map(repr, rows))), n=1)


class ShowsFrames(Counter):
    """The same with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        shown = [repr(value) for frame in rows for value in frame["v"]]
        yield pd.DataFrame({"key": [repr(sorted(shown))], "n": [1]})


@pytest.mark.parametrize(("api", "processor"), [("row", Shows), ("pandas", ShowsFrames)])
def test_variants_in_rows(feed: Any, spark: Any, tmp_path: pathlib.Path, api: str, processor: type[Counter]) -> None:
    def variants(df: Any) -> Any:
        return df.select("k", F.parse_json("text").alias("v"))

    batches = [[("a", '{"x": [1, null]}'), ("a", None), ("b", "5")], [("a", "null")]]
    job = Job(processor, "key string, n long", api=api, prepare=variants)
    compare(feed, spark, tmp_path, job, "k string, text string", batches)


#: A state for each kind of key, and keys of it in no order.
MAP_KEYS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "long": ("k long", [(n,) for n in (3, 1, 65536, -1, 255, 256, -256, 2**40, None, 0)]),
    "small": ("k smallint", [(n,) for n in (300, 1, -1, 256, 0)]),
    "text": (
        "k string",
        [(s,) for s in ("b", "", "abc", "a", "abcdefghi", "abcdefgh", None, "x" * 300, "é")],
    ),
    "bytes": ("k binary", [(b,) for b in (b"\xff", b"", b"ab", b"\x00")]),
    "float": ("k double", [(f,) for f in (2.0, -1.0, 0.5, 1e300, 0.0)]),
    "date": ("k date", [(dt.date(2024, 1, day),) for day in (30, 1, 5)] + [(dt.date(1969, 1, 1),)]),
    "time": ("k timestamp", [(dt.datetime(2024, 1, day),) for day in (30, 1, 5)]),
    "decimal": ("k decimal(10,2)", [(decimal.Decimal(d),) for d in ("300", "1.5", "-1.5", "2.56")]),
    "two": ("a string, b int", [(a, b) for a in ("yy", None, "longer than eight") for b in (256, 1, None, -1)]),
    "three": ("a string, b string, c boolean", [(a, b, True) for a in ("yy", "x") for b in ("q", "", "longer than 8")]),
}


class Mapper(StatefulProcessor):
    """Changes a map at random and shows it in the order in which it comes."""

    def init(self, handle: Any) -> None:
        self.maps = {name: handle.getMapState(name, key, "v long") for name, (key, _) in MAP_KEYS.items()}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        keys, state = list(MAP_KEYS[key[0]][1]), self.maps[key[0]]
        for row in sorted(rows, key=lambda r: r.v):
            random.Random(row.v).shuffle(keys)
            for entry in keys[: len(keys) // 2 + 1]:
                state.updateValue(entry, (row.v,))
            state.removeKey(keys[0])
            yield Row(key=repr((list(state.keys()), list(state.values()), list(state.iterator()))), n=row.v)

    def close(self) -> None:
        """Nothing to end."""


@needs("nulls in lists")
def test_maps_have_the_order_of_sparks_store(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = [[(name, n) for name in MAP_KEYS for n in numbers] for numbers in ((1,), (2, 3))]
    compare(feed, spark, tmp_path, Job(Mapper, "key string, n long"), "k string, v int", batches, restart=True)


#: Values at the limits of their types, where those of aggregates stay within what adds up exactly.
LIMITS: dict[str, list[Any]] = {
    "bigint": [-(2**63), 2**63 - 1],
    "float": [-math.inf, 3.4028234663852886e38, 1e-45],
    "double": [math.inf, 1.7976931348623157e308, 5e-324],
    "decimal(38,10)": [decimal.Decimal("-9999999999999999999999999999.9999999999")],
    "string": ["x" * 300],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(9999, 12, 30, tzinfo=dt.timezone.utc)],
    "timestamp_ntz": [dt.datetime(1, 1, 1)],
}
STATE_VALUES = {t: [*LIMITS.get(t, []), None, *VALUES[t]] for t in TYPES}


class StatesOfFrames(Keeper):
    """Keeps values of its own and answers with what was there, as text and as values, with frames."""

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for i in sorted(int(i) for frame in rows for i in frame["i"]):
            before = self.value.get()
            values = before, *self.list.get(), self.map.getValue((i % 2,))
            seen = shown([*values, sorted(self.map.keys())])
            columns = {f"c{n}": pd.Series([v], dtype=object) for n, v in enumerate(before or [None] * len(TYPES))}
            yield pd.DataFrame({"k": [key[0]], "i": [i], "seen": [seen], **columns})
            state = tuple(values[i % len(values)] for values in STATE_VALUES.values())
            self.value.update(state)
            self.list.appendValue(state)
            self.map.updateValue((i % 2,), state)


@needs("nulls in lists")
def test_states_of_every_type_with_frames(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    fields = columns(TYPES)
    job = Job(lambda: StatesOfFrames(fields), f"k string, i int, seen string, {fields}", api="pandas")
    count = max(map(len, STATE_VALUES.values()))
    made = [(f"k{i % 2}", i) for i in range(2 * count)]
    compare(feed, spark, tmp_path, job, "k string, i int", [made[:5], made[5:]], restart=True)
