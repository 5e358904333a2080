"""The same processor on Spark's own operator and on ours, over the same batches.

Owns: one run of a query on either, restarts between batches, and what is compared: the rows of every batch, and its
watermark. Does not own: the processors (`processors`), the cases (the tests).
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pyspark import cloudpickle

from fastchangelog.spark import grouped
from fastchangelog.spark.settings import REQUIRED
from support.spark.frames_of_rows import with_state
from support.spark.stream_harness import Feed, rows_of

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


def by_value(module: str) -> None:
    """Lets Spark's workers unpickle the classes of a test's module, which they cannot import."""
    cloudpickle.register_pickle_by_value(sys.modules[module])


@dataclasses.dataclass
class Job:
    """A query with one processor, as a user writes it."""

    processor: Callable[[], Any]
    output: Any
    keys: Sequence[Any] = ("k",)
    api: str = "row"
    output_mode: str = "Update"
    time_mode: str = "None"
    #: Column and delay of `withWatermark`.
    watermark: tuple[str, str] | None = None
    #: What the stream is before it is grouped.
    prepare: Callable[[Any], Any] = lambda df: df
    #: What becomes of the result before it is written.
    after: Callable[[Any], Any] = lambda df: df
    #: A batch frame for `initialState`, grouped by the same keys.
    initial: Callable[[], Any] | None = None
    event_time_column: str = ""
    sink_mode: str = "update"
    name: str = "default"

    def build(self, df: Any, group: Callable[..., Any], *, ours_initial: bool = False) -> Any:
        """The result of the processor over a stream or a batch; `group` is Spark's groupBy, or ours."""
        df = self.prepare(df)
        if self.watermark is not None:
            df = df.withWatermark(*self.watermark)
        initial = None
        if self.initial is not None:
            frame = self.initial()
            initial = group(frame, *self.keys) if ours_initial else frame.groupBy(*self.keys)
        grouping, more = group(df, *self.keys), {"initialState": initial, "eventTimeColumnName": self.event_time_column}
        given = self.processor(), self.output, self.output_mode, self.time_mode
        if self.api == "row":
            return self.after(with_state(grouping, *given, **more))
        return self.after(grouping.transformWithStateInPandas(*given, **more))


@dataclasses.dataclass
class Answers:
    """What a query answered, by batch."""

    rows: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    watermarks: dict[int, str | None] = dataclasses.field(default_factory=dict)
    progress: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Side:
    """Spark's operator, or ours."""

    name: str
    folder: pathlib.Path
    group: Callable[..., Any]
    answers: Answers = dataclasses.field(default_factory=Answers)

    @property
    def checkpoint(self) -> pathlib.Path:
        """Where its query keeps its checkpoint."""
        return self.folder / f"{self.name}-checkpoint"

    def run(self, job: Job, df: Any) -> Answers:
        """Runs the job over all that is there and adds what it answered."""
        query = start(job.build(df, self.group), self.checkpoint, self.answers.rows, job.sink_mode)
        finish(query)
        for progress in query.recentProgress:
            self.answers.progress.append(progress)
            self.answers.watermarks[progress["batchId"]] = progress["eventTime"].get("watermark")
        return self.answers


def start(df: Any, checkpoint: pathlib.Path, got: dict[int, list[Any]], mode: str = "update", **trigger: Any) -> Any:
    """Starts the query; each batch's rows go to `got`."""

    def take(batch: Any, number: int) -> None:
        got[number] = batch.collect()

    writer = df.writeStream.foreachBatch(take).outputMode(mode).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def finish(query: Any) -> None:
    """Waits for the query's end."""
    try:
        query.awaitTermination(240)
        assert not query.isActive, "the query did not end"
    finally:
        query.stop()


def sides(spark: Any, tmp_path: pathlib.Path, job: Job | None = None, **options: Any) -> tuple[Side, Side]:
    """Ours and Spark's, each with folders of its own."""
    for key, value in REQUIRED.items():  # ours sets them where they are unset, Spark's needs the first
        spark.conf.set(key, value)
    root, name = str(tmp_path / "state"), "default" if job is None else job.name
    ours = Side("ours", tmp_path, lambda df, *keys: grouped(df, *keys, state=root, name=name, **options))
    sparks = Side("sparks", tmp_path, lambda df, *keys: df.groupBy(*keys))
    return ours, sparks


def halves(batches: Sequence[Any]) -> list[Sequence[Any]]:
    """The batches before a restart and those after it, where there are more."""
    middle = len(batches) // 2
    return [batches[:middle], batches[middle:]]


def compare(
    feed: Callable[..., Feed],
    spark: Any,
    tmp_path: pathlib.Path,
    job: Job,
    schema: Any,
    batches: Sequence[Sequence[Any]],
    *,
    restart: bool = False,
    **options: Any,
) -> Answers:
    """Both over the same batches, with a restart between the halves or without; gives what both answered."""
    ours, sparks = sides(spark, tmp_path, job, **options)
    source = feed(schema)
    for part in halves(batches) if restart else [batches]:
        for rows in part:
            source.add(rows)
        for side in (ours, sparks):
            side.run(job, source.stream())
    check(ours.answers, sparks.answers)
    return ours.answers


def check(ours: Answers, sparks: Answers) -> None:
    """Equal rows and watermarks of every batch, and not all of them empty."""
    for number in ours.rows.keys() & sparks.rows.keys():
        pairs = zip(rows_of(ours.rows[number]), rows_of(sparks.rows[number]))
        different = [pair for pair in pairs if pair[0] != pair[1]]
        assert not different, f"batch {number}: {different[:3]}"
    assert {n: rows_of(r) for n, r in ours.rows.items()} == {n: rows_of(r) for n, r in sparks.rows.items()}
    assert ours.watermarks == sparks.watermarks
    assert any(ours.rows.values())
