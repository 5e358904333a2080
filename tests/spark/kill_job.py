"""The Spark program that the kill tests run and kill: `python kill_job.py plan.json`.

Owns: one query whose sink can be written twice. Does not own: what is killed when, what is exact (`kills`), the query
of the campaign, which runs `main` with its own.

It runs until its standard input ends, which it takes as "stop cleanly".
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fastchangelog import _internal
from fastchangelog.spark import grouped


def numbers(grouping: Any) -> DataFrame:
    """The aggregates of the kill tests."""
    return grouping.agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))  # type: ignore[no-any-return]


def main(
    plan: dict[str, Any], schema: str = "k string, v bigint", aggregates: Callable[[Any], DataFrame] = numbers
) -> None:
    """Runs the query of the plan over files of this schema."""
    builder = (
        SparkSession.builder.master(plan["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.executor.memory", "700m")
        .config("spark.sql.shuffle.partitions", plan["partitions"])
        .config("spark.sql.warehouse.dir", str(Path(plan["folder"], "warehouse")))
        .config("spark.deploy.maxExecutorRetries", -1)
        .config("spark.local.dir", str(Path(plan["folder"], "local")))
    )
    for name, value in plan["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    folder = Path(plan["folder"])
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    counted = aggregates(grouped(stream, "k", state=str(folder / "state"), options=plan["options"]))

    def write(batch: DataFrame, number: int) -> None:
        _internal.failpoint("sink.before")
        if number % 3 == 1:  # a second execution of the same batch
            batch.count()
        rows = sorted((list(row) for row in batch.collect()), key=repr)
        new = folder / f"{number}.new"
        new.write_text(json.dumps(rows, default=str))  # decimals as texts
        new.rename(folder / "out" / f"{number:06d}.json")
        _internal.failpoint("sink.after")

    writer = counted.writeStream.foreachBatch(write).outputMode("update")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while not query.awaitTermination(0.2):  # type: ignore[arg-type]
        if select.select([0], [], [], 0)[0]:
            break
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
