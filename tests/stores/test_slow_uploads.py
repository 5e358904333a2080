"""Uploads that take long: one request that hangs among many that don't, and objects that are large.

Owns: second attempts beside slow ones, multipart uploads, and that neither leaves anything.
Does not own: faults of small, quick requests (`test_store_faults`).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from fastchangelog.errors import ClosedError, RetryableError
from support.stores.fault_proxy import FaultProxy
from support.stores.faults import DELETE, MULTIPART, PUT, Fault, Hold, Refuse, Request, ResetAfter, ResetBefore
from support.stores.logs import BOUND, append, expected, open_log, random_values, read_log, write_log
from support.stores.places import S3Place
from support.waiting import until

VALUES = random_values(10, 1000)
ENOUGH = 20
"""Uploads after which the usual time is known."""

# No attempt ends by its time limit here: without a second one these tests would not end.
PATIENT = {"hedge_delay": "20ms", "request_timeout": "1h"}

WHOLE = {"preemptive_persist_threshold": "64MiB", "persist_size_threshold": "64MiB", "max_in_flight": "256MiB"}
LARGE = 40 << 20


def _trained(storage: Any) -> list[Any]:
    """Handles of so many logs that the next slow upload gets a second attempt, and no earlier one."""
    handles = [write_log(storage, VALUES) for _ in range(ENOUGH)]
    assert storage.metrics()["hedges_started"] == 0
    return handles


def test_one_hanging_request_among_many_delays_nothing(bucket: S3Place) -> None:
    with open_log(bucket, options=PATIENT) as storage:
        _trained(storage)
        before = set(bucket.names())
        held = Hold()
        bucket.proxy.script(held, on=PUT)
        handle = write_log(storage, VALUES)
        assert not held.gate.is_set(), "the first request still hangs"
        metrics = storage.metrics()
        assert (metrics["hedges_started"], metrics["hedges_won"]) == (1, 1)
        first, second = (bucket.name_of(put) for put in bucket.proxy.requests(PUT)[ENOUGH:])
        assert set(bucket.names()) - before == {second}
        assert read_log(storage, handle) == expected(VALUES)

        held.gate.set()  # now the first arrives after all
        until("the removal of what lost", lambda: storage.metrics()["discards_pending"] == 0, BOUND)
        assert bucket.proxy.statuses(PUT)[ENOUGH] == 200, "it was stored"
        [removal] = bucket.proxy.requests(DELETE)
        assert first.encode() in removal.body
        assert set(bucket.names()) - before == {second}
        assert read_log(storage, handle) == expected(VALUES)


@pytest.mark.parametrize("fault", [Refuse(503), ResetBefore(), ResetAfter()], ids=["503", "request", "answer"])
def test_a_second_attempt_that_fails_changes_nothing(bucket: S3Place, fault: Fault) -> None:
    with open_log(bucket, options=PATIENT) as storage, storage.writer("w", key_groups=range(128)) as writer:
        _trained(storage)
        held = Hold()
        bucket.proxy.script(held, fault, on=PUT)
        append(writer, VALUES)
        persist = writer.persist(writer.initial_sequence_number, checkpoint_id=1)
        until("the second attempt's end", lambda: storage.metrics()["store_failures"] == 1, BOUND)
        assert not persist.done(), "the first is waited for"
        held.gate.set()
        assert read_log(storage, persist.result(timeout=BOUND)) == expected(VALUES)
        assert storage.metrics()["hedges_won"] == 0
        assert len(bucket.names()) == ENOUGH + 1


def test_a_store_that_stays_slow_is_not_sent_everything_twice(bucket: S3Place) -> None:
    with open_log(bucket, options={"hedge_delay": "20ms"}) as storage:
        longest = 0.0
        for _ in range(ENOUGH):
            start = time.monotonic()
            write_log(storage, VALUES)
            longest = max(longest, time.monotonic() - start)
        # More than twice the usual, whatever this machine is busy with.
        bucket.proxy.latency = 0.05 + 2 * longest
        for _ in range(20):
            write_log(storage, VALUES)
        metrics = storage.metrics()
        assert metrics["hedges_started"] >= 1
        assert metrics["hedge_bytes"] * 10 <= metrics["log_bytes"]
        until("the removal of what lost", lambda: storage.metrics()["discards_pending"] == 0, BOUND)
        assert len(bucket.names()) == ENOUGH + 20
    sent = bucket.proxy.counts()[PUT]
    assert sent == ENOUGH + 20 + metrics["hedges_started"]
    assert sent * 10 <= (ENOUGH + 20) * 11


def test_second_attempts_can_be_switched_off(bucket: S3Place) -> None:
    with open_log(bucket, options={**PATIENT, "hedge_percentile": 0, "request_timeout": "300ms"}) as storage:
        _trained(storage)
        bucket.proxy.script(Hold(), on=PUT)
        write_log(storage, VALUES)
        assert storage.metrics()["hedges_started"] == 0
    assert len({put.path for put in bucket.proxy.requests(PUT)}) == ENOUGH + 1


def test_a_sweep_finds_an_upload_that_arrives_after_a_close(bucket: S3Place) -> None:
    held, also_held = Hold(), Hold()
    with open_log(bucket, options=PATIENT) as storage:
        handles = _trained(storage)
        bucket.proxy.script(held, also_held, on=PUT)
        writer = storage.writer("w", key_groups=range(128))
        append(writer, VALUES)
        persist = writer.persist(writer.initial_sequence_number, checkpoint_id=1)
        assert also_held.arrived.wait(BOUND)
        storage.close()
        with pytest.raises(ClosedError):
            persist.result(timeout=BOUND)
    assert len(bucket.proxy.requests(DELETE)) == 2, "both names are deleted, though nothing is there yet"
    held.gate.set()
    also_held.gate.set()
    until("the late requests", lambda: bucket.proxy.statuses(PUT)[ENOUGH:] == [200, 200], BOUND)
    with open_log(bucket) as storage:
        assert len(storage.sweep(handles, grace="0s", dry_run=False).deleted) == 2
    assert len(bucket.names()) == ENOUGH


def _part(number: int) -> Any:
    return lambda request: request.query.get("partNumber") == str(number)


def _completion(request: Request) -> bool:
    return request.method == "POST" and "uploadId" in request.query


def _large() -> list[bytes]:
    return random_values(4, LARGE // 4)


def _same(read: list[tuple[int, bytes]], values: list[bytes]) -> bool:
    # Not `read == …` in an assert: a difference of 40 MB would be printed.
    return read == expected(values)


def _parts_sent(proxy: FaultProxy) -> Counter[str]:
    return Counter(r.query["partNumber"] for r in proxy.requests(MULTIPART) if "partNumber" in r.query)


@pytest.mark.parametrize("fault", [ResetBefore(), ResetAfter(), Refuse(503)], ids=["request", "answer", "503"])
def test_a_broken_part_of_a_large_object_is_repeated_alone(bucket: S3Place, fault: Fault) -> None:
    values = _large()
    bucket.proxy.script(fault, on=MULTIPART, where=_part(2))
    with open_log(bucket, options=WHOLE) as storage:
        handle = write_log(storage, values)
        assert _same(read_log(storage, handle), values)
    assert bucket.proxy.counts()[PUT] == 0
    # Forty megabytes and a header, eight in each.
    assert _parts_sent(bucket.proxy) == {"1": 1, "2": 2, "3": 1, "4": 1, "5": 1, "6": 1}
    assert len(bucket.names()) == 1
    assert bucket.unfinished_uploads() == 0


def test_parts_have_the_size_of_the_option(bucket: S3Place) -> None:
    values = _large()
    with open_log(bucket, options={**WHOLE, "upload_part_size": "20MiB"}) as storage:
        assert _same(read_log(storage, write_log(storage, values)), values)
    assert len(_parts_sent(bucket.proxy)) == 3
    bucket.proxy.forget()
    with open_log(bucket, options={**WHOLE, "upload_part_size": "24MiB"}) as storage:
        assert _same(read_log(storage, write_log(storage, values)), values)
    assert bucket.proxy.counts()[PUT] == 1


def test_a_lost_answer_to_the_completion_is_looked_up(bucket: S3Place) -> None:
    values = _large()
    bucket.proxy.script(ResetAfter(), on=MULTIPART, where=_completion)
    with open_log(bucket, options=WHOLE) as storage:
        handle = write_log(storage, values)
        assert _same(read_log(storage, handle), values)
    assert len(bucket.names()) == 1
    assert bucket.unfinished_uploads() == 0


def test_a_large_object_that_cannot_be_written_leaves_no_parts(bucket: S3Place) -> None:
    bucket.proxy.always(ResetBefore(), on=MULTIPART, where=_part(3))
    with open_log(bucket, options={**WHOLE, "max_attempts": 2}) as storage, pytest.raises(RetryableError):
        write_log(storage, _large())
    assert bucket.names() == []
    assert bucket.unfinished_uploads() == 0


def test_a_large_object_whose_writer_closes_leaves_no_parts(bucket: S3Place) -> None:
    held = Hold()
    bucket.proxy.script(held, on=MULTIPART, where=_part(3))
    with open_log(bucket, options=WHOLE) as storage:
        writer = storage.writer("w", key_groups=range(128))
        append(writer, _large())
        persist = writer.persist(writer.initial_sequence_number, checkpoint_id=1)
        assert held.arrived.wait(BOUND)
        storage.close()
        with pytest.raises(ClosedError):
            persist.result(timeout=BOUND)
    assert bucket.names() == []
    assert bucket.unfinished_uploads() == 0
