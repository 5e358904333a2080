"""The Spark program of `test_connect`: `python -m support.spark.connect_job FOLDER PART`.

It has a Spark Connect server of its own.

Owns: a local Connect server and session, and for each PART what is asked of it. Does not own: what must come out (the
test), the processors (`processors`).

Prints one line of JSON. `CONNECT_PORT` is the server's port.
"""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import io
import itertools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.client.core import DefaultChannelBuilder

import fastchangelog as fc
from fastchangelog.spark import grouped, internals
from fastchangelog.spark.settings import FORMAT_VERSION, REQUIRED
from support.spark import quick_spark
from support.spark.processor_harness import NO_DATA_BATCHES, by_value
from support.spark.processors import LIST, MAP, SCRIPT_OUTPUT, SCRIPT_SCHEMA, VALUE, Script, ScriptInPandas, script

by_value("support.spark.processors")
BASE = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


def session(folder: Path) -> SparkSession:
    """A session of a server that ends with this program."""
    confs = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        **quick_spark.settings(),
    }
    # PySpark's local server and its client have one fixed port, which another run may be using.
    port = int(os.environ["CONNECT_PORT"])
    confs["spark.connect.grpc.binding.port"] = str(port)
    DefaultChannelBuilder.default_port = staticmethod(lambda: port)
    builder = SparkSession.builder.remote("local[2]")
    for key, value in confs.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Job:
    """Streams files of rows through a plan into files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.numbers = itertools.count()

    def feed(self, name: str, schema: str, batches: Sequence[Sequence[Any]]) -> Any:
        """A stream of these batches, one file each."""
        for rows in batches:
            number = next(self.numbers)
            target = self.folder / name / f"{number:04d}"
            self.spark.createDataFrame(list(rows), schema).coalesce(1).write.parquet(str(target))
            for part in target.glob("*.parquet"):
                os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / name / "*"))

    def answers(self, df: Any, name: str) -> list[Any]:
        """All rows that the query has answered since its first start."""
        out = str(self.folder / f"{name}-out")
        writer = df.writeStream.format("parquet").outputMode("append").option("path", out)
        query = writer.option("checkpointLocation", str(self.folder / name)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240), "the query did not end"
        finally:
            query.stop()
        return sorted(list(row) for row in self.spark.read.parquet(out).collect())


def same(job: Job) -> Any:
    """Ours and Spark's over the same batches, with a restart; `initialState` with Rows."""
    out: dict[str, Any] = {}
    for key, value in REQUIRED.items():
        job.spark.conf.set(key, value)
    root = str(job.folder / "state")
    sides: dict[str, Callable[..., Any]] = {
        "ours": lambda df, key: grouped(df, key, state=root),
        "sparks": lambda df, key: df.groupBy(key),
    }
    for api, processor in (("row", Script), ("pandas", ScriptInPandas)):
        method = "transformWithState" if api == "row" else "transformWithStateInPandas"
        batches = script(7, 3, 25, (*VALUE, *LIST, *MAP), BASE)
        for part in (batches[:2], batches[2:]):
            stream = job.feed(f"{api}-in", SCRIPT_SCHEMA, part)
            for side, group in sides.items():
                call = getattr(group(stream, "k"), method)
                frame = call(processor(), SCRIPT_OUTPUT, "Append", "None")
                out[f"{api} {side}"] = job.answers(frame, f"{api}-{side}")
    return out


def timed(job: Job) -> Any:
    """Ours and Spark's with a watermark and timers, and with states that end; with a restart."""
    from support.spark import connect_processors as p

    by_value("support.spark.connect_processors")
    for key, value in REQUIRED.items():
        job.spark.conf.set(key, value)
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
    by_event = [[(k, noon + dt.timedelta(seconds=second)) for k, second in rows] for rows in p.TIMED_BATCHES]
    by_clock = [*p.BATCHES, [("a", 3), ("c", 4)], [("b", 5), ("d", 6)]]
    out: dict[str, Any] = {}
    for mode, schema, batches, processor in (
        ("EventTime", p.TIMED_SCHEMA, by_event, p.Alarms()),
        ("ProcessingTime", p.SCHEMA, by_clock, p.Ending()),
    ):
        job.spark.conf.set(NO_DATA_BATCHES, mode == "EventTime")  # by the clock they never end
        for part in (batches[:-1], batches[-1:]):
            stream = job.feed(mode, schema, part)
            if mode == "EventTime":
                stream = stream.withWatermark("ts", "10 seconds")
            sides = {"ours": grouped(stream, "k", state=job.folder / "state"), "sparks": stream.groupBy("k")}
            for side, group in sides.items():
                frame = group.transformWithStateInPandas(processor, p.TIMED_OUTPUT, "Append", mode)
                out[f"{mode} {side}"] = job.answers(frame, f"{mode}-{side}")
    job.spark.conf.unset(NO_DATA_BATCHES)
    return out


def calls(job: Job) -> Any:
    """Initial state, keys as Spark has them, an aggregation, a batch frame."""
    from support.spark import connect_processors as p

    by_value("support.spark.connect_processors")
    root, out = str(job.folder / "state"), {}
    job.spark.conf.set("spark.fastchangelog.state", root)
    initial = job.spark.createDataFrame([("a", 100)], p.SCHEMA)
    stream = job.feed("in", p.SCHEMA, p.BATCHES)
    for name, given in (("grouped", grouped(initial, "k")), ("groupBy", initial.groupBy(initial["k"]))):
        result = grouped(stream, stream["k"]).transformWithStateInPandas(p.Total(), p.OUTPUT, "Append", "None", given)
        out[f"initial {name}"] = job.answers(result, f"initial-{name}")
    batch = job.spark.createDataFrame([row for rows in p.BATCHES for row in rows], p.SCHEMA)
    done = grouped(batch, F.upper("k").alias("k")).transformWithStateInPandas(p.Total(), p.OUTPUT, "Update", "None")
    out["batch"] = sorted(list(row) for row in done.collect())
    sums = grouped(batch, "k").agg(F.sum("v").alias("n"))
    out["agg"] = sorted(list(row) for row in sums.collect())
    computed = [
        (F.sum("v") * 2 - F.count("*")).alias("n"),
        F.when(F.max("v") > 5, F.concat("k", F.max("v").cast("string"))).otherwise(F.lit("few")),
        F.struct(F.min("v").alias("x"), F.lit(1))["x"] + 1,
    ]
    ours, sparks = grouped(batch, "k").agg(*computed), batch.groupBy("k").agg(*computed)
    assert (ours.columns, ours.dtypes) == (sparks.columns, sparks.dtypes)
    out["expressions ours"], out["expressions sparks"] = (
        sorted(list(row) for row in df.collect()) for df in (ours, sparks)
    )
    return out


def accelerated(job: Job) -> Any:
    """`accelerate` of a Connect session."""
    from support.spark import connect_processors as p

    by_value("support.spark.connect_processors")
    out: dict[str, Any] = {}
    stream = job.feed("in", p.SCHEMA, p.BATCHES)

    def total(df: Any, mode: str = "Append", processor: Any = None) -> Any:
        return df.groupBy("k").transformWithStateInPandas(processor or p.Total(), p.OUTPUT, mode, "None")

    out["before"] = sorted(internals.observed_names(total(stream)))
    fc.spark.accelerate(job.spark, state=job.folder / "state")
    first = total(stream)
    out["first"] = sorted(internals.observed_names(first))
    second = total(first.withColumn("v", F.col("n")), processor=p.TotalOfTotals())
    out["second"] = sorted(internals.observed_names(second))
    out["answers"] = job.answers(second, "chain")
    beside = first.union(total(stream.where("v > 1")).withColumn("n", F.col("n") * 1))
    out["beside"] = sorted(internals.observed_names(beside))
    out["answers beside"] = job.answers(beside, "beside")
    stream = job.feed("in", p.SCHEMA, [[("a", 100)]])
    again = total(total(stream).withColumn("v", F.col("n")), processor=p.TotalOfTotals())
    out["answers after a restart"] = job.answers(again, "chain")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out["complete"] = sorted(internals.observed_names(total(stream, "Complete")))
        out["rollup"] = stream.rollup("k").transformWithStateInPandas(p.Total(), p.OUTPUT, "Append", "None").columns
    out["warned"] = [str(w.message) for w in caught if "stays on Spark's operator" in str(w.message)]
    fc.spark.accelerate(job.spark, enabled=False)
    out["after"] = sorted(internals.observed_names(total(stream)))
    return out


def aggregated(job: Job) -> Any:
    """`accelerate` of aggregates: Spark's and ours over the same batches, with a restart, and what stays."""
    from support.spark import connect_processors as p

    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
    batches = [[(k, noon + dt.timedelta(seconds=second)) for k, second in rows] for rows in p.TIMED_BATCHES]
    for key, value in REQUIRED.items():
        job.spark.conf.set(key, value)
    root, said = job.folder / "state", io.StringIO()
    handler, logger = logging.StreamHandler(said), logging.getLogger("fastchangelog.spark")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def windows(df: Any) -> Any:
        grouped = df.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "8 seconds", "2 seconds").alias("w"), "k")
        counts = grouped.agg(F.count("*").alias("n"), F.max(df["ts"]).alias("last"))
        return counts.select(counts["w.end"].cast("string").alias("end"), "k", "n", F.col("last").cast("string"))

    def chain(df: Any) -> Any:
        inner = df.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "2 seconds"), "k").count()
        outer = inner.groupBy(F.window("window", "8 seconds", "2 seconds")).agg(F.sum("count").alias("n"))
        return outer.select(F.col("window.end").cast("string"), "n")

    out: dict[str, Any] = {}
    for part in (batches[:-1], batches[-1:]):
        stream = job.feed("in", p.TIMED_SCHEMA, part)
        for side in ("sparks", "ours"):
            fc.spark.accelerate(job.spark, state=root, enabled=side == "ours")
            for plan in (windows, chain):
                out[f"{plan.__name__} {side}"] = job.answers(plan(stream), f"{plan.__name__}-{side}")
    stream = job.feed("counted", p.SCHEMA, p.BATCHES)
    for operators in ("all", "auto"):  # the state is ours by then
        fc.spark.accelerate(job.spark, state=root, operators=operators)
        finish([function_query(job, "counts", stream.groupBy("k").agg({"v": "sum"}), twice)])
        stream = job.feed("counted", p.SCHEMA, [[("a", 100), ("c", 5)]])
    finish([function_query(job, "plain", stream.groupBy("k").count(), twice)])
    counted = (job.folder / "counts-out").iterdir()
    out["counts"] = {path.stem: json.loads(path.read_text()) for path in sorted(counted)}
    out["states"] = len(list(root.glob("*/*/")))
    fc.spark.accelerate(job.spark, enabled=False)
    logger.removeHandler(handler)
    lines = said.getvalue().splitlines()
    out["said"] = [line for line in lines if "runs on fastchangelog" in line or "stay" in line]
    return out


def accelerated_once(job: Job) -> Any:
    """`accelerate` of session windows and of distinct rows: Spark's and ours over the same batches, with a restart."""
    from support.spark import connect_processors as p

    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
    batches = [[(k, noon + dt.timedelta(seconds=second)) for k, second in rows] for rows in p.TIMED_BATCHES]
    for key, value in REQUIRED.items():
        job.spark.conf.set(key, value)

    def sessions(df: Any) -> Any:
        counts = df.withWatermark("ts", "1 second").groupBy(F.session_window("ts", "2 seconds").alias("w"), "k").count()
        return counts.select(F.col("w.end").cast("string"), "k", "count")

    def distinct(df: Any) -> Any:
        return df.withWatermark("ts", "1 second").dropDuplicates(["k", "ts"]).select("k", F.col("ts").cast("string"))

    out: dict[str, Any] = {}
    for part in (batches[:-1], batches[-1:]):
        stream = job.feed("in", p.TIMED_SCHEMA, part)
        for side in ("sparks", "ours"):
            fc.spark.accelerate(job.spark, state=job.folder / "state", operators="all", enabled=side == "ours")
            for plan in (sessions, distinct):
                out[f"{plan.__name__} {side}"] = job.answers(plan(stream), f"{plan.__name__}-{side}")
    fc.spark.accelerate(job.spark, enabled=False)
    out["states"] = len(list((job.folder / "state").glob("*/*/")))
    return out


def imported(job: Job) -> Any:
    """State of Spark's own queries, of either format of checkpoints, goes on."""
    from support.spark import connect_processors as p

    by_value("support.spark.connect_processors")
    job.spark.conf.set("spark.fastchangelog.state", str(job.folder / "state"))
    out: dict[str, Any] = {}
    for number in ("1", "2"):
        for key, value in {**REQUIRED, FORMAT_VERSION: number}.items():
            job.spark.conf.set(key, value)
        stream = job.feed(f"in-{number}", p.SCHEMA, p.BATCHES)
        old = job.folder / f"sparks-{number}"
        job.answers(stream.groupBy("k").transformWithStateInPandas(p.Total(), p.OUTPUT, "Append", "None"), old.name)
        for key, value in REQUIRED.items():
            job.spark.conf.set(key, value)
        later = job.feed(f"later-{number}", p.SCHEMA, [[("a", 1000), ("c", 1)]])
        call = grouped(later, "k").transformWithStateInPandas
        try:
            going_on = call(p.Total(), p.OUTPUT, "Append", "None", fc.spark.import_state(old))
        except fc.InvalidArgumentError as error:
            out[f"format {number}"] = str(error)
        else:
            out[f"format {number}"] = job.answers(going_on, f"ours-{number}")
    return out


def functions(job: Job) -> Any:
    """Functions of `foreachBatch`: two queries at once, restarts, two uses of a batch, threads, a batch that is cut."""
    from support.spark import connect_processors as p

    by_value("support.spark.connect_processors")
    job.spark.conf.set("spark.fastchangelog.state", str(job.folder / "state"))
    out: dict[str, Any] = {}
    stream = job.feed("in", p.SCHEMA, p.BATCHES)
    builds: dict[str, Callable[[Any], Any]] = {
        "sums": lambda df: grouped(df, "k").agg(F.sum("v").alias("n")),
        "processor": lambda df: grouped(df, "k").transformWithStateInPandas(p.Total(), p.OUTPUT, "Update", "None"),
    }
    queries = [function_query(job, name, build(stream), twice) for name, build in builds.items()]
    finish(queries)
    # The checkpoints keep the number of their partitions.
    job.spark.conf.set("spark.sql.shuffle.partitions", "3")
    job.feed("in", p.SCHEMA, [[("a", 100), ("c", 5)]])
    for name, build in builds.items():
        finish([function_query(job, name, build(stream), in_threads)])
        out[name] = {path.stem: json.loads(path.read_text()) for path in sorted((job.folder / f"{name}-out").iterdir())}
    out["states"] = sorted(path.parent.name for path in (job.folder / "state").glob("*/*/"))
    out["ids"] = sorted(json.loads((job.folder / name / "metadata").read_text())["id"] for name in builds)
    job.spark.conf.set("spark.sql.shuffle.partitions", "1")
    out["cut"] = str(awaited(function_query(job, "cut", builds["sums"](stream), cutting)))
    finish([function_query(job, "cut", builds["sums"](stream), twice)])
    out["after the cut"] = [json.loads(path.read_text()) for path in sorted((job.folder / "cut-out").iterdir())]
    # A checkpoint in Spark's temporary folder.
    writer = builds["sums"](stream).writeStream.foreachBatch(twice(str(job.folder / "sums-out"))).outputMode("update")
    finish([started(writer.trigger(availableNow=True).start)])
    out["temporary"] = json.loads((job.folder / "sums-out" / "2.json").read_text())
    return out


def function_query(job: Job, name: str, frame: Any, function: Callable[[str], Any]) -> Any:
    """Starts a query with a function of `foreachBatch`."""
    folder = job.folder / f"{name}-out"
    folder.mkdir(exist_ok=True)
    writer = frame.writeStream.foreachBatch(function(str(folder))).outputMode("update").trigger(availableNow=True)
    return started(lambda: writer.start(checkpointLocation=str(job.folder / name)))


def started(start: Callable[[], Any], tries: int = 5) -> Any:
    """A query. Spark gives the process of its function 10 s to import PySpark, which a busy machine may exceed."""
    for _ in range(tries - 1):
        try:
            return start()
        except SparkConnectGrpcException as error:
            if "Timed out while waiting for the Python worker" not in str(error):
                raise
    return start()


def finish(queries: Sequence[Any]) -> None:
    """Waits for the ends of queries."""
    for query in queries:
        assert query.awaitTermination(240), "the query did not end"


def awaited(query: Any) -> Exception | None:
    """The error of a query."""
    try:
        query.awaitTermination(240)
    except Exception as error:
        return error
    return None


def twice(folder: str) -> Any:
    """A function that uses the batch twice."""

    def write(batch: Any, number: int) -> None:
        count = batch.count()
        rows = sorted(list(row) for row in batch.collect())
        assert len(rows) == count
        Path(folder, f"{number}.json").write_text(json.dumps(rows))

    return write


def cutting(folder: str) -> Any:
    """A function that reads a part of the batch."""
    return lambda batch, number: batch.limit(1).collect()


def in_threads(folder: str) -> Any:
    """A function whose threads use the batch at the same time."""

    def write(batch: Any, number: int) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            first, second = pool.map(lambda _: sorted(list(row) for row in batch.collect()), range(2))
        assert first == second
        Path(folder, f"{number}.json").write_text(json.dumps(first))

    return write


def without(job: Job) -> Any:
    """A server whose workers lack the package."""
    stream = job.feed("in", "k string, v bigint", [[("a", 1)]])
    try:
        grouped(stream, "k", state=job.folder / "state")
    except fc.InvalidArgumentError as error:
        return {"error": str(error)}
    return {}


PARTS = {
    part.__name__: part
    for part in (same, timed, calls, accelerated, aggregated, accelerated_once, imported, functions, without)
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    spark = session(folder)
    said = {part: PARTS[part](Job(spark, folder / part)) for part in sys.argv[2:]}
    print(json.dumps(said), flush=True)
    spark.stop()
