"""Sessions through a real server process and the real engine: exact results, whatever dies in between."""

from __future__ import annotations

import contextlib
import json
import random
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastchangelog import _internal, server
from fastchangelog.errors import ClosedError, FastChangelogError, RetryableError, StoreError
from support.server_jobs import Job, job, rows
from support.waiting import until

#: Fixtures of this module, too.
__all__ = ["job"]


def test_batches_add_up_and_each_has_a_line_in_the_log(job: Callable[..., Job]) -> None:
    one = job()
    for batch in range(4):
        numbers = one.run(rows(batch), persist=batch % 2 == 0)
        assert numbers["result_rows"] == 200
    lines = [json.loads(line) for line in one.place.log.read_text().splitlines()]
    sessions = [line for line in lines if line["event"] == "session"]
    assert [(line["batch"], line["outcome"]) for line in sessions] == [(n, "committed") for n in range(4)]
    assert one.metrics()["sessions"] == 4


@pytest.mark.case("P3")
def test_a_killed_server_costs_time_only(job: Callable[..., Job]) -> None:
    one = job()
    for batch in range(4):
        one.run(rows(batch))
        one.kill()
    one.run(rows(4))


def test_a_server_killed_in_a_session_fails_one_attempt(job: Callable[..., Job]) -> None:
    one = job()
    one.run(rows(0))
    session = one.open()
    session.merge(one.payloads(rows(1))[0])
    one.kill()
    with pytest.raises(RetryableError, match=r"server\.log"):
        session.finish()
    session.close()
    one.run(rows(1))


def test_an_abandoned_session_leaves_nothing(job: Callable[..., Job]) -> None:
    one = job()
    one.run(rows(0))
    with one.open() as session:
        session.merge(one.payloads(rows(7))[0])
    with one.open() as session:
        session.merge(one.payloads(rows(8))[0])
        session.finish(persist=False)
    with pytest.raises(ClosedError):
        session.commit()
    one.run(rows(1))


def test_a_batch_without_rows(job: Callable[..., Job]) -> None:
    one = job()
    one.run(rows(0))
    one.run([])
    one.run(rows(1))


@pytest.mark.case("N-08")
def test_materialization_follows_the_policy_of_the_query(job: Callable[..., Job]) -> None:
    one = job(materialization_log_bytes="1")
    one.run(rows(0))
    one.run(rows(1))
    until("a materialization completes", lambda: one.metrics()["materializations_completed"] >= 1)
    one.run(rows(2))
    one.run(rows(3))
    one.kill()
    one.run(rows(4))
    assert one.metrics()["restores"] >= 1


@pytest.mark.case("E-04")
def test_an_allowed_failure_of_materialization_is_harmless(job: Callable[..., Job]) -> None:
    one = job(materialization_log_bytes="1", materialization_max_failures="1", materialization_interval="1s")
    one.run(rows(0))
    client = _internal.ServerClient(str(one.place.socket))
    client.set_failpoints("materialize.push=error@1")
    one.run(rows(1))
    until("a run fails", lambda: one.metrics()["materializations_failed"] >= 1)
    one.run(rows(2))
    until("a later base appears", lambda: one.metrics()["materializations_completed"] >= 1)
    one.run(rows(3))
    one.kill()
    one.run(rows(4))


def test_failures_of_materialization_fail_the_job_until_it_heals(job: Callable[..., Job]) -> None:
    one = job(materialization_log_bytes="1", materialization_max_failures="0", materialization_interval="1s")
    one.run(rows(0))
    client = _internal.ServerClient(str(one.place.socket))
    client.set_failpoints("materialize.begin=error")
    one.run(rows(1))

    def refused() -> bool:
        try:
            one.open().close()
        except StoreError as error:
            return "`max_failures` = 0" in str(error)
        return False

    until("the job fails", refused)
    client.set_failpoints("")
    until("the healed shard opens again", lambda: not refused())
    one.run(rows(2))


@contextlib.contextmanager
def a_disk_without_room_for_more_than(size: int) -> Iterator[None]:
    """As far as a test can have it: processes started now can write no file larger than `size`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.case("P3")
def test_a_full_local_disk_costs_time_and_nothing_else(job: Callable[..., Job]) -> None:
    one = job(materialization_log_bytes="400KiB")
    names = random.Random(7)
    with a_disk_without_room_for_more_than(256 << 10):  # enough for a log object, not for RocksDB's flush
        for batch in range(20):
            one.run([(f"{names.getrandbits(60)}", batch) for _ in range(2_000)])
        until("a materialization fails", lambda: one.metrics()["materializations_failed"] >= 1)
        one.run(rows(0))
    assert "File too large" in one.place.log.read_text()
    one.kill()  # the next server has memory again
    one.run(rows(1))
    until("a materialization completes", lambda: one.metrics()["materializations_completed"] >= 1)
    one.run(rows(2))


def test_failpoints_from_the_environment_reach_the_server(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTCHANGELOG_FAILPOINTS", "materialize.begin=explode")
    with pytest.raises(FastChangelogError, match="failpoint"):
        job().run(rows(0))


def test_large_payloads_and_results_travel_in_pieces(job: Callable[..., Job]) -> None:
    one = job(result_batch_rows="1000")
    many = [(f"key-{i:06}", i) for i in range(60_000)]
    assert one.run(many)["result_rows"] == 60_000
    one.run(many[:1000])


def test_what_is_no_request_is_refused(job: Callable[..., Job]) -> None:
    one = job()
    server.ensure_server(one.options)
    for text in ("", "{}", '{"root": 1}'):
        with pytest.raises(FastChangelogError) as caught:
            _internal.SessionClient(str(one.place.socket), text)
        assert "\n" not in str(caught.value)


def test_a_corrupt_handle_is_reported(job: Callable[..., Job]) -> None:
    one = job()
    one.run(rows(0))
    broken: Any = "A" + (one.handle or "")[1:]
    with pytest.raises(FastChangelogError, match="handle"):
        one.open(broken)
