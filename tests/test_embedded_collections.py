"""Maps, lists and aggregates by key, as Python programs use them.

Owns: what the Python face adds to the core. Does not own: what a state does with its entries; that is tested in
`rust/core/src/embedded`.
"""

from __future__ import annotations

import copy
import doctest
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastchangelog as fc
from support.model import Model

ROOT = Path(__file__).resolve().parent.parent
FAST = {"file_sync": False}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "states")


@pytest.fixture
def state(root: str) -> Iterator[fc.State]:
    opened = fc.open_state(root, options=FAST)
    yield opened
    opened.close(checkpoint=False)


def reopened(root: str, **how: Any) -> fc.State:
    return fc.open_state(root, options=FAST, **how)


def test_the_examples_of_the_page_run() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "state.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


# -------------------------------------------------------------------------------------------------------------- maps


@pytest.fixture
def carts(state: fc.State) -> fc.MapState:
    return state.map_state("carts", key="string", map_key="string", value="int")


def test_the_map_of_a_key_has_the_habits_of_a_mapping(carts: fc.MapState) -> None:
    ann = carts["ann"]
    ann["pear"] = 1
    ann["apple"] = 2
    assert (ann["pear"], "apple" in ann, "fig" in ann, len(ann), bool(ann)) == (1, True, False, 2, True)
    assert (list(ann), dict(ann), list(ann.items())) == (
        ["apple", "pear"],
        {"apple": 2, "pear": 1},
        [("apple", 2), ("pear", 1)],
    )
    assert (ann.get("fig"), ann.get("fig", 7), ann.setdefault("fig", 8), ann.pop("fig")) == (None, 7, 8, 8)
    ann.update({"kiwi": 3}, plum=4)
    assert carts["ann"] == {"apple": 2, "kiwi": 3, "pear": 1, "plum": 4}
    del ann["kiwi"]
    for call in (lambda: ann["kiwi"], lambda: ann.__delitem__("kiwi"), lambda: carts.__delitem__("bob")):
        with pytest.raises(KeyError):
            call()
    ann.clear()
    assert (len(ann), bool(ann), "ann" in carts, list(carts)) == (0, False, False, [])
    carts["ann"] = {"a": 1, "b": 2}
    carts["ann"] = {"b": 3}
    carts["bob"] = {"x": 1}
    assert list(carts.items()) == [("ann", {"b": 3}), ("bob", {"x": 1})]
    with pytest.raises(fc.InvalidArgumentError):
        carts["ann"] = {"b": "no number"}
    assert carts["ann"] == {"b": 3}, "what does not fit replaces nothing"
    del carts["ann"]
    assert (list(carts), "ann" in carts, "bob" in carts) == (["bob"], False, True)


@pytest.mark.case("T-04", "T-05")
def test_entries_are_changed_and_removed_during_iteration(root: str) -> None:
    with reopened(root) as st:
        carts = st.map_state("carts", key="string", map_key="int", value="int")
        carts["ann"] = {i: i for i in range(10)}
        st.checkpoint()
        for number, value in carts["ann"].items():
            if number % 2:
                del carts["ann"][number]
            else:
                carts["ann"][number] = value * 10
    with reopened(root, read_only=True) as st:
        carts = st.map_state("carts", key="string", map_key="int", value="int")
        assert carts["ann"] == {i: i * 10 for i in range(0, 10, 2)}


def test_many_entries_at_once(carts: fc.MapState) -> None:
    carts.put_many(["ann", "bob", "ann"], np.array(["x", "x", "y"]), pa.array([1, 2, 3]))
    assert carts.get_many(["bob", "ann"], ["x", "z"]).to_pylist() == [2, None]
    assert carts["ann"].get_many(["y", "z", "x"]).to_pylist() == [3, None, 1]
    assert (carts.get("ann", "x"), carts.get("ann", "z"), carts.get("ann", "z", 9)) == (1, None, 9)
    carts["ann"].put_many(["p", "q"], [7, None])
    carts.put_many(["bob", "cid"], ["one", "one"], [1, 1])
    carts.put("cid", "two", 2)
    assert dict(carts.items()) == {
        "ann": {"p": 7, "x": 1, "y": 3},
        "bob": {"one": 1, "x": 2},
        "cid": {"one": 1, "two": 2},
    }
    assert carts.contains_many(["ann", "bob"], ["p", "p"]).to_pylist() == [True, False]
    assert carts["ann"].contains_many(["p", "q"]).to_pylist() == [True, False]
    assert carts.length_many(["bob", "x"]).to_pylist() == [2, 0]
    carts.delete_many(["ann", "bob"], ["p", "one"])
    carts.delete("cid", "two")
    carts.clear_many(["ann", "none"])
    assert dict(carts.items()) == {"bob": {"x": 2}, "cid": {"one": 1}}
    carts.clear("bob")
    assert list(carts) == ["cid"]
    for keys, map_keys, values in (
        (["a", "b"], ["x"], [1]),
        (["a"], ["x", "y"], [1]),
        (["a"], [None], [1]),
        (["a"], ["x"], ["v"]),
    ):
        with pytest.raises(fc.InvalidArgumentError):
            carts.put_many(keys, map_keys, values)
    assert list(carts) == ["cid"]


def test_map_scans_with_named_keys(state: fc.State) -> None:
    stock = state.map_state("stock", key="shop string, item int", map_key="size string, colour string", value="long")
    stock[("a", 1)][("s", "red")] = 1
    stock[{"shop": "a", "item": 1}][{"size": "m", "colour": "red"}] = 2
    stock.put_many([("a", 2), ("b", 1)], [("s", "red"), ("s", "blue")], [3, 4])

    def values(**bounds: Any) -> list[int]:
        return [value for batch in stock.scan(**bounds) for value in batch["value"].to_pylist()]

    assert values() == [2, 1, 3, 4]
    assert values(prefix={"shop": "a"}) == [2, 1, 3]
    assert values(start=("a", 2)) == [3, 4]
    assert values(key=("a", 1), prefix=("s",)) == [1]
    assert values(key=("a", 1), end={"size": "n"}) == [2]
    with pytest.raises(fc.InvalidArgumentError, match="batch_size"):
        stock.scan(batch_size=0)


# ------------------------------------------------------------------------------------------------------------- lists


@pytest.fixture
def clicks(state: fc.State) -> fc.ListState:
    return state.list_state("clicks", key="string", value="string")


def test_the_list_of_a_key_has_the_habits_of_a_sequence(clicks: fc.ListState) -> None:
    ann = clicks["ann"]
    assert (len(ann), bool(ann), list(ann), "ann" in clicks) == (0, False, [], False)
    ann.append("a")
    ann.extend(["b", "c"])
    ann.extend(letter for letter in "de")
    assert (list(ann), len(ann), ann[0], ann[-1], ann[1:3]) == (list("abcde"), 5, "a", "e", ["b", "c"])
    assert ("c" in ann, "x" in ann, ann.index("d"), list(reversed(ann))) == (True, False, 3, list("edcba"))
    with pytest.raises(IndexError):
        ann[5]
    clicks["bob"] = ("x", "y")
    clicks["bob"] = ["z"]
    assert list(clicks.items()) == [("ann", list("abcde")), ("bob", ["z"])]
    ann.clear()
    clicks["bob"] = []
    assert list(clicks) == []
    with pytest.raises(KeyError):
        del clicks["ann"]


@pytest.mark.case("T-01")
def test_what_was_read_of_a_list_is_the_readers_own(state: fc.State, clicks: fc.ListState) -> None:
    clicks["a"].extend(["x", "y"])
    before = state.checkpoint()
    for found in (clicks.get("a"), list(clicks["a"]), clicks["a"][:], dict(clicks.items())["a"]):
        while found:
            found.pop()
    assert list(clicks["a"]) == ["x", "y"]
    assert state.checkpoint() == before


def test_many_lists_at_once(clicks: fc.ListState) -> None:
    clicks.append_many(["a", "b", "a"], ["1", "2", "3"])
    clicks.append("a", "4")
    clicks.extend_many(["b", "c", "d", "b"], [["5"], [], None, ["6", "7"]])
    clicks.extend("c", ["8"])
    assert clicks.get_many(["b", "a", "d", "c"]).to_pylist() == [["2", "5", "6", "7"], ["1", "3", "4"], None, ["8"]]
    assert clicks.get_many(["a"]).type == pa.list_(pa.string())
    assert (clicks.get("a"), clicks.get("d"), clicks.get("d", [])) == (["1", "3", "4"], None, [])
    assert (len(clicks["b"]), clicks.length_many(["a", "d"]).to_pylist()) == (4, [3, 0])
    clicks.put_many(["a", "b", "a"], pa.array([["x"], None, ["y", "z"]]))
    clicks.put("c", ["w"])
    assert [batch.to_pydict() for batch in clicks.scan(prefix="c")] == [{"key": ["c"], "value": [["w"]]}]
    assert dict(clicks.items()) == {"a": ["y", "z"], "c": ["w"]}
    clicks.clear_many(["a", "none"])
    clicks.clear("c")
    assert clicks.get_many(["a", "c"]).to_pylist() == [None, None]
    for call, data in (
        (clicks.append_many, (["a"], ["x", "y"])),
        (clicks.append_many, (["a"], [None])),
        (clicks.append_many, ("a", ["x"])),
        (clicks.append, ("a", None)),
        (clicks.extend_many, (["a"], ["x"])),
        (clicks.extend_many, (["a", "b"], [["x"], [None]])),
        (clicks.put, ("a", "text")),
        (clicks.append, ("a", 1)),
    ):
        with pytest.raises(fc.InvalidArgumentError):
            call(*data)
    assert list(clicks) == []


def test_long_lists_and_lists_of_structs(root: str) -> None:
    texts = [str(i) * (i % 40) for i in range(5000)]
    with reopened(root) as st:
        lists = st.list_state("l", key="int", value="string")
        points = st.list_state("p", key="int", value="x int, y array<int>")
        points[1].extend([{"x": 1, "y": [1]}, (2, None)])
        for start in range(0, 5000, 50):
            lists[1].extend(texts[start : start + 50])
            if start % 1000 == 0:
                st.checkpoint()
    with reopened(root, read_only=True) as st:
        assert list(st.list_state("l", key="int", value="string")[1]) == texts
        points = st.list_state("p", key="int", value="x int, y array<int>")
        assert list(points[1]) == [{"x": 1, "y": [1]}, {"x": 2, "y": None}]


# -------------------------------------------------------------------------------------------------------- aggregates


def test_aggregates_with_names(root: str) -> None:
    with reopened(root) as st:
        bids = st.aggregating_state(
            "bids",
            fc.avg("price").alias("mean"),
            key="string",
            value="price long, bidder string, valid boolean",
            n=fc.count(),
            valid=fc.count(where="valid"),
            best=fc.max_by("bidder", "price"),
        )
        table = pa.table(
            {"valid": [True, None, False], "other": [0, 0, 0], "bidder": ["x", "y", "z"], "price": [3, 5, 4]}
        )
        bids.add_many(["a", "b", "a"], table)
        bids.add_many(["a"], table.to_batches()[0].slice(0, 1))
        bids.add("b", {"price": None, "bidder": "w", "valid": True})
        bids.add("c", (1, "v", None))
        expected = {
            "a": {"mean": 10 / 3, "n": 3, "valid": 2, "best": "z"},
            "b": {"mean": 5.0, "n": 2, "valid": 1, "best": "y"},
            "c": {"mean": 1.0, "n": 1, "valid": 0, "best": "v"},
        }
        assert (bids["a"], dict(bids.items()), list(bids)) == (expected["a"], expected, ["a", "b", "c"])
        assert bids.get_many(["c", "d"]).to_pylist() == [expected["c"], None]
        assert bids.result_type == bids.get_many(["a"]).type
        assert (bids.get("d"), bids.get("d", 7), bids.contains_many(["a", "d"]).to_pylist()) == (None, 7, [True, False])
        del bids["c"]
        bids.clear_many(["d", "b"])
        with pytest.raises(KeyError):
            bids["b"]
        with pytest.raises(fc.InvalidArgumentError, match="no column `bidder`"):
            bids.add_many(["a"], pa.table({"price": [1], "valid": [True]}))
    with reopened(root, read_only=True) as st:
        again = st.aggregating_state(
            "bids",
            key="string",
            value="bidder string, price long, valid boolean",
            best=fc.max_by("bidder", "price"),
            other_name=fc.count(),
            mean=fc.avg("price"),
            v=fc.count(where="valid"),
        )
        assert dict(again.items()) == {"a": {"best": "z", "other_name": 3, "mean": 10 / 3, "v": 2}}
        assert [batch.num_rows for batch in again.scan(start="a", end="b")] == [1]


def test_plain_aggregates(state: fc.State) -> None:
    totals = state.aggregating_state("totals", fc.sum("value"), key="long", value="long")
    totals.add_many(np.arange(10) % 3, range(10))
    totals.add(1, 100)
    assert dict(totals.items()) == {0: 18, 1: 112, 2: 15}
    counts = state.aggregating_state("counts", fc.count(), key="string")
    counts.add_many(["a", "b", "a"])
    counts.add("a")
    assert (counts["a"], counts.get_many(["b", "c"]).to_pylist(), "c" in counts) == (3, [1, None], False)
    most = {"key": "string", "value": "long"}
    with pytest.raises(fc.InvalidArgumentError, match="overflow"):
        full = state.aggregating_state("full", fc.sum("value"), **most)
        full.add_many(["a", "a"], [2**63 - 1, 1])
    assert "a" not in full
    wraps = state.aggregating_state("wraps", fc.sum("value"), ansi=False, **most)
    wraps.add_many(["a", "a"], [2**63 - 1, 1])
    assert wraps["a"] == -(2**63)


def test_results_have_the_types_that_spark_gives(state: fc.State) -> None:
    made = state.aggregating_state(
        "types",
        key="int",
        value="i int, f float, d decimal(12,2), big decimal(38,10), s string",
        si=fc.sum("i"),
        sf=fc.sum("f"),
        sd=fc.sum("d"),
        ad=fc.avg("d"),
        ab=fc.avg("big"),
        ai=fc.avg("i"),
        m=fc.min("s"),
    )
    assert {field.name: field.type for field in made.result_type} == {
        "si": pa.int64(),
        "sf": pa.float64(),
        "sd": pa.decimal128(22, 2),
        "ad": pa.decimal128(16, 6),
        "ab": pa.decimal128(38, 14),
        "ai": pa.float64(),
        "m": pa.string(),
    }


@pytest.mark.parametrize(
    ("aggregates", "named", "message"),
    [
        ((), {}, "needs an aggregate"),
        ((fc.sum("price"),), {}, "no column `price`; they have: n"),
        ((fc.sum("n"), fc.count(where="m > 0")), {}, "no column `m`"),
        ((fc.sum("n"), fc.sum("n")), {}, "two results are named"),
        (("sum",), {}, "is no aggregate"),
        ((), {"x": fc.sum("t")}, "not supported"),
    ],
)
def test_aggregates_that_cannot_be(state: fc.State, aggregates: Any, named: Any, message: str) -> None:
    with pytest.raises(fc.InvalidArgumentError, match=message):
        state.aggregating_state("x", *aggregates, key="int", value="n long, t string", **named)


# --------------------------------------------------------------------------------------------------------------- all


def test_a_state_declared_otherwise_says_what_differs(root: str) -> None:
    with reopened(root) as st:
        st.map_state("m", key="string", map_key="string", value="long")
        st.aggregating_state("a", fc.sum("value"), key="string", value="long")
    with reopened(root) as st:
        for message, declare in (
            ("kind `map`, now with `list`", lambda: st.list_state("m", key="string", value="long")),
            ("kind `map`, now with `value`", lambda: st.value_state("m", key="string", value="long")),
            ("map key `string`, now with `int`", lambda: st.map_state("m", key="string", map_key="int", value="long")),
            ("key `string`, now", lambda: st.map_state("m", key="long", map_key="string", value="long")),
            ("max.value.. added", lambda: st.aggregating_state("a", fc.max("value"), key="string", value="long")),
        ):
            with pytest.raises(fc.SchemaMismatchError, match=message):
                declare()


def test_names_and_types_are_shown(state: fc.State) -> None:
    maps = state.map_state("m", key="string", map_key="int", value="long")
    lists = state.list_state("l", key="string", value="long")
    assert (maps.map_key_type, lists.value_type) == (pa.int32(), pa.int64())
    assert repr(maps) == "MapState('m', key=string, value=int64)"
    assert (repr(maps["a"]), repr(lists["a"])) == ("MapView('m', 'a')", "ListView('l', 'a')")


@pytest.mark.case("A-17")
def test_a_random_program_of_all_kinds(root: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    model = Model()
    kept: list[tuple[fc.StateHandle, Model]] = []
    committed = copy.deepcopy(model)
    st = reopened(root)
    for _ in range(60):
        maps = st.map_state("m", key="string", map_key="int", value="int")
        lists = st.list_state("l", key="string", value="string")
        totals = st.aggregating_state("t", fc.sum("value"), key="string", value="long")
        key, number = rng.choice("abc"), rng.randrange(5)
        match rng.randrange(9):
            case 0 | 1:
                maps[key][number] = number
                model.of(key).put(number, number)
            case 2:
                maps.clear(key)
                model.of(key).entries.clear()
            case 3:
                lists[key].extend([str(number)] * number * 100)
                model.of(key).append(*[str(number)] * number * 100)
            case 4:
                lists.put_many([key], [["x"] * number])
                model.of(key).replace(*["x"] * number)
            case 5:
                totals.add_many([key, "d"], [number, 1])
                for name, more in ((key, number), ("d", 1)):
                    model.of(name).update((model.of(name).held or 0) + more)
            case 6 | 7:
                kept.append((st.checkpoint(), committed := copy.deepcopy(model)))
            case _:
                handle = None
                if kept and rng.random() < 0.5:
                    handle, committed = rng.choice(kept[-4:])
                st.close(checkpoint=False)
                st = reopened(root, handle=handle)
                model = copy.deepcopy(committed)
                continue
        assert dict(maps.items()) == model.held(lambda states: states.mapped)
        assert dict(lists.items()) == model.held(lambda states: states.listed)
        assert dict(totals.items()) == model.held(lambda states: states.held)
    st.close()


def test_types_of_values_evolve(root: str) -> None:
    with reopened(root) as st:
        st.value_state("v", key="string", value="n int, gone string")["a"] = {"n": 1, "gone": "x"}
        st.map_state("m", key="string", map_key="string", value="int").put("a", "k", 2)
        st.list_state("l", key="string", value="float", ttl="1h").append("a", 0.5)
    for _ in range(2):
        with reopened(root) as st:
            values = st.value_state("v", key="string", value="new array<string>, n long")
            assert values["a"] == {"new": None, "n": 1}
            values["b"] = {"new": ["ü"], "n": 2**40}
            assert st.map_state("m", key="string", map_key="string", value="double")["a"] == {"k": 2.0}
            lists = st.list_state("l", key="string", value="double", ttl="1h")
            lists.put("a", [*lists["a"], 0.25][:2])
            assert list(lists["a"]) == [0.5, 0.25]
    with reopened(root, read_only=True) as st:
        assert st.value_state("v", key="string", value="n double")["b"] == {"n": 2.0**40}
    with reopened(root) as st:
        with pytest.raises(fc.SchemaMismatchError, match=r"state `v` was declared with value .*`n`.* bigint .* int"):
            st.value_state("v", key="string", value="n int")
        with pytest.raises(fc.SchemaMismatchError, match="map key `string`, now with `int`"):
            st.map_state("m", key="string", map_key="int", value="double")
        st.list_state("l", key="string", value="double", ttl="1h")
        with pytest.raises(fc.SchemaMismatchError, match=r"open the state again"):
            st.list_state("l", key="string", value="string", ttl="1h")
