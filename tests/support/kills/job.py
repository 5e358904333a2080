"""The Spark program that kill tests and campaigns run and kill: `python -m support.kills.job plan.json`.

Owns: one query whose sink can be written twice. Does not own: what is killed when (`run`), which query, and what is
exact (`kinds`).

It runs until its standard input ends, which it takes as "stop cleanly".
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fastchangelog import _internal
from fastchangelog.spark import drop_duplicates_within_watermark, grouped
from support.kills.kinds import KINDS


def executor_options() -> str:
    """The options of the driver's JVM, for those of executors. Settings of Spark are refused there."""
    return " ".join(word for word in os.environ.get("SPARK_SUBMIT_OPTS", "").split() if not word.startswith("-Dspark."))


@dataclasses.dataclass(frozen=True)
class Operators:
    """The stateful operators of a query, over one state."""

    state: str
    options: dict[str, str]
    #: The savepoints that new states begin with, by their names.
    savepoints: dict[str, str]

    def __call__(self, df: DataFrame, *keys: Any, name: str = "default", **more: Any) -> Any:
        return grouped(df, *(keys or ("k",)), name=name, **self._of(name), **more)

    def distinct(self, df: DataFrame, cols: list[str], name: str) -> DataFrame:
        """Distinct rows, forgotten by the watermark."""
        return drop_duplicates_within_watermark(df, cols, name=name, **self._of(name))

    def _of(self, name: str) -> dict[str, Any]:
        """Where the state of this name is, and its options."""
        start = {"start_from": self.savepoints[name]} if name in self.savepoints else {}
        return {"state": self.state, "options": {**self.options, **start}}


def main(plan: dict[str, Any]) -> None:
    """Runs the query of the plan."""
    kind = KINDS[plan["kind"]]
    builder = (
        SparkSession.builder.master(plan["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.executor.memory", "700m")
        .config("spark.executor.extraJavaOptions", executor_options())
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
    reader = spark.readStream.schema(from_arrow_schema(kind.schema)).option("maxFilesPerTrigger", 1)
    stream = reader.parquet(str(folder / "in"))
    result = kind.build(stream, Operators(str(folder / "state"), plan["options"], plan["savepoints"]))

    def write(batch: DataFrame, number: int) -> None:
        _internal.failpoint("sink.before")
        if number % 3 == 1:  # a second execution of the same batch
            batch.count()
        rows = sorted((list(row) for row in batch.collect()), key=repr)
        new = folder / f"{number}.new"
        new.write_text(json.dumps(rows, default=str))  # decimals as texts
        new.rename(folder / "out" / f"{number:06d}.json")
        _internal.failpoint("sink.after")

    writer = result.writeStream.foreachBatch(write).outputMode(kind.output_mode)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while not query.awaitTermination(0.2):  # type: ignore[arg-type]
        if select.select([0], [], [], 0)[0]:
            break
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
