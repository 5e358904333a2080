"""States of the next version: numbers stay, schemas change as far as old values can be read, errors name each change
that is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError
from fastchangelog.spark.processor.evolution import Evolved, evolve, is_current, schema_changes
from fastchangelog.spark.processor.spec import TimeMode
from fastchangelog.spark.processor.states.handle import Declaration
from fastchangelog.spark.types.ddl import parse_ddl
from support.processor_runs import Runner

KEY = parse_ddl("k string")


def value(name: str, ddl: str, ttl: int | None = None, kind: Any = "value") -> Declaration:
    return Declaration(name, kind, parse_ddl(ddl), None, ttl)


def mapped(name: str, key: str, ddl: str) -> Declaration:
    return Declaration(name, "map", parse_ddl(ddl), parse_ddl(key))


def entries(text: str) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads(text)}


def test_states_keep_their_numbers_and_values() -> None:
    first = evolve(
        "", KEY, "processingtime", [value("a", "n int"), mapped("m", "x string", "n int"), value("b", "n int", 5)]
    )
    assert {name: state.id for name, state in first.states.items()} == {"$timers": 0, "a": 1, "m": 2, "b": 3}
    catalog = entries(first.text)
    assert catalog["m"] == {
        "id": 2, "name": "m", "kind": "map", "key": "k string", "value": "n int", "encoding": 1, "ttl": False,
        "versions": ["n int"], "map_key": "x string",
    }  # fmt: skip
    assert catalog["b"]["ttl"] is True
    assert catalog["$timers"]["value"] == "processingtime"
    second = evolve(first.text, KEY, "processingtime", [value("c", "n int"), value("b", "n int", 99)])
    assert {name: state.id for name, state in second.states.items()} == {"$timers": 0, "c": 4, "b": 3}
    assert set(entries(second.text)) == {"$timers", "a", "m", "b", "c"}, "what is not declared stays"
    third = evolve(second.text, KEY, "processingtime", [value("a", "n int")])
    assert third.states["a"].id == 1
    assert third.purged == ()
    assert evolve(third.text, KEY, "processingtime", []).text == third.text


def test_a_catalog_is_current_until_another_one_follows() -> None:
    a, b = value("a", "n int"), value("b", "n int")
    text = evolve("", KEY, "none", [a, b]).text
    assert is_current(text, KEY, "none", [a, b])
    assert is_current(text, KEY, "none", [b]), "a state that is not declared stays"
    assert not is_current(text, KEY, "none", [a, b, value("c", "n int")])
    assert not is_current(text, KEY, "none", [value("a", "n long")])
    assert not is_current(text, KEY, "none", [value("a", "n array<int>")]), "the session says why"
    with pytest.raises(SchemaMismatchError, match="an aggregation has other state"):
        evolve('{"keys":[]}', KEY, "none", [a])


def test_versions_are_kept_in_order() -> None:
    text = ""
    for ddl in ("n int", "n int, s string", "s string, n bigint", "s string, n bigint"):
        found = evolve(text, KEY, "none", [value("a", ddl)])
        text = found.text
    assert found.states["a"].versions == tuple(map(parse_ddl, ("n int", "n int, s string", "s string, n bigint")))
    with pytest.raises(SchemaMismatchError, match="field `s` was string and now is int"):
        evolve(evolve(text, KEY, "none", [value("a", "n bigint")]).text, KEY, "none", [value("a", "n bigint, s int")])


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("n int", "n int", []),
        ("a int, b string", "b string", []),
        ("a int", "a int, b array<int>", []),
        ("a int, b int", "b int, a int", []),
        ("a tinyint, b smallint, c int", "a smallint, b int, c bigint", []),
        ("a int, b bigint, c float", "a double, b float, c double", []),
        ("a int, b decimal(10,2)", "a decimal(12,2), b decimal(12,4)", []),
        ("a string, b binary, c char(3)", "a binary, b string, c string", []),
        ("a int not null", "a int", []),
        ("a int, s struct<x:int>", "a int not null, s struct<x:int not null> not null", []),
        ("s struct<x:int,gone:int>, l array<struct<y:int>>",
         "s struct<x:bigint,z:int>, l array<struct<y:double,w:int>>", []),
        ("m map<string,struct<x:int>>", "m map<string,struct<x:bigint>>", []),
        ("span interval hour", "span interval day to second", []),
        ("n bigint", "n int", ["field `n` was bigint and now is int"]),
        ("n double", "n float", ["field `n` was double and now is float"]),
        ("n string", "n int", ["field `n` was string and now is int"]),
        ("n int", "n string", ["field `n` was int and now is string"]),
        ("n timestamp", "n timestamp_ntz", ["field `n` was timestamp and now is timestamp_ntz"]),
        ("n boolean", "n int", ["field `n` was boolean and now is int"]),
        ("n int", "n array<int>", ["field `n` was int and now is array<int>"]),
        ("n decimal(10,2)", "n decimal(10,3)", ["field `n` was decimal(10,2) and now is decimal(10,3)"]),
        ("n bigint", "n decimal(19,1)", ["field `n` was bigint and now is decimal(19,1)"]),
        ("n int", "n int, b int not null", ["field `b` is new and allows no null"]),
        ("m map<int,int>", "m map<bigint,int>", ["the keys of field `m` changed"]),
        ("s struct<x:bigint>, l array<double>", "s struct<x:int>, l array<float>",
         ["field `s.x` was bigint and now is int", "field `l[]` was double and now is float"]),
    ],
)  # fmt: skip
def test_changes_of_a_schema(old: str, new: str, changes: list[str]) -> None:
    assert schema_changes(parse_ddl(old), parse_ddl(new)) == changes


def test_fields_without_names_are_known_by_their_places() -> None:
    twice = parse_ddl("a int, a string, b int")
    assert schema_changes(twice, twice) == []
    assert schema_changes(parse_ddl("a int, A string"), parse_ddl("a bigint, A string")) == []
    for old, new in (("a int, A int", "A int, a int"), ("a int, A int", "a int"), ("a int", "a int, A int")):
        (change,) = schema_changes(parse_ddl(old), parse_ddl(new))
        assert change.startswith(f"the fields were {', '.join(parse_ddl(old).names)} and now are ")
        (change,) = schema_changes(parse_ddl(f"s struct<{old}>"), parse_ddl(f"s struct<{new}>"))
        assert change.startswith("the fields of field `s` were ")


def test_map_keys_are_compared_by_their_values_alone() -> None:
    key = T.StructType([T.StructField("x", T.ArrayType(T.LongType(), False), True, {"comment": "c"})])
    given = Declaration("a", "value", T.StructType([T.StructField("m", T.MapType(key, T.LongType(), False))]))
    first = evolve("", KEY, "none", [given])
    assert len(evolve(first.text, KEY, "none", [given]).states["a"].versions) == 1


def refused(stored: Any, *declarations: Declaration, key: str = "k string", mode: TimeMode = "none") -> str:
    text = evolve("", KEY, "none", stored).text
    with pytest.raises(SchemaMismatchError) as caught:
        evolve(text, parse_ddl(key), mode, declarations)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_refused_changes_are_named() -> None:
    text = refused([value("a", "n bigint, s string")], value("a", "n int, s int, t int not null"))
    assert "the state `a`" in text
    for change in ("field `n` was bigint and now is int", "field `s` was", "field `t` is new"):
        assert change in text
    text = refused([value("a", "n int")], value("a", "n int", kind="list"))
    assert text.startswith(
        "[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] Cannot change a to ListState between query restarts"
    )
    assert "set a to ValueState" in text
    assert "it had no TTL and now has one" in refused([value("a", "n int")], value("a", "n int", 5))
    text = refused([mapped("m", "x string", "n int")], mapped("m", "x int", "n string"))
    assert "its keys were (x string) and now are (x int); field `n` was int" in text
    assert "the key (k string), but the query now groups by (k int)" in refused([value("a", "n int")], key="k int")
    text = refused([value("a", "n int")], value("a", "n int"), mode="eventtime")
    assert text.startswith("[STATE_STORE_INVALID_CONFIG_AFTER_RESTART] Cannot change timeMode from NoTime to EventTime")


def test_keys_of_the_same_bytes_are_the_same_keys() -> None:
    for old, new in (
        ("k struct<a:string,b:int>", "k struct<a:string not null,b:int not null> not null"),
        ("k struct<a:string not null>", "k struct<a:string>"),
        ("k struct<a:string,b:int>", "K struct<x:string,B:int>"),
        ("k array<struct<a:int>>", "k array<struct<b:int not null>>"),
        ("k map<string,struct<a:int>>", "k map<string,struct<b:int>>"),
        ("k string", "k varchar(20)"),
    ):
        first = evolve("", parse_ddl(old), "none", [value("a", "n int")])
        found = evolve(first.text, parse_ddl(new), "none", [value("a", "n int")])
        assert entries(found.text)["a"]["key"] == new, "the names of today"
        first = evolve("", KEY, "none", [mapped("m", old, "n int")])
        assert evolve(first.text, KEY, "none", [mapped("m", new, "n int")]).states["m"].id == first.states["m"].id


def test_names_that_move_in_a_key_change_its_meaning() -> None:
    for old, new in (
        ("a string, b string", "b string, a string"),
        ("a string, b string", "b string, c string"),
        ("k struct<a:int,b:int>", "k struct<B:int,A:int>"),
    ):
        first = evolve("", parse_ddl(old), "none", [value("a", "n int")])
        with pytest.raises(SchemaMismatchError) as caught:
            evolve(first.text, parse_ddl(new), "none", [value("a", "n int")])
        assert f"the key ({old}), but the query now groups by ({new})" in str(caught.value)


def test_renamed_keys_are_the_same_keys() -> None:
    first = evolve("", KEY, "none", [value("a", "n int")])
    found = evolve(first.text, parse_ddl("other string not null"), "none", [value("a", "n int")])
    assert entries(found.text)["a"]["key"] == "other string not null"
    first = evolve("", KEY, "none", [mapped("m", "x string, y int", "n int")])
    found = evolve(first.text, KEY, "none", [mapped("m", "u string not null, v int", "n int")])
    assert entries(found.text)["m"]["map_key"] == "u string not null, v int"
    assert found.states["m"].id == first.states["m"].id


def followed(*ddls: str) -> Evolved:
    """What follows from these schemas of one state, one after the other."""
    found = evolve("", KEY, "none", [value("a", ddls[0])])
    for ddl in ddls[1:]:
        found = evolve(found.text, KEY, "none", [value("a", ddl)])
    return found


def versions(*ddls: str) -> list[str]:
    found: list[str] = entries(followed(*ddls).text)["a"]["versions"]
    return found


def test_renamed_fields_keep_their_values() -> None:
    assert versions("n int, s string", "m int, s string") == ["m int, s string"]
    assert versions("n int", "n int, s string", "m int, t string") == ["m int", "m int, t string"]
    assert versions("n int", "m int", "n int") == ["n int"]
    # By name: other types, names that were there before.
    assert versions("n int", "m bigint") == ["n int", "m bigint"]
    assert versions("n int, m int", "m int, n int") == ["n int, m int", "m int, n int"]
    assert versions("m int, n int", "n int", "m int") == ["m int, n int", "n int", "m int"]
    # Beside a field that became wider.
    assert versions("n int, s string", "n bigint, t string") == ["n int, t string", "n bigint, t string"]


def test_a_name_in_another_case_is_the_same_name() -> None:
    assert versions("N int, other string", "n int, other string") == ["n int, other string"]
    assert versions("N int, a int", "n bigint, b int, a int") == ["n int, a int", "n bigint, b int, a int"]
    assert versions("N int, a int", "a int", "a int, n int") == ["n int, a int", "a int", "a int, n int"]
    assert versions("p struct<A:int>", "P struct<a:int>") == ["P struct<a:int>"]


def test_renamed_fields_keep_their_values_at_every_depth() -> None:
    for old, new in (
        ("p struct<a:int>", "p struct<b:int>"),
        ("p struct<a:int>", "q struct<b:int>"),
        ("p array<struct<a:int>>", "p array<struct<b:int>>"),
        ("p map<struct<x:int>,struct<a:int>>", "p map<struct<y:int>,struct<b:int>>"),
        ("p struct<s:struct<a:int,c:string>>", "p struct<s:struct<b:int,C:string>>"),
    ):
        assert versions(old, new) == [new]
    wider = versions("p struct<a:int>, n int", "p struct<b:int>, n bigint")
    assert wider == ["p struct<b:int>, n int", "p struct<b:int>, n bigint"]


def test_the_same_bytes_are_the_same_version() -> None:
    assert versions("n int", "n int not null", "n int") == ["n int"]
    assert versions("s string", "s varchar(9)") == ["s varchar(9)"]
    assert versions("p struct<a:int>", "p struct<a:int not null>") == ["p struct<a:int not null>"]


def test_versions_that_go_to_and_fro_are_used_again() -> None:
    one, two = "n bigint", "n bigint, m bigint"
    found = followed(*[one, two] * 100)
    assert entries(found.text)["a"]["versions"] == [one, two]
    assert (found.states["a"].current, entries(found.text)["a"]["value"]) == (1, two)
    back = followed(*[one, two] * 100, one)
    assert (back.states["a"].current, entries(back.text)["a"]["value"]) == (0, one)
    assert is_current(back.text, KEY, "none", [value("a", one)])


def test_what_is_dropped_is_said_with_its_names(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = followed("n int, s string, p struct<a:int,b:int>", "s string, p struct<b:int>").dropped
    assert said.startswith("the state `a`: its schema has no `n`, `p.a` any more, so these values are not read")
    found = followed("n int", "m int, extra string")
    found.log_dropped()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "`n`" in caplog.text
    assert "matches `m`, `extra`" in caplog.text
    for kept in (
        ("N int", "n int"),
        ("n int", "m int"),
        ("n int", "n bigint, m int"),
        ("n int, m int", "m int, n int"),
    ):
        assert followed(*kept).dropped == ()


def test_deleted_states() -> None:
    first = evolve("", KEY, "none", [value("a", "n int"), value("b", "n int")])
    gone = evolve(first.text, KEY, "none", [value("b", "n int")], {"a", "never"})
    assert gone.purged == (0,)
    assert entries(gone.text)["a"]["deleted"] is True
    again = evolve(gone.text, KEY, "none", [value("b", "n int")], {"a"})
    assert again.purged == (), "it is deleted already"
    back = evolve(gone.text, KEY, "none", [value("a", "n string")])
    assert (back.states["a"].id, back.states["a"].versions) == (0, (parse_ddl("n string"),))
    assert "deleted" not in entries(back.text)["a"]
    at_once = evolve(first.text, KEY, "none", [value("a", "t date")], {"a"})
    assert (at_once.states["a"].id, at_once.purged) == (0, (0,))


def test_a_deleted_state_may_come_back_as_another_kind() -> None:
    first = evolve("", KEY, "processingtime", [value("a", "n int")])
    other = evolve(first.text, KEY, "processingtime", [value("a", "n int", kind="list")], {"a"})
    assert (other.states["a"].id, other.purged) == (2, (1,))
    assert entries(other.text)["$2"]["variable"] == "a"
    timed = evolve(other.text, KEY, "processingtime", [value("a", "n int", 5, "list")], {"a"})
    assert (timed.states["a"].id, timed.purged) == (3, (2,))
    same = evolve(timed.text, KEY, "processingtime", [value("a", "n bigint", 7, "list")])
    assert same.states["a"].id == 3
    back = evolve(same.text, KEY, "processingtime", [value("a", "n int")], {"a"})
    assert back.states["a"].id == 1
    names = [entry["name"] for entry in json.loads(back.text)]
    assert len(set(names)) == len(names) == 4


def test_names_and_numbers_have_bounds() -> None:
    with pytest.raises(InvalidArgumentError, match="more than 256 bytes"):
        evolve("", KEY, "none", [value("ü" * 129, "n int")])
    many = [value(f"s{i}", "n int") for i in range(1025)]
    with pytest.raises(InvalidArgumentError, match="1024 states"):
        evolve("", KEY, "none", many)


class Versioned(StatefulProcessor):
    def __init__(self, ddl: str, put: Any) -> None:
        self.ddl, self.put = ddl, put

    def init(self, handle: Any) -> None:
        self.v = handle.getValueState("v", self.ddl)
        self.l = handle.getListState("l", self.ddl)
        self.m = handle.getMapState("m", "k int", self.ddl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        seen.append((self.v.get(), list(self.l.get()), [v for _, v in self.m.iterator()]))
        self.v.update(self.put)
        self.l.appendValue(self.put)
        self.m.updateValue((len(seen),), self.put)
        return iter(())

    def close(self) -> None:
        pass


seen: list[Any] = []


def test_a_renamed_field_goes_on_with_its_value() -> None:
    for old, new, kept, put in (
        ("N int, s string", "n int, s string", (1, "x"), (1, "x")),
        ("p struct<a:int>, n int", "p struct<b:int>, n bigint", ((1,), 2), ((1,), 2)),
        ("p array<struct<a:int>>", "p array<struct<A:int>>", ([(1,)],), ([(1,)],)),
    ):
        seen.clear()
        runner = Runner(lambda old=old, put=put: Versioned(old, put))  # type: ignore[misc]
        runner.batch([("a", 1)])
        runner.make = lambda new=new, put=put: Versioned(new, put)  # type: ignore[misc]
        runner.batch([("a", 1)])
        assert seen[1] == (kept, [kept], [kept])


def test_a_schema_that_comes_back_uses_its_own_version() -> None:
    seen.clear()
    runner = Runner(lambda: Versioned("n int", (1,)))
    for ddl, put in (("n int", (1,)), ("n int, m int", (2, 20)), ("n int", (3,)), ("n int, m int", (4, 40))):
        runner.make = lambda ddl=ddl, put=put: Versioned(ddl, put)  # type: ignore[misc]
        runner.batch([("a", 1)])
    assert [v for v, _, _ in seen] == [None, (1, None), (2,), (3, None)]
    assert seen[3][1] == [(1, None), (2, 20), (3, None)], "elements keep what they were written with"


def test_old_values_are_read_as_new_ones() -> None:
    seen.clear()
    runner = Runner(lambda: Versioned("n int, s string", (1, "x")))
    runner.batch([("a", 1)])
    runner.make = lambda: Versioned("s string, n bigint, t double", ("y", 2, 0.5))
    runner.batch([("a", 1)])
    runner.make = lambda: Versioned("n double", (3.5,))
    runner.batch([("a", 1)])
    runner.batch([("a", 1)])
    first, second = ("x", 1, None), (2.0,)
    assert seen == [
        (None, [], []),
        (first, [first], [first]),
        (second, [(1.0,), second], [(1.0,), second]),
        ((3.5,), [(1.0,), second, (3.5,)], [(1.0,), second, (3.5,)]),
    ]
    runner.make = lambda: Versioned("n int", (3,))
    with pytest.raises(
        SchemaMismatchError, match=r"the state `v`.*field `n` was bigint and now is int; field `n` was double"
    ):
        runner.batch([("a", 1)])
