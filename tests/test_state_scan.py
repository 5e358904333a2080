"""A processor's shard at old and new versions, read beside the server that goes on with it: what the processor has."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import fastchangelog as fc
from fastchangelog import _internal, cli
from fastchangelog.catalog import TIMERS, is_processor, state_rows, states_of
from fastchangelog.savepoints import batch as savepoints_batch
from fastchangelog.savepoints.source import FoundHandles
from fastchangelog.server.paths import ServerPaths
from fastchangelog.spark.reading.columns import StateColumns
from fastchangelog.spark.reading.scan import processor_rows
from fastchangelog.spark.types.ddl import parse_ddl
from support.model import States
from support.processor_runs import TYPES, Script, random_value
from support.processor_servers import ServerRunner
from support.processor_world import TTL, Operations, World, run_batches, set_bounds

SEED = int(os.environ.get("FASTCHANGELOG_SEED", "0"))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ServerRunner]]:
    """Makes runners, at a server of this test's own."""
    for variable in ("XDG_RUNTIME_DIR", "SPARK_LOCAL_DIRS"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    made: list[ServerRunner] = []

    def runner(*args: Any, **settings: Any) -> ServerRunner:
        made.append(ServerRunner(tmp_path, *args, **settings))
        return made[-1]

    yield runner
    for one in made[:1]:
        one.kill_server()


def read(runner: ServerRunner, handle: str, name: str, now: int, newest: str | None = None) -> list[dict[str, Any]]:
    """All rows of a state. `newest` is the handle whose catalog says how it is shown."""
    schema = json.loads(_internal.handle_json(newest or handle))["schema"]
    (state,) = [state for state in states_of(schema) if state.name == name]
    columns = StateColumns.of(state)
    place = (f"file://{runner.root}/state", "query", "default")
    batches = list(processor_rows(place, handle, name, columns, now, {}, {}))
    for batch in batches:
        assert batch.schema == columns.arrow()
    return [row for batch in batches for row in batch.to_pylist()]


def objects(runner: ServerRunner) -> dict[str, bytes]:
    folder = runner.root / "state"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def expected(models: dict[str, States], what: str, ttl: bool) -> list[Any]:
    def shown(value: tuple[Any, int]) -> Any:
        return (value[0], value[1]) if ttl else value[0]

    found: list[Any] = []
    for key, model in models.items():
        if what == "v" and model.value is not None:
            found.append((key, shown(model.value)))
        if what == "l":
            found += [(key, shown(element)) for element in model.elements]
        if what == "m":
            found += [(key, name, shown(entry)) for name, entry in model.entries.items()]
        if what == TIMERS:
            found += [(key, time) for time in model.timers]
    return sorted(found, key=repr)


def flat(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((tuple(_flat(value) for value in row.values()) for row in rows), key=repr)


def _flat(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if list(value) == ["value", "ttlExpirationMs"]:
        return _flat(value["value"]), value["ttlExpirationMs"]
    return next(iter(value.values())) if len(value) == 1 else tuple(value.values())


def server_restores() -> int:
    """How often the server has restored a state: also after a first batch that changed nothing."""
    metrics = json.loads(_internal.ServerClient(str(ServerPaths.here().socket)).metrics())
    return int(metrics["restores"])


@pytest.mark.parametrize("ttl", [None, TTL], ids=["forever", "ttl"])
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_each_version_is_read_beside_the_server_that_goes_on(
    seed: int, ttl: int | None, monkeypatch: pytest.MonkeyPatch, make: Callable[..., ServerRunner]
) -> None:
    rng = random.Random(f"{seed} {ttl}")
    set_bounds(monkeypatch, rng)
    monkeypatch.setattr("fastchangelog.spark.reading.scan._PAGE_BYTES", rng.choice((1, 60, 10**6)))
    world = World(seed, ttl)
    runner = make(lambda: Operations(world), time_mode="processingtime")
    versions: list[tuple[str, int, dict[str, States]]] = []
    for _ in range(6):
        run_batches(runner, world, rng, 2)
        assert runner.handle is not None
        models = copy.deepcopy(world.states.keys)
        for model in models.values():
            model.expire(world.states.now)
        versions.append((runner.handle, world.states.now, models))
    before, restores = objects(runner), server_restores()
    for handle, now, models in rng.sample(versions, 3):
        for name in ("v", "l", "m", TIMERS):
            assert flat(read(runner, handle, name, now)) == expected(models, name, ttl is not None), (seed, name)
    assert objects(runner) == before, "a reader writes nothing"
    run_batches(runner, world, rng, 1)
    assert server_restores() == restores, "the server still had the version that it went on from"


def test_a_reader_with_a_shorter_grace_changes_nothing(make: Callable[..., ServerRunner]) -> None:
    """A server notes the longest grace period that it was ever given. A reader's is none of them."""
    runner = make(Script)
    runner.options = {**runner.options, "sweep_grace": "1h"}
    runner.batch([("a", 1)])
    assert runner.handle is not None
    before = objects(runner)
    assert any(name.endswith("_fastchangelog.json") for name in before)
    assert read(runner, runner.handle, "v", 0) == []
    assert objects(runner) == before


def test_every_type_and_composite_keys(make: Callable[..., ServerRunner]) -> None:
    ddl = ", ".join(f"f{i} {kind}" for i, kind in enumerate(TYPES))
    struct = parse_ddl(ddl)
    values = [tuple(random_value(random.Random(i), f.dataType) for f in struct.fields) for i in range(20)]
    keys = "a string, b double, c array<binary>, d struct<x:timestamp>"
    names = [tuple(random_value(random.Random(-i), f.dataType) for f in parse_ddl(keys).fields) for i in range(1, 21)]

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", ddl)
        p.l = handle.getListState("l", ddl)
        p.m = handle.getMapState("m", keys, ddl)

    def rows(p: Script, key: Any, given: Any, times: Any) -> Any:
        p.v.update(values[given[0]])
        p.l.appendList(values)
        for name, value in zip(names, values):
            p.m.updateValue(name, value)

    own = "k string, `K 1` decimal(10,2), e map<string,int>, n void"
    runner = make(lambda: Script(rows, init), key=own)
    runner.batch([("a", None, [{"key": "x", "value": 1}], None, 0), (None, None, None, None, 1)])
    assert runner.handle is not None
    found = {name: read(runner, runner.handle, name, 0) for name in "vlm"}
    assert sorted((row["key"]["k"] or "", row["key"]["e"] or []) for row in found["v"]) == [
        ("", []),
        ("a", [{"key": "x", "value": 1}]),
    ]
    by_key = {row["key"]["k"]: row["value"] for row in found["v"]}
    for key in ("a", None):
        elements = [row["list_element"] for row in found["l"] if row["key"]["k"] == key]
        assert len(elements) == 20
        assert repr(elements[0 if key == "a" else 1]) == repr(by_key[key])
        entries = [row["user_map_value"] for row in found["m"] if row["key"]["k"] == key]
        assert sorted(map(repr, entries)) == sorted(map(repr, {repr(n): e for n, e in zip(names, elements)}.values()))


def test_old_values_have_the_newest_type_deleted_states_none(make: Callable[..., ServerRunner]) -> None:
    def first(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "n int, gone string")
        p.x = handle.getValueState("x", "n long")

    def second(p: Script, handle: Any) -> None:
        handle.deleteIfExists("x")
        p.v = handle.getValueState("v", "more string, n bigint")
        p.l = handle.getListState("x", "n long")

    def old(p: Script, key: Any, given: Any, times: Any) -> None:
        p.v.update((given[0], "gone"))
        p.x.update((1,))

    def new(p: Script, key: Any, given: Any, times: Any) -> None:
        p.v.update(("new", given[0]))
        p.l.appendValue((given[0],))

    runner = make(lambda: Script(old, first))
    runner.batch([("a", 1), ("b", 2)])
    before = runner.handle
    runner.make = lambda: Script(new, second)
    runner.batch([("b", 3)])
    assert before is not None
    assert runner.handle is not None
    shown = {row["key"]["k"]: row["value"] for row in read(runner, runner.handle, "v", 0)}
    assert shown == {"a": {"more": None, "n": 1}, "b": {"more": "new", "n": 3}}
    assert read(runner, runner.handle, "x", 0) == [{"key": {"k": "b"}, "list_element": {"n": 3}}]
    shown = {row["key"]["k"]: row["value"] for row in read(runner, before, "v", 0, newest=runner.handle)}
    assert shown == {"a": {"more": None, "n": 1}, "b": {"more": None, "n": 2}}, "a shard that had no rows since"
    assert read(runner, before, "x", 0, newest=runner.handle) == [], "its value state is no list"
    assert len(read(runner, before, "x", 0)) == 2


@pytest.mark.parametrize("ttl", [None, "1s"], ids=["forever", "ttl"])
def test_aggregates_are_read_as_their_results(make: Callable[..., ServerRunner], ttl: str | None) -> None:
    calls = {
        "mean": fc.avg("price", where="n > 1"),
        "n": fc.count(),
        "N": fc.count(),
        "last": fc.last("name", ignorenulls=True),
        "names": fc.max("name"),
        "list": fc.first("list"),
        "away": fc.sum("away"),
    }
    given = "price decimal(10,2), n long, name string, list array<string>, away interval day to second"
    answers: list[dict[str, Any]] = []

    class Totals(fc.Processor):
        def open(self, ctx: Any) -> None:
            self.totals = ctx.aggregating_state("totals", given, ttl=ttl, **calls)

        def process(self, batch: Any) -> Any:
            self.totals.add(batch.row_keys, batch.rows)
            answers.extend(self.totals.get(batch.keys).to_pylist())

    runner = make(Totals, api="arrow", rows=given, time_mode="processingtime")
    day, price = timedelta(days=1, microseconds=1), Decimal("1.50")
    rows = [("a", price, 2, "x", ["é", None], day), ("a", Decimal(4), 3, None, None, day), ("b", *[None] * 5)]
    runner.batch(rows, now=5000)
    assert runner.handle is not None
    assert answers[0]["mean"] == Decimal("2.75")
    found = sorted(read(runner, runner.handle, "totals", 5000), key=lambda row: row["key"]["k"])
    assert [row["key"] for row in found] == [{"k": "a"}, {"k": "b"}]
    values = [row["value"] if ttl is None else row["value"]["value"] for row in found]
    # Names that differ by case alone are numbers for readers.
    assert [list(value.values()) for value in values] == [list(answer.values()) for answer in answers]
    assert ttl is None or [row["value"]["ttlExpirationMs"] for row in found] == [6000, 6000]
    savepoint, file = taken(runner, "canonical"), str(runner.root / "totals.parquet")
    assert cli.main(["export", str(savepoint), "--to", file, "--name", "totals"]) == cli.OK
    # A savepoint leaves out what has expired by the clock of this machine.
    assert parquet.read_table(file).num_rows == (2 if ttl is None else 0)


def test_large_lists_and_many_keys_come_in_pages(make: Callable[..., ServerRunner], monkeypatch: Any) -> None:
    monkeypatch.setattr("fastchangelog.spark.reading.scan._PAGE_BYTES", 2000)

    def rows(p: Script, key: Any, given: Any, times: Any) -> None:
        p.l.appendList([(i,) for i in range(2000)])
        p.v.update((given[0], 0.5))

    runner = make(lambda: Script(rows))
    runner.batch([(f"k{i}", i) for i in range(5)])
    assert runner.handle is not None
    found = read(runner, runner.handle, "l", 0)
    lists: dict[str, list[int]] = {}
    for row in found:
        lists.setdefault(row["key"]["k"], []).append(row["list_element"]["x"])
    assert lists == {f"k{i}": list(range(2000)) for i in range(5)}, "in order, all"
    assert sorted(row["value"]["n"] for row in read(runner, runner.handle, "v", 0)) == [0, 1, 2, 3, 4]


def test_times_are_read_from_eight_bytes() -> None:
    from fastchangelog.spark.reading.columns import _times

    numbers = [0, -1, 2**63 - 1, -(2**63), 1_714_564_800_000]
    subs = pa.array([number.to_bytes(8, "big", signed=True) for number in numbers], pa.binary())
    assert _times(subs).to_pylist() == numbers
    assert _times(subs.slice(2, 2)).to_pylist() == numbers[2:4]
    assert _times(subs.slice(0, 0)).to_pylist() == []


def started(make: Callable[..., ServerRunner]) -> ServerRunner:
    """A processor that has run a batch, with a state of each kind and timers."""

    def init(p: Script, handle: Any) -> None:
        p.v = handle.getValueState("v", "n long, at timestamp")
        p.l = handle.getListState("l", "x long")
        p.m = handle.getMapState("m", "a string", "b map<string,int>")

    def rows(p: Script, key: Any, given: Any, times: Any) -> None:
        p.v.update((sum(given), None))
        p.l.appendList([(n,) for n in given])
        p.m.updateValue(("x",), ({"y": 1},))
        p.handle.registerTimer(5_000)

    runner = make(lambda: Script(rows, init), time_mode="processingtime")
    runner.batch([("a", 1), ("b", 2), ("a", 3)])
    return runner


def taken(runner: ServerRunner, format: str) -> Path:
    """A savepoint of its newest version."""
    assert runner.handle is not None
    (folder,) = (runner.root / "state").glob("*/default")
    target, scratch = runner.root / f"{format}-savepoint", runner.root / f"{format}-scratch"
    scratch.mkdir()
    to = _internal.SavepointFolder(str(target), {}, {})
    of = _internal.SavepointFolder(str(folder), {}, {})
    of.take([runner.handle], to, format, "query", "default", 0, str(scratch))
    return target


def test_inspect_shows_the_states_of_a_handle(make: Callable[..., ServerRunner], capsys: Any) -> None:
    runner = started(make)
    assert runner.handle is not None
    assert cli.main(["inspect", runner.handle]) == cli.OK
    said = capsys.readouterr().out
    for line in (
        "v: value (k string) → (n bigint, at timestamp)",
        "l: list (k string) → (x bigint)",
        "m: map (k string), (a string) → (b map<string,int>)",
        "$timers: timers (k string), by processingtime",
    ):
        assert line in said
    assert '"kind"' not in said, "the catalog is not shown twice"
    assert cli.main(["inspect", runner.handle, "--json"]) == cli.OK
    states = json.loads(capsys.readouterr().out)["states"]
    assert {state["name"]: state["kind"] for state in states} == {
        "$timers": "timers",
        "v": "value",
        "l": "list",
        "m": "map",
    }
    assert cli.main(["inspect", runner.handle, "--count"]) == cli.COULD_NOT_RUN
    assert "--count reads a savepoint" in capsys.readouterr().err


def test_a_batch_of_a_query_is_counted(
    make: Callable[..., ServerRunner], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = started(make)
    (folder,) = (runner.root / "state").glob("*/default")
    assert runner.handle is not None
    found = FoundHandles(folder.parent.name, "default", 7, 0, (runner.handle,), f"file://{folder}")
    monkeypatch.setattr(savepoints_batch, "find_handles", lambda source: found)
    asked = ["inspect", str(runner.root / "state"), "--checkpoint", "/checkpoint"]
    assert cli.main(asked) == cli.OK
    said = capsys.readouterr().out
    assert "batch                  7" in said
    assert "l: list (k string) → (x bigint)" in said
    assert "entries" not in said
    assert cli.main([*asked, "--count"]) == cli.OK
    said = capsys.readouterr().out
    assert "l: list (k string) → (x bigint), 3 entries" in said
    assert "$timers: timers (k string), by processingtime, 2 entries" in said
    assert cli.main([*asked, "--count", "--json"]) == cli.OK
    states = json.loads(capsys.readouterr().out)["states"]
    assert {state["name"]: state["entries"] for state in states} == {"v": 2, "l": 3, "m": 2, "$timers": 2}
    assert cli.main(["inspect", str(runner.root / "state"), "--count"]) == cli.COULD_NOT_RUN
    assert "give its checkpointLocation with --checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["canonical", "native"])
def test_savepoints_of_a_processor_are_counted_and_exported(
    make: Callable[..., ServerRunner], capsys: Any, format: str
) -> None:
    runner = started(make)
    savepoint = taken(runner, format)
    assert cli.main(["inspect", str(savepoint), "--count"]) == cli.OK
    said = capsys.readouterr().out
    assert "l: list (k string) → (x bigint), 3 entries" in said
    assert "$timers: timers (k string), by processingtime, 2 entries" in said
    files = {name: str(runner.root / f"{format}-{number}.parquet") for number, name in enumerate(("v", "m", TIMERS))}
    for name, file in files.items():
        assert cli.main(["export", str(savepoint), "--to", file, "--name", name]) == cli.OK
    read_back = {name: sorted(parquet.read_table(file).to_pylist(), key=repr) for name, file in files.items()}
    keys = [{"k": "a"}, {"k": "b"}]
    assert read_back == {
        "v": [{"key": key, "value": {"n": n, "at": None}} for key, n in zip(keys, (4, 2))],
        "m": [{"key": key, "user_map_key": {"a": "x"}, "user_map_value": {"b": [("y", 1)]}} for key in keys],
        TIMERS: [{"key": key, "expiration_timestamp_ms": 5000} for key in keys],
    }
    capsys.readouterr()
    assert cli.main(["export", str(savepoint), "--to", str(runner.root / "none")]) == cli.COULD_NOT_RUN
    assert "holds the states $timers, v, l, m; say which one with --name" in capsys.readouterr().err
    assert cli.main(["inspect", str(runner.root)]) == cli.OK


def test_catalogs_of_processors_and_embedded_states_differ(make: Callable[..., ServerRunner]) -> None:
    runner = started(make)
    assert runner.handle is not None
    assert is_processor(json.loads(_internal.handle_json(runner.handle))["schema"])
    embedded = {"id": 0, "name": "v", "kind": "value", "key": "string", "value": "bigint", "ttl": True, "encoding": 1}
    timers = {"id": 1, "name": "t", "kind": "timers", "key": "string", "value": "", "encoding": 1}
    assert not is_processor(json.dumps([embedded]))
    assert not is_processor(json.dumps([timers]))
    assert not is_processor('{"layout":1,"keys":["string"],"aggregates":[]}')
    assert [row.get("ttl") for row in state_rows(json.dumps([embedded, timers]))] == [True, None]
