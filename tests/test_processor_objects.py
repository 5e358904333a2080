"""Objects that user code shares with states: what it was given, and generators that it gives."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as T

from fastchangelog.errors import UnsupportedError
from fastchangelog.spark.processor.run import init_on_driver
from support.processor_runs import Runner, Script, runs


def test_what_a_state_gave_may_be_changed() -> None:
    schema = "xs array<long>, m map<string,array<long>>, s struct<ys:array<long>>"

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", schema)
        p.l = handle.getListState("l", schema)
        p.m = handle.getMapState("m", "a string", schema)

    def change(row: Any) -> Any:
        seen = repr(tuple(row))
        row[0].append(9)
        row[1]["a"].append(9)
        row[1]["b"] = []
        row[2].ys.append(9)
        return seen

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        if values == [0]:
            given = ([1], {"a": [2]}, ([3],))
            p.v.update(given)
            p.l.put([given])
            p.m.updateValue(("x",), given)
        seen = [change(p.v.get()) for _ in range(2)]
        for _ in range(2):
            seen += map(change, p.l.get())
            seen.append(change(p.m.getValue(("x",))))
            seen += map(change, p.m.values())
            seen += [change(value) for _, value in p.m.iterator()]
        assert set(seen) == {"([1], {'a': [2]}, Row(ys=[3]))"}
        return [len(seen)]

    runner = Runner(lambda: Script(rows, init))
    assert [runner.batch([("a", i)]) for i in range(2)] == [[("a", 10)]] * 2


def test_a_schema_may_be_extended_for_the_next_state() -> None:
    def init(p: Script, handle: Any) -> None:
        schema = T.StructType().add("a", "long")
        p.v = handle.getValueState("v", schema)
        p.l = handle.getListState("l", schema.add("b", "string"))

    def rows(p: Script, key: Any, values: Any, times: Any) -> Any:
        p.v.update((1,))
        p.l.appendValue((2, "x"))
        assert (p.v.get(), list(p.l.get())) == ((1,), [(2, "x")])
        return [1]

    assert Runner(lambda: Script(rows, init)).batch([("a", 1)]) == [("a", 1)]


def test_a_map_key_of_spark_alone_is_unsupported() -> None:
    def init(p: Script, handle: Any) -> None:
        handle.getMapState("m", "k map<string,int>", "v int")

    with pytest.raises(UnsupportedError, match="state `m`: a map cannot be a part of the keys of a map"):
        init_on_driver(Runner(Script(None, init)).spec())


def test_an_error_of_the_users_generator_stays_what_it_is() -> None:
    def broken() -> Any:
        yield (1,)
        raise TypeError("of the user")

    for call in (lambda p: p.l.put(broken()), lambda p: p.l.appendList(broken()), lambda p: p.v.update(broken())):
        with pytest.raises(TypeError, match="of the user"):
            runs(lambda p, key, values, times, call=call: call(p))
