"""Session windows beside Spark's own: the same rows in the same batches, with restarts between them.

Owns: the comparison of session windows with Spark.
Does not own: other windows (`test_windows`), histories of many batches against a model (tests of the Rust crates).
"""

from __future__ import annotations

import datetime as dt
import pathlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import functions as F

import fastchangelog as fc
from fastchangelog.cli.command_line import main
from fastchangelog.spark import grouped, read_state
from fastchangelog.spark.settings import REQUIRED
from support.spark.lacks import needs
from support.spark.stream_harness import FORMAT, PROVIDER, Ran, end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, ts timestamp, v long, d double, gap string"
#: New York's clocks change half a minute later.
NOON = dt.datetime(2024, 3, 10, 6, 59, 30, tzinfo=dt.timezone.utc)
HOUR = 3_600


def row(key: str | None, seconds: float | None, value: int, gap: str | None = "5 seconds") -> tuple[Any, ...]:
    time = None if seconds is None else NOON + dt.timedelta(seconds=seconds)
    return key, time, value, value / 7, gap


#: Runs of the query, each with its batches. Gaps are of 10 seconds, or those of the rows.
RUNS: list[list[list[tuple[Any, ...]]]] = [
    [
        [row("a", 1, 1), row("b", 3, 2, "1 minute"), row("a", 11, 3), row(None, 4, 4), row("a", None, 5)],
        # Holds another one; touches; is beside; null, zero, negative and unreadable gaps.
        [row("a", 40, 6, "30 seconds"), row("a", 31, 7), row("b", 13, 8), row("c", 30, 9, None), row("c", 31, 10, "0")],
        [
            row("c", 33, 11, "-5 seconds"),
            row("c", 32, 12, "0 seconds"),
            row("a", 20, 13),
            row("c", 41, 14),
            row("a", 2, 15),
        ],
    ],
    [
        # Late beside a fresh one; an old row with a long gap; a session that closes is prolonged.
        [
            row("b", 5, 16),
            row("c", 36, 17),
            row("a", 35, 18, "1 minute"),
            row("c", 75, 19),
            row("c", 51, 20, "25 seconds"),
        ],
        [row("a", 60, 21), row("a", 70, 22), row("b", 66, 23), row("c", 86, 24), row(None, 62, 25), row(None, 55, 26)],
    ],
    [[row("a", 200, 27), row("a", 140, 28), row("b", 76, 29)], [row("d", 201, 30), row("a", 210, 31)]],
    [[row("e", 900, 32)]],
]


def counts() -> list[Any]:
    return [F.count("*").alias("n"), F.sum("v").alias("total"), F.max("v").alias("most")]


def ordered() -> list[Any]:
    """Aggregates that depend on the order of rows: by the start of their sessions."""
    return [
        F.first("v").alias("first"),
        F.last("v").alias("last"),
        F.sum("d").alias("d"),
        F.max_by("v", F.expr("v % 3")).alias("by"),
    ]


def fixed() -> Any:
    return F.session_window("ts", "10 seconds")


#: The keys, the stream that has them, and the aggregates.
CASES: dict[str, tuple[Callable[[], Sequence[Any]], Callable[[Any], Any], Callable[[], Sequence[Any]]]] = {
    "fixed": (lambda: [fixed(), "k"], lambda df: df, lambda: [*counts(), *ordered()]),
    "a gap of each row": (lambda: ["k", F.session_window("ts", F.col("gap"))], lambda df: df, ordered),
    "an interval of each row": (
        lambda: [F.session_window("ts", F.expr("make_interval(0, 0, 0, 0, 0, 0, (v % 7) * 5 - 5)")).alias("s"), "k"],
        lambda df: df,
        counts,
    ),
    "a column, and two keys": (
        lambda: ["d", "s", "k"],
        lambda df: df.withColumn("s", fixed()).withColumn("d", F.expr("v % 2")),
        counts,
    ),
    "a text": (lambda: [F.expr("session_window(ts, '10 seconds')"), "k"], lambda df: df, ordered),
}


def history(feed: Any, folder: pathlib.Path, name: str, mode: str, plan: Callable[[Any], Any], runs: Any) -> list[Ran]:
    source = feed(SCHEMA, name=name)
    ran = []
    for batches in runs:
        for rows in batches:
            source.add(rows)
        ran.append(run(plan(source.stream()), folder / f"{name}-checkpoint", mode=mode))
    return ran


def rows_by_batch(ran: Sequence[Ran]) -> dict[int, list[Any]]:
    batches = {number: rows for one in ran for number, rows in one.batches.items()}
    return {number: rows_of(rows) for number, rows in batches.items() if rows}


def late_by_batch(ran: Sequence[Ran]) -> dict[int, int]:
    """The groups that Spark or our operator has counted as late."""
    found: dict[int, int] = {}
    for progress in (progress for one in ran for progress in one.progress):
        late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
        for metrics in progress.observedMetrics.values():
            late += metrics.asDict().get("late_groups", 0)
        found[progress.batchId] = late
    return {batch: late for batch, late in found.items() if late}


def compared(
    feed: Any,
    folder: pathlib.Path,
    mode: str,
    keys: Callable[[], Sequence[Any]],
    aggregates: Callable[[], Sequence[Any]],
    prepare: Callable[[Any], Any] = lambda df: df,
    runs: Any = None,
    delay: str = "10 seconds",
) -> dict[int, list[Any]]:
    """The rows of each batch, the same of Spark and of ours."""

    def marked(df: Any) -> Any:
        return prepare(df.withWatermark("ts", delay))

    def ours(df: Any) -> Any:
        windows = grouped(marked(df), *keys(), state=str(folder / "state"), output_mode=mode)
        return windows.agg(*aggregates())

    args = feed, folder
    sparks = history(*args, "sparks", mode, lambda df: marked(df).groupBy(*keys()).agg(*aggregates()), runs or RUNS)
    own = history(*args, "ours", mode, ours, runs or RUNS)
    found = rows_by_batch(own)
    assert found == rows_by_batch(sparks)
    assert late_by_batch(own) == late_by_batch(sparks)
    return found


@pytest.mark.parametrize("case", CASES)
def test_session_windows_are_sparks(feed: Any, tmp_path: pathlib.Path, case: str) -> None:
    keys, prepare, aggregates = CASES[case]
    assert len(compared(feed, tmp_path, "append", keys, aggregates, prepare)) > 3


def test_complete_mode_is_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    runs = [*RUNS, [[]]]
    found = compared(feed, tmp_path, "complete", lambda: [fixed(), "k"], lambda: [*counts(), *ordered()], runs=runs)
    assert len(found) == sum(map(len, runs))


def test_random_session_windows_are_sparks(feed: Any, tmp_path: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    now, runs = 0, []
    for _ in range(3):
        batches = []
        for _ in range(3):
            gaps = [f"{rng.choice([1, 2, 5, 5, 30])} seconds" for _ in range(30)]
            batches.append(
                [row(rng.choice("aabcd"), now + rng.randrange(-40, 20), rng.randrange(99), gap) for gap in gaps]
            )
            now += rng.randrange(0, 25)
        runs.append(batches)
    runs.append([[row("z", 10_000, 1)]])
    keys = ["k", F.session_window("ts", F.col("gap"))]
    assert compared(feed, tmp_path, "append", lambda: keys, lambda: [*counts(), *ordered()], runs=runs)


@pytest.mark.parametrize("gap", ["1 day", "1 month"])
def test_a_gap_over_a_change_of_clocks_is_sparks(feed: Any, tmp_path: pathlib.Path, gap: str) -> None:
    runs = [
        [[row("a", 0, 1), row("b", 60, 2)], [row("a", 23 * HOUR - 60, 3), row("b", 24 * HOUR + 90, 4), row("c", 1, 5)]],
        [[row("a", 46.5 * HOUR, 6)], [row("d", 90 * 24 * HOUR, 7)]],
    ]
    found = compared(feed, tmp_path, "append", lambda: [F.session_window("ts", gap), "k"], counts, runs=runs)
    lengths = {end - start for rows in found.values() for (start, end), *_ in rows}
    assert gap != "1 day" or dt.timedelta(hours=23) in lengths


def test_windows_without_a_watermark_are_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    """Also of times without a zone, and before 1970."""
    early = dt.datetime(1969, 12, 31, 23, 59, 50)
    rows = [("a", early + dt.timedelta(seconds=s), s) for s in range(0, 30, 4)]
    runs = [[[*rows[:2], rows[5]], rows[6:]], [rows[3:4], rows[4:5]]]
    keys = [F.session_window("ts", "5 seconds"), "k"]
    found = {}
    for name in ("sparks", "ours"):
        source = feed("k string, ts timestamp_ntz, v long", name=name)

        def plan(df: Any, name: str = name) -> Any:
            if name == "sparks":
                return df.groupBy(*keys).agg(F.last("v"))
            return grouped(df, *keys, state=str(tmp_path / "state"), output_mode="complete").agg(F.last("v"))

        ran = []
        for batches in runs:
            for batch in batches:
                source.add(batch)
            ran.append(run(plan(source.stream()), tmp_path / f"{name}-checkpoint", mode="complete"))
        found[name] = rows_by_batch(ran)
    assert found["ours"] == found["sparks"]
    assert len(found["ours"]) == 4


def test_a_lost_commit_and_a_lost_server_change_nothing(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    found = {}
    for name in ("sparks", "ours"):
        source, checkpoint = feed(SCHEMA, name=name), tmp_path / f"{name}-checkpoint"

        def plan(df: Any, name: str = name) -> Any:
            marked, keys = df.withWatermark("ts", "10 seconds"), [fixed(), "k"]
            if name == "sparks":
                return marked.groupBy(*keys).agg(*ordered())
            return grouped(marked, *keys, state=str(tmp_path / "state"), output_mode="append").agg(*ordered())

        ran = []
        for batches in RUNS[:3]:
            for rows in batches:
                source.add(rows)
            ran.append(run(plan(source.stream()), checkpoint, mode="append"))
            commits = checkpoint / "commits"
            newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
            for path in (commits / str(newest), commits / f".{newest}.crc"):
                path.unlink(missing_ok=True)
            if name == "ours":
                end_state_server(spark)
        found[name] = rows_by_batch(ran)
    assert found["ours"] == found["sparks"]


def test_windows_over_session_windows_are_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    """Ours behind ours, ours behind Spark's, Spark's behind ours: column and watermark go on."""

    def chained(df: Any, first: str, second: str) -> Any:
        small = group(df.withWatermark("ts", "10 seconds"), first, "small", fixed(), "k").agg(F.count("*").alias("n"))
        times = small.withColumn("at", F.window_time("session_window"))
        large = group(times, second, "large", F.window("at", "1 minute"), "k")
        return large.agg(F.sum("n").alias("n"), F.max("session_window.end").alias("end"))

    def group(df: Any, whose: str, name: str, *keys: Any) -> Any:
        if whose == "sparks":
            return df.groupBy(*keys)
        return grouped(df, *keys, state=str(tmp_path / "state"), name=name, output_mode="append")

    found = {}
    for first, second in (("sparks", "sparks"), ("ours", "ours"), ("sparks", "ours"), ("ours", "sparks")):
        name = f"{first}-{second}"
        plan = lambda df, a=first, b=second: chained(df, a, b)  # noqa: E731
        found[name] = rows_by_batch(history(feed, tmp_path, name, "append", plan, RUNS))
    assert found["sparks-sparks"]
    assert all(rows == found["sparks-sparks"] for rows in found.values())


def test_names_types_and_metadata_are_sparks(feed: Any, tmp_path: pathlib.Path) -> None:
    stream = feed(SCHEMA, RUNS[0][0]).stream().withWatermark("ts", "10 seconds")
    for keys in ([fixed(), "k"], ["k", F.session_window("ts", F.col("gap")).alias("s")]):
        sparks = stream.groupBy(*keys).agg(*counts()).schema
        ours = grouped(stream, *keys, state=str(tmp_path / "state"), output_mode="append").agg(*counts()).schema
        assert [(f.name, f.dataType.simpleString(), f.nullable, f.metadata) for f in ours] == [
            (f.name, f.dataType.simpleString(), f.nullable, f.metadata) for f in sparks
        ]


def test_a_state_shows_its_session_windows(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    def plan(df: Any) -> Any:
        marked = df.withWatermark("ts", "10 seconds")
        return grouped(marked, fixed(), "k", state=str(tmp_path / "state"), output_mode="append").count()

    history(feed, tmp_path, "ours", "append", plan, [RUNS[0][:1]])
    found = read_state(spark, tmp_path / "ours-checkpoint", tmp_path / "state").drop("partition_id")
    assert found.columns == ["key_1", "key_2", "key_3", "count(*)"]
    at = [NOON + dt.timedelta(seconds=seconds) for seconds in (1, 3, 4, 13, 14, 21)]
    found = {
        tuple(row)
        for row in found.selectExpr("key_1", "unix_micros(key_2)", "unix_micros(key_3)", "`count(*)`").collect()
    }
    micros = [int(time.timestamp() * 1_000_000) for time in at]
    assert found == {("a", micros[0], micros[5], 2), ("b", micros[1], micros[3], 1), (None, micros[2], micros[4], 1)}


def test_a_batch_frame_gives_all_session_windows(spark: Any, tmp_path: pathlib.Path) -> None:
    rows = [row for batches in RUNS for batch in batches for row in batch]
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1).withWatermark("ts", "1 second")
    for mode, keys in (("update", [fixed(), "k"]), ("append", ["k", fixed()]), ("complete", [fixed()])):
        ours = grouped(frame, *keys, state=str(tmp_path), output_mode=mode).agg(*counts(), *ordered())
        assert rows_of(ours.collect()) == rows_of(frame.groupBy(*keys).agg(*counts(), *ordered()).collect())


def test_what_spark_refuses_is_refused(feed: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    stream, state = feed(SCHEMA, RUNS[0][0]).stream(), str(tmp_path / "state")
    late = stream.withWatermark("ts", "1 second")
    with pytest.raises(fc.UnsupportedError, match=r"STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION.*'update'"):
        grouped(late, fixed(), "k", state=state).count()
    with pytest.raises(fc.UnsupportedError, match="Global aggregation with session window"):
        grouped(late, fixed(), state=state, output_mode="append").count()
    with pytest.raises(fc.InvalidArgumentError, match="no key carries a watermark"):
        grouped(stream, fixed(), "k", state=state, output_mode="append").count()
    with pytest.raises(Exception, match="Multiple time/session window expressions"):
        grouped(late, fixed(), F.window("ts", "1 minute"), state=state, output_mode="append").count()
    column = stream.withColumn("s", fixed()).withColumn("w", F.window("ts", "1 minute"))
    with pytest.raises(fc.UnsupportedError, match="a session window beside another"):
        grouped(column, "s", F.window("ts", "1 minute"), "k", state=state, output_mode="complete").count()
    conf("spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition", "true")
    with pytest.raises(fc.UnsupportedError, match="lets late rows count"):
        grouped(late, fixed(), "k", state=state, output_mode="append").count()


@pytest.mark.parametrize("store", ["hdfs", "rocksdb", pytest.param("rocksdb by Spark", marks=needs("own checkpoints"))])
def test_open_session_windows_of_a_spark_query_go_on(
    feed: Any, tmp_path: pathlib.Path, conf: Any, request: pytest.FixtureRequest, store: str
) -> None:
    if store.endswith(" by Spark"):
        request.getfixturevalue("only_spark_reads")
    first, later = RUNS[0], [[row("a", 33, 9), row("b", 50, 10)], [row("b", 90, 11)]]
    keys = ["k", F.session_window("ts", F.col("gap"))]

    def marked(df: Any) -> Any:
        return df.withWatermark("ts", "10 seconds")

    def sparks(df: Any) -> Any:
        return marked(df).groupBy(*keys).agg(*counts(), *ordered())

    def ours(df: Any) -> Any:
        windows = grouped(marked(df), *keys, state=str(tmp_path / "state"), output_mode="append")
        old = fc.spark.import_state(tmp_path / "moved-checkpoint")
        return windows.agg(*counts(), *ordered(), initial_state=old)

    if store == "hdfs":
        conf(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
        conf(FORMAT, "1")
    before = history(feed, tmp_path, "moved", "append", sparks, [first])
    stayed = rows_by_batch(history(feed, tmp_path, "stayed", "append", sparks, [first, later]))
    for name, value in REQUIRED.items():
        conf(name, value)
    newest = max(progress.batchId for progress in before[-1].progress)
    expected = [rows for number, rows in sorted(stayed.items()) if number > newest]
    moved = rows_by_batch(history(feed, tmp_path, "ours", "append", ours, [later]))
    assert [rows for _, rows in sorted(moved.items())] == expected
    assert expected
    with pytest.raises(fc.SchemaMismatchError, match="has session windows, other than the query"):
        other = grouped(marked(feed(SCHEMA).stream()), "k", F.window("ts", "1 minute"), state=str(tmp_path / "other"))
        other.agg(*counts(), *ordered(), initial_state=fc.spark.import_state(tmp_path / "moved-checkpoint"))


def test_open_windows_of_a_savepoint_go_on(feed: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    """Over five shards, not two."""
    first, later = RUNS[0], [[row("a", 33, 9), row("b", 50, 10)], [row("b", 90, 11)]]
    keys, state, saved = ["k", F.session_window("ts", F.col("gap"))], str(tmp_path / "state"), str(tmp_path / "saved")

    def sparks(df: Any) -> Any:
        return df.withWatermark("ts", "10 seconds").groupBy(*keys).agg(*counts(), *ordered())

    def ours(df: Any, **start: Any) -> Any:
        windows = grouped(df.withWatermark("ts", "10 seconds"), *keys, state=state, output_mode="append", **start)
        return windows.agg(*counts(), *ordered())

    ran = history(feed, tmp_path, "left", "append", ours, [first])
    assert main(["savepoint", str(tmp_path / "left-checkpoint"), "--state", state, "--to", saved]) == 0
    assert main(["verify", saved]) == 0
    stayed = rows_by_batch(history(feed, tmp_path, "stayed", "append", sparks, [first, later]))
    newest = max(progress.batchId for progress in ran[-1].progress)
    expected = [rows for number, rows in sorted(stayed.items()) if number > newest]
    conf("spark.sql.shuffle.partitions", "5")
    moved = history(feed, tmp_path, "moved", "append", lambda df: ours(df, start_from=saved), [later])
    assert [rows for _, rows in sorted(rows_by_batch(moved).items())] == expected
    assert expected
