"""Every documented metric moves, and reaches its readers: `metrics()`, the server's client, the text endpoint.

Owns: one case for each row of the table of metrics. Does not own: the exact values (the tests of each part).

Most metrics move in a scenario of this file. The others need a store or a disk that misbehaves in a way only the Rust
tests can arrange: `ELSEWHERE` names the test that asserts each of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.metrics import OF_AGGREGATION, of_processor
from support.metrics_endpoint import free_port, parsed, scrape
from support.server_jobs import Job, job, rows
from support.waiting import BOUND, until

__all__ = ["job"]

ROOT = Path(__file__).parent.parent
TABLE = {name: (kind, operators, meaning) for name, kind, operators, meaning in _internal.metrics_table()}
ENGINE = {name for name, (kind, _, _) in TABLE.items() if kind in ("counter", "gauge", "histogram")}


class Watch:
    """The metrics that were above zero at any look, from another thread too."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read
        self._ended = threading.Event()
        self.seen: set[str] = set()

    def look(self) -> set[str]:
        self.seen |= {name for name, value in self._read().items() if value > 0}
        return self.seen

    def __enter__(self) -> Watch:
        def watch() -> None:
            while not self._ended.is_set():
                self.look()

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(BOUND)
        self.look()

    def moved(self) -> set[str]:
        return {name for name in ENGINE if name in self.seen or f"{name}_max" in self.seen}


def served(job: Callable[..., Job], _: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A state server: batches, an abort, a spill, materializations, a restore."""
    one = job(
        materialization_log_bytes="1",
        materialization_interval="1s",
        materialization_max_failures="5",
        session_memory="256KiB",
        background_bandwidth="64KiB",
    )
    names = random.Random(7)
    one.run(rows(0))
    client = _internal.ServerClient(str(one.place.socket))
    with Watch(lambda: json.loads(client.metrics())) as watch:
        with one.open() as session:
            session.merge(one.payloads(rows(7))[0])
        client2 = _internal.ServerClient(str(one.place.socket))
        client2.set_failpoints("materialize.push=error@1;write.before-upload=sleep(50)")
        for batch in range(3):
            one.run([(f"{names.getrandbits(60)}", batch) for _ in range(30_000)])
        until("a materialization fails", lambda: "materializations_failed" in watch.seen, BOUND)
        for batch in range(3):
            one.run(rows(batch))
        until("materializations complete", lambda: fc.metrics()["materializations_completed"] >= 2, BOUND)
        one.run(rows(1))
    moved = watch.moved()
    one.kill()
    one.run(rows(2))
    client = _internal.ServerClient(str(one.place.socket))
    last = Watch(lambda: json.loads(client.metrics()))
    last.look()
    return moved | last.moved()


def embedded(_: Callable[..., Job], folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """An embedded state: checkpoints, and lookups before what they left is in the hot tier."""
    monkeypatch.setenv("FASTCHANGELOG_FAILPOINTS", "warm.portion=sleep(2000)")
    moved = set()
    options = {"memory_budget": "64MiB", "restore": "lazy", "materialization_log_bytes": "1"}
    for turn in range(3):
        state = fc.open_state(str(folder / "state"), options=options)
        with state, Watch(state.metrics) as watch:
            table = state.value_state("t", key="long", value="long")
            assert table.get_many([7 * turn]) is not None
            table.put_many(list(range(100_000)), list(range(turn, 100_000 + turn)))
            watch.look()
            state.checkpoint()
            until("a snapshot", lambda state=state: state.metrics()["materializations_completed"] > 0, BOUND)
            assert table[5] == 5 + turn
            state.checkpoint()
        moved |= watch.moved()
    return moved


def changelog(_: Callable[..., Job], folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A changelog storage: slow uploads, a request that is repeated, a deletion, a reader."""
    monkeypatch.setenv("FASTCHANGELOG_FAILPOINTS", "write.before-upload=sleep(100);store.before-put=error@2")
    options = {
        "preemptive_persist_threshold": "1KiB",
        "persist_size_threshold": "4KiB",
        "persist_delay": "200ms",
        "max_in_flight": "8KiB",
        "upload_threads": "1",
    }
    storage = fc.ChangelogStorage(str(folder / "log"), options=options)
    with Watch(storage.metrics) as watch:
        writer = storage.writer("w", key_groups=range(4))
        for _ in range(40):
            writer.append(1, b"x" * 1000)
        handle = writer.persist(0, 1).result(BOUND)
        assert sum(1 for _ in storage.reader().read(handle)) == 40
        end = writer.next_sequence_number
        writer.confirm(0, end, checkpoint_id=1)
        writer.truncate(end)
        writer.subsume(1)
        until("a deletion", lambda: storage.metrics()["discards"] > 0, BOUND)
    return watch.moved()


Scenario = Callable[[Callable[..., Job], Path, pytest.MonkeyPatch], set[str]]
SCENARIOS: list[Scenario] = [served, embedded, changelog]

MOVED_BY_A_BATCH = {"open_micros", "finish_micros", "commit_micros"}
#: What only a worker with a stateful processor reports; tests/spark/test_processor_time.py has them.
MOVED_BY_A_PROCESSOR = {"input_rows", "late_rows", "worker_spilled_bytes"}
MOVED_BY_A_SHARD = {
    "shard_keys",
    "shard_bytes",
    "shard_hot_bytes",
    "shard_log_bytes",
    "shard_segments",
    "shard_sessions",
}

#: The scenario that moves each metric.
CASES: dict[str, Scenario] = {}
CASES |= dict.fromkeys(
    [
        "change_sets",
        "combine_micros",
        "encode_micros",
        "hot_bytes",
        "hot_hits",
        "in_flight_bytes",
        "keys_updated",
        "log_bytes",
        "log_objects",
        "materializations_completed",
        "materializations_failed",
        "materializations_started",
        "materialize_bytes",
        "materialize_micros",
        "materialize_pause_micros",
        "materialize_sync_micros",
        "memory_block_cache",
        "memory_budget",
        "memory_counted",
        "memory_hot",
        "memory_log",
        "memory_prepared",
        "memory_sessions",
        "memory_table_readers",
        "memory_write_buffers",
        "merge_micros",
        "open_folders",
        "persist_micros",
        "promote_micros",
        "promotions",
        "replay_bytes",
        "replay_micros",
        "request_attempts",
        "restore_bytes",
        "restore_micros",
        "restores",
        "result_micros",
        "rocksdb_writes",
        "rows_merged",
        "server_connections",
        "server_sessions",
        "sessions",
        "sessions_aborted",
        "spilled_bytes",
        "spills",
        "state_bytes",
        "state_keys",
        "store_bytes_read",
        "store_bytes_written",
        "store_micros",
        "store_requests",
        "upload_bytes",
        "upload_micros",
        "upload_sets",
        "uploads_active",
    ],
    served,
)
CASES |= dict.fromkeys(
    ["checkpoint_micros", "checkpoints", "hot_misses", "rocksdb_reads", "uncheckpointed_bytes"], embedded
)
CASES |= dict.fromkeys(
    [
        "changes_read",
        "discards",
        "discards_pending",
        "read_micros",
        "sets_read",
        "store_retries",
        "throttled_appends",
        "throttled_micros",
    ],
    changelog,
)

_RUST_TESTS = {
    ("log/src/write/attempt_tests.rs", "m07_sets_that_wait_are_counted"): "upload_queue_size",
    ("store/src/background.rs", "invariant_4_background_work_rests_during_foreground_work"): "background_rests_micros",
    ("store/src/background.rs", "invariant_3_waits_are_as_long_as_the_bytes_before_take"): "background_waits_micros",
    ("log/src/read/cache_tests.rs", "a15_the_least_recently_used_goes_and_a_leased_file_never"): "cache_bytes",
    ("log/src/read/cache_tests.rs", "l05_l06_copies_survive_a_restart_and_are_verified"): "cache_damaged",
    ("log/src/read/cache_tests.rs", "x19_unused_downloads_are_removed_after_the_idle_timeout"): "cache_evictions",
    ("log/src/read/cache_tests.rs", "a15_x19_sixty_four_threads_one_download"): "cache_hits cache_misses",
    ("state/src/checkpoint_tests.rs", "invariant_2_refused_links_make_a_copy_of_the_same_state"): "checkpoints_copied",
    ("changelog/src/ownership_tests.rs", "a_failed_deletion_is_counted_and_nothing_more"): "discard_failures",
    ("log/src/write/wave_tests.rs", "invariant_3_a_task_that_stalls_is_waited_for_once"): "wave_timeouts",
    ("store/src/hedge_tests.rs", "a12_x14_a_store_that_turns_slow_is_sent_a_tenth_more_at_most"): "hedge_bytes",
    (
        "log/src/write/attempt_tests.rs",
        "a12_x14_sets_of_a_doubled_upload_name_the_winner",
    ): "hedges_started hedges_won",
    ("state/src/keyed_tests.rs", "a_fresh_state_never_asks_the_disk_until_something_is_evicted"): "hot_evictions",
    (
        "log/src/snapshot/push_tests.rs",
        "small_tables_share_an_object_while_it_pays",
    ): "materialize_packed_files",
    ("log/src/snapshot/push_tests.rs", "only_new_tables_are_uploaded"): "materialize_reused_bytes",
    ("core/src/shard/gauges.rs", "every_part_of_the_budget_has_its_gauge"): "memory_downloads memory_uploads",
    ("log/src/write/write_tests.rs", "b09_p7_bytes_in_flight_are_bounded"): "persist_waits",
    (
        "core/src/shard/restore_tests.rs",
        "a_restore_under_way_is_seen_in_the_metrics",
    ): "restore_pending_bytes restores_running",
    (
        "core/src/shard/state_session/sweep_tests.rs",
        "counters_of_a_session_reach_the_process_with_its_commit",
    ): "changes due_timers entries_ended write_micros",
    ("changelog/src/references_tests.rs", "p7_what_is_held_is_bounded_and_counted"): "referenced_bytes",
    ("store/src/store_tests.rs", "a_put_that_is_given_up_leaves_nothing"): "store_failures",
    ("log/src/write/attempt_tests.rs", "r02_attempts_end_at_their_limit"): "upload_failures",
    (
        "store/src/metrics.rs",
        "background_sweeps_are_counted",
    ): "sweeps sweeps_in_doubt sweep_deleted sweep_deleted_bytes sweep_waiting sweep_requests",
}
#: The file and the Rust test that asserts each of the others.
ELSEWHERE = {name: where for where, names in _RUST_TESTS.items() for name in names.split()}


def series_of(name: str) -> str:
    kind = TABLE[name][0]
    return f"fastchangelog_{name}" + {"counter": "_total", "histogram": "_count"}.get(kind, "")


def program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: its metrics begin at zero, and it may have an endpoint."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        capture_output=True,
        text=True,
        timeout=BOUND * 2,
        check=False,
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_metrics_move(
    scenario: Scenario, job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = scenario(job, tmp_path, monkeypatch)
    wanted = {name for name, where in CASES.items() if where is scenario}
    assert wanted - moved == set()


def test_every_metric_has_a_case() -> None:
    assert set(CASES) | set(ELSEWHERE) == ENGINE, "a new metric needs a case here; an old one is gone"
    assert not set(CASES) & set(ELSEWHERE)
    assert {name for name, (kind, _, _) in TABLE.items() if kind == "batch"} == {
        "late_groups",
        "base_groups",
        "shards",
        *MOVED_BY_A_BATCH,
        *MOVED_BY_A_PROCESSOR,
    }
    assert {name for name, (kind, _, _) in TABLE.items() if kind == "shard"} == MOVED_BY_A_SHARD


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_the_case_of_a_metric_that_is_elsewhere(name: str) -> None:
    """The test exists and looks at the metric."""
    path, test = ELSEWHERE[name]
    source = (ROOT / "rust" / path).read_text()
    found = re.search(rf"^( *)(?:async )?fn {test}\(.*?^\1}}$", source, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{path} has no test {test}"
    assert re.search(rf"\bmetrics(?:\(\))?\.{name}\.get\(\)", found[0]), f"{path}::{test} does not look at {name}"


def test_meanings_are_sentences_and_names_are_unique() -> None:
    assert len(TABLE) == len(_internal.metrics_table())
    for name, (_, _, meaning) in TABLE.items():
        assert re.fullmatch(r"[A-Z].*\.", meaning), name


def test_a_batch_reports_its_metrics(job: Callable[..., Job]) -> None:
    one = job()
    numbers = one.run(rows(0))
    assert all(numbers[name] > 0 for name in ("open_micros", "rows_merged", "keys_updated", "state_keys", "log_bytes"))
    assert numbers["store_requests"] > 0
    # The operator measures these, and `shards` is 1 for each of its reports.
    others = {"shards", "finish_micros", "commit_micros", "spilled_bytes", "restores"}
    of_event_time = {"late_groups", "base_groups"}
    of_others = {name for name in ENGINE if TABLE[name][1] != "none"}
    assert set(OF_AGGREGATION.names) - set(numbers) <= others | of_event_time | of_others


def test_a_batch_reports_the_metrics_of_its_kind_of_operator() -> None:
    of_both = {name for name, (_, operators, _) in TABLE.items() if operators == "all"}
    assert {"shards", "commit_micros", "state_keys"} <= of_both
    assert set(OF_AGGREGATION.names) - of_both == {"rows_merged", "late_groups", "base_groups"}
    assert set(of_processor().names) - of_both == MOVED_BY_A_PROCESSOR | {
        "changes",
        "write_micros",
        "due_timers",
    }
    assert of_processor(["mine"]).names == (*of_processor().names, "mine")
    assert of_processor(["mine"]).row({"mine": 3, "shards": 1})[-1] == 3


def test_metrics_have_all_engines_also_closed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))  # the state server of another test is not of this process
    outcome = program(
        """
        import sys, fastchangelog as fc
        assert fc.metrics()["checkpoints"] == 0
        states = [fc.open_state(f"{sys.argv[1]}/{n}") for n in range(2)]
        for st in states:
            st.value_state("t", key="long", value="long")[1] = 1
            st.checkpoint()
        storage = fc.ChangelogStorage(sys.argv[1] + "/log")
        writer = storage.writer("w", key_groups=range(4))
        writer.append(1, b"x")
        writer.persist(0, 1).result(60)
        found = fc.metrics()
        own = [st.metrics() for st in states] + [storage.metrics()]
        for name in ("checkpoints", "log_objects", "state_keys", "upload_bytes_count", "memory_budget"):
            assert found[name] == sum(of[name] for of in own) > 0, name
        assert found["upload_bytes_max"] == max(of["upload_bytes_max"] for of in own)
        for st in states:
            st.close()
        del storage, writer
        after = fc.metrics()
        for name in ("checkpoints", "log_objects", "upload_bytes_count"):
            assert after[name] >= found[name], name
        assert (after["state_keys"], after["memory_budget"]) == (0, 0)
        """,
        str(tmp_path),
    )
    assert outcome.returncode == 0, outcome.stderr


def test_the_endpoint_of_a_process(tmp_path: Path) -> None:
    port = free_port()
    with fc.open_state(str(tmp_path), name='a "state"', options={"metrics_port": port}) as state:
        state.value_state("t", key="long", value="long").put_many([1, 2], [1, 2])
        state.checkpoint()
        found = parsed(scrape(port))
        assert {series_of(name) for name in ENGINE} <= set(found)
        assert found["fastchangelog_checkpoints_total"] >= 1
        assert found['fastchangelog_shard_keys{query="",operator="a \\"state\\"",shard="0"}'] == 2
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=BOUND)
        with pytest.raises(InvalidArgumentError, match=f"already has its metrics at port {port}.*`metrics_port`"):
            fc.ChangelogStorage(str(tmp_path / "log"), options={"metrics_port": free_port()})
        fc.ChangelogStorage(str(tmp_path / "log"), options={"metrics_port": port})
    assert "shard_keys{" not in scrape(port), "of a closed state only the counters are left"
    assert parsed(scrape(port))["fastchangelog_checkpoints_total"] >= 1


def test_a_port_in_use_is_an_error_of_the_option(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = program(
            """
            import sys, fastchangelog as fc
            try:
                fc.open_state(sys.argv[1], options={"metrics_port": int(sys.argv[2])})
            except fc.InvalidArgumentError as error:
                print(error)
            """,
            str(tmp_path),
            str(taken.getsockname()[1]),
        )
    assert "`metrics_port`" in outcome.stdout, outcome.stderr
    with pytest.raises(InvalidArgumentError, match="65535"):
        fc.open_state(str(tmp_path), options={"metrics_port": 70_000})


def test_the_endpoint_of_a_state_server_and_its_labels(job: Callable[..., Job]) -> None:
    port = free_port()
    one = job(metrics_port=str(port))
    one.run(rows(0))
    with one.open() as session:
        session.merge(one.payloads(rows(7))[0])
        found = parsed(scrape(port))
    assert {series_of(name) for name in ENGINE} <= set(found)
    assert (found["fastchangelog_server_sessions_total"], found["fastchangelog_state_keys"]) == (2, 200)
    labels = '{query="query",operator="default",shard="0"}'
    assert all(found[f"fastchangelog_{name}{labels}"] > 0 for name in MOVED_BY_A_SHARD)


def test_a_state_server_works_without_a_port_that_is_taken(job: Callable[..., Job]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        one = job(metrics_port=str(taken.getsockname()[1]))
        one.run(rows(0))
    assert "`metrics_port`" in one.place.log.read_text()


def test_readers_that_say_nothing_delay_no_session(job: Callable[..., Job]) -> None:
    port = free_port()
    one = job(metrics_port=str(port))
    one.run(rows(0))
    with contextlib.ExitStack() as silent:
        for _ in range(20):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        one.run(rows(1))
    assert parsed(scrape(port))["fastchangelog_sessions_total"] == 2


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    known = {series_of(name) for name in TABLE if TABLE[name][0] != "batch"} | {
        f"fastchangelog_{name}" for name in TABLE
    }
    asked = [
        set(re.findall(r"fastchangelog_\w+", target["expr"])) for p in dashboard["panels"] for target in p["targets"]
    ]
    assert all(names for names in asked)
    assert set().union(*asked) <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_example_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    code, wanted = example.rstrip("\n").rsplit("\n# ", 1)
    port = free_port()
    outcome = program(code.replace("9465", str(port)))
    assert outcome.stdout.strip() == wanted, outcome.stderr
