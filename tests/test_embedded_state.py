"""Embedded state, as Python programs use it: data in and out, checkpoints, fencing.

Owns: what the Python face adds to the core. Does not own: the state's semantics (tested in `rust/core/src/embedded`),
processes that fork or die (`test_embedded_process`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import pickle
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastchangelog as fc
import fastchangelog.schema

PATIENCE = 60
FAST = {"file_sync": False}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "states")


@pytest.fixture
def state(root: str) -> Iterator[fc.State]:
    opened = fc.open_state(root, options=FAST)
    yield opened
    opened.close(checkpoint=False)


@pytest.fixture
def visits(state: fc.State) -> fc.ValueState:
    return state.value_state("visits", key="string", value="long")


def reopened(root: str, **how: Any) -> fc.State:
    return fc.open_state(root, options=FAST, **how)


def test_the_contract(tmp_path: Path) -> None:
    uri = (tmp_path / "state").as_uri()
    with fc.open_state(uri, name="profiles") as st:
        visits = st.value_state("visits", key="string", value="long")
        visits["ann"] = 1
        assert visits["ann"] == 1
        assert "bob" not in visits
        del visits["ann"]
        visits.put_many(["ann", "bob"], [1, 2])
        assert visits.get_many(["bob", "cid"]).to_pylist() == [2, None]
        visits.delete_many(["bob"])
        assert [batch.to_pydict() for batch in visits.scan(start="a", end="c")] == [{"key": ["ann"], "value": [1]}]
        handle = st.checkpoint()
        assert (handle.state_keys, st.uri) == (1, f"{uri}/profiles")
    with fc.open_state(uri, name="profiles", read_only=True) as st:
        assert st.handle == handle
        assert dict(st.value_state("visits", key="string", value="long").items()) == {"ann": 1}


# --------------------------------------------------------------------------------------------------------- data in, out


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "b"],
        np.array(["a", "b"]),
        pa.array(["a", "b"]),
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["x", "a", "b"]).slice(1),
        pa.chunked_array([["a"], ["b"]]),
        ("a", "b"),
        dict.fromkeys("ab").keys(),
        (letter for letter in "ab"),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_many_keys_may_be_of_any_usual_type(visits: fc.ValueState, keys: Any) -> None:
    visits.put_many(keys, np.array([1, 2], np.int16))
    assert visits.get_many(["b", "a"]).to_pylist() == [2, 1]


def test_single_keys_have_the_habits_of_a_mapping(visits: fc.ValueState) -> None:
    visits["a"] = 1
    visits.put("b", 2)
    assert (visits["a"], visits.get("b"), visits.get("c"), visits.get("c", 7)) == (1, 2, None, 7)
    assert ("a" in visits, "c" in visits) == (True, False)
    assert visits.contains_many(["a", "c"]).to_pylist() == [True, False]
    assert (list(visits), list(visits.items())) == (["a", "b"], [("a", 1), ("b", 2)])
    del visits["a"]
    with pytest.raises(KeyError):
        visits["a"]
    with pytest.raises(KeyError):
        del visits["a"]
    visits.delete("a")
    visits["b"] = None
    assert list(visits) == []


def test_of_equal_keys_the_last_counts_and_a_null_deletes(visits: fc.ValueState) -> None:
    visits.put_many(["a", "b", "a"], [1, 2, 3])
    visits.put_many(["b", "a", "a"], [None, None, 5])
    assert dict(visits.items()) == {"a": 5}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ("boolean", [False, True]),
        ("tinyint", [-128, 127]),
        ("int", [-(2**31), 2**31 - 1]),
        ("long", [-(2**63), -1, 0, 2**63 - 1]),
        ("double", [float("-inf"), -0.5, 0.0, 1e300]),
        ("string", ["", "a", "a" * 40, "ü"]),
        ("binary", [b"", b"\0", b"\xff" * 40]),
        ("date", [dt.date(1969, 12, 31), dt.date(2026, 1, 1)]),
        ("timestamp", [dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)]),
        ("decimal(20,2)", [decimal.Decimal("-1.50"), decimal.Decimal("1.00")]),
        ("a int, b string", [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": None}]),
        ("array<int>", [[], [1], [1, 2]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_types_come_back_as_they_were_and_in_order(root: str, schema: str, values: list[Any]) -> None:
    with reopened(root) as st:
        kept = st.value_state("v", key="int", value=schema)
        kept.put_many(range(len(values)), values)
        keys = st.value_state("k", key=schema, value="int")
        keys.put_many(pa.array(reversed(values), keys.key_type), list(range(len(values))))
    with reopened(root, read_only=True) as st:
        kept = st.value_state("v", key="int", value=schema)
        assert kept.get_many(range(len(values) + 1)).to_pylist() == [*values, None]
        assert list(st.value_state("k", key=schema, value="int")) == values


def test_schemas_of_arrow(root: str) -> None:
    with reopened(root) as st:
        named = st.value_state("a", key=pa.string(), value=pa.schema([("n", pa.int64()), ("m", pa.float64())]))
        assert named.value_type == pa.struct([("n", pa.int64()), ("m", pa.float64())])
        named.put_many(["x"], pa.array([{"n": 1, "m": 0.5}], named.value_type))
        assert named["x"] == {"n": 1, "m": 0.5}
        assert st.value_state("a", key="string", value="n long, m double").get("x") == {"n": 1, "m": 0.5}


def test_schemas_of_pyspark() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    fields = [types.StructField("n", types.LongType()), types.StructField("tags", types.ArrayType(types.StringType()))]
    expected = fastchangelog.schema.arrow_type("value", "n long, tags array<string>")
    assert fastchangelog.schema.arrow_type("value", types.StructType(fields)) == expected
    assert fastchangelog.schema.arrow_type("key", types.DecimalType(12, 3)) == pa.decimal128(12, 3)
    inner = types.StructType([types.StructField("a-b", types.LongType()), types.StructField("c`d", types.DateType())])
    odd = types.StructType(
        [
            types.StructField("last seen", types.ArrayType(inner), nullable=False),
            types.StructField("m", types.MapType(types.StringType(), inner)),
        ]
    )
    struct = pa.struct([("a-b", pa.int64()), ("c`d", pa.date32())])
    listed = pa.list_(pa.field("element", struct))
    expected = pa.struct([("last seen", listed), ("m", pa.map_(pa.string(), struct))])
    assert fastchangelog.schema.arrow_type("value", odd) == expected


def test_a_text_may_speak_of_nulls_and_have_comments() -> None:
    said = "n long NOT NULL, s struct<a: int not null, b: string> comment 'so <far', t date Not Null COMMENT \"x\""
    expected = fastchangelog.schema.arrow_type("value", "n long, s struct<a: int, b: string>, t date")
    assert fastchangelog.schema.arrow_type("value", said) == expected


def test_folders_may_be_paths(tmp_path: Path) -> None:
    with fc.open_state(tmp_path / "state", options=FAST) as st:
        st.value_state("a", key="string", value="long")["x"] = 1
        st.savepoint(tmp_path / "savepoint")
    with fc.open_state(tmp_path / "new", start_from=tmp_path / "savepoint", options=FAST) as st:
        assert st.value_state("a", key="string", value="long")["x"] == 1
    with fc.ChangelogStorage(tmp_path / "log") as storage:
        assert storage.uri.endswith("/log")


def test_a_handle_that_is_none_is_refused(root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=r"handle is a bytes; give a StateHandle"):
        fc.open_state(root, handle=b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "lnog",
        "n",
        "n lnog",
        "n long,",
        "array<",
        "array<int",
        "decimal(40,2)",
        "n long, n int",
        "a%b",
        "n long not",
        "'n' long",
        "n 'long'",
        7,
    ],
)
def test_a_schema_that_is_none_is_named(schema: Any) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=r"^value: "):
        fastchangelog.schema.arrow_type("value", schema)


@pytest.mark.parametrize(
    ("keys", "values", "named"),
    [
        (["a", "b"], [1], "2 keys and 1 values"),
        (["a", None], [1, 2], "null"),
        (["a"], ["x"], "int64"),
        ([1], [1], "string"),
        (["a"], [2**63], "int64"),
        (["a"], "x", "is one value"),
        ("a", [1], "is one value"),
        (None, [1], "is one value"),
    ],
)
def test_a_refused_batch_leaves_nothing(visits: fc.ValueState, keys: Any, values: Any, named: str) -> None:
    visits["kept"] = 1
    with pytest.raises(fc.InvalidArgumentError, match=named):
        visits.put_many(keys, values)
    assert dict(visits.items()) == {"kept": 1}


def test_keys_with_names_are_dicts_or_tuples(state: fc.State) -> None:
    stock = state.value_state("stock", key="shop string, item int", value="long")
    stock[("a", 1)] = 10
    stock[{"shop": "a", "item": 2}] = 20
    stock.put_many([("b", 1), {"shop": "ab", "item": 1}], [30, 40])
    assert stock[{"item": 1, "shop": "a"}] == 10
    assert ("a", 3) not in stock
    assert stock.get_many([("a", 2), ("z", 0)]).to_pylist() == [20, None]

    def values(**bounds: Any) -> list[int]:
        return [value for batch in stock.scan(**bounds) for value in batch["value"].to_pylist()]

    assert values() == [10, 20, 40, 30]
    assert values(prefix={"shop": "a"}) == values(prefix=("a",)) == [10, 20]
    assert values(prefix=("a", 2)) == [20]
    assert values(start=("a", 2), end=("b",)) == [20, 40]
    for wrong in ("a", {"item": 1}, ("a", 1, 2), ()):
        with pytest.raises(fc.InvalidArgumentError, match="shop, item"):
            stock.scan(prefix=wrong)
    for wrong in ({"shop": "a", "itme": 1}, ("a", 1, 2)):
        with pytest.raises(fc.InvalidArgumentError):
            stock[wrong] = 1


def test_scans(visits: fc.ValueState) -> None:
    names = [f"{first}{second}" for first in "abc" for second in ("", "x", "y" * 20)]
    visits.put_many(names, range(len(names)))

    def keys(**bounds: Any) -> list[str]:
        return [key for batch in visits.scan(**bounds) for key in batch["key"].to_pylist()]

    assert keys() == sorted(names)
    assert keys(prefix="b") == sorted(name for name in names if name.startswith("b"))
    assert keys(prefix="ay" + "y" * 10) == ["a" + "y" * 20]
    assert keys(start="b", end="c") == keys(prefix="b")
    assert keys(prefix="b", start="bx", end="by") == ["bx"]
    assert keys(start="c", end="a") == []
    assert keys(prefix="") == sorted(names)
    assert [batch.num_rows for batch in visits.scan(batch_size=4)] == [4, 4, 1]
    with pytest.raises(fc.InvalidArgumentError, match="batch_size"):
        visits.scan(batch_size=0)


def test_a_scan_and_changes_at_once(visits: fc.ValueState) -> None:
    visits.put_many([f"{i:03}" for i in range(100)], range(100))
    seen = []
    for batch in visits.scan(batch_size=10):
        seen += batch["key"].to_pylist()
        visits.delete_many(batch["key"])
        visits.put("~" + seen[-1], 1)
    assert seen[:100] == [f"{i:03}" for i in range(100)]
    assert len(seen) == len(set(seen)), "no key comes twice"


def test_threads_share_a_state(root: str) -> None:
    with reopened(root) as st:
        table = st.value_state("t", key="long", value="long")

        def work(part: int) -> None:
            for i in range(0, 200, 20):
                table.put_many(range(part * 1000 + i, part * 1000 + i + 20), [part] * 20)
                st.begin_checkpoint()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert st.checkpoint().state_keys == 800
    with reopened(root, read_only=True) as st:
        assert sum(st.value_state("t", key="long", value="long").get_many(range(4000)).is_valid().to_pylist()) == 800


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_an_exception_discards_changes_since_the_checkpoint(root: str) -> None:
    def fail() -> None:
        with reopened(root) as st:
            table = st.value_state("t", key="string", value="long")
            table["kept"] = 1
            st.checkpoint()
            table["lost"] = 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with reopened(root) as st:
        assert dict(st.value_state("t", key="string", value="long").items()) == {"kept": 1}


def test_handles(root: str) -> None:
    with reopened(root) as st:
        table = st.value_state("t", key="string", value="long")
        handles = []
        for i in range(3):
            table["a"] = i
            handles.append(st.checkpoint())
        assert st.checkpoint() == handles[-1] == st.handle, "nothing changed"
    first = handles[0]
    assert len(set(handles)) == 3
    assert pickle.loads(pickle.dumps(first)) == first
    assert fc.StateHandle.from_bytes(first.to_bytes()) == first
    assert first.to_dict()["state_keys"] == first.state_keys == 1
    assert first.version in repr(first)
    with pytest.raises(fc.CorruptDataError):
        fc.StateHandle.from_bytes(first.to_bytes()[:-1])
    for i, handle in enumerate(handles):
        with reopened(root, handle=handle, read_only=True) as st:
            assert st.value_state("t", key="string", value="long")["a"] == i
    with reopened(root, handle=first):
        pass
    with reopened(root, read_only=True) as st:
        assert st.handle == first, "opened to write, a handle is the newest again"
    with pytest.raises(fc.InvalidArgumentError, match="another state"), reopened(root, name="other") as st:
        st.checkpoint()
        reopened(root, name="other", handle=first)


def test_an_older_writer_is_fenced(root: str) -> None:
    old = reopened(root)
    table = old.value_state("t", key="string", value="long")
    table["a"] = 1
    old.checkpoint()
    with reopened(root) as new:
        table["a"] = 2
        with pytest.raises(fc.FencedError, match="writer 2"):
            old.checkpoint()
        with pytest.raises(fc.FencedError):
            old.close()
        assert not old.closed
        old.close(checkpoint=False)
        assert old.closed
        assert new.value_state("t", key="string", value="long")["a"] == 1


def test_with_ends_a_fenced_writer_all_the_same(root: str) -> None:
    with pytest.raises(fc.FencedError), reopened(root) as old:
        reopened(root).close()
    assert old.closed


def test_a_closed_state_says_so(root: str) -> None:
    st = reopened(root)
    table = st.value_state("t", key="string", value="long")
    st.close()
    st.close()
    for call in (
        st.checkpoint,
        lambda: table["a"],
        lambda: table.put("a", 1),
        lambda: list(table),
        lambda: st.value_state("u", key="string", value="long"),
    ):
        with pytest.raises(fc.ClosedError):
            call()


def test_reading_only(root: str) -> None:
    with pytest.raises(fc.StateNotFoundError):
        reopened(root, read_only=True)
    with pytest.raises(fc.StateNotFoundError):
        reopened(root, create=False)
    with reopened(root) as writer:
        writer.value_state("t", key="string", value="long")["a"] = 1
        writer.checkpoint()
        with reopened(root, read_only=True) as reader:
            table = reader.value_state("t", key="string", value="long")
            assert table["a"] == 1
            for call in (reader.checkpoint, lambda: table.put("a", 2), lambda: table.delete("a")):
                with pytest.raises(fc.InvalidArgumentError, match="read-only"):
                    call()
            with pytest.raises(fc.StateNotFoundError, match="there are: t"):
                reader.value_state("other", key="string", value="long")


def test_options_are_checked(root: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match="memory_budget"):
        fc.open_state(root, options={"memory_bugdet": "1GiB"})
    for name, value in (("max_parallelism", 128), ("worker_memory", "1MiB")):
        with pytest.raises(fc.InvalidArgumentError, match=f"`{name}`.*no effect"):
            fc.open_state(root, options={name: value})
    with pytest.raises(fc.InvalidArgumentError, match="slash"):
        fc.open_state(root, name="a/b")


def test_metrics_count_checkpoints(state: fc.State, visits: fc.ValueState) -> None:
    visits["a"] = 1
    assert state.metrics()["uncheckpointed_bytes"] > 0
    state.checkpoint()
    metrics = state.metrics()
    assert (metrics["checkpoints"], metrics["uncheckpointed_bytes"]) == (1, 0)


def test_a_bulk_load_of_more_than_memory(root: str) -> None:
    rows, options = 300_000, {"file_sync": False, "memory_budget": "16MiB"}
    keys = np.arange(rows)
    with fc.open_state(root, options=options) as state:
        counts = state.value_state("counts", key="long", value="long")
        counts.put_many(keys, keys * 2)  # more in one call than a quarter of the budget
        for key in range(3):
            counts[key] = -1
        assert state.metrics()["spills"] > 0
        assert counts.get_many([0, 3, rows]).to_pylist() == [-1, 6, None]
    with fc.open_state(root, options=options) as state:
        counts = state.value_state("counts", key="long", value="long")
        expected = np.where(keys < 3, -1, keys * 2)
        assert np.array_equal(counts.get_many(keys).to_numpy(zero_copy_only=False), expected)
        assert len(counts) == rows


def test_a_table_keeps_its_state_open(root: str) -> None:
    table = reopened(root).value_state("t", key="string", value="long")
    gc.collect()
    table["a"] = 1
    assert table["a"] == 1


def test_memory_states_of_one_name_are_one(root: str) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    with fc.open_state(uri) as st:
        st.value_state("t", key="int", value="int")[1] = 1
    with fc.open_state(uri, create=False) as st:
        assert dict(st.value_state("t", key="int", value="int").items()) == {1: 1}
