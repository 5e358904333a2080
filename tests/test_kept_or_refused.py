"""Values are kept or refused, never changed: one rule for one value and for many, whatever carries them.

Owns: the rule of `fit.values` and `fit.arrays`, and that every way into a state goes by it.
Does not own: what a state does with values that fit (`test_embedded_state`, `test_embedded_collections`).
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import itertools
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.typed import Typed
from fastchangelog.schema import arrow_type
from fastchangelog.testing import run_processor
from fastchangelog.vectorised.context import Context

UTC = dt.timezone.utc
WEST = dt.timezone(dt.timedelta(hours=-5))
EAST = dt.timezone(dt.timedelta(hours=5))
NAIVE = dt.datetime(2026, 7, 1, 12)
NOON = NAIVE.replace(tzinfo=UTC)
NAN = float("nan")
D = decimal.Decimal
Named = collections.namedtuple("Named", "x y")

TYPES = [
    "boolean",
    "byte",
    "int",
    "long",
    "float",
    "double",
    "decimal(10,2)",
    "decimal(38,0)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval day to second",
    "time",
    "array<int>",
    "array<float>",
    "array<string>",
    "x int",
    "x int, y string",
    "p struct<x:int>",
    "array<struct<x:int>>",
]

# fmt: off
VALUES: list[Any] = [
    True, False, 0, 1, -1, 300, 2**24 + 1, 2**53 + 1, 2**60, 2**62, 2**63, -(2**63) - 1, 10**30,
    1.0, 1.5, -0.0, 0.1, NAN, math.inf, -math.inf, 1e18, 1e30, 1e300, 1e-300, 3.4028235677973366e38,
    D("1.5"), D("1.00"), D("1.234"), D("100000000"), D("0.1"), D("NaN"), D("1E+400"), D("1E+999999"),
    "a", "", "1", "\ud800", b"a", b"\xff", uuid.UUID(int=1),
    dt.date(2026, 1, 1), NAIVE, NOON, NOON.replace(microsecond=7), NOON.astimezone(EAST), dt.datetime(2026, 7, 1),
    dt.datetime.max.replace(tzinfo=WEST), dt.datetime.min.replace(tzinfo=EAST), dt.datetime.max.replace(tzinfo=UTC),
    dt.timedelta(days=1), dt.timedelta(microseconds=1), dt.timedelta.max, dt.time(1, 2, 3, 4), dt.time(1, tzinfo=UTC),
    [1], [1.5], [1.0], ["a"], [], [None], (1, 2), range(3), [1e300], [[1]], [{"x": 1}], [{"z": 1}], [{"x": 1.5}],
    {"x": 1}, {"x": 1.5}, {"x": 1, "y": "b"}, {"z": 1}, {"x": 1, "z": None}, {}, {"x": None}, {1: 1},
    {"p": {"x": 1}}, {"p": {"z": 1}}, {"p": {"x": 1.5}}, {"p": None}, (1, "b"), (1, "b", 2), Named(1, "b"),
    np.float64(1.5), np.float32(1.5), np.int16(5), np.int64(2**40), np.uint64(2**63), np.bool_(True), np.str_("x"),
    np.datetime64("2026-01-01T01:01:01.000001"), np.datetime64("2026-01-01T01", "h"),
    np.datetime64("2026-01-01T00:00:00.000000001"), np.timedelta64(5, "s"), np.timedelta64(1, "ns"),
    np.timedelta64(1, "M"), pd.Timestamp("2026-01-01", tz="UTC"), pd.Timestamp("2026-01-01"), pd.Timedelta(1, "us"),
    pd.Timestamp("2026-01-01T00:00:00.000000001", tz="UTC"), pd.Timedelta(1, "ns"), pd.NA, pd.NaT, None,
]
# fmt: on


def taken(make: Callable[[Any], pa.Array], given: Any) -> list[Any] | None:
    """What the array that is made of `given` holds; None if it is refused."""
    try:
        return list(make(given).to_pylist())
    except InvalidArgumentError:
        return None


def is_null(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT


def same(given: Any, found: Any, schema: str) -> bool:
    """True if `found` is `given`, as the schema has it."""
    if is_null(given) or found is None:
        return is_null(given) and found is None
    if isinstance(given, dict):
        fields = {**dict.fromkeys(found), **given}
        return fields.keys() == found.keys() and all(same(fields[name], found[name], schema) for name in found)
    if isinstance(found, dict):
        return same(given._asdict() if hasattr(given, "_asdict") else dict(zip(found, given)), found, schema)
    if isinstance(found, list):
        return len(given) == len(found) and all(same(a, b, schema) for a, b in zip(given, found))
    if isinstance(given, bool | np.bool_) or isinstance(found, bool):
        return isinstance(found, bool) and isinstance(given, bool | np.bool_) and found == given
    if isinstance(given, float) and isinstance(found, float):
        if math.isnan(given):
            return math.isnan(found)
        return bool(found == (np.float32(given) if "float" in schema else given))
    if isinstance(given, str | bytes):  # a text is its bytes
        return (given.encode() if isinstance(given, str) else given) == (
            found.encode() if isinstance(found, str) else found
        )
    if isinstance(given, np.datetime64 | np.timedelta64):
        return bool(np.array([found], given.dtype.str[:3]).astype(given.dtype)[0] == given)
    return bool(given == found)


@pytest.mark.parametrize("schema", TYPES)
def test_what_is_taken_is_read_back_as_it_was_given(schema: str) -> None:
    typed = Typed("value", arrow_type("value", schema))
    kept = 0
    for value in VALUES:
        found = taken(typed.one, value)
        if found is not None:
            assert same(value, found[0], schema), f"{value!r} became {found[0]!r}"
            kept += found != [None]
    assert kept > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("schema", TYPES)
def test_one_rule_for_one_value_and_for_many(schema: str) -> None:
    typed = Typed("value", arrow_type("value", schema))
    for value in VALUES:
        one = taken(typed.one, value)
        objects = np.empty(1, object)
        objects[0] = value
        carriers: dict[str, Any] = {"list": [value], "tuple": (value,), "objects": objects, "generator": iter([value])}
        if not isinstance(value, np.datetime64 | np.timedelta64):  # pandas gives them units of its own
            carriers["series"] = pd.Series(objects)
        # Arrow itself cuts off nanoseconds of pandas, and zones of times.
        lost = [getattr(value, name, None) for name in ("nanosecond", "nanoseconds")]
        if not any((*lost, isinstance(value, dt.time) and value.tzinfo)):
            try:
                carriers["arrow"] = pa.array([value])
                carriers["scalar"] = carriers["arrow"][0]
                carriers["slice"] = pa.array([value, value, value]).slice(1, 1)
                carriers["chunks"] = pa.chunked_array([carriers["arrow"]])
            except (pa.ArrowException, ValueError, OverflowError):
                pass
        if np.ndim(value) == 0 and not isinstance(value, dict):
            narrow = np.array([value])
            if narrow.dtype != object and narrow.dtype.kind not in "US":
                carriers["numpy"] = narrow
        for name, carrier in carriers.items():
            got = taken(typed.one if name == "scalar" else typed.many, carrier)
            assert repr(got) == repr(one), f"{value!r} in {name}: {got}, by itself {one}"


# ----------------------------------------------------------------------------------------------- every way into one


@pytest.fixture
def state() -> Iterator[fc.State]:
    with fc.open_state(f"memory://{uuid.uuid4()}") as opened:
        yield opened


def ways_in(state: fc.State, schema: str, good: Any, bad: Any) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Names of ways, a call that brings `bad` in, and the collection that must not change."""
    by_key = state.value_state("keys", key=schema, value="long")
    values = state.value_state("values", key="long", value=schema)
    lists = state.list_state("lists", key="long", value=schema)
    by_list = state.list_state("by list", key=schema, value="long")
    maps = state.map_state("maps", key="long", map_key=schema, value="long")
    items = state.map_state("items", key="long", map_key="long", value=schema)
    sums = state.aggregating_state("sums", key="long", value=f"v {schema}", last=fc.last("v"))
    by_sum = state.aggregating_state("by sum", key=schema, n=fc.count())
    by_key[good], values[1], maps[1][good], items[1][1] = 1, good, 1, good
    lists.append(1, good)
    by_list.append(good, 1)
    sums.add(1, {"v": good})
    by_sum.add(good)
    yield "v[bad] = 1", lambda: by_key.__setitem__(bad, 1), by_key
    yield "get(bad)", lambda: by_key.get(bad), by_key
    yield "v[bad]", lambda: by_key[bad], by_key
    yield "del v[bad]", lambda: by_key.__delitem__(bad), by_key
    yield "delete(bad)", lambda: by_key.delete(bad), by_key
    yield "pop(bad, 0)", lambda: by_key.pop(bad, 0), by_key
    yield "setdefault(bad)", lambda: by_key.setdefault(bad, 1), by_key
    yield "update", lambda: by_key.update([(bad, 1)]), by_key
    yield "put_many keys", lambda: by_key.put_many([good, bad], [2, 2]), by_key
    yield "get_many", lambda: by_key.get_many([bad]), by_key
    yield "contains_many", lambda: by_key.contains_many([bad]), by_key
    yield "delete_many", lambda: by_key.delete_many([good, bad]), by_key
    yield "scan", lambda: by_key.scan(start=bad), by_key
    yield "v[1] = bad", lambda: values.__setitem__(1, bad), values
    yield "put_many values", lambda: values.put_many([1, 2], [good, bad]), values
    yield "update values", lambda: values.update({1: bad}), values
    yield "append", lambda: lists.append(1, bad), lists
    yield "extend", lambda: lists.extend(1, [good, bad]), lists
    yield "put list", lambda: lists.put(1, [bad]), lists
    yield "append_many", lambda: lists.append_many([1], [bad]), lists
    yield "extend_many", lambda: lists.extend_many([1], [[good, bad]]), lists
    yield "put_many lists", lambda: lists.put_many([1], [[bad]]), lists
    yield "list of bad", lambda: by_list.append(bad, 1), by_list
    yield "get list", lambda: by_list.get(bad), by_list
    yield "del l[bad]", lambda: by_list.__delitem__(bad), by_list
    yield "m[1][bad] = 1", lambda: maps[1].__setitem__(bad, 1), maps
    yield "m[1][bad]", lambda: maps[1][bad], maps
    yield "del m[1][bad]", lambda: maps[1].__delitem__(bad), maps
    yield "map put_many", lambda: maps.put_many([1], [bad], [1]), maps
    yield "map get", lambda: maps.get(1, bad), maps
    yield "map delete_many", lambda: maps.delete_many([1], [bad]), maps
    yield "map contains_many", lambda: maps[1].contains_many([bad]), maps
    yield "map update", lambda: maps[1].update([(bad, 1)]), maps
    yield "m[1][1] = bad", lambda: items[1].__setitem__(1, bad), items
    yield "m[1] = {1: bad}", lambda: items.__setitem__(1, {1: bad}), items
    yield "map values", lambda: items[1].put_many([1], [bad]), items
    yield "add", lambda: sums.add(1, {"v": bad}), sums
    yield "add_many", lambda: sums.add_many([1, 1], [{"v": good}, {"v": bad}]), sums
    yield "add of bad", lambda: by_sum.add(bad), by_sum
    yield "add_many of bad", lambda: by_sum.add_many([good, bad]), by_sum
    yield "a[bad]", lambda: by_sum[bad], by_sum
    yield "get results", lambda: by_sum.get(bad), by_sum
    yield "del a[bad]", lambda: by_sum.__delitem__(bad), by_sum


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("long", 1, 1.9),
        ("long", 1, D("1.5")),
        ("int", 1, 2**40),
        ("long", 1, True),
        ("double", 1.0, 2**53 + 1),
        ("double", 1.0, False),
        ("float", 1.5, 1e300),
        ("timestamp", NOON, NAIVE),
        ("timestamp", NOON, NOON.timestamp()),
        ("timestamp_ntz", NAIVE, NOON),
        ("date", dt.date(2026, 7, 1), NAIVE),
        ("time", dt.time(1), dt.time(1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_every_way_into_a_state_keeps_or_refuses(state: fc.State, schema: str, good: Any, bad: Any) -> None:
    for way, call, collection in ways_in(state, schema, good, bad):
        before = {key: repr(dict(v) if isinstance(v, dict) else v) for key, v in collection.items()}
        with pytest.raises(InvalidArgumentError, match=r"not .* the declared type"):
            call()
            pytest.fail(f"{way} took {bad!r}")
        assert {key: repr(dict(v) if isinstance(v, dict) else v) for key, v in collection.items()} == before, way


def test_what_is_no_key_is_in_no_state(state: fc.State) -> None:
    values = state.value_state("v", key="long", value="long")
    lists = state.list_state("l", key="long", value="long")
    maps = state.map_state("m", key="long", map_key="long", value="long")
    sums = state.aggregating_state("a", key="long", n=fc.count())
    values[1] = 1
    lists.append(1, 1)
    maps[1][1] = 1
    sums.add(1)
    for there in (values, lists, maps, maps[1], sums):
        assert (1 in there, 1.0 in there) == (True, True)
        assert not any(other in there for other in (1.5, "1", True, NOON, None, pd.NA))


def test_a_named_tuple_is_read_by_its_names(state: fc.State) -> None:
    values = state.value_state("v", key="long", value="y string, x int")
    values[1] = Named(x=1, y="b")
    values.put_many([2], [Named(2, "c")])
    assert list(values.values()) == [{"y": "b", "x": 1}, {"y": "c", "x": 2}]


# ---------------------------------------------------------------------------------------------- times, read or written


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("timestamp", dt.datetime.max.replace(tzinfo=WEST)),
        ("timestamp", dt.datetime.min.replace(tzinfo=EAST)),
        ("timestamp", pa.scalar(2**62, pa.timestamp("us", "UTC"))),
        ("timestamp_ntz", pa.scalar(2**62, pa.timestamp("us"))),
        ("timestamp_ntz", pa.scalar(-(2**62), pa.timestamp("us"))),
        ("date", pa.scalar(2**30, pa.date32())),
        ("time", pa.scalar(1, pa.time64("ns"))),
        ("time", pa.scalar(86_400_000_000, pa.int64()).cast(pa.time64("us"))),
        ("interval day to second", dt.timedelta.max),
        ("p struct<t:timestamp>", {"p": {"t": dt.datetime.max.replace(tzinfo=WEST)}}),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_could_not_be_read_is_not_put(state: fc.State, schema: str, data: Any) -> None:
    values = state.value_state("v", key="long", value=schema)
    with pytest.raises(InvalidArgumentError):
        values[1] = data
    if isinstance(data, pa.Scalar):
        with pytest.raises(InvalidArgumentError):
            values.put_many([1], pa.array([data], data.type))
        nested = state.value_state("nested", key="long", value=f"a array<{schema}>, m map<int,{schema}>")
        for row in ({"a": [data]}, {"m": [(1, data)]}):
            name = next(iter(row))
            kind = pa.list_(data.type) if name == "a" else pa.map_(pa.int64(), data.type)
            with pytest.raises(InvalidArgumentError, match=name):
                nested.put_many([1], pa.array([row], pa.struct([(name, kind)])))
    assert dict(values) == {}


def test_a_timer_beyond_the_years_is_refused(state: fc.State) -> None:
    timers = state.timers("timers", key="string")
    for when in (dt.datetime.max.replace(tzinfo=WEST), dt.datetime.min.replace(tzinfo=EAST), pd.NaT, NAIVE, 5):
        for call in (
            lambda when=when: timers.register("a", when),
            lambda when=when: timers.register_many(["a"], [when]),
            lambda when=when: timers.delete("a", when),
            lambda when=when: timers.due(when),
            lambda when=when: timers.scan(start=when),
        ):
            with pytest.raises(InvalidArgumentError, match="time"):
                call()
    assert timers.next_time() is None
    timers.register("a", pd.Timestamp(NOON))
    timers.register_many(["a"], pd.Series([pd.Timestamp(NOON) + pd.Timedelta("1h")]))
    assert timers.of("a") == [NOON, NOON + dt.timedelta(hours=1)]


def test_arrow_types_with_coarse_units_cut_nothing_off(state: fc.State) -> None:
    whole = state.value_state("seconds", key=pa.timestamp("s", "UTC"), value=pa.time32("s"))
    whole[NOON] = dt.time(1, 2, 3)
    assert dict(whole) == {NOON: dt.time(1, 2, 3)}
    for call in (
        lambda: whole.get(NOON.replace(microsecond=1)),
        lambda: whole.put(NOON, dt.time(1, 2, 3, 4)),
        lambda: whole.put_many([NOON], pa.array([dt.time(1, 2, 3, 4)])),
    ):
        with pytest.raises(InvalidArgumentError):
            call()


def test_a_condition_compares_no_date_with_a_moment(state: fc.State) -> None:
    schema = "at timestamp, day date, n long"
    with pytest.raises(InvalidArgumentError, match="a date and a timestamp are compared"):
        state.aggregating_state("a", key="long", value=schema, n=fc.count(where="at = day"))
    with pytest.raises(InvalidArgumentError, match="has too many digits"):
        state.aggregating_state("a", key="long", value=schema, n=fc.count(where=f"n < {'9' * 80}"))
    count = state.aggregating_state("a", key="long", value=schema, n=fc.count(where=f"n < {10**20} and n > -{2**63}"))
    count.add(1, {"n": 5})
    count.add(1, {"n": -(2**63)})
    assert count[1] == {"n": 1}


# -------------------------------------------------------------------------------------------------------- processors


class Code(fc.Processor):
    """Runs a function for each batch."""

    def __init__(self, run: Callable[[Any, Any], Any]) -> None:
        self.run = run

    def open(self, ctx: Context) -> None:
        self.late = ctx.metrics.counter("late")
        self.whole = ctx.value_state("whole", "long")
        self.times = ctx.value_state("times", "timestamp")
        self.rows = ctx.value_state("rows", "p struct<x:int>")
        self.lists = ctx.list_state("lists", "long")
        self.maps = ctx.map_state("maps", "map<long, double>")
        self.sums = ctx.aggregating_state("sums", "v long", total=fc.sum("v"))

    def process(self, batch: fc.Batch) -> Any:
        return self.run(self, batch)


@pytest.mark.parametrize(
    "run",
    [
        lambda code, batch: code.whole.put(batch.keys, [1.9]),
        lambda code, batch: code.whole.put(batch.keys, np.array([1.9])),
        lambda code, batch: code.whole.get([1.9]),
        lambda code, batch: code.whole.delete([1.9]),
        lambda code, batch: code.whole.put(batch.keys, pa.array(["1"])),
        lambda code, batch: code.times.put(batch.keys, [NAIVE]),
        lambda code, batch: code.times.put(batch.keys, pa.array([NAIVE])),
        lambda code, batch: code.times.put(batch.keys, pa.array([0])),
        lambda code, batch: code.rows.put(batch.keys, [{"p": {"z": 1}}]),
        lambda code, batch: code.rows.put(batch.keys, pa.array([{"p": {"x": 1, "z": 1}}])),
        lambda code, batch: code.lists.append(batch.keys, [1.9]),
        lambda code, batch: code.lists.extend(batch.keys, [[1, 1.9]]),
        lambda code, batch: code.maps.put(batch.keys, [1.9], [1.0]),
        lambda code, batch: code.maps.get(batch.keys, [1.9]),
        lambda code, batch: code.sums.add(batch.keys, [{"v": 1.9}]),
        lambda code, batch: code.late.add(0.9),
    ],
)
def test_states_of_processors_go_by_the_same_rule(run: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        run_processor(Code(run), [pa.table({"k": [1]})])


def test_nan_reaches_a_processor_and_its_state() -> None:
    def run(code: Any, batch: fc.Batch) -> Iterator[pa.RecordBatch]:
        code.maps.put(batch.row_keys, [1] * len(batch.rows), pd.Series(np.asarray(batch.rows["v"])))
        found = code.maps.get(pd.Series([1.5, NAN]), [1, 1])
        yield pa.RecordBatch.from_arrays([found], ["v"])

    frame = pd.DataFrame({"k": [1.5, NAN], "v": [NAN, 2.0]})
    [answer] = run_processor(Code(run), [frame])
    assert repr(answer["v"].to_pylist()) == "[nan, 2.0]"


def test_many_of_a_type_and_one_share_every_refusal() -> None:
    """No pair of a value and a type is refused by one way and taken by the other, nested or not."""
    for schema, value in itertools.product(TYPES, VALUES):
        inner = arrow_type("value", schema)
        one = taken(Typed("value", inner).one, value)
        struct = taken(Typed("value", pa.struct([("f", inner)])).one, {"f": value})
        nested = taken(Typed("value", pa.list_(inner)).one, [value])
        assert repr(struct) == repr(None if one is None else [{"f": one[0]}]), (schema, value)
        assert repr(nested) == repr(None if one is None else [one]), (schema, value)
