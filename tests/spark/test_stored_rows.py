"""The state of Spark's own operators: the core reads the rows that Spark's source reads.

Owns: the comparison row by row, for every type, kind of state, provider and format, over restarts and snapshots; who
reads a checkpoint, and the log line that says so; keys with both zeros.
Does not own: what becomes of imported rows (`test_import_state`), stored checkpoints and damage to them
(`rust/spark/tests`), random rows without Spark (`rust/oracles`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.checkpoints import handles
from fastchangelog.errors import CorruptDataError, InvalidArgumentError
from fastchangelog.spark import grouped, import_state
from fastchangelog.spark.checkpoint.spark_states import Checkpoint
from fastchangelog.spark.checkpoint.stored_rows import CoreRows, StoredRows
from fastchangelog.spark.settings import REQUIRED
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.walk import nullable
from support.spark import processors
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, finish, start
from support.spark.processors import BASE, SCRIPT_OUTPUT, SCRIPT_SCHEMA, STATES, Script, script
from support.spark.stream_harness import FORMAT, PROVIDER, STORE, needs_readable_checkpoints

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), needs_readable_checkpoints]
by_value("support.spark.processors")
by_value(__name__)

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
#: Provider, format, changelog.
STORES = {
    "hdfs": (HDFS, "1", "false"),
    "rocksdb 1": (REQUIRED[PROVIDER], "1", "false"),
    "rocksdb 2": (REQUIRED[PROVIDER], "2", "true"),
}
#: A column of each type, from a hash of the row.
VALUES = {
    "boolean": "{h} % 2 = 0",
    "byte": "cast({h} % 128 as byte)",
    "short": "cast({h} % 32768 as short)",
    "int": "cast({h} % 2147483648 as int)",
    "long": "{h}",
    "float": "cast({h} as float)",
    "double": "case {h} % 5 when 0 then double('NaN') when 1 then -0.0d else {h} / 3e5 end",
    "narrow": "cast({h} % 100000 as decimal(7,2))",
    "wide": "cast({h} as decimal(38,10))",
    "string": "repeat('ä', cast({h} % 9 as int))",
    "binary": "unhex(hex({h}))",
    "date": "date_add(date'1970-01-01', cast({h} % 40000 as int))",
    "timestamp": "timestamp_micros({h} % 1000000000000000)",
    "ntz": "cast(timestamp_micros({h} % 1000000000000000) as timestamp_ntz)",
    "months": "make_ym_interval(cast({h} % 50 as int), 3)",
    "micros": "make_dt_interval(0, 0, 0, {h} % 100000)",
    "array": "array(cast({h} % 32768 as short), null, 3s)",
    "flags": "transform(sequence(1, cast(abs({h} % 70) as int)), x -> x % 3 = 0)",
    "arrays": "array(array('x', null), null, array(), array(cast({h} as string)))",
    "nothing": "cast(null as void)",
    "map": "map('a', cast({h} as decimal(30,5)), 'b', null)",
    "struct": "named_struct('a', {h}, 'b', named_struct('c', array(map(1, 'x')), 'd', cast(null as string)))",
    "structs": "array(named_struct('a', {h} % 2 = 0, 'A', cast({h} as float)), null)",
}
KEYS = [f"k_{name}" for name in VALUES if name not in ("map", "struct", "nothing")]


def typed(df: Any) -> Any:
    """The stream with a column of each type, each of them null in some rows, as keys and as values."""
    for number, (name, text) in enumerate(VALUES.items()):
        for column, of in ((name, "n"), (f"k_{name}", "n % 40")):
            hashed = f"xxhash64({of}, {number})"
            df = df.withColumn(column, F.expr(f"case when {hashed} % 7 = 3 then null else {text.format(h=hashed)} end"))
    return df


def ended(df: Any, checkpoint: pathlib.Path) -> None:
    """Runs a query to the end of its input; PySpark cannot collect all types."""
    writer = df.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    finish(writer.trigger(availableNow=True).start())


def random_batches(feed: Any, rng: random.Random, count: int) -> Any:
    source = feed("n bigint")
    for _ in range(count):
        source.add([(rng.randrange(-(10**9), 10**9),) for _ in range(rng.randint(1, 200))])
    return source


def rows_by_core(rows: CoreRows) -> list[str]:
    found = []
    for batch in rows.all_batches():
        key, value = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        places = batch.column(2).to_pylist() if rows.is_list else [None] * len(batch)
        found += [repr(row) for row in zip(key, value, places)]
    return sorted(found)


def rows_by_spark(rows: StoredRows, stored: CoreRows) -> list[str]:
    """The rows of Spark's source in the shape of the store."""
    frame: Any = rows.read
    key, value = F.col("key"), F.lit(None).cast(stored.value)
    place = F.lit(None).cast("bigint")
    names = list(rows.others)
    if names == ["expiration_timestamp_ms"]:
        key = F.struct("key", "expiration_timestamp_ms")
    elif names == ["user_map_key", "user_map_value"]:
        key, value = F.struct("key", "user_map_key"), F.col("user_map_value")
    elif names == ["list_value"]:
        frame = frame.select("key", F.posexplode("list_value").alias("place", "value"))
        value, place = F.col("value"), F.col("place").cast("bigint")
    else:
        value = F.col("value")
    is_timer = names == ["expiration_timestamp_ms"]
    declared = [nullable(dtype) for dtype in (stored.key, stored.value)]  # the source declares no column as never null
    wired = [wire.to_wire(part.cast(dtype), dtype, key=False) for part, dtype in zip((key, value), declared)]
    types = [wire.arrow_type(wire.wire_type(dtype, "a column")) for dtype in declared]
    table = frame.select(*(column.alias(f"c{i}") for i, column in enumerate([*wired, place]))).toArrow()
    columns = [table.column(0).cast(types[0]), table.column(1).cast(types[1]), table.column(2)]
    found = zip(*(column.to_pylist() for column in columns))
    nothing = {field.name: None for field in stored.value.fields}
    return sorted(repr((key, nothing if is_timer else value, place)) for key, value, place in found)


def both(
    spark: Any, location: pathlib.Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Checkpoint], StoredRows]
) -> int:
    """Compares the rows of a state; their number."""
    ours = read(Checkpoint(spark, str(location)))
    with monkeypatch.context() as patched:
        patched.setattr(handles, "core_uri", lambda *_, **__: None)
        theirs = read(Checkpoint(spark, str(location)))
    assert isinstance(ours.read, CoreRows)
    assert not isinstance(theirs.read, CoreRows)
    assert (ours.key, dict(ours.others)) == (theirs.key, dict(theirs.others))
    assert ours.count() == theirs.count()
    found = rows_by_core(ours.read)
    assert found == rows_by_spark(theirs, ours.read)
    return len(found)


@pytest.mark.parametrize("store", STORES)
def test_aggregates_of_every_type(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, store: str, seed: int
) -> None:
    """With snapshots and changes, over restarts."""
    provider, format_, changelog = STORES[store]
    settings = {PROVIDER: provider, FORMAT: format_, STORE + "rocksdb.changelogCheckpointing.enabled": changelog}
    more = {STORE + "minDeltasForSnapshot": "2", STORE + "maintenanceInterval": "100ms"}
    for name, value in {**settings, **more}.items():
        conf(name, value)
    rng, checkpoint = random.Random(seed), tmp_path / "sparks"
    source = random_batches(feed, rng, 4)
    for _ in range(2):
        kept = [F.first(name).alias(name) for name in VALUES]
        ended(typed(source.stream()).groupBy("n", *KEYS).agg(*kept), checkpoint)
        source.add([(rng.randrange(10**9),) for _ in range(20)])
    assert both(spark, checkpoint, monkeypatch, lambda c: c.rows(c.operators()[0])) > 10


def test_duplicates_are_read(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A state whose values hold nothing."""
    for name, value in REQUIRED.items():
        conf(name, value)
    source = random_batches(feed, random.Random(seed), 3)
    ended(typed(source.stream()).select("n", *KEYS).dropDuplicates(["n", *KEYS]), tmp_path / "sparks")

    def read(checkpoint: Checkpoint) -> StoredRows:
        (operator,) = checkpoint.operators()
        return checkpoint.rows(dataclasses.replace(operator, kind="aggregate"))

    assert both(spark, tmp_path / "sparks", monkeypatch, read) > 2


def ran(spark: Any, tmp_path: pathlib.Path, source: Any, job: Job) -> pathlib.Path:
    finish(start(job.build(source.stream(), lambda frame, *keys: frame.groupBy(*keys)), tmp_path / "sparks", {}))
    return tmp_path / "sparks"


@pytest.mark.parametrize("format_", ["1", "2"])
@pytest.mark.parametrize("changelog", ["true", "false"])
def test_states_timers_and_ttls(
    feed: Any,
    spark: Any,
    conf: Any,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
    changelog: str,
    seed: int,
) -> None:
    settings = {FORMAT: format_, STORE + "rocksdb.changelogCheckpointing.enabled": changelog, NO_DATA_BATCHES: "false"}
    more = {STORE + "minDeltasForSnapshot": "2", STORE + "maintenanceInterval": "100ms"}
    for name, value in {**REQUIRED, **settings, **more}.items():
        conf(name, value)
    ttl = 86_400_000 if changelog == "true" else None
    job = Job(lambda: Script(ttl), SCRIPT_OUTPUT, time_mode="ProcessingTime")
    source = feed(SCRIPT_SCHEMA, *script(seed, 3, 80, (*STATES, "some day"), BASE))
    checkpoint = ran(spark, tmp_path, source, job)
    source.add(script(seed + 1, 1, 40, (*STATES, "some day"), BASE)[0])
    ran(spark, tmp_path, source, job)

    def variable(name: str) -> Callable[[Checkpoint], StoredRows]:
        def read(checkpoint: Checkpoint) -> StoredRows:
            (operator,) = checkpoint.operators()
            return checkpoint.variable(operator, next(v for v in operator.variables if v.name == name))

        return read

    rows = [both(spark, checkpoint, monkeypatch, variable(name)) for name in ("value", "list", "map")]
    assert sum(rows) > 0, "a script may clear all of one state"
    assert both(spark, checkpoint, monkeypatch, lambda c: c.timers(c.operators()[0])) > 0


def test_timers_of_event_time(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in REQUIRED.items():
        conf(name, value)
    job = Job(Script, SCRIPT_OUTPUT, time_mode="EventTime")
    source = feed(SCRIPT_SCHEMA, *script(3, 2, 40, (*processors.VALUE, "some day"), BASE))
    checkpoint = ran(spark, tmp_path, source, job)
    assert both(spark, checkpoint, monkeypatch, lambda c: c.timers(c.operators()[0])) > 0


def test_the_log_says_who_reads(
    feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    for name, value in REQUIRED.items():
        conf(name, value)
    source = feed("k map<string,int>, v int", [({"b": 1, "a": 2}, 1), ({"a": 2, "b": 1}, 2)])
    for keys, name in ((["v"], "plain"), (["k"], "maps")):
        finish(start(source.stream().groupBy(*keys).agg(F.count("*")), tmp_path / name, {}))
    caplog.set_level(logging.INFO, "fastchangelog.spark")

    def read(name: str) -> str:
        caplog.clear()
        checkpoint = Checkpoint(spark, str(tmp_path / name))
        rows = checkpoint.rows(checkpoint.operators()[0])
        said = [record.message for record in caplog.records if "Spark's source reads" in record.message]
        assert len(said) == (0 if isinstance(rows.read, CoreRows) else 1)
        return "".join(said)

    assert read("plain") == ""
    assert "the keys of `default` have maps" in read("maps")
    old = import_state(tmp_path / "maps")
    ours = grouped(source.stream(), "k", state=str(tmp_path / "state")).agg(F.count("*"), initial_state=old)
    got: dict[int, list[Any]] = {}
    finish(start(ours, tmp_path / "ours", got))
    assert [row[1] for row in got[0]] == [4], "both orders of entries are one key, imported and new"
    monkeypatch.setattr(handles, "core_uri", lambda *_, **__: None)
    assert "in a file system that only Spark reads" in read("plain")


def test_damage_is_an_error_with_name_and_offset(feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    """Rows that are not of the schema: that of another query."""
    for name, value in REQUIRED.items():
        conf(name, value)
    source = feed("k int, s string", [(k, "text") for k in range(20)])
    finish(start(source.stream().groupBy("k").agg(F.max("s")), tmp_path / "sparks", {}))
    checkpoint = Checkpoint(spark, str(tmp_path / "sparks"))
    rows = checkpoint.rows(checkpoint.operators()[0]).read
    assert isinstance(rows, CoreRows)
    wrong = T.StructType().add("a", "string").add("b", "string").add("c", "string")
    odd = CoreRows(rows.state, rows.family, rows.key_encoder, rows.key, wrong, is_list=False)
    with pytest.raises(CorruptDataError, match=r"sparks/state/0/\d, version 1, the value of entry 0.* no row of 3 fi"):
        list(odd.all_batches())
    assert pa.types.is_string(next(iter(rows.all_batches())).column(1).type.field(0).type)


class Seen(StatefulProcessor):
    """Keeps one value."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.seen.update((1,))
        return iter(())

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("reader", ["core", "spark"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_that_are_two_keys_of_sparks(
    feed: Any, spark: Any, tmp_path: pathlib.Path, request: pytest.FixtureRequest, zero: float, reader: str
) -> None:
    if reader == "spark":
        request.getfixturevalue("only_spark_reads")
    [spark.conf.set(*setting) for setting in REQUIRED.items()]
    source = feed("k double", [(-0.0,), (1.0,)], [(zero,)])
    ended(source.stream().groupBy("k").transformWithState(Seen(), "k double", "Update", "None"), tmp_path / "sparks")
    group, old = grouped(source.stream(), "k", state=str(tmp_path / "state")), import_state(tmp_path / "sparks")
    both = pytest.raises(InvalidArgumentError, match=r"`seen` has entries of 0.0 and of -0.0 \(-?0.0\), which are")
    with contextlib.nullcontext() if str(zero) == "-0.0" else both:
        group.transformWithState(Seen(), "k double", "Update", "None", old)
