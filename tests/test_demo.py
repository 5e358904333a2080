"""The demo's parts that need no Spark: what is compared, what is generated, which processes are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastchangelog.demo import data, processes, report
from fastchangelog.demo.compare import compare, expected, final_state
from fastchangelog.demo.conduct import Batch, Kill, plan_kills
from fastchangelog.demo.plan import Agg, Job, Prepare, Query, parse_agg
from fastchangelog.errors import FastChangelogError, InvalidArgumentError

AGGS = (Agg("count", "*"), Agg("sum", "v"), Agg("avg", "v"))


def query(kind: str = "ours", batches: int = 8) -> Query:
    return Query("q", kind, "in", ("k",), AGGS, batches, "ckpt", "out", "state")


def write_batch(folder: Path, number: int, table: pa.Table) -> None:
    target = folder / f"batch={number:06d}"
    target.mkdir(parents=True)
    pq.write_table(table, target / "part-0.parquet")


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    for job in (Job((query(), query("native")), "events", 2, Prepare("src", "csv", "want")), Job((), "e", 2)):
        job.write(tmp_path / "job")
        assert Job.read(tmp_path / "job") == job


@pytest.mark.parametrize("text", ["sum", "sum()", "sum(*)", "median(v)", "sum(v) + 1"])
def test_an_aggregate_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--agg"):
        parse_agg(text)


def test_the_last_row_of_each_key_is_the_state(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, pa.table({"k": ["a", None], "rows": [1, 1], "sum_v": pa.array([5, None], pa.int64())}))
    write_batch(tmp_path, 1, pa.table({"k": ["a"], "rows": [2], "sum_v": pa.array([None], pa.int64())}))
    got, twice = final_state(tmp_path, ("k",))
    assert twice == 0
    assert sorted(got.to_pylist(), key=str) == [
        {"k": "a", "rows": 2, "sum_v": None},
        {"k": None, "rows": 1, "sum_v": None},
    ]


def test_null_is_a_key_and_equal_to_itself() -> None:
    table = pa.table({"k": ["a", None, None], "v": [1, 2, 3]})
    want = expected(table, ("k",), AGGS)
    verdict = compare(want.take([1, 0]), want, ("k",))
    assert verdict.exact
    assert verdict.rows == 2
    assert {r["k"]: r["sum_v"] for r in want.to_pylist()} == {"a": 1, None: 5}


def test_what_differs_is_counted_and_shown() -> None:
    want = pa.table({"k": ["a", "b", "c"], "n": [1, 2, 3]})
    verdict = compare(pa.table({"k": ["a", "b", "d"], "n": [1, 7, 3]}), want, ("k",))
    assert verdict.wrong == 3
    assert any("('b',): (7,) instead of (2,)" in e for e in verdict.examples)
    assert not compare(pa.table({}), want, ("k",)).exact


def test_a_key_twice_in_one_batch_is_not_exact(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, pa.table({"k": ["a", "a"], "n": [1, 1]}))
    got, twice = final_state(tmp_path, ("k",))
    assert not compare(got, pa.table({"k": ["a"], "n": [1]}), ("k",), twice).exact


def test_floats_may_differ_by_the_order_of_addition_only() -> None:
    want = pa.table({"k": ["a"], "s": [0.1 + 0.2]})
    assert compare(pa.table({"k": ["a"], "s": [0.3]}), want, ("k",)).exact
    assert not compare(pa.table({"k": ["a"], "s": [0.3001]}), want, ("k",)).exact


def test_the_auction_follows_its_seed_and_opens_every_auction() -> None:
    first = pa.concat_tables(data.auction(7, keys=5_000, batches=8, rows=1_500))
    second = pa.concat_tables(data.auction(7, keys=5_000, batches=8, rows=1_500))
    assert first.equals(second)
    assert len(first["auction"].unique()) == 5_000
    assert not first.equals(pa.concat_tables(data.auction(8, keys=5_000, batches=8, rows=1_500)))


def test_a_stream_is_two_files_a_batch_in_order_of_time(tmp_path: Path) -> None:
    table = pa.table({"v": list(range(10))})
    whole, batches = data.write_stream(data.in_slices(table, 3), tmp_path)
    files = sorted(tmp_path.glob("*.parquet"), key=lambda p: p.stat().st_mtime)
    assert batches == 3
    assert len(files) == 6
    assert pa.concat_tables([pq.ParquetFile(f).read() for f in files]).equals(whole)
    assert whole.equals(table)


def test_a_folder_of_the_user_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(FastChangelogError, match="is not a folder"):
        data.format_of(tmp_path / "nothing")
    with pytest.raises(FastChangelogError, match="holds no"):
        data.format_of(tmp_path)
    (tmp_path / "a.csv").touch()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "b.csv.gz").touch()
    assert data.format_of(tmp_path) == ("csv", 2)
    (tmp_path / "c.parquet").touch()
    with pytest.raises(FastChangelogError, match="several kinds"):
        data.format_of(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_kills_hit_different_batches_and_repeat_with_the_seed(seed: int) -> None:
    queries = (query("ours"), query("native"))
    kills = plan_kills(queries, random.Random(seed))
    assert kills == plan_kills(queries, random.Random(seed))
    ours = [k for k in kills if k.query == "q-ours"]
    assert {k.victim for k in ours} == {"worker", "state server", "JVM"}
    assert [k.victim for k in kills if k.query == "q-native"] == ["JVM"]
    assert len({k.batch for k in ours}) == 3
    assert all(1 <= k.batch <= 6 for k in kills)


def test_only_marked_processes_are_found_and_all_of_them_end() -> None:
    run = f"test-{random.SystemRandom().randrange(1 << 60)}"
    # The second one detaches itself from the first, as a state server does. It speaks when it has its environment.
    wait = "import time; print('ready', flush=True); time.sleep(600)"
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {wait!r}], start_new_session=True)"
    script += "; time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", script], env={processes.MARK: run}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    assert len(processes.marked(run)) == 2
    assert processes.end_all(run) == 0
    assert processes.marked(run) == []


def test_lines_for_people() -> None:
    ours = query()
    batches = [Batch(ours.id, i, 10, 100 + i, _metrics(1000 * i), i == 0) for i in range(5)]
    assert "ours 102 ms of 4" in report.batch_line(batches, ours, None)
    assert "p50 1 ms, p99 2 ms" in report.checkpoint_line(batches, ours)
    kill = Kill(ours.id, 2, "worker", 0.5, pid=42, at=1.0, recovered=1.25)
    assert "kill -9 worker 42 in batch 3: next batch done after 1.2 s" in report.kill_lines([kill], ours)[0]


def _metrics(micros: int) -> dict[str, int]:
    return {"shards": 2, "commit_micros": micros, "log_bytes": 10, "store_requests": 1}
