"""The queries that are compared: the same question to fastchangelog, to Spark's own operators, and without state.

Owns: how each variant is built, and the settings it runs with. Does not own: running and measuring (compare_run).

    ours            grouped().agg(), objects not synced to disk (Spark syncs nothing either)
    ours-sync       the same with file_sync on, as it is by default
    native          groupBy().agg() with Spark's RocksDB state store, changelog checkpointing on
    native-hdfs     the same with Spark's default, HDFS-backed store
    tws-row         transformWithState, row by row in Python
    tws-states      the same with three states
    ours-states     the same processor with three states through grouped()
    native-distinct dropDuplicates() by the key
    ours-distinct   drop_duplicates() by the key
    floor           mapInArrow after the same shuffle, rows handed back as they are: no state at all
    unanchored      split, shuffle, and the same session calls in a plain mapInArrow: ours without Spark's operator
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from compare_processors import PROCESSORS
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.spark.settings import HELPFUL

_STORE = "spark.sql.streaming.stateStore."
_PACKAGE = "org.apache.spark.sql.execution.streaming.state."
_ROCKSDB = {
    _STORE + "providerClass": _PACKAGE + "RocksDBStateStoreProvider",
    _STORE + "rocksdb.changelogCheckpointing.enabled": "true",
}
_HDFS = {_STORE + "providerClass": _PACKAGE + "HDFSBackedStateStoreProvider"}

VARIANTS = (
    *("ours", "ours-sync", "native", "native-hdfs", "tws-row", "tws-states", "ours-states"),
    *("native-distinct", "ours-distinct", "floor", "unanchored"),
)


def settings(variant: str) -> dict[str, str]:
    """Spark settings of a variant; what is not named is unset, so that one variant does not set another's.

    Ours sets what it needs by itself; the floor and the plain mapInArrow have no store of Spark's.
    """
    if variant.startswith("ours") or variant in ("floor", "unanchored"):
        return {}
    return _HDFS if variant == "native-hdfs" else _ROCKSDB


def configure(spark: SparkSession, variant: str) -> None:
    """Sets what the variant needs and unsets what others set."""
    wanted = settings(variant)
    for name in {*_ROCKSDB, *HELPFUL, _STORE + "checkpointFormatVersion"}:
        if name in wanted:
            spark.conf.set(name, wanted[name])
        else:
            spark.conf.unset(name)


def build(
    variant: str,
    frame: DataFrame,
    state: Path | str,
    options: dict[str, str] | None = None,
    storage: dict[str, str] | None = None,
) -> DataFrame:
    """The query of a variant over `key`, `tsl` (the time as a number) and `amount`."""
    aggs = [F.count(F.lit(1)).alias("cnt"), F.sum("amount").alias("sum"), F.max("tsl").alias("last")]
    if variant.startswith("ours"):
        from fastchangelog.spark import drop_duplicates, grouped

        sync = "true" if variant == "ours-sync" else "false"
        every = {"file_sync": sync, **(options or {})}
        if variant == "ours-distinct":
            return drop_duplicates(frame, ["key"], state=str(state), options=every, storage_options=storage)
        group = grouped(frame, "key", state=str(state), options=every, storage_options=storage)
        return PROCESSORS["states"](group) if variant == "ours-states" else group.agg(*aggs)
    if variant in ("native", "native-hdfs"):
        return frame.groupBy("key").agg(*aggs)
    if variant == "native-distinct":
        return frame.dropDuplicates(["key"])
    if variant == "tws-row":
        result = "key string, cnt bigint, sum double, last bigint"
        return frame.groupBy("key").transformWithState(_rows_processor(), result, "Update", "None")
    if variant == "tws-states":
        return PROCESSORS["states"](frame.groupBy("key"))
    if variant == "floor":
        partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
        return frame.repartition(partitions, "key").mapInArrow(_identity, frame.schema)
    if variant == "unanchored":
        return _unanchored(frame, aggs, Path(state), {"file_sync": "false", **(options or {})})
    raise ValueError(f"unknown variant {variant}; known are {', '.join(VARIANTS)}")


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _rows_processor() -> StatefulProcessor:
    class Rows(StatefulProcessor):
        """Count, sum and last of a key, one row at a time, as PySpark's documentation shows it."""

        def init(self, handle: Any) -> None:
            self.value = handle.getValueState("value", "cnt bigint, sum double, last bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            count, total, last = self.value.get() or (0, 0.0, 0)
            for row in rows:
                count, total, last = count + 1, total + row.amount, max(last, row.tsl)
            self.value.update((count, total, last))
            yield Row(key=key[0], cnt=count, sum=total, last=last)

        def close(self) -> None:
            pass

    return Rows()


def _unanchored(frame: DataFrame, aggs: list[Any], state: Path, options: dict[str, str]) -> DataFrame:
    """What `grouped().agg()` plans, with a plain mapInArrow in the place of Spark's stateful operator.

    The handle of each shard goes from batch to batch in a small file instead of Spark's state store.
    """
    from pyspark.sql import types as T

    from fastchangelog.spark import grouped
    from fastchangelog.spark.aggregates.analyse import analyse
    from fastchangelog.spark.aggregates.split import Split
    from fastchangelog.spark.split import payload_type
    from fastchangelog.spark.types import wire

    stream = grouped(frame, "key", state=str(state), options=options).grouping
    found = analyse(stream.df, stream.keys, tuple(aggs), {})
    shards, given = stream.partitions, dict(stream.options)
    split = Split(found.spec, wire.arrow_schema(found.input), given, 4 << 20, shards)
    payloads = frame.select(*found.projection).mapInArrow(split, payload_type(None)).repartition(shards, "shard")
    handles = state.parent / "handles"
    handles.mkdir(parents=True, exist_ok=True)
    work = _session_calls(found.spec, wire.arrow_schema(found.wire_result), stream.root, given, shards, str(handles))
    return payloads.mapInArrow(work, T.StructType(found.wire_result.fields))


def _session_calls(
    spec: str, output: pa.Schema, root: str, options: dict[str, str], shards: int, handles: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from fastchangelog.server import open_session
        from fastchangelog.spark import task
        from fastchangelog.spark.aggregates.operator import labelled
        from fastchangelog.spark.shard_ids import shard_of_id

        session, path = None, Path()
        for batch in batches:
            for ident, payload in zip(batch["shard"].to_pylist(), batch["payload"], strict=True):
                if session is None:
                    shard = shard_of_id(ident, shards)
                    path = Path(handles, str(shard))
                    request = {
                        "root": root,
                        "query_id": "unanchored",
                        "name": "default",
                        "shard": shard,
                        "shards": shards,
                        "batch": int(task.local_property(task.BATCH_ID) or 0),
                        "handle": path.read_text() if path.exists() else None,
                        "spec": spec,
                        "ephemeral": False,
                        "options": options,
                        "storage_options": {},
                        "checkpoint": None,
                    }
                    session = open_session(json.dumps(request), options)
                session.merge(payload.as_py())
        if session is not None:
            for results in session.finish():
                yield pa.RecordBatch.from_arrays(labelled(results, output), schema=output)
            handle, _, _ = session.commit()
            path.write_text(handle)
            session.close()

    return work
